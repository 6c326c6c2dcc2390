"""Normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import attributes, numpy_type
from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.affine import scaled_filters
from hipdnn_backend.offload.frontend.torch_ops import Emitter, emits

__all__: list[str] = []

operator("BatchNormalization", weights=(1, 2, 3, 4), keeps_dims=True, per_channel=(1, 2, 3, 4))
operator("GroupNormalization", "InstanceNormalization", weights=(1, 2), per_channel=(1, 2))
operator("LayerNormalization", weights=(1, 2), keeps_dims=True, trailing=(1, 2))
operator("RMSNormalization", weights=(1,), keeps_dims=True, trailing=(1, 2))

_FLOAT = onnx.TensorProto.FLOAT


@rewrites("RMSNormalization")
def _rms_norm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """To ``aten.rms_norm`` where the scale has the normalised dims, else written out with static axes."""
    x, scale = node.input[:2]
    type_, dims, scale_dims = b.type(x), b.dims(x), b.dims(scale)
    if type_ is None or dims is None or scale_dims is None:
        return None
    axis = b.axis(-1, len(dims))
    epsilon = b.given.get("epsilon", 1e-5)
    stash_type = b.given.get("stash_type", _FLOAT)
    precise = stash_type == _FLOAT
    if scale_dims == dims[axis:] and (precise or type_.dtype == np.float32) and b.dtype(scale) == type_.dtype:
        return [b.torch("rms_norm", x, scale, like=type_, epsilon=float(epsilon))]
    element = onnx.TensorProto.DOUBLE if onnx.TensorProto.DOUBLE in (stash_type, type_.element) else _FLOAT
    wide = b.op("Cast", x, to=element)
    stash = numpy_type(element)
    axes = b.constant(list(range(axis, len(dims))))
    mean = b.op("ReduceMean", b.op("Mul", wide, wide), axes, keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(epsilon, stash)))
    normed = b.op("Cast", b.op("Div", wide, root), to=type_.element)
    return [b.op("Mul", normed, scale)]


@emits("rms_norm")
def _emit_rms_norm(e: Emitter, x: Any, weight: Any) -> list[Any]:
    dims = e.dims(weight)
    operands = [x, e.ints(dims), weight, e.float(e.number("epsilon"))]
    return [e.create("torch.aten.rms_norm", e.op.results[0].type, operands)]


@rewrites("BatchNormalization")
def _into_convolution(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """A batch norm with constant parameters goes into the convolution before it, in float64."""
    conv = b.producer(node.input[0])
    if conv is None or conv.op_type not in ("Conv", "ConvTranspose") or conv.domain or b.given.get("training_mode", 0):
        return None
    if b.uses(node.input[0]) != 1 or any(b.has_output(i) for i in range(1, 5)):
        return None
    weight, scale, shift, mean, variance = (b.value(name) for name in (conv.input[1], *node.input[1:5]))
    bias = b.value(conv.input[2]) if len(conv.input) > 2 and conv.input[2] else np.zeros(1)
    if weight is None or scale is None or shift is None or mean is None or variance is None or bias is None:
        return None
    gain = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + b.given.get("epsilon", 1e-5))
    new_bias = (bias.astype(np.float64) - mean) * gain + shift
    operands = [conv.input[0], b.constant(scaled_filters(conv, weight, gain), None), b.constant(new_bias, weight.dtype)]
    b.take_over(conv)
    return [b.op(conv.op_type, *operands, **attributes(conv))]


@rewrites("LayerNormalization")
def _whole_scale(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Scale and bias that broadcast over the normalised dims take these dims, which torch wants.

    Statistics are those of single precision whatever ``stash_type`` says, as ONNX Runtime has them: in the operator's
    body, which is for other types, the variance is a difference of large numbers.
    """
    dims = b.dims(node.input[0])
    if dims is None:
        return None
    stash, given = b.given.get("stash_type", _FLOAT), {**b.given, "stash_type": None}
    inner = dims[b.axis(-1, len(dims)) :]
    operands = list(node.input)
    changed = False
    for i in range(1, len(operands)):
        shape = b.dims(operands[i]) if operands[i] else inner
        if shape is not None and shape != inner and math.prod(shape) <= math.prod(inner):
            operands[i] = b.op("Expand", operands[i], b.constant(inner))
            changed = True
    if not changed and stash == _FLOAT:
        return None
    y, *statistics = b.ops("LayerNormalization", operands, len(node.output), **given)
    return [y, *(b.op("Cast", each, to=stash) if stash != _FLOAT else each for each in statistics)]


@rewrites("GroupNormalization")
def _group_norm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """To ``aten.group_norm``; scale and bias are per channel since opset 21. Of ``stash_type`` see `_whole_scale`."""
    type_ = b.type(node.input[0])
    if type_ is None or type_.static is None:
        return None
    given = {"groups": b.given["num_groups"], "epsilon": float(b.given.get("epsilon", 1e-5))}
    return [b.torch("group_norm", *node.input, like=type_, **given)]


@emits("group_norm")
def _emit_group_norm(e: Emitter, x: Any, weight: Any, bias: Any) -> list[Any]:
    operands = [x, e.int(e.integer("groups")), weight, bias, e.float(e.number("epsilon")), e.bool(False)]
    return [e.create("torch.aten.group_norm", e.op.results[0].type, operands)]


@rewrites("MeanVarianceNormalization")
def _mean_variance(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``(x - mean) / (deviation + 1e-9)``; onnx's own inference fails on the operator's body."""
    x, type_ = node.input[0], b.type(node.input[0])
    if type_ is None:
        return None
    axes = b.constant(b.given.get("axes") or [0, 2, 3])
    centred = b.op("Sub", x, b.op("ReduceMean", x, axes, keepdims=1))
    deviation = b.op("Sqrt", b.op("ReduceMean", b.op("Mul", centred, centred), axes, keepdims=1))
    return [b.op("Div", centred, b.op("Add", deviation, b.like(x, 1e-9)))]


@rewrites("LpNormalization")
def _lp_norm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Divided by the norm, by 1 where that is 0: the operator gives 0 there, torch-mlir's conversion NaN."""
    dims, x = b.dims(node.input[0]), node.input[0]
    if not dims:
        return None
    order = b.given.get("p", 2)
    if order not in (1, 2):
        raise b.fail("norm-order", f"p is {order}; the operator has 1 and 2")
    axis = b.axis(-1, len(dims))
    norm = b.op(f"ReduceL{order}", x, b.constant([axis]), keepdims=1)
    return [b.op("Div", x, b.op("Where", b.op("Equal", norm, b.like(x, 0)), b.like(x, 1), norm))]
