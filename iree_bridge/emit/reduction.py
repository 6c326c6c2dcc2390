"""Emission of reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graph_api import DataType, ReductionMode
from graph_api.layout import stride_order
from graph_api.ops.reduction import ReductionNode
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.emitter import Emitter, Value, rule
from iree_bridge.target import Target
from iree_bridge.types import TORCH_CODE

__all__ = ["accumulator", "mean", "reduction", "total"]


@rule("reduction")
def reduction(e: Emitter, node: ReductionNode) -> None:
    """x is converted to the compute type, in which everything is done; y keeps the reduced dims as 1."""
    tensor, axes = node.inputs["x"], node.axes
    x = e.read(tensor, node.compute)
    if node.outputs["y"].volume == 1:
        # Of everything: the order of the terms is free, so it is that of memory, which needs no transposition.
        x, axes = e.permute(x, stride_order(tensor.dims, tensor.strides)), range(len(x.dims))
    e.write(node, "y", _reduced(e, Elementwise(e, node.compute), node.attributes.mode, x, axes))


def _reduced(e: Emitter, t: Elementwise, mode: ReductionMode, x: Value, axes: Sequence[int]) -> Value:
    match mode:
        case ReductionMode.ADD:
            return total(e, x, axes)
        case ReductionMode.NORM1:
            return total(e, t.unary("abs", x), axes)
        case ReductionMode.AVG:
            return mean(e, x, axes)
        case ReductionMode.NORM2:
            return t.unary("sqrt", total(e, t.mul(x, x), axes))
        case ReductionMode.MAX:
            return _over(e, "aten.amax", x, axes)
        case ReductionMode.AMAX:
            return _over(e, "aten.amax", t.unary("abs", x), axes)
        case ReductionMode.MIN:
            return _over(e, "aten.amin", x, axes)
        case ReductionMode.MUL:
            return _product(e, x, axes)
        case ReductionMode.MUL_NO_ZEROS:
            return _product(e, t.select(t.compare("eq", x, 0), t.constant(1, x), x), axes)


def total(e: Emitter, x: Value, axes: Sequence[int]) -> Value:
    """The sum over ``axes`` in the type of x; they stay as dims of 1."""
    kind = accumulator(e.target, x.dtype, math.prod(x.dims[axis] for axis in axes))
    summed = _over(e, "aten.sum.dim_IntList", e.cast(x, kind), axes, TORCH_CODE[kind])
    return e.cast(summed, x.dtype)


def accumulator(target: Target, dtype: DataType, terms: int) -> DataType:
    """The type in which a CPU accumulates so many terms of ``dtype``.

    Its loops add one term after the other, and what that rounds away grows with their number. In 64 bits it does not;
    short sums stay as they are, because twice the bits are half the speed where all lies in the nearest cache. GPUs
    add in trees.
    """
    return DataType.DOUBLE if dtype is DataType.FLOAT and terms >= _LONG and not target.is_gpu else dtype


_LONG = 1024


def mean(e: Emitter, x: Value, axes: Sequence[int]) -> Value:
    """The mean over ``axes``, which stay as dims of 1; x is floating point."""
    count = math.prod(x.dims[axis] for axis in axes)
    summed = total(e, x, axes)
    return summed if count == 1 else e.op("aten.div.Scalar", summed.dims, x.dtype, summed, float(count))


def _product(e: Emitter, x: Value, axes: Sequence[int]) -> Value:
    dtype = x.dtype
    x = e.cast(x, accumulator(e.target, dtype, math.prod(x.dims[axis] for axis in axes)))
    for axis in axes:
        x = _over(e, "aten.prod.dim_int", x, [axis], TORCH_CODE[x.dtype]) if x.dims[axis] > 1 else x
    return e.cast(x, dtype)


def _over(e: Emitter, name: str, x: Value, axes: Sequence[int], *operands: int) -> Value:
    """A torch reduction of x over ``axes``, which stay as dims of 1.

    The GPU compiler fails ("failed to distribute") where all of a large x is reduced over several dims at once: then
    the inner dims are reduced first, and what is left, of few elements or one dim, after them.
    """
    if math.prod(_kept(x, axes)) == 1 and (inner := _inner_axes(x.dims)):
        x = _step(e, name, x, inner, *operands)
    return _step(e, name, x, axes, *operands)


def _inner_axes(dims: Sequence[int]) -> list[int]:
    """The axes behind the leading ones that together hold a moderate number of rows; none if only one dim exceeds 1."""
    large = [axis for axis, dim in enumerate(dims) if dim > 1]
    rows = 1
    for position, axis in enumerate(large[:-1]):
        rows *= dims[axis]
        if rows >= _ROWS or rows * dims[large[position + 1]] > _MOST_ROWS:
            return large[position + 1 :]
    return large[-1:] if len(large) > 1 else []


_ROWS, _MOST_ROWS = 64, 2048


def _step(e: Emitter, name: str, x: Value, axes: Sequence[int], *operands: int) -> Value:
    which = axes[0] if name == "aten.prod.dim_int" else list(axes)
    return e.op(name, _kept(x, axes), x.dtype, x, which, True, *operands)


def _kept(x: Value, axes: Sequence[int]) -> list[int]:
    return [1 if axis in axes else dim for axis, dim in enumerate(x.dims)]
