"""Reads a graph from a file: the one place that tells the formats apart, by content."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from graph_api import Graph, GraphError, NotSupportedError

if TYPE_CHECKING:
    from hipdnn_backend.wire import WireGraph

__all__ = ["load_graph", "load_wire_graph", "parse_graph"]

# A graph of a thousand nodes is below 1 MiB of JSON; whatever is larger is no graph.
_MAX_BYTES = 64 << 20


def _is_json(data: bytes) -> bool:
    return data.lstrip()[:1] == b"{"


def _is_ours(data: bytes) -> bool:
    return _is_json(data) and b'"format"' in data and b'"fusilli-graph"' in data


def _is_wire(data: bytes) -> bool:
    """The offset of a FlatBuffer's root table lies inside the buffer and is a multiple of 4."""
    root = int.from_bytes(data[:4], "little")
    return len(data) >= 12 and root % 4 == 0 and 4 <= root < len(data)


def _from_hipdnn_json(data: bytes) -> Graph:
    from hipdnn_backend.wire.json import graph_from_json

    return _from_wire(lambda: graph_from_json(data))


def _from_hipdnn_bytes(data: bytes) -> Graph:
    from hipdnn_backend.wire import decode_graph

    return _from_wire(lambda: decode_graph(data))


def _from_wire(decode: Callable[[], WireGraph]) -> Graph:
    """The graph in one of hipDNN's own forms."""
    from fusilli_plugin.importers import Reading, import_graph
    from hipdnn_backend.errors import WireError
    from iree_bridge import Options

    try:
        return import_graph(decode(), Reading.of(Options.from_env()))
    except (WireError, NotSupportedError) as error:
        raise GraphError(str(error)) from error


# (name, is it this format, read it); the first that matches reads
_FORMATS: tuple[tuple[str, Callable[[bytes], bool], Callable[[bytes], Graph]], ...] = (
    ("JSON of Graph.to_json", _is_ours, Graph.from_json),
    ("JSON of hipDNN", _is_json, _from_hipdnn_json),
    ("bytes of hipDNN", _is_wire, _from_hipdnn_bytes),
)


def parse_graph(data: bytes, source: str) -> Graph:
    """The validated graph in ``data``; ``source`` names it in errors.

    Raises:
        GraphError: no known format, or a graph that breaks a rule.
    """
    data = data.removeprefix(codecs.BOM_UTF8)  # some editors write one
    for _name, matches, read in _FORMATS:
        if matches(data):
            try:
                return read(data)
            except GraphError as error:
                raise GraphError(f"{source}: {error}") from error
    known = ", ".join(name for name, _matches, _read in _FORMATS)
    raise GraphError(f"{source}: this is no graph in a known format ({known}); it starts with {data[:16]!r}")


def load_graph(path: Path) -> Graph:
    """The validated graph in a file, or on standard input for ``-``.

    Raises:
        GraphError: see :func:`parse_graph`; also a file of 64 MiB or more.
    """
    return parse_graph(*_contents(path))


def load_wire_graph(path: Path) -> bytes:
    """The graph in a file in hipDNN's wire format; one in hipDNN's own form need not be one that we serve.

    Raises:
        GraphError: see :func:`load_graph`; also a graph that hipDNN's schema has no words for.
    """
    from fusilli_plugin.importers import export_graph
    from hipdnn_backend.errors import WireError
    from hipdnn_backend.wire import decode_graph, encode_graph
    from hipdnn_backend.wire.json import graph_from_json

    data, source = _contents(path)
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        if _is_ours(data) or not (_is_json(data) or _is_wire(data)):
            return encode_graph(export_graph(parse_graph(data, source)))
        if _is_json(data):
            return encode_graph(graph_from_json(data))
        decode_graph(data)
    except (WireError, NotSupportedError) as error:
        raise GraphError(f"{source}: {error}") from error
    return data


def _contents(path: Path) -> tuple[bytes, str]:
    """The bytes of a file and what to call it in errors."""
    if str(path) == "-":
        data = sys.stdin.buffer.read(_MAX_BYTES)
    else:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    if len(data) == _MAX_BYTES:
        raise GraphError(f"{path}: {_MAX_BYTES >> 20} MiB or more are no graph")
    return data, "standard input" if str(path) == "-" else str(path)
