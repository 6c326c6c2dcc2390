"""Which of several right ways a graph is emitted and compiled on a target: decided here, without a compiler."""

from __future__ import annotations

from dataclasses import dataclass

from graph_api import Graph
from iree_bridge.target import Target

__all__ = ["Variant", "choose"]


@dataclass(frozen=True)
class Variant:
    """One way to emit and compile a graph.

    Attributes:
        name: stable name, part of the cache key.
        flags: compiler flags of this graph, in addition to the target's.
        global_flags: flags that are global to a compiler process; a worker process serves one set of them.
    """

    name: str
    flags: tuple[str, ...] = ()
    global_flags: tuple[str, ...] = ()


def choose(graph: Graph, target: Target) -> Variant:
    """The variant of ``graph`` on ``target``."""
    return Variant("plain")
