"""Elements of 8 bits and less: what their codes mean, in integer arithmetic, and changes from and to them.

No step makes or reads a subnormal number in single precision, which GPUs flush, but for the least FLOAT8E8M0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from fusilli_ground.float_formats import FloatFormat
from fusilli_ground.torch_types import ValueTensor
from hipdnn_backend.offload.frontend.graph import SMALL as FEW
from hipdnn_backend.offload.frontend.graph import TensorType
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.casting import reinterpreted
from hipdnn_backend.offload.frontend.small_types import CODES, OF_CODES, SMALL, Integer, is_small_type, packed
from hipdnn_backend.offload.frontend.torch_ops import Emitter, emits

__all__ = ["codes_of", "element_of", "meant", "numbers", "of_codes", "of_numbers", "unpacked"]

_FLOAT, _INT32, _UINT8 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.UINT8
_TORCH = {"ui8": 0, "si32": 3}
"""Torch's numbers of types."""
_SIZE = 0x7FFFFFFF
_INFINITE = 0x7F800000
_WHOLE = 2.0**31
"""From here on numbers in single precision have no bits that 4-bit integers keep."""


def element_of(b: Builder, name: str) -> int | None:
    """The small type that a tensor of the source graph has; None if it has none."""
    type_ = b.type(name)
    return type_.element if type_ is not None and is_small_type(type_) else None


# ---- from codes


def numbers(b: Builder, x: str) -> str:
    """The elements of a tensor of a small type and static dims: FLOAT those of floats, INT32 those of integers.

    Constants that are no weights are computed here; of the others the codes stay as they are, several to a byte.
    """
    type_ = b.type(x)
    assert type_ is not None
    assert type_.static is not None, x
    kind, known = SMALL[type_.element], b.value(x)
    if known is not None and known.size <= FEW:
        return b.constant(known.astype(np.float32), np.float32 if isinstance(kind, FloatFormat) else np.int32)
    return meant(b, codes_of(b, x), type_.static, kind)


def meant(b: Builder, codes: str, dims: tuple[int, ...], kind: FloatFormat | Integer) -> str:
    """What codes, UINT8, stand for: see `numbers`."""
    wide = b.op("Cast", codes, to=_INT32)
    if isinstance(kind, FloatFormat):
        return _number(b, wide, dims, kind)
    if not kind.signed:
        return wide
    half = _int(b, 1 << (kind.bits - 1))
    return b.op("Sub", b.op("BitwiseXor", wide, half), half)


def codes_of(b: Builder, x: str) -> str:
    """The codes, UINT8, of a tensor of a small type and static dims, without what else a byte may hold."""
    type_ = b.type(x)
    assert type_ is not None
    kind, dims = SMALL[type_.element], type_.static
    assert dims is not None, x
    known = b.value(x)
    if known is not None and 8 % kind.bits == 0 and kind.bits < 8:
        row = b.constant(packed(known.view(np.uint8), kind.bits), np.uint8)
        whole = unpacked(b, row, (len(b.graph.constants[row]),), kind.bits)
        return b.op("Reshape", _first(b, whole, math.prod(dims)), b.constant(dims))
    codes = b.torch(CODES, x, like=TensorType(_UINT8, dims))
    return codes if kind.bits == 8 else b.op("BitwiseAnd", codes, b.constant((1 << kind.bits) - 1, np.uint8))


def _first(b: Builder, row: str, count: int) -> str:
    return b.op("Slice", row, b.constant([0]), b.constant([count]))


