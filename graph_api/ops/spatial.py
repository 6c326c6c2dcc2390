"""Arguments with one entry per spatial dim, or one number for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fusilli_ground.late_numpy import np
from graph_api.errors import GraphError
from graph_api.tensor import TensorAttr, int_tuple

if TYPE_CHECKING:
    from graph_api.builder import GraphBuilder

__all__ = ["LAYOUT_TIP", "PerAxis", "channels_first", "per_axis", "spatial_rank"]

LAYOUT_TIP = "; dims are N, C, spatial whatever the layout, which is said by strides or layout='NHWC'"
"""For those whose dims would fit in the order of channels-last memory."""


def channels_first(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Dims that were given as [N, spatial..., C], in the order [N, C, spatial...]."""
    return (dims[0], dims[-1], *dims[1:-1])


PerAxis = int | Sequence[int] | None


def spatial_rank(builder: GraphBuilder, op: str, tensors: Sequence[object], arguments: Mapping[str, PerAxis]) -> int:
    """Number of spatial dims: of a tensor [N, C, spatial...] with dims, else an argument's length, else as inferred.

    Raises:
        GraphError: not a tensor, no spatial dims, or nothing tells their number.
    """
    for tensor in tensors:
        if not isinstance(tensor, TensorAttr):
            raise GraphError(f"{op}: expected a tensor of the graph, got {tensor!r}")
    known = [tensor for tensor in tensors if isinstance(tensor, TensorAttr)]
    lengths = [tensor.rank - 2 for tensor in known if tensor.has_dims]
    lengths += [len(argument) for argument in arguments.values() if _has_entries(argument)]  # type: ignore[arg-type]
    if not lengths:
        lengths = [rank - 2 for tensor in known if (rank := builder.rank_of(tensor)) is not None]
    if not lengths:
        word, value = next(((n, v) for n, v in arguments.items() if v is not None), ("stride", 1))
        raise GraphError(
            f"{op}: no tensor has dims yet, so one argument must have an entry per spatial dim: with two of them "
            f"{word}=({value}, {value})"
        )
    if lengths[0] < 1:
        raise GraphError(f"{op}: a tensor needs dims [N, C, spatial...] with at least one spatial dim")
    return lengths[0]


def per_axis(value: PerAxis, rank: int, what: str) -> tuple[int, ...]:
    """``value`` as one integer per spatial dim; None is 0."""
    value = 0 if value is None else value
    return int_tuple(value if _has_entries(value) else [value] * rank, what)


def _has_entries(value: object) -> bool:
    return isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim > 0)
