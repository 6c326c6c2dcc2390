"""Gradients of normalisations: nodes of their own where hipDNN's operands fit, chains of reductions otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from hipdnn_backend.offload.to_wire.builder import Builder, fields_of
from hipdnn_backend.offload.to_wire.norm import inverse_root, optional, per_channel
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import Result, Role, rule
from hipdnn_backend.offload.to_wire.types import compute_type
from hipdnn_backend.offload.to_wire.values import Tensor, Value
from hipdnn_backend.wire import (
    BatchnormBackwardAttributes,
    LayernormBackwardAttributes,
    PointwiseMode,
    ReductionMode,
    RMSNormBackwardAttributes,
)

__all__: list[str] = []

M = PointwiseMode


@rule("aten.native_batch_norm_backward", role=Role.ANCHOR)
def native_batch_norm_backward(b: Builder, op: Op) -> Result:
    """dx, dscale and dbias of dy, x, weight, running mean and variance, those of the batch, training, eps, mask."""
    dy, x, training = b.value(op, 0), b.value(op, 1), op.flag(7)
    dtype, rank = x.dtype, len(x.dims)
    scale, mean, variance, saved, inverse = (
        None if given is None else per_channel(b, op, given, rank, "a statistic")
        for given in (optional(b, op, index) for index in range(2, 7))
    )
    if not training:
        if mean is None or variance is None:
            raise op.refuse("in inference it needs the running statistics")
        saved, inverse = mean, inverse_root(b, op, variance, op.number(8), dtype)
    if saved is None or inverse is None:
        raise op.refuse("in training it needs the statistics of the batch")
    if training and scale is not None and all(op.constant(9)):
        tensors = _operands(b, op, dy=dy, x=x, scale=scale, mean=saved, inv_variance=inverse)
        tensors |= _results(b, op, x.dims, scale.dims)
        b.node(op, BatchnormBackwardAttributes(**fields_of(tensors)), compute_type(x.dtype, dtype))
        return _made(b, op, tensors)
    over = (0, *range(2, rank))
    return _norm_gradients(b, op, dy, x, (saved, inverse, scale), over, over, op.constant(9), fixed=not training)


@rule("aten.native_layer_norm_backward", role=Role.ANCHOR)
def native_layer_norm_backward(b: Builder, op: Op) -> Result:
    """dx, dscale and dbias of dy, x, shape, mean, inverse deviation, weight, bias, mask."""
    dy, x, shape = b.value(op, 0), b.value(op, 1), op.ints(2)
    lead = len(x.dims) - len(shape)
    mean, inverse, scale = b.value(op, 3), b.value(op, 4), optional(b, op, 5)
    if scale is not None:
        scale = b.reshaped(op, scale, (1,) * lead + shape, "the scale")
        if all(op.constant(7)):
            tensors = _operands(b, op, dy=dy, x=x, scale=scale, mean=mean, inv_variance=inverse)
            tensors |= _results(b, op, x.dims, scale.dims)
            table = LayernormBackwardAttributes(**fields_of(tensors), normalized_dim_count=len(shape))
            b.node(op, table, compute_type(x.dtype, op.result().dtype))
            return _made(b, op, tensors)
    over, trailing = range(lead), range(lead, len(x.dims))
    return _norm_gradients(b, op, dy, x, (mean, inverse, scale), trailing, over, op.constant(7))


@rule("aten._fused_rms_norm_backward", role=Role.ANCHOR)
def fused_rms_norm_backward(b: Builder, op: Op) -> Result:
    """dx and dscale of dy, x, shape, inverse root, weight, mask."""
    dy, x, shape = b.value(op, 0), b.value(op, 1), op.ints(2)
    lead = len(x.dims) - len(shape)
    inverse, scale = b.value(op, 3), optional(b, op, 4)
    if scale is not None:
        scale = b.reshaped(op, scale, (1,) * lead + shape, "the scale")
        if lead and all(op.constant(5)):
            tensors = _operands(b, op, dy=dy, x=x, scale=scale, inv_rms=inverse)
            tensors |= _results(b, op, x.dims, scale.dims, "dx", "dscale")
            table = RMSNormBackwardAttributes(**fields_of(tensors))
            b.node(op, table, compute_type(x.dtype, op.result().dtype))
            return _made(b, op, tensors)
    over, trailing = range(lead), range(lead, len(x.dims))
    return _norm_gradients(b, op, dy, x, (None, inverse, scale), trailing, over, op.constant(5))


def _operands(b: Builder, op: Op, **values: Value) -> dict[str, Tensor]:
    return {port: b.plain(op, value, port) for port, value in values.items()}


def _results(b: Builder, op: Op, dims: Sequence[int], affine: Sequence[int], *ports: str) -> dict[str, Tensor]:
    """Tensors of the results, dx first."""
    return {
        port: b.tensor(op, affine if index else dims, op.result(index).dtype, f"::{port}")
        for index, port in enumerate(ports or ("dx", "dscale", "dbias"))
    }


def _made(b: Builder, op: Op, tensors: dict[str, Tensor]) -> Result:
    found = (tensors[port] for port in ("dx", "dscale", "dbias") if port in tensors)
    return [b.made(tensor, op.result(index).dims) for index, tensor in enumerate(found)]


def _norm_gradients(
    b: Builder, op: Op, dy: Value, x: Value, statistics: tuple[Value | None, Value, Value | None],
    moments_over: Sequence[int], affine_over: Sequence[int], wanted: Sequence[bool], *, fixed: bool = False,
) -> Result:  # fmt: skip
    """Gradients of ``(x - mean) * inverse * scale + bias``.

    Args:
        b, op: where nodes go, what they are for.
        dy, x: of one shape.
        statistics: mean, inverse deviation and scale, which broadcast to x; no mean: that of an RMS norm; no scale: 1.
        moments_over: the axes of mean and deviation.
        affine_over: the axes along which scale and bias are the same.
        wanted: which of dx, dscale and dbias are.
        fixed: mean and deviation do not depend on x.
    """
    (mean, inverse, scale), dtype = statistics, x.dtype

    def point(mode: PointwiseMode, one: Value, other: Value, suffix: str) -> Value:
        return b.pointwise(op, mode, [one, other], dtype, suffix=suffix)

    def summed(value: Value, index: int, suffix: str) -> Value:
        made = b.reduction(op, ReductionMode.ADD, value, affine_over, dtype, suffix=suffix) if affine_over else value
        return b.reshaped(op, made, op.result(index).dims)

    normal = point(M.MUL, x if mean is None else point(M.SUB, x, mean, "::centred"), inverse, "::normal")
    results: list[Value | None] = [None for _ in wanted]
    if wanted[0]:
        scaled = dy if scale is None else point(M.MUL, dy, scale, "::scaled")
        dx = scaled
        if not fixed:
            if mean is not None:
                along = b.reduction(op, ReductionMode.AVG, scaled, moments_over, dtype, suffix="::mean_dy")
                dx = point(M.SUB, dx, along, "::less_mean")
            across = point(M.MUL, scaled, normal, "::across")
            across = b.reduction(op, ReductionMode.AVG, across, moments_over, dtype, suffix="::mean_across")
            dx = point(M.SUB, dx, point(M.MUL, normal, across, "::projected"), "::less_projected")
        results[0] = point(M.MUL, dx, inverse, "::dx")
    if wanted[1]:
        results[1] = summed(point(M.MUL, dy, normal, "::dscale_of_each"), 1, "::dscale")
    if wanted[2:] and wanted[2]:
        results[2] = summed(dy, 2, "::dbias")
    return results
