"""Which of several right ways a graph is emitted and compiled on a target: decided here, without a compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graph_api import Graph, TensorAttr
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

    AMD: loads of ragged tiles go through buffer instructions, on whose lowering the compiler crashed for a product with
    rows of 7. Graphs with such rows do without these instructions.
    """
    if target.backend == "rocm" and any(_is_ragged(t) for node in graph.nodes for t in node.outputs.values()):
        return Variant("ragged", ("--iree-rocdl-enable-buffer-instructions=false",))
    return Variant("plain")


def _is_ragged(tensor: TensorAttr) -> bool:
    """Whether vectors do not divide the rows of a tensor as it is stored."""
    row = tensor.dims[tensor.physical.order[-1]] if tensor.dims else 1
    return row > 1 and row % _VECTOR != 0
