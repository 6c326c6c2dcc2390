"""Reductions whose axes are an input, and sums along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator(
    "CumProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
    static=(1,),
)  # fmt: skip
operator("CumSum", static=(1,), keeps_dims=True)


@rewrites(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
def _explicit_axes(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """No axes mean all of them, or none at all; both are said outright."""
    dims, axes = b.dims(node.input[0]), b.value(b.input(1)) if b.input(1) else None
    if dims is None or (b.input(1) and axes is None) or (axes is not None and axes.size):
        return None
    if b.given.get("noop_with_empty_axes", 0):
        return [_of_one(b, node)]
    if not dims:
        return None
    return [b.op(node.op_type, node.input[0], b.constant(range(len(dims))), keepdims=b.given.get("keepdims", 1))]


@rewrites("ReduceProd")
def _one_axis(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """One axis at a time, neighbours as one: torch-mlir forgets the dims between several, and before a reshape."""
    y, dims, given = node.input[0], b.dims(node.input[0]), b.value(b.input(1)) if b.input(1) else np.empty(0)
    if not dims or 0 in dims or given is None:
        return None
    axes = {_inside(b, int(axis), dims) for axis in given}
    if not axes and b.given.get("noop_with_empty_axes", 0):
        return [y]
    axes = axes or set(range(len(dims)))
    keeps = bool(b.given.get("keepdims", 1))
    if keeps and len(axes) == 1:
        return None
    have = list(dims)
    for axis in sorted(axes):
        if axis + 1 in axes:  # goes on in the next one
            have[axis], have[axis + 1] = 1, have[axis] * have[axis + 1]
            continue
        y = b.op("ReduceProd", b.op("Reshape", y, b.constant(have)), b.constant([axis]), keepdims=1)
        have[axis] = 1
    return [y if keeps else b.op("Reshape", y, b.constant([dim for axis, dim in enumerate(dims) if axis not in axes]))]


def _of_one(b: Builder, node: onnx.NodeProto) -> str:
    """What a reduction makes of each element alone."""
    x = node.input[0]
    if node.op_type in ("ReduceL1", "ReduceL2"):
        return b.op("Abs", x)
    if node.op_type == "ReduceSumSquare":
        return b.op("Mul", x, x)
    return b.op("Log", x) if node.op_type == "ReduceLogSum" else x


@rewrites("CumSum")
def _exclusive_sum(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """The sum of x moved by one. The sum less x itself, as torch-mlir has it, loses digits, and inf becomes NaN."""
    if not b.given.get("exclusive", 0):
        return None
    x, dims, along = node.input[0], b.dims(node.input[0]), _axis(b, node)
    if dims is None or along is None or dims[along] < 1:
        return None
    if dims[along] == 1:
        return [b.like(x, np.zeros(dims))]
    reverse = b.given.get("reverse", 0)
    return [b.op("CumSum", _moved(b, x, dims, along, 1, 0.0, reverse), node.input[1], reverse=reverse)]


@rewrites("CumProd")
def _products(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """In steps of 1, 2, 4 ...: each element takes the product of those that far before it."""
    y, dims, along = node.input[0], b.dims(node.input[0]), _axis(b, node)
    if dims is None or along is None:
        return None
    reverse = b.given.get("reverse", 0)
    if b.given.get("exclusive", 0):
        y = _moved(b, y, dims, along, 1, 1.0, reverse)
    step = 1
    while step < dims[along]:
        y = b.op("Mul", y, _moved(b, y, dims, along, step, 1.0, reverse))
        step *= 2
    return [y]


def _axis(b: Builder, node: onnx.NodeProto) -> int | None:
    """The axis that the second input names, from 0 on; None if it or the rank is not known."""
    axis, dims = b.value(node.input[1]), b.dims(node.input[0])
    if axis is None or dims is None or axis.size != 1:
        return None
    return _inside(b, int(axis.reshape(-1)[0]), dims)


def _inside(b: Builder, axis: int, dims: tuple[int, ...]) -> int:
    """From 0 on."""
    if not -len(dims) <= axis < len(dims):
        raise b.fail("axis", f"axis {axis} does not fit {list(dims)}")
    return axis % len(dims)


def _moved(b: Builder, x: str, dims: tuple[int, ...], axis: int, step: int, fill: float, reverse: int) -> str:
    """``x`` later by some elements, ``fill`` before it; with ``reverse``, earlier and that behind it."""
    size = dims[axis]
    step = min(step, size)
    begin, end = (step, size) if reverse else (0, size - step)
    rest = b.op("Slice", x, *(b.constant([number]) for number in (begin, end, axis)))
    new = b.like(b.node.input[0], np.full([step if i == axis else dim for i, dim in enumerate(dims)], fill))
    return b.op("Concat", *((rest, new) if reverse else (new, rest)), axis=axis)
