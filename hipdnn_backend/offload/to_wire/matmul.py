"""Matrix products: batch dims broadcast, vectors, transposed operands by strides, biases as elementwise nodes."""

from __future__ import annotations

from hipdnn_backend.offload.to_wire.builder import Builder, fields_of
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import Role, rule
from hipdnn_backend.offload.to_wire.types import FLOATS, compute_type
from hipdnn_backend.offload.to_wire.values import Source, Value
from hipdnn_backend.offload.to_wire.views import broadcast
from hipdnn_backend.wire import DataType, MatmulAttributes, PointwiseMode

__all__ = ["product"]


def product(b: Builder, op: Op, left: Value, right: Value, dtype: DataType, suffix: str = "") -> Value:
    """left @ right as ``torch.matmul`` has it.

    Raises:
        NotTranslated: an operand is an intermediate result that would have to be transposed or given more dims.
    """
    if (left.dtype not in FLOATS and dtype in FLOATS) or left.dtype is DataType.BOOLEAN:
        raise op.refuse(f"a product of {left.dtype.name} in {dtype.name} has no hipDNN form")
    a = b.reshaped(op, left, (1, *left.dims)) if len(left.dims) == 1 else left
    c = b.reshaped(op, right, (*right.dims, 1)) if len(right.dims) == 1 else right
    rank = max(len(a.dims), len(c.dims))
    a, c = (b.reshaped(op, value, (1,) * (rank - len(value.dims)) + value.dims, "an operand") for value in (a, c))
    tensors = {
        "a": b.plain(op, _without_repeats(a), "the left operand"),
        "b": b.plain(op, _without_repeats(c), "the right operand"),
    }
    batch = broadcast([a.dims[:-2], c.dims[:-2]]) if rank > 2 else ()
    dims = (*batch, a.dims[-2], c.dims[-1])
    sizes = broadcast([tensors["a"].dims[:-2], tensors["b"].dims[:-2]]) if rank > 2 else ()
    if sizes != batch:
        raise op.refuse(f"both operands repeat a batch dim: {a.dims} and {c.dims}")
    tensors["c"] = b.tensor(op, dims, dtype, suffix)
    b.node(op, MatmulAttributes(**fields_of(tensors)), compute_type(left.dtype, right.dtype, dtype), suffix)
    shape = (*batch, *left.dims[-2:-1], *(right.dims[-1:] if len(right.dims) > 1 else ()))
    return b.made(tensors["c"], shape)


def _without_repeats(value: Value) -> Value:
    """Batch dims that repeat, as dims of 1: the product broadcasts them by itself."""
    if not isinstance(value, Source) or 0 not in value.strides[:-2]:
        return value
    lead = len(value.dims) - 2
    dims = tuple(1 if axis < lead and value.strides[axis] == 0 else size for axis, size in enumerate(value.dims))
    return Source(value.position, dims, value.dtype, value.strides)


def _plus(b: Builder, op: Op, made: Value, bias: Value, dtype: DataType, suffix: str = "::bias") -> Value:
    return b.pointwise(op, PointwiseMode.ADD, [made, bias], dtype, suffix=suffix)


def _times(b: Builder, op: Op, value: Value, factor: float, dtype: DataType, suffix: str) -> Value:
    return value if factor == 1 else b.pointwise(op, PointwiseMode.MUL, [value, factor], dtype, suffix=suffix)


@rule("aten.mm", "aten.bmm", "aten.matmul", role=Role.ANCHOR)
@rule("aten.mv", "aten.dot")
def matmul(b: Builder, op: Op) -> Value:
    """left @ right."""
    return product(b, op, b.value(op, 0), b.value(op, 1), op.result().dtype)


@rule("aten.linear", role=Role.ANCHOR)
def linear(b: Builder, op: Op) -> Value:
    """x @ weight^T + bias."""
    dtype, weight = op.result().dtype, b.value(op, 1)
    if len(weight.dims) == 2:
        weight = b.permuted(op, weight, (1, 0))
    made = product(b, op, b.value(op, 0), weight, dtype)
    return made if op.is_none(2) else _plus(b, op, made, b.value(op, 2), dtype)


@rule("aten.addmm", "aten.baddbmm", role=Role.ANCHOR)
def addmm(b: Builder, op: Op) -> Value:
    """beta * x + alpha * (left @ right)."""
    dtype = op.result().dtype
    beta, alpha = op.number(3), op.number(4)
    made = product(b, op, b.value(op, 1), b.value(op, 2), dtype)
    made = _times(b, op, made, alpha, dtype, "::alpha")
    if beta == 0:  # then x does not count, not even its NaNs
        return made
    return _plus(b, op, made, _times(b, op, b.value(op, 0), beta, dtype, "::beta"), dtype)
