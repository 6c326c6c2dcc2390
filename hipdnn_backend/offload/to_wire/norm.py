"""Normalisations: nodes of their own where hipDNN's operands fit, chains of reductions otherwise."""

from __future__ import annotations

from typing import Final

from hipdnn_backend.offload.to_wire.builder import Builder, fields_of
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.reduction import moments
from hipdnn_backend.offload.to_wire.registry import Result, Role, rule
from hipdnn_backend.offload.to_wire.types import compute_type
from hipdnn_backend.offload.to_wire.values import Tensor, Value
from hipdnn_backend.wire import (
    BatchnormAttributes,
    BatchnormInferenceAttributesVarianceExt,
    DataType,
    LayernormAttributes,
    NormFwdPhase,
    PointwiseMode,
    ReductionMode,
    RMSNormAttributes,
)

__all__ = ["inverse_root", "optional", "per_channel"]

M = PointwiseMode
_EPSILON: Final = {
    DataType.DOUBLE: 2.0**-52,
    DataType.FLOAT: 2.0**-23,
    DataType.HALF: 2.0**-10,
    DataType.BFLOAT16: 2.0**-7,
}
"""Spacing of the numbers above 1: PyTorch's epsilon of an RMS norm that is given none."""


def optional(b: Builder, op: Op, index: int) -> Value | None:
    """An operand that may be None."""
    return None if op.is_none(index) else b.value(op, index)


def per_channel(b: Builder, op: Op, value: Value, rank: int, what: str) -> Value:
    """A row of numbers, one per channel, with as many dims as x."""
    return b.reshaped(op, value, (1, *value.dims, *(1 for _ in range(rank - 2))), what)


def _epsilon(b: Builder, op: Op, value: float, compute: DataType) -> Tensor:
    return b.scalar(op, value, DataType.DOUBLE if compute is DataType.DOUBLE else DataType.FLOAT)


def inverse_root(b: Builder, op: Op, variance: Value, epsilon: float, dtype: DataType) -> Value:
    """1 / sqrt(variance + epsilon)."""
    moved = b.pointwise(op, M.ADD, [variance, epsilon], dtype, suffix="::epsilon")
    return b.pointwise(op, M.RSQRT, [moved], dtype, suffix="::inverse")


def _affine(b: Builder, op: Op, made: Value, scale: Value | None, bias: Value | None, dtype: DataType) -> Value:
    if scale is not None:
        made = b.pointwise(op, M.MUL, [made, scale], dtype, suffix="::scale")
    return made if bias is None else b.pointwise(op, M.ADD, [made, bias], dtype, suffix="::bias")


@rule("aten.batch_norm")
def batch_norm(b: Builder, op: Op) -> Value:
    """With given statistics: x, weight, bias, mean, variance, training, momentum, eps."""
    if op.flag(5) or op.is_none(3) or op.is_none(4):
        raise op.refuse("it is in training, or without running statistics; only inference is translated")
    return _inference(b, op, op.number(7))


@rule("aten.native_batch_norm", role=Role.ANCHOR)
@rule("aten._native_batch_norm_legit_no_training", "aten._native_batch_norm_legit")
def native_batch_norm(b: Builder, op: Op) -> Result:
    """The same with two more results, which inference does not have; in training the statistics of the batch."""
    training = not op.name.endswith("no_training") and op.flag(5)
    epsilon = op.number(6 if op.name.endswith("no_training") else 7)
    if not training:
        if op.used(1) or op.used(2):
            raise op.refuse("in inference it has no statistics to give (result 1 or 2 is used)")
        return [_inference(b, op, epsilon), None, None]
    return _training(b, op, epsilon)


