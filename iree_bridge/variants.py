"""Which of several right ways a graph is emitted and compiled on a target: decided here, without a compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


_VECTOR: Final = 4


def choose(graph: Graph, target: Target) -> Variant:
    """The variant of ``graph`` on ``target``.

    AMD: loads of ragged tiles go through buffer instructions, on whose lowering the compiler crashed (convolutions and
    products with odd sizes) or hung (a long layer norm over 3 rows). Graphs with sizes that vectors do not divide do
    without these instructions.
    """
    if target.backend == "rocm" and any(dim > 1 and dim % _VECTOR for t in graph.tensors for dim in t.dims):
        return Variant("ragged", ("--iree-rocdl-enable-buffer-instructions=false",))
    return Variant("plain")