def unpacked(b: Builder, x: str, dims: tuple[int, ...], bits: int) -> str:
    """The codes, UINT8, in bytes of ``dims``: the lowest bits first, so the last dim is ``8 / bits`` times as large."""
    if bits == 8:
        return b.torch(CODES, x, like=TensorType(_UINT8, dims))
    wide = (*dims[:-1], dims[-1] * (8 // bits))
    return b.torch("unpacked", x, like=TensorType(_UINT8, wide), bits=bits)


@emits("unpacked")
def _emit_unpacked(e: Emitter, x: Any) -> list[Any]:
    """Each byte shifted by the places of its elements, all by one operation.

    The places are counted, in 32 bits: an emulator read a constant of two bytes beside its place, and torch-mlir's
    compiler does not survive counting in UINT8.
    """
    bits, dims, wide = e.integer("bits"), e.dims(x), e.op.results[0]
    per = 8 // bits

    def typed(element: str, *dims: int) -> Any:
        return e.type(ValueTensor(dims, element).of(element))

    def converted(value: Any, element: str, *dims: int) -> Any:
        operands = [value, e.int(_TORCH[element]), e.bool(False), e.bool(False), e.none()]
        return e.create("torch.aten.to.dtype", typed(element, *dims), operands)

    steps = [e.int(0), e.int(8), e.int(bits), e.int(_TORCH["si32"]), e.none(), e.none(), e.none()]
    places = converted(e.create("torch.aten.arange.start_step", typed("si32", per), steps), "ui8", per)
    bytes_ = e.create("torch.aten.unsqueeze", typed("ui8", *dims, 1), [x, e.int(-1)])
    codes = e.create("torch.aten.bitwise_right_shift.Tensor", typed("ui8", *dims, per), [bytes_, places])
    codes = e.create("torch.aten.bitwise_and.Scalar", typed("ui8", *dims, per), [codes, e.int((1 << bits) - 1)])
    return [e.create("torch.aten.view", wide.type, [codes, e.ints(e.dims(wide))])]


def _number(b: Builder, codes: str, dims: tuple[int, ...], f: FloatFormat) -> str:
    """The FLOAT that each code, INT32, stands for."""
    if not f.mantissa:
        power = reinterpreted(b, b.op("Mul", codes, _int(b, 1 << 23)), TensorType(_INT32, dims), _FLOAT)
        power = _where(b, "Equal", codes, 0, _real(b, 2.0**-f.bias), power)
        return _where(b, "Equal", codes, f.nan or 0, _real(b, math.nan), power)
    size = b.op("BitwiseAnd", codes, _int(b, (1 << f.sign) - 1))
    bits = b.op("Add", b.op("Mul", size, _int(b, 1 << (23 - f.mantissa))), _int(b, (127 - f.bias) << 23))
    normal = reinterpreted(b, bits, TensorType(_INT32, dims), _FLOAT)
    below = b.op("Mul", b.op("Cast", size, to=_FLOAT), _real(b, 2.0 ** (1 - f.bias - f.mantissa)))
    value = _where(b, "Less", size, 1 << f.mantissa, below, normal)
    if f.infinity is not None:
        value = _where(b, "Equal", size, f.infinity, _real(b, math.inf), value)
    if f.nan is not None and not f.fnuz:
        value = _where(b, "Less", _int(b, f.infinity or f.largest), size, _real(b, math.nan), value)
    value = _where(b, "Less", _int(b, (1 << f.sign) - 1), codes, b.op("Neg", value), value)
    return _where(b, "Equal", codes, 0x80, _real(b, math.nan), value) if f.fnuz else value


# ---- to codes


def of_codes(b: Builder, codes: str, element: int, dims: tuple[int, ...]) -> str:
    """A tensor of a small type of its codes, INT32."""
    return b.torch(OF_CODES, b.op("Cast", codes, to=_UINT8), like=TensorType(element, dims), to=element)


def of_numbers(
    b: Builder, x: str, source: TensorType, element: int, *, saturate: bool = True, round_mode: str = "up"
) -> str:
    """The nearest elements of a small float type, or the last bits of what is nearest among integers.

    Args:
        b: where nodes go.
        x: numbers.
        source: their type, of static dims.
        element: of `SMALL`.
        saturate: of 8-bit floats, whether what is too large becomes the largest number.
        round_mode: of FLOAT8E8M0.
    """
    dims, kind = source.static, SMALL[element]
    assert dims is not None, x
    if isinstance(kind, Integer):
        return of_codes(b, _last_bits(b, x, source, kind.bits), element, dims)
    bits = _bits(b, x, source)
    if not kind.mantissa:
        return of_codes(b, _power(b, bits, saturate, round_mode), element, dims)
    return of_codes(b, _nearest(b, bits, dims, kind, saturate), element, dims)


def _last_bits(b: Builder, x: str, source: TensorType, bits: int) -> str:
    """As ONNX Runtime has it: to the nearest integer, halves away from zero."""
    if source.dtype.kind not in "iub":
        wide = source.element if source.element == TensorProto.DOUBLE else _FLOAT
        kind = np.float64 if wide == TensorProto.DOUBLE else np.float32
        x = b.op("Cast", x, to=wide)
        size = b.op("Abs", x)
        down = b.op("Floor", size)
        half = b.op("Less", b.op("Sub", size, down), b.constant(0.5, kind))
        size = b.op("Where", half, down, b.op("Add", down, b.constant(1, kind)))
        size = b.op("Where", b.op("Less", size, b.constant(_WHOLE, kind)), size, b.constant(0, kind))
        x = b.op("Where", b.op("Less", x, b.constant(0, kind)), b.op("Neg", size), size)
    return b.op("BitwiseAnd", b.op("Cast", x, to=_INT32), _int(b, (1 << bits) - 1))


def _bits(b: Builder, x: str, source: TensorType) -> str:
    """The bits of numbers in single precision, INT32; those of DOUBLE so that rounding them again is one rounding."""
    like = TensorType(_FLOAT, source.dims)
    near = b.op("Cast", x, to=_FLOAT)
    bits = reinterpreted(b, near, like, _INT32)
    if source.element != TensorProto.DOUBLE:
        return bits
    back = b.op("Cast", near, to=TensorProto.DOUBLE)
    above = b.op("Less", b.op("Abs", x), b.op("Abs", back))
    bits = b.op("Where", above, b.op("Sub", bits, _int(b, 1)), bits)
    exact = b.op("Or", b.op("Equal", back, x), b.op("IsNaN", x))
    return b.op("Where", exact, bits, b.op("BitwiseOr", bits, _int(b, 1)))


def _nearest(b: Builder, bits: str, dims: tuple[int, ...], f: FloatFormat, saturate: bool) -> str:
    """Codes, INT32, of numbers in single precision: to nearest, ties to even."""
    size = b.op("BitwiseAnd", bits, _int(b, _SIZE))
    finite = b.op("Min", size, _int(b, _INFINITE))
    step = _int(b, 1 << (23 - f.mantissa))
    odd = b.op("Mod", b.op("Div", finite, step), _int(b, 2))
    upward = b.op("Add", b.op("Add", finite, _int(b, (1 << (22 - f.mantissa)) - 1)), odd)
    normal = b.op("Sub", b.op("Div", upward, step), _int(b, (127 - f.bias) << f.mantissa))
    least = (1 - f.bias + 127) << 23
    low = reinterpreted(b, b.op("Min", size, _int(b, least)), TensorType(_INT32, dims), _FLOAT)
    steps = b.op("Round", b.op("Mul", low, _real(b, 2.0 ** (f.bias - 1 + f.mantissa))))
    number = _where(b, "Less", size, least, b.op("Cast", steps, to=_INT32), normal)
    beyond = f.largest if saturate or f.nan is None else f.infinity or f.nan
    sign = _where(b, "Less", bits, 0, _int(b, 1 << f.sign), _int(b, 0))
    nan = b.op("Less", _int(b, _INFINITE), size)
    if f.fnuz:
        sign = _where(b, "Equal", number, 0, _int(b, 0), sign)
        if not saturate:
            nan = b.op("Or", nan, b.op("Less", _int(b, f.largest), number))
    number = _where(b, "Less", _int(b, f.largest), number, _int(b, beyond), number)
    signed_number = b.op("Add", number, sign)
    if f.nan is None or f.fnuz:
        return b.op("Where", nan, _int(b, f.nan or 0), signed_number)
    return b.op("Where", nan, b.op("Add", _int(b, f.nan), sign), signed_number)


def _power(b: Builder, bits: str, saturate: bool, round_mode: str) -> str:
    """Codes, INT32, of FLOAT8E8M0."""
    size = b.op("BitwiseAnd", bits, _int(b, _SIZE))
    power = b.op("Div", size, _int(b, 1 << 23))
    rest = b.op("BitwiseAnd", size, _int(b, (1 << 23) - 1))
    half = 1 << 22  # the fraction of the least power, which is subnormal in single precision
    if round_mode != "down":
        up = round_mode == "up"
        least = _where(
            b, "Equal", power, 0, _int(b, half if up else half + half // 2 - 1), _int(b, 0 if up else half - 1)
        )
        power = b.op("Add", power, b.op("Cast", b.op("Less", least, rest), to=_INT32))
    low = b.op("Or", b.op("Less", bits, _int(b, 1)), b.op("Less", size, _int(b, half)))
    largest, none = _int(b, 0xFE), _int(b, 0xFF)
    power = _where(b, "Less", largest, power, largest if saturate else none, power)
    power = b.op("Where", low, _int(b, 0) if saturate else none, power)
    return b.op("Where", b.op("Less", _int(b, _INFINITE), size), none, power)


# ---- operators


@rewrites("Cast")
def _cast(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    before, to = b.type(node.input[0]), b.given["to"]
    if before is None or before.static is None or not (is_small_type(before) or to in SMALL):
        return None
    if before.element == to:
        return [node.input[0]]
    x = node.input[0]
    if is_small_type(before):
        between = _FLOAT if isinstance(SMALL[before.element], FloatFormat) else _INT32
        x, before = numbers(b, x), TensorType(between, before.dims)
    if to not in SMALL:
        return [x if to == before.element else b.op("Cast", x, to=to)]
    given = {"saturate": bool(b.given.get("saturate", 1)), "round_mode": b.given.get("round_mode", "up")}
    return [of_numbers(b, x, before, to, **given)]


@rewrites("BitCast")
def _bit_cast(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Of a type of as many bits: the codes are the same."""
    before, after = b.type(node.input[0]), b.type(node.output[0])
    if before is None or after is None or before.static is None:
        return None
    if before.element == after.element or not (is_small_type(before) or is_small_type(after)):
        return None
    x, plain = node.input[0], TensorType(_UINT8, before.dims)
    if is_small_type(before):
        x = b.torch(CODES, x, like=plain)
    elif before.element != _UINT8:
        x = reinterpreted(b, x, before, _UINT8)
    if is_small_type(after):
        return [b.torch(OF_CODES, x, like=after, to=after.element)]
    return [x if after.element == _UINT8 else reinterpreted(b, x, plain, after.element)]


@rewrites("IsNaN", "IsInf")
def _classified(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    if element_of(b, node.input[0]) is None or b.dims(node.input[0]) is None:
        return None
    return [b.op(node.op_type, numbers(b, node.input[0]), **b.given)]


def _where(b: Builder, relation: str, one: str, other: int | str, yes: str, no: str) -> str:
    other = _int(b, other) if isinstance(other, int) else other
    return b.op("Where", b.op(relation, one, other), yes, no)


def _int(b: Builder, value: int) -> str:
    return b.constant(value, np.int32)


def _real(b: Builder, value: float) -> str:
    return b.constant(value, np.float32)
