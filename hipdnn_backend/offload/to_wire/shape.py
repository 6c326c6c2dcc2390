"""Views, padding and constant tensors: what costs nothing in a graph, because strides say it."""

from __future__ import annotations

from typing import Final

from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import Role, rule
from hipdnn_backend.offload.to_wire.values import Made, Padded, Source, Splat, Value

__all__ = ["RESHAPES"]

_RESHAPES: Final = (
    "aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten.using_ints", "aten.unflatten.int",
    "prims.collapse", "prims.split_dim", "prims.squeeze", "aten.squeeze", "aten.squeeze.dim", "aten.unsqueeze",
)  # fmt: skip
RESHAPES: Final = frozenset(f"torch.{name}" for name in _RESHAPES)
"""Operations that keep the elements in row-major order and change nothing but the dims."""


@rule(*_RESHAPES, role=Role.VIEW)
@rule(
    "aten.squeeze.dims", "aten.reshape_as", "aten._reshape_alias", "aten.view_copy", "prims.view_of",
    "aten.atleast_1d", "aten.atleast_2d",
)  # fmt: skip
def reshape(b: Builder, op: Op) -> Value:
    """Row-major in the dims of the result."""
    return b.reshaped(op, b.value(op, 0), op.result().dims, "x")


@rule("aten.permute", role=Role.VIEW)
@rule("aten.permute_copy")
def permute(b: Builder, op: Op) -> Value:
    """Axes in another order."""
    x = b.value(op, 0)
    return b.permuted(op, x, op.axes(1, len(x.dims)))


@rule("aten.transpose.int", role=Role.VIEW)
@rule("aten.transpose_copy.int")
def transpose(b: Builder, op: Op) -> Value:
    """Two axes swapped."""
    x = b.value(op, 0)
    rank = len(x.dims)
    first, second = op.axis(1, rank), op.axis(2, rank)
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return b.permuted(op, x, order)


@rule("aten.t", "aten.numpy_T", role=Role.VIEW)
def transpose_all(b: Builder, op: Op) -> Value:
    """All axes in reverse."""
    x = b.value(op, 0)
    return b.permuted(op, x, tuple(reversed(range(len(x.dims)))))


@rule("aten.movedim.int")
def movedim(b: Builder, op: Op) -> Value:
    """One axis to another place."""
    x = b.value(op, 0)
    source, target = op.axis(1, len(x.dims)), op.axis(2, len(x.dims))
    order = [axis for axis in range(len(x.dims)) if axis != source]
    order.insert(target, source)
    return b.permuted(op, x, order)


@rule("aten.expand", "aten.broadcast_to", role=Role.VIEW)
@rule("aten.expand_as", "aten.expand_copy")
def expand(b: Builder, op: Op) -> Value:
    """Repeated without a copy."""
    return b.expanded(op, b.value(op, 0), op.result().dims)


@rule("aten.repeat", "aten.tile")
def repeat(b: Builder, op: Op) -> Value:
    """Along dims of size 1 the same as expand."""
    x, kind = b.value(op, 0), op.result()
    lead = len(kind.dims) - len(x.dims)
    if any(size not in (1, new) for size, new in zip(x.dims, kind.dims[lead:], strict=True)):
        raise op.refuse(f"dims {x.dims} repeated to {kind.dims} need a copy")
    return b.expanded(op, x, kind.dims)


@rule("aten.slice.Tensor", "aten.narrow", "aten.select.int", role=Role.VIEW)
def slices(b: Builder, op: Op) -> Value:
    """A part that begins where the tensor does: hipDNN's tensors have strides but no offset."""
    x, kind = b.value(op, 0), op.result()
    axis = op.axis(1, len(x.dims))
    size = x.dims[axis]
    start = 0 if op.is_none(2) else op.int(2)
    start = min(start + size if start < 0 else start, size)
    step = op.int(4) if op.name.endswith("slice.Tensor") else 1
    dropped = op.name.endswith("select.int")
    length = 1 if dropped else kind.dims[axis]
    if length == size and step == 1:
        return b.reshaped(op, x, kind.dims)
    dims = tuple(length if place == axis else known for place, known in enumerate(x.dims))
    if isinstance(x, Splat):
        return Splat(x.value, kind.dims, x.dtype)
    if not isinstance(x, Source):
        raise op.refuse(f"a part of dims {dims} of an intermediate result of dims {x.dims} would need a copy")
    if start:
        raise op.refuse(f"the part begins at {start} along axis {axis}; hipDNN's tensors have no offset")
    strides = tuple(stride * step if place == axis else stride for place, stride in enumerate(x.strides))
    return b.reshaped(op, Source(x.position, dims, x.dtype, strides), kind.dims, "the part")


@rule("aten.constant_pad_nd", "aten.pad", role=Role.VIEW)
def pad(b: Builder, op: Op) -> Value:
    """A frame of one number, for the convolution or pooling that uses it; pads come in pairs from the last axis on."""
    x, kind = b.value(op, 0), op.result()
    if op.name.endswith("aten.pad"):
        if op.text(2) != "constant":
            raise op.refuse(f"padding of mode {op.text(2)!r} has no hipDNN form")
        value = op.number(3, 0.0)
    else:
        value = op.number(2)
    amounts = op.ints(1)
    if not any(amounts):
        return x
    before, after = [0] * len(x.dims), [0] * len(x.dims)
    for index in range(len(amounts) // 2):
        before[-1 - index], after[-1 - index] = amounts[2 * index], amounts[2 * index + 1]
    if min(amounts) < 0:
        raise op.refuse(f"it crops: pads {amounts}")
    if not isinstance(x, Source | Made):
        raise op.refuse("it pads a constant, or what is padded already")
    return Padded(x, tuple(before), tuple(after), float(value), kind.dims, x.dtype)


@rule("aten.full", "aten.full_like", "aten.new_full")
def full(b: Builder, op: Op) -> Value:
    """One number everywhere."""
    kind = op.result()
    return Splat(op.number(2 if op.name.endswith("new_full") else 1), kind.dims, kind.dtype)


@rule("aten.zeros", "aten.zeros_like", "aten.new_zeros")
def zeros(b: Builder, op: Op) -> Value:
    """0 everywhere."""
    kind = op.result()
    return Splat(0, kind.dims, kind.dtype)


@rule("aten.ones", "aten.ones_like", "aten.new_ones")
def ones(b: Builder, op: Op) -> Value:
    """1 everywhere."""
    kind = op.result()
    return Splat(1, kind.dims, kind.dtype)


@rule("aten.scalar_tensor", "prim.NumToTensor.Scalar", "aten.tensor.float", "aten.tensor.int", "aten.tensor.bool")
def scalar_tensor(b: Builder, op: Op) -> Value:
    """A number as a tensor."""
    kind = op.result()
    return Splat(op.number(0), kind.dims, kind.dtype)