def _inference(b: Builder, op: Op, epsilon: float) -> Value:
    """Batch norm with given statistics: one node with scale and bias, which the wire's table wants; else several."""
    x, dtype = b.value(op, 0), op.result().dtype
    rank = len(x.dims)
    scale, bias, mean, variance = (
        None if given is None else per_channel(b, op, given, rank, "a statistic")
        for given in (optional(b, op, index) for index in range(1, 5))
    )
    assert mean is not None
    assert variance is not None
    if scale is None or bias is None:
        centred = b.pointwise(op, M.SUB, [x, mean], dtype, suffix="::centred")
        inverse = inverse_root(b, op, variance, epsilon, variance.dtype)
        made = b.pointwise(op, M.MUL, [centred, inverse], dtype, suffix="::normal")
        return _affine(b, op, made, scale, bias, dtype)
    compute = compute_type(x.dtype, dtype)
    tensors = {
        "x": b.plain(op, x, "x"),
        "mean": b.plain(op, mean, "the mean"),
        "variance": b.plain(op, variance, "the variance"),
        "scale": b.plain(op, scale, "the scale"),
        "bias": b.plain(op, bias, "the bias"),
        "y": b.tensor(op, x.dims, dtype),
        "epsilon": _epsilon(b, op, epsilon, compute),
    }
    b.node(op, BatchnormInferenceAttributesVarianceExt(**fields_of(tensors)), compute)
    return b.made(tensors["y"])


def _training(b: Builder, op: Op, epsilon: float) -> Result:
    """y, mean and inverse deviation; running statistics are the caller's affair, so there must be none to update."""
    if not op.is_none(3) or not op.is_none(4):
        raise op.refuse("it updates running statistics in place, which a graph cannot")
    x, dtype = b.value(op, 0), op.result().dtype
    scale, bias = optional(b, op, 1), optional(b, op, 2)
    if scale is None or bias is None:
        raise op.refuse("hipDNN's batch normalisation needs a scale and a bias")
    compute = compute_type(x.dtype, dtype)
    rank, channels = len(x.dims), (1, x.dims[1], *(1 for _ in x.dims[2:]))
    tensors = {
        "x": b.plain(op, x, "x"),
        "scale": b.plain(op, per_channel(b, op, scale, rank, "the scale"), "the scale"),
        "bias": b.plain(op, per_channel(b, op, bias, rank, "the bias"), "the bias"),
        "epsilon": _epsilon(b, op, epsilon, compute),
        "y": b.tensor(op, x.dims, dtype),
        "mean": b.tensor(op, channels, op.result(1).dtype, "::mean"),
        "inv_variance": b.tensor(op, channels, op.result(2).dtype, "::inv_variance"),
    }
    b.node(op, BatchnormAttributes(**fields_of(tensors)), compute)
    statistics = [b.made(tensors[port], (x.dims[1],)) for port in ("mean", "inv_variance")]
    return [b.made(tensors["y"]), *statistics]


@rule("aten.layer_norm", "aten.native_layer_norm", role=Role.ANCHOR)
def layer_norm(b: Builder, op: Op) -> Result:
    """x, shape, weight, bias, eps; native_layer_norm also gives mean and inverse deviation."""
    x, shape, epsilon = b.value(op, 0), op.ints(1), op.number(4)
    scale, bias = optional(b, op, 2), optional(b, op, 3)
    dtype, lead = op.result().dtype, len(x.dims) - len(shape)
    if scale is None or bias is None:
        return _composite_layer_norm(b, op, x, range(lead, len(x.dims)), (scale, bias), epsilon)
    compute = compute_type(x.dtype, dtype)
    affine = (1,) * lead + shape
    tensors = {
        "x": b.plain(op, x, "x"),
        "scale": b.plain(op, b.reshaped(op, scale, affine, "the scale"), "the scale"),
        "bias": b.plain(op, b.reshaped(op, bias, affine, "the bias"), "the bias"),
        "epsilon": _epsilon(b, op, epsilon, compute),
        "y": b.tensor(op, x.dims, dtype),
    }
    wanted = [index for index in (1, 2) if len(op.operation.results) > index and op.used(index)]
    if wanted:
        statistics = x.dims[:lead] + (1,) * len(shape)
        tensors["mean"] = b.tensor(op, statistics, op.result(1).dtype, "::mean")
        tensors["inv_variance"] = b.tensor(op, statistics, op.result(2).dtype, "::inv_variance")
    phase = NormFwdPhase.TRAINING if wanted else NormFwdPhase.INFERENCE
    table = LayernormAttributes(**fields_of(tensors), normalized_dim_count=len(shape), forward_phase=phase)
    b.node(op, table, compute)
    made = [b.made(tensors["y"])]
    if wanted:
        made += [b.made(tensors["mean"]), b.made(tensors["inv_variance"])]
    return made


