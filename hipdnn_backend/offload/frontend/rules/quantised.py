"""Quantised operators as arithmetic on plain integers and floats: values of torch's quantised types cross no graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

_FLOAT = onnx.TensorProto.FLOAT
_INTEGERS = (np.int8, np.uint8, np.int16, np.uint16)


def _along(b: Builder, name: str, rank: int, axis: int) -> str | None:
    """A scale or zero point that broadcasts over the tensor; None if it is given per block."""
    dims = b.dims(name)
    if dims is None or len(dims) > 1:
        return None
    if not dims or dims == (1,):
        return b.op("Reshape", name, b.constant(np.zeros(0))) if dims else name
    return b.op("Reshape", name, b.constant([-1 if i == axis % rank else 1 for i in range(rank)]))


@rewrites("DequantizeLinear")
def _dequantize(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``(x - zero point) * scale``."""
    x, scale = node.input[:2]
    dims, dtype, kind = b.dims(x), b.dtype(x), b.type(scale)
    if dims is None or kind is None or dtype not in (*_INTEGERS, np.int32) or b.given.get("block_size", 0):
        return None
    axis = b.given.get("axis", 1)
    factor = _along(b, scale, len(dims), axis)
    zero = _along(b, b.input(2), len(dims), axis) if b.input(2) else ""
    if factor is None or zero is None:
        return None
    y = b.op("Cast", x, to=kind.element)
    if zero:
        y = b.op("Sub", y, b.op("Cast", zero, to=kind.element))
    return [b.op("Mul", y, factor)]


@rewrites("QuantizeLinear")
def _quantize(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``saturate(round(x / scale) + zero point)``, rounding half to even."""
    x, scale = node.input[:2]
    dims, type_ = b.dims(x), b.type(x)
    result = b.type(node.output[0])
    if dims is None or type_ is None or result is None or result.dtype not in _INTEGERS or b.given.get("block_size", 0):
        return None
    axis = b.given.get("axis", 1)
    factor = _along(b, scale, len(dims), axis)
    zero = _along(b, b.input(2), len(dims), axis) if b.input(2) else ""
    if factor is None or zero is None or b.dtype(scale) != type_.dtype:
        return None
    return [_saturated(b, b.op("Div", x, factor), zero, result.dtype, type_.element)]


def _saturated(b: Builder, scaled: str, zero: str, dtype: np.dtype, element: int) -> str:
    kind = onnx.helper.tensor_dtype_to_np_dtype(element)
    y = b.op("Round", scaled)
    if zero:
        y = b.op("Add", y, b.op("Cast", zero, to=element))
    limits = np.iinfo(dtype)
    y = b.op("Clip", y, b.constant(limits.min, kind), b.constant(limits.max, kind))
    return b.op("Cast", y, to=onnx.helper.np_dtype_to_tensor_dtype(dtype))


@rewrites("QLinearConv")
def _convolution(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """On whole numbers in a float type that holds the sums, then rescaled."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.input[:8]
    filters, result = b.dims(w), b.type(node.output[0])
    if filters is None or result is None:
        return None
    element = _exact(math.prod(filters[1:]))
    rank = len(filters)
    w_zero_wide, w_factor = _along(b, w_zero, rank, 0), _along(b, w_scale, rank, 1)
    if w_zero_wide is None or w_factor is None:
        return None
    plain_x, plain_w = _centred(b, x, x_zero, element), _centred(b, w, w_zero_wide, element)
    operands = [plain_x, plain_w, *([b.op("Cast", node.input[8], to=element)] if b.input(8) else [])]
    sums = b.op("Cast", b.op("Conv", *operands, **b.given), to=_FLOAT)
    factor = b.op("Div", b.op("Mul", w_factor, _scalar(b, x_scale)), _scalar(b, y_scale))
    return [_saturated(b, b.op("Mul", sums, factor), _scalar(b, y_zero), result.dtype, _FLOAT)]


@rewrites("QLinearMatMul")
def _product(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """On whole numbers in a float type that holds the sums, then rescaled."""
    a, a_scale, a_zero, w, w_scale, w_zero, y_scale, y_zero = node.input[:8]
    left, right, result = b.dims(a), b.dims(w), b.type(node.output[0])
    scalars = [b.dims(name) in ((), (1,)) for name in (a_scale, a_zero, w_scale, w_zero, y_scale, y_zero)]
    if left is None or right is None or result is None or not all(scalars) or b.dtype(a_scale) != np.float32:
        return None
    element = _exact(left[-1])
    product = b.op("MatMul", _centred(b, a, _scalar(b, a_zero), element), _centred(b, w, _scalar(b, w_zero), element))
    factor = b.op("Div", b.op("Mul", _scalar(b, a_scale), _scalar(b, w_scale)), _scalar(b, y_scale))
    scaled = b.op("Mul", b.op("Cast", product, to=_FLOAT), factor)
    return [_saturated(b, scaled, _scalar(b, y_zero), result.dtype, _FLOAT)]


def _exact(terms: int) -> int:
    """The float type in which sums of so many products of 8-bit numbers are exact."""
    return _FLOAT if terms * 255 * 255 < 1 << 24 else onnx.TensorProto.DOUBLE


def _scalar(b: Builder, name: str) -> str:
    return b.op("Reshape", name, b.constant(np.zeros(0))) if b.dims(name) else name


def _centred(b: Builder, x: str, zero: str, element: int) -> str:
    return b.op("Sub", b.op("Cast", x, to=element), b.op("Cast", zero, to=element))


@rewrites("DynamicQuantizeLSTM", domain="com.microsoft")
def _lstm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """An LSTM with its weights dequantised: ``W [D, I, 4H]`` and ``R [D, H, 4H]``, the transposes of ONNX's."""
    weights = []
    for name, scale, zero in ((node.input[1], b.input(8), b.input(9)), (node.input[2], b.input(10), b.input(11))):
        kind = b.type(scale)
        if kind is None:
            return None
        scales, zeros = (_per_direction(b, each) for each in (scale, zero))
        plain = b.op("Mul", _centred(b, name, zeros, kind.element), scales)
        weights.append(b.op("Transpose", plain, perm=[0, 2, 1]))
    operands = [node.input[0], *weights, *(b.input(i) for i in range(3, 8))]
    return b.ops("LSTM", operands, 3, **b.given)


def _per_direction(b: Builder, name: str) -> str:
    """``[D]`` or ``[D, 4H]`` → ``[D, 1, 1]`` or ``[D, 1, 4H]``."""
    dims = b.dims(name) or ()
    return b.op("Reshape", name, b.constant([dims[0], 1, dims[1] if len(dims) == 2 else 1])) if dims else name
