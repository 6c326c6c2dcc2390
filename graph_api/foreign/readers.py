"""Objects that are no `Graph` yet: readers that installed packages register take them."""

from __future__ import annotations

from typing import Any, Final

from graph_api.errors import GraphError

__all__ = ["READERS", "read"]

READERS: Final = "graph_api.readers"
"""Group of entry points: functions of an object that return a Graph, or None for what they do not read."""


def read(source: object) -> Any:
    """The graph that a reader makes of an object.

    Raises:
        GraphError: no installed reader takes it.
        FusilliError: what a reader raises.
    """
    from importlib.metadata import entry_points

    found = sorted(entry_points(group=READERS), key=lambda entry: entry.name)
    for entry in found:
        graph = entry.load()(source)
        if graph is not None:
            return graph
    readers = ", ".join(entry.name for entry in found) or "none; install the distribution fusilli-plugin again"
    kind = type(source)
    raise GraphError(f"expected a graph, got {kind.__module__}.{kind.__qualname__}; readers are {readers}")