def _composite_layer_norm(
    b: Builder, op: Op, x: Value, axes: range, affine: tuple[Value | None, Value | None], epsilon: float
) -> Result:
    dtype = op.result().dtype
    mean, difference, variance = moments(b, op, x, axes, dtype)
    inverse = inverse_root(b, op, variance, epsilon, dtype)
    made = b.pointwise(op, M.MUL, [difference, inverse], dtype, suffix="::normal")
    y = _affine(b, op, made, *affine, dtype)
    return [y, mean, inverse] if len(op.operation.results) > 1 else y


@rule("aten.rms_norm", "aten._fused_rms_norm", role=Role.ANCHOR)
def rms_norm(b: Builder, op: Op) -> Result:
    """x, shape, weight, eps."""
    x, shape, dtype = b.value(op, 0), op.ints(1), op.result().dtype
    epsilon = op.number(3, _EPSILON.get(x.dtype, 2.0**-23))
    lead = len(x.dims) - len(shape)
    scale = optional(b, op, 2)
    if len(op.operation.results) > 1 and op.used(1):
        raise op.refuse("the inverse root (result 1) is used")
    y = _rms_node(b, op, x, scale, epsilon, shape, lead) if scale is not None and lead else None
    if y is None:
        squares = b.pointwise(op, M.MUL, [x, x], dtype, suffix="::square")
        mean = b.reduction(op, ReductionMode.AVG, squares, range(lead, len(x.dims)), dtype, suffix="::mean")
        made = b.pointwise(op, M.MUL, [x, inverse_root(b, op, mean, epsilon, dtype)], dtype, suffix="::normal")
        y = _affine(b, op, made, scale, None, dtype)
    return [y, None] if len(op.operation.results) > 1 else y


def _rms_node(b: Builder, op: Op, x: Value, scale: Value, epsilon: float, shape: tuple[int, ...], lead: int) -> Value:
    """The node. It normalises the trailing dims that scale and x share, which may be more than asked for: of size 1."""
    compute = compute_type(x.dtype, op.result().dtype)
    affine = b.reshaped(op, scale, (1,) * lead + shape, "the scale")
    tensors = {
        "x": b.plain(op, x, "x"),
        "scale": b.plain(op, affine, "the scale"),
        "epsilon": _epsilon(b, op, epsilon, compute),
        "y": b.tensor(op, x.dims, op.result().dtype),
    }
    b.node(op, RMSNormAttributes(**fields_of(tensors), forward_phase=NormFwdPhase.INFERENCE), compute)
    return b.made(tensors["y"])


@rule("aten.group_norm", "aten.native_group_norm", "aten.instance_norm", role=Role.ANCHOR)
def group_norm(b: Builder, op: Op) -> Result:
    """Moments per group of channels; an instance norm has a group per channel."""
    x, dtype = b.value(op, 0), op.result().dtype
    n, c, *spatial = x.dims
    if op.name.endswith("native_group_norm"):
        scale, bias, groups, epsilon = optional(b, op, 1), optional(b, op, 2), op.int(6), op.number(7)
        if op.used(1) or op.used(2):
            raise op.refuse("its statistics (result 1 or 2) are used")
    elif op.name.endswith("instance_norm"):
        scale, bias, groups, epsilon = optional(b, op, 1), optional(b, op, 2), c, op.number(7)
        if not op.flag(5):
            raise op.refuse("it uses running statistics")
    else:
        groups, scale, bias, epsilon = op.int(1), optional(b, op, 2), optional(b, op, 3), op.number(4)
    if groups == c:
        dims, channels, first = x.dims, (1, c, *(1 for _ in spatial)), 2
    else:
        dims, first = (n, groups, c // groups, *spatial), 2
        channels = (1, groups, c // groups, *(1 for _ in spatial))
    grouped = b.reshaped(op, x, dims, "x")
    scale, bias = (None if v is None else b.reshaped(op, v, channels, "scale or bias") for v in (scale, bias))
    _, difference, variance = moments(b, op, grouped, range(first, len(dims)), dtype)
    normal = b.pointwise(
        op, M.MUL, [difference, inverse_root(b, op, variance, epsilon, dtype)], dtype, suffix="::normal"
    )
    y = b.reshaped(op, _affine(b, op, normal, scale, bias, dtype), x.dims)
    return [y, None, None] if len(op.operation.results) > 1 else y
