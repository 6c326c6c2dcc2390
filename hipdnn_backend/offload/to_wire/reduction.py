"""Reductions, softmax and moments as chains of reductions and elementwise nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.pointwise import cast
from hipdnn_backend.offload.to_wire.registry import Result, Role, rule
from hipdnn_backend.offload.to_wire.types import FLOATS
from hipdnn_backend.offload.to_wire.values import Value
from hipdnn_backend.offload.to_wire.views import Dims
from hipdnn_backend.wire import DataType, PointwiseMode, ReductionMode

__all__ = ["moments", "reduce"]

M = PointwiseMode
R = ReductionMode
_DIMS: Final = {
    "aten.sum.dim_IntList": R.ADD,
    "aten.mean.dim": R.AVG,
    "aten.amax": R.MAX_OP,
    "aten.amin": R.MIN_OP,
}
_WHOLE: Final = {"aten.sum": R.ADD, "aten.mean": R.AVG, "aten.max": R.MAX_OP, "aten.min": R.MIN_OP, "aten.prod": R.MUL}


def reduce(
    b: Builder,
    op: Op,
    mode: ReductionMode,
    x: Value,
    axes: Sequence[int],
    keep: bool,
    dtype: DataType,
    suffix: str = "",
) -> Value:
    """A reduction whose reduced axes stay as 1, or go."""
    made = b.reduction(op, mode, x, axes, dtype, suffix=suffix)
    dims = tuple(size for axis, size in enumerate(made.dims) if keep or axis not in axes)
    return b.reshaped(op, made, dims)


@rule(*_DIMS, role=Role.REDUCTION)
def reduce_dims(b: Builder, op: Op) -> Value:
    """Over a list of axes, or all."""
    x, kind = b.value(op, 0), op.result()
    _check_sum(op, x, kind.dtype)
    axes = op.axes(1, len(x.dims))
    return reduce(b, op, _DIMS[op.name.removeprefix("torch.")], x, axes, op.flag(2), kind.dtype)


@rule("aten.sum", "aten.mean", "aten.prod", role=Role.REDUCTION)
@rule("aten.max", "aten.min")
def reduce_all(b: Builder, op: Op) -> Value:
    """Over all axes."""
    x, kind = b.value(op, 0), op.result()
    _check_sum(op, x, kind.dtype)
    mode = _WHOLE[op.name.removeprefix("torch.")]
    return reduce(b, op, mode, x, range(len(x.dims)), False, kind.dtype)


def _check_sum(op: Op, x: Value, dtype: DataType) -> None:
    """A wider result is one of the node; a narrower one would be converted after every step."""
    if x.dtype in FLOATS and dtype not in FLOATS:
        raise op.refuse(f"it sums {x.dtype.name} in {dtype.name}")


@rule("aten.prod.dim_int", "aten.max.dim", "aten.min.dim", role=Role.REDUCTION)
def reduce_dim(b: Builder, op: Op) -> Result:
    """Over one axis; the positions of max.dim and min.dim must be unused."""
    modes = {"torch.aten.prod.dim_int": R.MUL, "torch.aten.max.dim": R.MAX_OP, "torch.aten.min.dim": R.MIN_OP}
    if len(op.operation.results) > 1 and op.used(1):
        raise op.refuse("hipDNN's reductions do not tell positions (result 1 is used)")
    x, kind = b.value(op, 0), op.result()
    axes = (op.axis(1, len(x.dims)),) if x.dims else ()
    made = reduce(b, op, modes[op.name], x, axes, op.flag(2), kind.dtype)
    return [made, None] if len(op.operation.results) > 1 else made


@rule("aten.any", "aten.all", "aten.any.dim", "aten.all.dim", "aten.any.dims", role=Role.REDUCTION)
def any_all(b: Builder, op: Op) -> Value:
    """Maximum or minimum of the truth values."""
    x = b.value(op, 0)
    truth = cast(b, op, x, DataType.BOOLEAN, "::truth")
    one_dim = "dim" in op.name
    axes = op.axes(1, len(x.dims)) if one_dim else range(len(x.dims))
    mode = R.MAX_OP if "any" in op.name else R.MIN_OP
    return reduce(b, op, mode, truth, axes, one_dim and op.flag(2), DataType.BOOLEAN)


@rule("aten.linalg_vector_norm", "aten.norm.ScalarOpt_dim", "aten.norm.Scalar", role=Role.REDUCTION)
@rule("aten.frobenius_norm.dim")
def vector_norm(b: Builder, op: Op) -> Value:
    """Of order 1, 2, or infinity."""
    x, kind = b.value(op, 0), op.result()
    frobenius = "frobenius" in op.name
    order = 2.0 if frobenius else float(op.number(1, 2.0))
    modes = {1.0: R.NORM1, 2.0: R.NORM2, math.inf: R.AMAX}
    if order not in modes:
        raise op.refuse(f"a norm of order {order} has no hipDNN mode; 1, 2 and infinity have")
    whole = op.name.endswith("norm.Scalar")
    first = 1 if frobenius else 2
    axes = range(len(x.dims)) if whole else op.axes(first, len(x.dims))
    return reduce(b, op, modes[order], x, axes, not whole and op.flag(first + 1), kind.dtype)


@rule("aten.softmax.int", "aten._softmax", "aten.log_softmax.int", "aten._log_softmax", role=Role.ANCHOR)
def softmax(b: Builder, op: Op) -> Value:
    """exp(x - max) / sum of it, or the logarithm of that."""
    x, kind = b.value(op, 0), op.result()
    axes = (op.axis(1, len(x.dims)),) if x.dims else ()
    work = kind.dtype
    top = b.reduction(op, R.MAX_OP, x, axes, work, suffix="::max")
    shifted = b.pointwise(op, M.SUB, [x, top], work, suffix="::shift")
    weights = b.pointwise(op, M.EXP, [shifted], work, suffix="::exp")
    total = b.reduction(op, R.ADD, weights, axes, work, suffix="::sum")
    if "log" not in op.name:
        return b.pointwise(op, M.DIV, [weights, total], work)
    logarithm = b.pointwise(op, M.LOG, [total], work, suffix="::log")
    return b.pointwise(op, M.SUB, [shifted, logarithm], work)


_LARGEST: Final = {
    DataType.DOUBLE: math.ldexp(2.0 - 2.0**-52, 1023),
    DataType.FLOAT: math.ldexp(2.0 - 2.0**-23, 127),
    DataType.BFLOAT16: math.ldexp(2.0 - 2.0**-7, 127),
    DataType.HALF: 65504.0,
}


@rule("aten.logsumexp", role=Role.REDUCTION)
def logsumexp(b: Builder, op: Op) -> Value:
    """max + log(sum of exp(x - max)), where an infinite max is the largest finite number: inf - inf is none."""
    x, kind = b.value(op, 0), op.result()
    axes = op.axes(1, len(x.dims))
    top = b.reduction(op, R.MAX_OP, x, axes, kind.dtype, suffix="::max")
    finite = _LARGEST.get(kind.dtype, _LARGEST[DataType.FLOAT])
    top = b.pointwise(op, M.MIN_OP, [top, finite], kind.dtype, suffix="::high")
    top = b.pointwise(op, M.MAX_OP, [top, -finite], kind.dtype, suffix="::low")
    shifted = b.pointwise(op, M.SUB, [x, top], kind.dtype, suffix="::shift")
    weights = b.pointwise(op, M.EXP, [shifted], kind.dtype, suffix="::exp")
    total = b.reduction(op, R.ADD, weights, axes, kind.dtype, suffix="::sum")
    logarithm = b.pointwise(op, M.LOG, [total], kind.dtype, suffix="::log")
    made = b.pointwise(op, M.ADD, [logarithm, top], kind.dtype)
    return b.reshaped(op, made, kind.dims)


def moments(b: Builder, op: Op, x: Value, axes: Sequence[int], dtype: DataType) -> tuple[Value, Value, Value]:
    """Mean, difference from it, and biased variance; reduced axes stay, with size 1."""
    mean = b.reduction(op, R.AVG, x, axes, dtype, suffix="::mean")
    difference = b.pointwise(op, M.SUB, [x, mean], dtype, suffix="::difference")
    squares = b.pointwise(op, M.MUL, [difference, difference], dtype, suffix="::square")
    return mean, difference, b.reduction(op, R.AVG, squares, axes, dtype, suffix="::variance")


@rule(
    "aten.var.correction", "aten.std.correction", "aten.var.dim", "aten.std.dim", "aten.var", "aten.std",
    "aten.var_mean.correction", "aten.var_mean.dim", "aten.var_mean",
    role=Role.REDUCTION,
)  # fmt: skip
def variance(b: Builder, op: Op) -> Result:
    """Mean of squared differences, times n / (n - correction); std is its square root; var_mean gives both moments."""
    x, kind = b.value(op, 0), op.result()
    form = op.name.rsplit(".", 1)[-1]
    whole = form in ("var", "std", "var_mean")
    axes = tuple(range(len(x.dims))) if whole else op.axes(1, len(x.dims))
    correction = float(op.flag(1, True)) if whole else op.number(2, 1) if form == "correction" else float(op.flag(2))
    count = math.prod(x.dims[axis] for axis in axes)
    if count <= correction:
        raise op.refuse(f"a variance of {count} elements with correction {correction} is no number")
    mean, _, made = moments(b, op, x, axes, kind.dtype)
    if correction:
        made = b.pointwise(op, M.MUL, [made, count / (count - correction)], kind.dtype, suffix="::correction")
    if ".std" in op.name:
        made = b.pointwise(op, M.SQRT, [made], kind.dtype, suffix="::root")
    keep = not whole and op.flag(3)
    dims: Dims = tuple(size for axis, size in enumerate(made.dims) if keep or axis not in axes)
    y = b.reshaped(op, made, dims)
    return [y, b.reshaped(op, mean, dims)] if "var_mean" in op.name else y
