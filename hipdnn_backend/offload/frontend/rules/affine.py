"""Multiplications and additions of constants per channel go into the convolution before them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import attributes
from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__ = ["scaled_filters"]

operator("Add", "Div", "Mul", "Sub", broadcasts=True)


@rewrites("Mul", "Div", "Add", "Sub")
def _into_convolution(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``conv(x) * a`` and ``conv(x) + a``, in float64: exporters leave them where a network scales its layers."""
    at = 0 if b.value(node.input[0]) is None else 1
    y, other = node.input[at], b.value(node.input[1 - at])
    conv, dims = b.producer(y), b.dims(y)
    if other is None or conv is None or conv.op_type not in ("Conv", "ConvTranspose") or conv.domain:
        return None
    if dims is None or b.uses(y) != 1 or (at == 1 and node.op_type in ("Sub", "Div")):
        return None
    weight, bias = b.value(conv.input[1]), _bias(b, conv, dims[1])
    channel = _per_channel(other, dims)
    if weight is None or bias is None or channel is None or weight.dtype.kind != "f":
        return None
    new_weight = weight
    if node.op_type in ("Mul", "Div"):
        gain = channel if node.op_type == "Mul" else 1.0 / channel
        new_weight, bias = scaled_filters(conv, weight, gain), bias * gain
    else:
        bias = bias + (channel if node.op_type == "Add" else -channel)
    if not np.isfinite(bias).all() or not np.isfinite(new_weight).all():
        return None
    b.take_over(conv)
    kept = conv.input[1] if new_weight is weight else b.constant(new_weight, weight.dtype)
    return [b.op(conv.op_type, conv.input[0], kept, b.constant(bias, weight.dtype), **attributes(conv))]


def _bias(b: Builder, conv: onnx.NodeProto, channels: int) -> np.ndarray | None:
    if len(conv.input) < 3 or not conv.input[2]:
        return np.zeros(channels)
    bias = b.value(conv.input[2])
    return None if bias is None else bias.astype(np.float64)


def _per_channel(value: np.ndarray, dims: tuple[int, ...]) -> np.ndarray | None:
    """One number per channel if a constant broadcasts so over ``[N, C, ...]``."""
    shape = (1,) * (len(dims) - value.ndim) + value.shape
    if (
        len(shape) != len(dims)
        or shape[1] not in (1, dims[1])
        or any(size != 1 for i, size in enumerate(shape) if i != 1)
    ):
        return None
    return np.broadcast_to(value.reshape(-1).astype(np.float64), dims[1:2])


def scaled_filters(conv: onnx.NodeProto, weight: np.ndarray, gain: np.ndarray) -> np.ndarray:
    """The filters, each multiplied by its output channel's gain and rounded once."""
    result = np.empty_like(weight)
    spatial = (1,) * (weight.ndim - 2)
    with np.errstate(over="ignore"):
        if conv.op_type == "Conv":  # [out, in / groups, ...]
            return np.multiply(weight, gain.reshape(-1, 1, *spatial), out=result, casting="unsafe")
        # [in, out / groups, ...]: the input channels of a group share its output channels
        groups = attributes(conv).get("group", 1)
        grouped = (groups, weight.shape[0] // groups, *weight.shape[1:])
        gains = gain.reshape(groups, 1, -1, *spatial)
        np.multiply(weight.reshape(grouped), gains, out=result.reshape(grouped), casting="unsafe")
    return result
