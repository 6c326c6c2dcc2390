"""Quantised operators as arithmetic on plain integers and floats: values of torch's quantised types cross no graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from fusilli_ground.float_formats import FloatFormat
from hipdnn_backend.offload.errors import UnsupportedNodeError
from hipdnn_backend.offload.frontend.graph import TensorType, numpy_type
from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.exact_sums import Centred, exact_convolution, exact_type
from hipdnn_backend.offload.frontend.rules.small_types import element_of, numbers, of_codes, of_numbers
from hipdnn_backend.offload.frontend.small_types import SMALL, Integer

__all__ = ["quantised"]

operator("DequantizeLinear", "QuantizeLinear", static=(1, 2))
operator("QLinearConv", "QLinearMatMul", static=(1, 2, 4, 5, 6, 7))

_FLOAT = onnx.TensorProto.FLOAT
_PRECISIONS = tuple(getattr(onnx.TensorProto, name) for name in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"))
_INTEGERS = (np.int8, np.uint8, np.int16, np.uint16)


def _plain(b: Builder, name: str) -> str:
    """A scale or zero point in a type that has arithmetic."""
    return name if element_of(b, name) is None else numbers(b, name)


def _along(b: Builder, name: str, x: str) -> str | None:
    """A scale or zero point that broadcasts over the tensor; None if its dims do not belong to the tensor's."""
    dims, whole = b.dims(name), b.dims(x)
    if dims is None or whole is None:
        return None
    if not dims or dims == (1,):
        return b.op("Reshape", _plain(b, name), b.constant(np.zeros(0))) if dims else _plain(b, name)
    axis = b.axis(1, len(whole))
    if b.given.get("block_size", 0):
        return _per_block(b, name, dims, whole, axis)
    if len(dims) == 1 and dims[0] != whole[axis]:
        reason = f"{name} has {dims[0]} elements, axis {axis} of the tensor {list(whole)} has {whole[axis]}"
        raise b.fail("quantisation", reason)
    return _per_axis(b, _plain(b, name), len(whole), axis) if len(dims) == 1 else None


def _per_axis(b: Builder, value: str, rank: int, axis: int) -> str:
    return b.op("Reshape", value, b.constant([-1 if i == axis else 1 for i in range(rank)]))


