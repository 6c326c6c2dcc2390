"""Whether fusion keeps a graph right: fused, its nodes one by one, and float64 must agree, element by element.

Three comparisons, each against the bounds of ``graph_api.numerics``: fused with float64, step by step with float64, and
fused with step by step (twice the bound, since both may be off).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from fusilli_plugin.testing.graphs import inputs as random_inputs
from fusilli_plugin.testing.places import Arrays, Place, place
from graph_api import ExecutionError, FusilliError, Graph, GraphError, NotSupportedError, numerics
from graph_api.numerics import Comparison, Evaluation
from graph_api.split import node_graphs

__all__ = ["FusionError", "assert_fusion_right", "compare", "steps"]

_WORDS: Final = {
    "fused": "the fused graph and float64 differ",
    "steps": "its nodes one by one and float64 differ",
    "between": "the fused graph and its nodes one by one differ",
}


class FusionError(FusilliError, AssertionError):
    """Results that do not agree.

    Attributes:
        comparison: which: ``fused`` (with float64), ``steps`` (node by node, with float64), ``between`` (the two).
        tensor: name of the tensor.
        index: logical index of the element that is furthest from its bound.
        got, expected: the values there.
        bound: how far apart they may be.
    """

    def __init__(self, graph: Graph, where: str, comparison: str, found: Comparison) -> None:
        self.comparison = comparison
        self.tensor, self.index = found.tensor.name, found.index
        self.got, self.expected, self.bound = found.got, found.expected, found.tolerance
        super().__init__(
            f"graph '{graph.name}' on {where}: {_WORDS[comparison]}: tensor '{self.tensor}' at {list(self.index)}: got "
            f"{self.got:.9g}, expected {self.expected:.9g}, bound {self.bound:.3g}, {found.max_ratio:.3g} times that "
            "apart; `fusilli reduce` makes the graph smaller"
        )


def assert_fusion_right(
    graph: Graph,
    *,
    device: str | Place | None = None,
    engine: str | os.PathLike[str] | None = None,
    compiler: str | os.PathLike[str] | None = None,
    emulate: str | None = None,
    tol: float = 1.0,
    inputs: Mapping[Any, object] | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Fused, node by node and in float64 a graph has the same results, or this raises.

    Args:
        graph: what is checked; it is validated if it is not yet.
        device: e.g. ``cpu``, ``hip:0``, or a place that was made before; default: ``FUSILLI_DEVICE``, or ``hip``.
        engine, compiler, emulate: see `fusilli_plugin.testing.place`.
        tol: factor on the bound of each element, which follows from types, sizes and the operands' values.
        inputs: an array for each input by tensor, name or uid; default: random ones.
        seed: of the random inputs.

    Returns:
        The largest error of each comparison, as a multiple of the element's bound.

    Raises:
        FusionError: results do not agree.
        NotSupportedError: the graph, or a node alone, is declined: nothing was compared.
        FusilliError: it is not valid, does not compile or does not run.
    """
    if not tol > 0:
        raise GraphError(f"tol={tol!r} must be positive: it is a factor on each element's bound")
    graph.validate()
    where = device if isinstance(device, Place) else place(device, engine=engine, compiler=compiler, emulate=emulate)
    pack = random_inputs(graph, seed) if inputs is None else _arrays(graph, inputs)
    if reason := where.declines(graph):
        raise NotSupportedError("", "place", f"graph '{graph.name}' is declined on {where}: {reason}")
    fused, alone = where.run(graph, pack), steps(graph, pack, where)
    worst = compare(graph, numerics.evaluate(graph, pack), fused, alone)
    for name, found in worst.items():
        if found.max_ratio > tol:
            raise FusionError(graph, str(where), name, found)
    return {name: found.max_ratio for name, found in worst.items()}


def steps(graph: Graph, pack: Arrays, where: Place, say: Callable[[str], None] = lambda _: None) -> Arrays:
    """The results of the graph, node by node; what one node writes the next reads.

    Raises:
        NotSupportedError: a node alone is declined.
        FusilliError: it does not compile or run.
    """
    known = {tensor.name: array for tensor, array in pack.items()}
    alone = node_graphs(graph)
    for number, step in enumerate(alone, start=1):
        say(f"compiling and running node {number} of {len(alone)} alone")
        try:
            results = where.run(step, {tensor: known[tensor.name] for tensor in step.arguments().inputs})
        except ExecutionError as error:
            raise ExecutionError(f"node {number} of {len(alone)} alone: {error}") from error
        known |= {tensor.name: array for tensor, array in results.items()}
    return {tensor: known[tensor.name] for tensor in graph.arguments().outputs}


def compare(graph: Graph, exact: Evaluation, fused: Arrays, alone: Arrays) -> dict[str, Comparison]:
    """The worst element of each comparison: ``fused``, ``steps``, ``between``."""
    worst: dict[str, Comparison] = {}
    for tensor in graph.arguments().outputs:
        value, bound = exact.values[tensor], exact.errors[tensor]
        found = {
            "fused": numerics.compare(tensor, fused[tensor], value, bound),
            "steps": numerics.compare(tensor, alone[tensor], value, bound),
            "between": numerics.compare(tensor, fused[tensor], alone[tensor].astype(np.float64), 2 * bound),
        }
        for name, comparison in found.items():
            if name not in worst or comparison.max_ratio > worst[name].max_ratio:
                worst[name] = comparison
    return worst


def _arrays(graph: Graph, given: Mapping[Any, object]) -> Arrays:
    """What the caller gave, in the data types and strides of the tensors."""
    found: Arrays = {}
    for tensor, value in graph.by_tensor(given).items():
        array = np.asarray(value)
        if array.shape != tensor.dims:
            raise GraphError(f"input '{tensor.name}' has shape {array.shape}, its tensor dims {tensor.dims}")
        found[tensor] = tensor.empty()
        found[tensor][...] = tensor.data_type.rounded(array)
    missing = [tensor.name for tensor in graph.arguments().inputs if tensor not in found]
    if missing:
        raise GraphError(f"no array was given for input {', '.join(map(repr, missing))} of graph '{graph.name}'")
    return found
