"""Reads a graph from a file, bytes or an object: the one place that tells the formats apart, by content."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusilli_plugin.formats.kinds import Kind, is_saved_graph, kind_of
from graph_api import FusilliError, Graph, GraphError, NotSupportedError
from graph_api.foreign.cudnn import is_cudnn

if TYPE_CHECKING:
    from hipdnn_backend.wire import WireGraph

__all__ = ["load_graph", "load_wire_graph", "parse_graph", "read_graph"]

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


def _from_saved(data: bytes) -> Graph:
    from iree_bridge.artifact.artifact import Artifact

    return Artifact.from_bytes(data, "the saved graph").graph


def _from_hipdnn_json(data: bytes) -> Graph:
    from hipdnn_backend.wire.json import graph_from_json

    return _from_wire(lambda: graph_from_json(data))


def _from_hipdnn_bytes(data: bytes) -> Graph:
    from hipdnn_backend.wire import decode_graph

    return _from_wire(lambda: decode_graph(data))


def _from_wire(decode: Callable[[], WireGraph]) -> Graph:
    """The graph in one of hipDNN's own forms."""
    from fusilli_plugin.engine.importers import Reading, import_graph
    from hipdnn_backend.errors import WireError
    from iree_bridge import Options

    try:
        return import_graph(decode(), Reading.of(Options.from_env()))
    except (WireError, NotSupportedError) as error:
        raise GraphError(str(error)) from error


# (name, is it this format, read it); the first that matches reads
_FORMATS: tuple[tuple[str, Callable[[bytes], bool], Callable[[bytes], Graph]], ...] = (
    ("JSON of Graph.to_json", _is_ours, Graph.from_json),
    ("JSON or bytes of cuDNN's front end", is_cudnn, Graph.from_cudnn),
    ("JSON of hipDNN", _is_json, _from_hipdnn_json),
    ("saved by `fusilli compile`", is_saved_graph, _from_saved),
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
            except FusilliError as error:
                raise GraphError(f"{source}: {error}") from error
    known = ", ".join(name for name, _matches, _read in _FORMATS)
    raise GraphError(f"{source}: this is no graph in a known format ({known}); it {_beginning(data)}")


def _beginning(data: bytes) -> str:
    """What is there instead of a graph, without bytes that nobody can read."""
    if not data:
        return "is empty"
    text = data[:16].decode("utf-8", "replace").rstrip("\ufffd")  # a letter may be cut
    readable = "\ufffd" not in text and all(letter.isprintable() or letter.isspace() for letter in text)
    return f"starts with {text!r}" if text and readable else "is something binary"


def read_graph(source: object) -> Graph | None:
    """The validated graph in text, bytes, a file that a path object names, or an object of another front end.

    Of ``hipdnn_frontend`` and cuDNN's Python, told by their methods, the serialised form is read. None: it is none of
    these.

    Raises:
        GraphError: see :func:`parse_graph` and :func:`load_graph`; also an object that cannot be serialised.
        OSError: a file cannot be read.
    """
    if isinstance(source, str | bytes | bytearray | memoryview):
        # Half a pair, which is no text, is nothing that a graph begins with; in JSON it is what JSON writes for it.
        data = source.encode(errors="backslashreplace") if isinstance(source, str) else bytes(source)
        return parse_graph(data, "the graph")
    if isinstance(source, os.PathLike):
        return load_graph(Path(source))
    kind = type(source)
    serialise = _serialiser(kind)
    if serialise is None:
        return None
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        data = serialise(source)
    except RuntimeError as error:  # what the bindings of both raise
        raise GraphError(f"{name}: it cannot be serialised: {error}") from error
    if not isinstance(data, str | bytes):
        raise GraphError(f"{name}: its serialised form is {type(data).__name__}, expected text or bytes")
    return parse_graph(data.encode() if isinstance(data, str) else data, name)


def _serialiser(kind: type[Any]) -> Callable[[Any], object] | None:
    """How objects of another front end become bytes or text."""
    if hasattr(kind, "to_binary") and hasattr(kind, "from_binary"):
        return lambda graph: graph.to_binary()
    # cuDNN's serialize() needs plans, which only an NVIDIA GPU makes; its repr is the graph's JSON.
    return repr if hasattr(kind, "build_operation_graph") and hasattr(kind, "serialize") else None


def load_graph(path: Path) -> Graph:
    """The validated graph in a file, or on standard input for ``-``.

    Raises:
        GraphError: see :func:`parse_graph`; also a file of 64 MiB or more, and a model.
    """
    return parse_graph(*_contents(path))


def load_wire_graph(path: Path) -> bytes:
    """The graph in a file in hipDNN's wire format; one in hipDNN's own form need not be one that we serve.

    Raises:
        GraphError: see :func:`load_graph`; also a graph that hipDNN's schema has no words for.
    """
    from fusilli_plugin.engine.importers import export_graph
    from hipdnn_backend.errors import WireError
    from hipdnn_backend.wire import decode_graph, encode_graph
    from hipdnn_backend.wire.json import graph_from_json

    data, source = _contents(path)
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        of_hipdnn = (_is_json(data) or _is_wire(data)) and not (_is_ours(data) or is_cudnn(data))
        if is_saved_graph(data) or not of_hipdnn:
            return encode_graph(export_graph(parse_graph(data, source)))
        if _is_json(data):
            return encode_graph(graph_from_json(data))
        decode_graph(data)
    except (WireError, NotSupportedError) as error:
        raise GraphError(f"{source}: {error}") from error
    return data


def _contents(path: Path) -> tuple[bytes, str]:
    """The bytes of a file and what to call it in errors; a model is refused."""
    if kind_of(path) in (Kind.MODEL, Kind.SAVED_MODEL):
        raise GraphError(
            f"{path} is a model, and this is for graphs; `fusilli explain {path}` tells which graphs it becomes, "
            f"`fusilli run {path}` runs it"
        )
    if str(path) == "-":
        data = sys.stdin.buffer.read(_MAX_BYTES)
    else:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    if len(data) == _MAX_BYTES:
        raise GraphError(f"{path}: {_MAX_BYTES >> 20} MiB or more are no graph")
    return data, "standard input" if str(path) == "-" else str(path)
