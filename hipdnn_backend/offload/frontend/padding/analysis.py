"""Whether more rows may be added along an open dim of a model without changing what it says of those that were there.

It is shown on the model's nodes with three sizes of the dim. A value either has nothing to do with the dim, or one of
its axes has ``per`` elements for each row, those of the first row first; and each node has to compute the elements of a
row from those of that row alone. What a node computes along the axis itself (a sum, a softmax, a window, a product's
inner dim) refuses the dim, as does a node that is not in the tables here.

Three sizes speak for all, since of the arithmetic on extents only that is let through which makes polynomials of degree
2 at most of them, and since nothing else in a model can see its extents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hipdnn_backend.offload.buckets import Extent
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import OnnxGraph
from hipdnn_backend.offload.frontend.padding import treatment as _treatment  # noqa: F401  registers the rules
from hipdnn_backend.offload.frontend.padding.arithmetic import Arithmetic, Raw
from hipdnn_backend.offload.frontend.padding.walk import NotPaddableError, NumberOfRows, Rows, Walk

__all__ = ["PaddedEnds", "padded_ends", "probe_sizes"]

_PROBES: Final = 3


@dataclass(frozen=True)
class PaddedEnds:
    """Where an open dim is in the arguments of a model that it may be padded in."""

    inputs: tuple[Extent, ...]
    outputs: tuple[Extent, ...]


def probe_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes to show it with: those that are asked for, more than one row, and multiples of them."""
    several = [size for size in sizes if size > 1]
    start = several[-1] if several else 2
    return tuple((*several, *(start * factor for factor in range(2 if several else 1, 5)))[:_PROBES])


def padded_ends(models: Callable[[int], tuple[Raw, OnnxGraph]], sizes: Sequence[int]) -> PaddedEnds:
    """Where a dim is in the arguments of a model, if rows that are added to it reach nothing that is kept.

    Args:
        models: gives the model with a size of the dim, before anything is folded and after that.
        sizes: three, see `probe_sizes`.

    Raises:
        NotPaddableError: they reach it, or that cannot be told.
    """
    raw: Raw | None = None
    graphs: dict[int, OnnxGraph] = {}
    for size in sizes:
        try:
            raw, graphs[size] = models(size)
        except ModelError as error:
            raise NotPaddableError(f"with size {size} the model is not understood: {error}") from error
    assert raw is not None, "there are sizes"
    walk = Walk(graphs)
    Arithmetic(raw, walk.dims).check()
    walk.go()
    graph = walk.graphs[0]
    inputs = [walk.states.get(name) for name in graph.inputs]
    outputs = []
    for number, output in enumerate(graph.outputs):
        state = walk.state(output.value)
        if isinstance(state, NumberOfRows):
            raise NotPaddableError(f"result '{output.name}' follows from its size")
        if state is not None:
            outputs.append(Extent(number, state.axis, state.per))
    return PaddedEnds(
        tuple(Extent(number, at.axis, at.per) for number, at in enumerate(inputs) if isinstance(at, Rows)),
        tuple(outputs),
    )
