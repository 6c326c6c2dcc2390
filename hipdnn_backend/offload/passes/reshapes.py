"""Row-major reshapes of builtin tensors and buffers, which upstream knows as joining and splitting dims."""

from __future__ import annotations

import math
from typing import Any

from hipdnn_backend.offload.mlir import ir

__all__ = ["reshape"]

Value = Any


def reshape(dialect: str, value: Value, to: Any, before: Any) -> Value:
    """``value`` in other dims, by way of one dim; canonicalization takes the detour out where it can.

    Args:
        dialect: ``tensor`` or ``memref``.
        value: static dims, row-major.
        to: type of the result, of as many elements.
        before: the operation before which it is made.
    """
    if value.type == to:
        return value
    dims, new = list(ir.ShapedType(value.type).shape), list(ir.ShapedType(to).shape)
    if len(dims) > 1:
        value = _collapse(dialect, value, dims, [math.prod(dims)], before)
    elif not dims:
        value = _expand(dialect, value, [1], before)
    if not new:
        return _collapse(dialect, value, [], [], before)
    return _expand(dialect, value, new, before) if len(new) > 1 else value


def _collapse(dialect: str, value: Value, group: list[int], dims: list[int], before: Any) -> Value:
    attributes = {"reassociation": _reassociation(group, before.context)}
    return _made(f"{dialect}.collapse_shape", value, dims, attributes, before)


def _expand(dialect: str, value: Value, dims: list[int], before: Any) -> Value:
    context = before.context
    group = dims if ir.ShapedType(value.type).rank else []
    attributes = {
        "reassociation": _reassociation(group, context),
        "static_output_shape": ir.DenseI64ArrayAttr.get(dims, context),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0], context),
    }
    return _made(f"{dialect}.expand_shape", value, dims, attributes, before)


def _reassociation(dims: list[int], context: Any) -> Any:
    """All dims in one group; no groups for a scalar."""
    index = ir.IntegerType.get_signless(64, context)
    group = ir.ArrayAttr.get([ir.IntegerAttr.get(index, axis) for axis in range(len(dims))], context)
    return ir.ArrayAttr.get([group] if dims else [], context)


def _made(name: str, value: Value, dims: list[int], attributes: dict[str, Any], before: Any) -> Value:
    shaped = ir.ShapedType(value.type)
    if name.startswith("memref"):
        kind = ir.MemRefType.get(dims, shaped.element_type, loc=before.location)
    else:
        kind = ir.RankedTensorType.get(dims, shaped.element_type, loc=before.location)
    op = ir.Operation.create(
        name, results=[kind], operands=[value], attributes=attributes, loc=before.location,
        ip=ir.InsertionPoint(before),
    )  # fmt: skip
    return op.results[0]
