"""What no result may be written over: the files that it is made from."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fusilli_ground.files import path_of

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import TensorProto

__all__ = ["model_files", "overwritten"]

File = str | os.PathLike[str] | int


def overwritten(output: str | os.PathLike[str], inputs: Iterable[File]) -> File | None:
    """The first of the inputs that is the file ``output``, under whatever name; None if none is.

    A device or pipe may be both: nothing is lost by that.

    Args:
        output: where a result shall go.
        inputs: paths and descriptors of what is read; not looked at where ``output`` is no file yet.

    Raises:
        OptionError: ``output`` is no path.
    """
    try:
        there = os.stat(path_of(output))
    except OSError:
        return None
    if not stat.S_ISREG(there.st_mode):
        return None
    for each in inputs:
        with suppress(OSError, ValueError):  # it is not there, so it cannot be lost
            if os.path.samestat(there, os.stat(each)):
                return each
    return None


def model_files(path: Path) -> Iterator[Path]:
    """The file of a model, then those that hold the external data of an ONNX model; reads it only for the latter.

    Raises:
        ModelError: it is no ONNX model, damaged, or cannot be read.
    """
    yield path
    if path.suffix == ".mlir":
        return
    from hipdnn_backend.offload.frontend.reading import read
    from hipdnn_backend.offload.frontend.tensors import is_external

    model, _ = read(path)
    locations = (
        entry.value
        for tensor in _tensors(model)
        if is_external(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    )
    yield from (path.parent / location for location in dict.fromkeys(locations))


def _tensors(message: Message) -> Iterator[TensorProto]:
    """Every tensor in a message: in graphs, bodies, functions, attributes."""
    from google.protobuf.message import Message
    from onnx import TensorProto

    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in (value,) if isinstance(value, Message) else value:
            if isinstance(each, TensorProto):
                yield each
            else:
                yield from _tensors(each)
