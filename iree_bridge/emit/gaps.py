"""Tensors whose elements have gaps between them: read from, and written into, a flat buffer."""

from __future__ import annotations

import math
from typing import Any

from graph_api import DataType, TensorAttr
from graph_api.layout import nested_extents
from iree_bridge.emit import packed
from iree_bridge.emit.builder import Builder, Value
from iree_bridge.emit.mlir import ir
from iree_bridge.targets.types import ELEMENT, argument_form, builtin_tensor, stored, value_tensor

__all__ = ["gather", "scatter"]


def gather(e: Builder, tensor: TensorAttr, flat: Value) -> Value:
    """The dense value, in physical order, of a tensor that lies with gaps in ``flat``.

    The buffer ends with the last element, so it is first padded to the whole of its nested extents.
    """
    sizes, inner = _nest(tensor)
    value = e.reshape(e.pad(flat, [(0, math.prod(sizes) - flat.dims[0])]), sizes)
    for axis, dim in enumerate(inner):
        value = e.slice(value, axis, 0, dim)
    return e.reshape(value, _stored(tensor))


def scatter(e: Builder, tensor: TensorAttr, value: Value, buffer: Any) -> Value:
    """The new content of ``buffer``: ``value`` (physical order) where the tensor has elements, else what was there."""
    sizes, inner = _nest(tensor)
    room = [(0, size - dim) for size, dim in zip(sizes, inner, strict=True)]
    length = tensor.physical.extent

    def spread(dense: Value) -> Value:
        flat = e.reshape(e.pad(e.reshape(dense, inner), room), (math.prod(sizes),))
        return e.slice(flat, 0, 0, length)

    if tensor.data_type is DataType.BOOLEAN:
        value = e.cast(value, DataType.INT32)
    is_element = e.cast(spread(e.splat(1, inner, DataType.INT32)), DataType.BOOLEAN)
    old = _content(e, tensor, buffer)
    kind = stored(tensor.data_type)
    return e.op("aten.where.self", (length,), kind, is_element, e.cast(spread(value), kind), old)


def _content(e: Builder, tensor: TensorAttr, buffer: Any) -> Any:
    """What is in the flat ``buffer`` of an output before the run.

    The compiler imports it with signed integers, which nothing after that understands; so they are read as plain bits.
    """
    dims, dtype = argument_form(tensor)
    torch, plain = e.type(value_tensor(dims, dtype)), e.type(builtin_tensor(dims, dtype))
    old = ir.Operation.create("torch.copy.to_vtensor", results=[torch], operands=[buffer]).result
    if not dtype.is_integer:
        return old
    signed = e.type(f"tensor<{dims[0]}x{ELEMENT[dtype]}>")
    found = ir.Operation.create("torch_c.to_builtin_tensor", results=[signed], operands=[old]).result
    bits = ir.Operation.create("tensor.bitcast", results=[plain], operands=[found]).result
    made = ir.Operation.create("torch_c.from_builtin_tensor", results=[torch], operands=[bits]).result
    return packed.unpack(e, tensor, Value(made, dims, dtype)).ssa if tensor.data_type.is_packed else made


def _nest(tensor: TensorAttr) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Nested extents, and the part of each that holds elements."""
    sizes = nested_extents(tensor.dims, tensor.strides)
    assert sizes is not None, "support() declines strides that do not nest"
    inner = [dim for dim in _stored(tensor) if dim > 1]
    return sizes, (*inner, 1) if inner else (1,)


def _stored(tensor: TensorAttr) -> tuple[int, ...]:
    """Dims in memory order; repeated (stride 0) dims are stored once."""
    return tuple(1 if tensor.strides[axis] == 0 else tensor.dims[axis] for axis in tensor.physical.order)
