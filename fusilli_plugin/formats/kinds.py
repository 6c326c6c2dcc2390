"""What a file is that a command gets, told by its content: a graph or a model, as it was written or as it was saved."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Final

from graph_api import GraphError

__all__ = ["Kind", "is_model", "is_saved_graph", "kind_of"]

_ZIP: Final = b"PK\x03\x04"
# The record that ends an archive; ours have no comment behind it. The code inside is an archive, too, and has one.
_ZIP_END: Final = b"PK\x05\x06"
_ZIP_END_SIZE: Final = 22
_ONNX: Final = 0x08  # tag of ModelProto.ir_version, which every writer puts first
_ONNX_NEXT: Final = frozenset({0x12, 0x1A, 0x22, 0x2A, 0x32, 0x3A, 0x42, 0x72, 0xA2, 0xCA})
_START: Final = 512  # bytes; a saved file's format is the first thing in it


class Kind(Enum):
    """What a file holds."""

    GRAPH = "graph"  # or something unknown: who reads it says what is wrong
    SAVED_GRAPH = "saved graph"
    MODEL = "model"
    SAVED_MODEL = "saved model"


def kind_of(path: Path) -> Kind:
    """What a file holds, by its content, else by its ending; standard input (``-``) has graphs only.

    Raises:
        GraphError: it begins as a saved file and lacks its end.
        OSError: it cannot be read.
    """
    if str(path) == "-":
        return Kind.GRAPH
    with path.open("rb") as file:
        start = file.read(_START)
        file.seek(max(file.seek(0, os.SEEK_END) - _ZIP_END_SIZE, 0))
        end = file.read()
    if start[:4] == _ZIP:
        kind = Kind.SAVED_GRAPH if is_saved_graph(start) else Kind.SAVED_MODEL
        if end[:4] != _ZIP_END:
            raise GraphError(f"{path} is damaged: it begins as a {kind.value}, but its end is missing; copy it again")
        return kind
    # ONNX: the version of the format in one byte, then another field of the message.
    is_onnx = len(start) > 3 and start[0] == _ONNX and start[1] < 0x80 and start[2] in _ONNX_NEXT
    return Kind.MODEL if is_onnx or path.suffix in (".onnx", ".mlir") else Kind.GRAPH


def is_saved_graph(data: bytes) -> bool:
    """Whether bytes begin as what ``fusilli compile`` makes of a graph."""
    return data[:4] == _ZIP and b'"fusilli-artifact"' in data[:_START]


def is_model(path: Path) -> bool:
    """Whether a file is a model, saved or not.

    Raises:
        GraphError, OSError: as `kind_of`.
    """
    return kind_of(path) in (Kind.MODEL, Kind.SAVED_MODEL)
