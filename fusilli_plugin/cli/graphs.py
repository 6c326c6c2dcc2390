"""Reads a graph from a file: the one place that tells the formats apart, by content."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from graph_api import Graph, GraphError

__all__ = ["load_graph", "parse_graph"]

# A graph of a thousand nodes is below 1 MiB of JSON; whatever is larger is no graph.
_MAX_BYTES = 64 << 20


def _looks_like_json(data: bytes) -> bool:
    return data.lstrip()[:1] == b"{"


# (name, is it this format, read it); the first that matches reads
_FORMATS: tuple[tuple[str, Callable[[bytes], bool], Callable[[bytes], Graph]], ...] = (
    ("JSON of Graph.to_json", _looks_like_json, Graph.from_json),
)


def parse_graph(data: bytes, source: str) -> Graph:
    """The validated graph in ``data``; ``source`` names it in errors.

    Raises:
        GraphError: no known format, or a graph that breaks a rule.
    """
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
    if str(path) == "-":
        data = sys.stdin.buffer.read(_MAX_BYTES)
    else:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    if len(data) == _MAX_BYTES:
        raise GraphError(f"{path}: {_MAX_BYTES >> 20} MiB or more are no graph")
    return parse_graph(data, "standard input" if str(path) == "-" else str(path))
