"""Emission of reductions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graph_api import ReductionMode
from graph_api.layout import stride_order
from graph_api.ops.reduction import ReductionNode
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.emitter import Emitter, Value, rule
from iree_bridge.types import TORCH_CODE

__all__ = ["mean", "reduction", "total"]


@rule("reduction")
def reduction(e: Emitter, node: ReductionNode) -> None:
    """x is converted to the compute type, in which everything is done; y keeps the reduced dims as 1."""
    tensor, axes = node.inputs["x"], node.axes
    x = e.read(tensor, node.compute)
    if node.outputs["y"].volume == 1:
        # Of everything, in memory order: the order of the terms is free, and a flat view of it costs no copy.
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
    return _over(e, "aten.sum.dim_IntList", x, axes, TORCH_CODE[x.dtype])


def mean(e: Emitter, x: Value, axes: Sequence[int]) -> Value:
    """The mean over ``axes``, which stay as dims of 1; x is floating point."""
    count = math.prod(x.dims[axis] for axis in axes)
    summed = total(e, x, axes)
    return summed if count == 1 else e.op("aten.div.Scalar", summed.dims, x.dtype, summed, float(count))


def _product(e: Emitter, x: Value, axes: Sequence[int]) -> Value:
    dims = _kept(x, axes)
    x, axes = _flat(e, x, axes)
    for axis in axes:
        x = e.op("aten.prod.dim_int", _kept(x, [axis]), x.dtype, x, axis, True, TORCH_CODE[x.dtype])
    return e.reshape(x, dims)


def _over(e: Emitter, name: str, x: Value, axes: Sequence[int], *operands: int) -> Value:
    """A torch reduction that takes a list of axes and a flag to keep them."""
    dims = _kept(x, axes)
    x, axes = _flat(e, x, axes)
    return e.reshape(e.op(name, _kept(x, axes), x.dtype, x, list(axes), True, *operands), dims)


def _flat(e: Emitter, x: Value, axes: Sequence[int]) -> tuple[Value, Sequence[int]]:
    """x as one row if all of it is reduced: the GPU compiler fails on several dims then ("failed to distribute")."""
    return (e.reshape(x, (math.prod(x.dims),)), [0]) if math.prod(_kept(x, axes)) == 1 else (x, axes)


def _kept(x: Value, axes: Sequence[int]) -> list[int]:
    return [1 if axis in axes else dim for axis, dim in enumerate(x.dims)]
