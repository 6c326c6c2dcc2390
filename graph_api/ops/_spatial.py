"""Arguments with one entry per spatial dim, or one number for all."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api._numpy import np
from graph_api.errors import GraphError
from graph_api.tensor import TensorAttr, int_tuple

__all__ = ["PerAxis", "per_axis", "spatial_rank"]

PerAxis = int | Sequence[int] | None


def spatial_rank(op: str, tensors: Sequence[object], arguments: Sequence[PerAxis]) -> int:
    """Number of spatial dims: from a tensor [N, C, spatial...] whose dims are known, else from an argument's length.

    Raises:
        GraphError: not a tensor, no spatial dims, or nothing tells their number.
    """
    lengths: list[int] = []
    for tensor in tensors:
        if not isinstance(tensor, TensorAttr):
            raise GraphError(f"{op}: expected a tensor of the graph, got {tensor!r}")
        if tensor.has_dims:
            lengths.append(tensor.rank - 2)
    lengths += [len(argument) for argument in arguments if isinstance(argument, Sequence | np.ndarray)]
    if not lengths:
        raise GraphError(f"{op}: no tensor has dims yet, so one argument must have an entry per spatial dim")
    if lengths[0] < 1:
        raise GraphError(f"{op}: a tensor needs dims [N, C, spatial...] with at least one spatial dim")
    return lengths[0]


def per_axis(value: PerAxis, rank: int, what: str) -> tuple[int, ...]:
    """``value`` as one integer per spatial dim; None is 0."""
    value = 0 if value is None else value
    return int_tuple([value] * rank if not isinstance(value, Sequence | np.ndarray) else value, what)