def _per_block(b: Builder, name: str, dims: tuple[int, ...], whole: tuple[int, ...], axis: int) -> str | None:
    """Every number as often as a block has elements; the last block may be shorter."""
    size = b.given["block_size"]
    if len(dims) != len(whole) or any(d != w for i, (d, w) in enumerate(zip(dims, whole, strict=True)) if i != axis):
        return None
    if size < 1 or dims[axis] != -(-whole[axis] // size):
        raise b.fail("quantisation", f"{name} {list(dims)} has other blocks of {size} than the tensor {list(whole)}")
    return b.op("Gather", _plain(b, name), b.constant(np.arange(whole[axis]) // size), axis=axis)


def _check_zero(b: Builder, element: int) -> None:
    """Refuse a zero point that has another type than the quantised tensor, or other dims than the scale."""
    scale, zero = b.type(b.input(1)), b.type(b.input(2)) if b.input(2) else None
    if scale is None or zero is None:
        return
    if zero.element != element:
        have, want = numpy_type(zero.element), numpy_type(element)
        raise b.fail("quantisation", f"zero point {b.input(2)} is of type {have}, the quantised tensor of type {want}")
    if zero.dims != scale.dims and not {zero.dims, scale.dims} <= {(), (1,)}:
        have, want = (list(each.dims or ()) for each in (zero, scale))
        raise b.fail("quantisation", f"zero point {b.input(2)} {have} has other dims than scale {b.input(1)} {want}")
    known = b.value(b.input(2))
    if isinstance(SMALL.get(element), FloatFormat) and known is not None and known.astype(np.float32).any():
        raise b.fail("quantisation", f"zero point {b.input(2)} is not 0; of floats it has to be")


@rewrites("DequantizeLinear")
def _dequantize(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``(x - zero point) * scale``."""
    x, scale = node.input[:2]
    type_, kind = b.type(x), b.type(node.output[0])
    if type_ is None or type_.static is None or b.dims(scale) is None or kind is None:
        return None
    _check_zero(b, type_.element)
    small = SMALL.get(type_.element)
    is_float = isinstance(small, FloatFormat)
    factor, zero = _along(b, scale, x), _along(b, b.input(2), x) if b.input(2) and not is_float else ""
    plain = small is not None or type_.dtype in (*_INTEGERS, np.int32)
    if factor is None or zero is None or not plain or kind.element not in _PRECISIONS:
        raise _unknown_form(b, type_.dtype)
    # Powers of two reach further than 16-bit floats, their products with numbers need not.
    element = _FLOAT if element_of(b, scale) is not None else kind.element
    y = b.op("Cast", numbers(b, x) if small else x, to=element)
    if zero:
        y = b.op("Sub", y, b.op("Cast", zero, to=element))
    y = b.op("Mul", y, b.op("Cast", factor, to=element))
    return [y if element == kind.element else b.op("Cast", y, to=kind.element)]


@rewrites("QuantizeLinear")
def _quantize(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``saturate(round(x / scale) + zero point)``, rounding half to even; of floats there is no zero point."""
    x, scale = node.input[:2]
    kind, result, dims = b.type(scale), b.type(node.output[0]), b.dims(x)
    if dims is None or b.dims(scale) is None or kind is None or result is None:
        return None
    _check_zero(b, result.element)
    small = SMALL.get(result.element)
    is_float = isinstance(small, FloatFormat)
    factor, zero = _along(b, scale, x), _along(b, b.input(2), x) if b.input(2) and not is_float else ""
    element = b.given.get("precision", 0) or (_FLOAT if kind.element in SMALL else kind.element)
    if b.given.get("precision", 0) not in (0, *_PRECISIONS):
        raise b.fail("attribute", f"precision is {b.given['precision']}; it may be a type of floating-point numbers")
    known = small is not None or result.dtype in _INTEGERS
    if factor is None or zero is None or not known or element == onnx.TensorProto.INT32:
        raise _unknown_form(b, result.dtype)
    scaled = b.op("Div", b.op("Cast", x, to=element), b.op("Cast", factor, to=element))
    if element != onnx.TensorProto.DOUBLE:  # in which every zero point and limit is exact
        scaled, element = b.op("Cast", scaled, to=_FLOAT), _FLOAT
    if is_float:
        saturate = bool(b.given.get("saturate", 1))
        return [of_numbers(b, scaled, TensorType(element, dims), result.element, saturate=saturate)]
    if isinstance(small, Integer):
        half = 1 << (small.bits - 1)
        limits = (-half, half - 1) if small.signed else (0, 2 * half - 1)
        whole = _clipped(b, scaled, zero, limits, element)
        codes = b.op("BitwiseAnd", b.op("Cast", whole, to=onnx.TensorProto.INT32), b.constant(2 * half - 1, np.int32))
        return [of_codes(b, codes, result.element, dims)]
    return [_saturated(b, scaled, zero, result.dtype, element)]


def _unknown_form(b: Builder, dtype: np.dtype | None) -> UnsupportedNodeError:
    dims = [list(b.dims(name) or ()) for name in b.node.input if name]
    return b.unsupported("quantisation", f"{dtype} elements, operands of dims {dims} and attributes {b.given}")


def _saturated(b: Builder, scaled: str, zero: str, dtype: np.dtype, element: int) -> str:
    limits = np.iinfo(dtype)
    y = _clipped(b, scaled, zero, (limits.min, limits.max), element)
    return b.op("Cast", y, to=onnx.helper.np_dtype_to_tensor_dtype(dtype))


def _clipped(b: Builder, scaled: str, zero: str, limits: tuple[int, int], element: int) -> str:
    """Whole numbers of a float type."""
    kind = numpy_type(element)
    y = b.op("Round", scaled)
    if zero:
        y = b.op("Add", y, b.op("Cast", zero, to=element))
    return b.op("Clip", y, *(b.constant(limit, kind) for limit in limits))


@rewrites("DynamicQuantizeLinear")
def _dynamic(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """To 8 bits over the range of all elements and 0.

    The extremes are reductions that engines take: in one piece with what is around them, GPU compilers fail.
    """
    dims = b.dims(node.input[0])
    if dims is None:
        return None
    whole, scale, point = quantised(b, node.input[0], len(dims))
    bytes_, zero = (b.op("Cast", each, to=onnx.TensorProto.UINT8) for each in (whole, point))
    return [bytes_, scale, zero]


def quantised(b: Builder, x: str, rank: int) -> tuple[str, str, str]:
    """Whole numbers of 0 to 255 in single precision, their scale and their zero point, as ONNX Runtime chooses them."""
    zero, most = b.constant(0, np.float32), b.constant(255, np.float32)
    axes = b.constant(range(rank))
    low, high = (b.op(how, b.op(f"Reduce{how}", x, axes, keepdims=0), zero) for how in ("Min", "Max"))
    scale = b.op("Div", b.op("Sub", high, low), most)
    scale = b.op("Where", b.op("Equal", high, low), b.constant(1, np.float32), scale)
    point = b.op("Round", b.op("Clip", b.op("Div", b.op("Neg", low), scale), zero, most))
    whole = b.op("Clip", b.op("Add", b.op("Round", b.op("Div", x, scale)), point), zero, most)
    return whole, scale, point


@rewrites("QLinearConv")
def _convolution(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """On whole numbers, in sums that are exact, then rescaled."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.input[:8]
    filters, result = b.dims(w), b.type(node.output[0])
    if filters is None or result is None or any(b.dims(name) is None for name in node.input if name):
        return None
    if any(len(b.dims(name) or ()) > 1 for name in (w_scale, w_zero)):
        raise _unknown_form(b, result.dtype)
    rank = len(filters)
    is_scalar = (b.dims(w_scale) or ()) in ((), (1,))
    w_factor = _scalar(b, w_scale) if is_scalar else _per_axis(b, w_scale, rank, 1)
    whole = exact_convolution(b, Centred(x, x_zero), Centred(w, w_zero), b.given)
    if b.input(8):
        whole = b.op("Add", whole, b.op("Reshape", b.input(8), b.constant([-1, *(1,) * (rank - 2)])))
    sums = b.op("Cast", whole, to=_FLOAT)
    factor = b.op("Div", b.op("Mul", w_factor, _scalar(b, x_scale)), _scalar(b, y_scale))
    return [_saturated(b, b.op("Mul", sums, factor), _scalar(b, y_zero), result.dtype, _FLOAT)]


@rewrites("QLinearMatMul")
def _product(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """On whole numbers in a float type that holds the sums, then rescaled in single precision."""
    a, a_scale, a_zero, w, w_scale, w_zero, y_scale, y_zero = node.input[:8]
    left, result = b.dims(a), b.type(node.output[0])
    if left is None or result is None or any(b.dims(name) is None for name in node.input):
        return None
    if any(b.dtype(name) not in (np.int8, np.uint8) for name in (a, w, node.output[0])):
        raise _unknown_form(b, result.dtype)
    rows = [_per_row(b, name) for name in (a_scale, a_zero)]
    columns = [_scalar(b, name) for name in (w_scale, w_zero)]
    y_rows = [_per_row(b, name) for name in (y_scale, y_zero)]
    a_factor, w_factor, y_factor = (b.op("Cast", each, to=_FLOAT) for each in (rows[0], columns[0], y_rows[0]))
    element = exact_type(left[-1])
    product = b.op("MatMul", _centred(b, a, rows[1], element), _centred(b, w, columns[1], element))
    factor = b.op("Div", b.op("Mul", a_factor, w_factor), y_factor)
    scaled = b.op("Mul", b.op("Cast", product, to=_FLOAT), factor)
    return [_saturated(b, scaled, y_rows[1], result.dtype, _FLOAT)]


def _per_row(b: Builder, name: str) -> str:
    """Of rank 1 with a number for each row: as a column."""
    dims = b.dims(name) or ()
    return b.op("Unsqueeze", name, b.constant([1])) if len(dims) == 1 and dims != (1,) else _scalar(b, name)


def _scalar(b: Builder, name: str) -> str:
    """One number without dims; what has more numbers stays."""
    return b.op("Reshape", name, b.constant(np.zeros(0))) if b.dims(name) == (1,) else name


def _centred(b: Builder, x: str, zero: str, element: int) -> str:
    return b.op("Sub", b.op("Cast", x, to=element), b.op("Cast", zero, to=element))
