"""Floats of 8 bits and less in integer arithmetic: their codes, a byte each, to FLOAT, and FLOAT or DOUBLE to codes.

The same operations on every target, none of which depends on what its compiler or chip does with such types: their
formats differ between chips (gfx942 has FNUZ, gfx950 OCP), and so does what happens to values that are too large. No
step makes or reads a subnormal FLOAT, which GPUs flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from fusilli_ground import float_formats
from fusilli_ground.float_formats import FloatFormat
from graph_api import DataType
from iree_bridge.emit.linalg import Code, Operand, generic
from iree_bridge.targets.types import builtin_tensor

if TYPE_CHECKING:
    from iree_bridge.emit.builder import Builder, Value

__all__ = ["FORMATS", "decode", "decoded", "encode", "encoded", "half_text"]


FORMATS: Final = {
    DataType.FP8_E4M3: float_formats.E4M3,
    DataType.FP8_E5M2: float_formats.E5M2,
    DataType.FP8_E4M3_FNUZ: float_formats.E4M3_FNUZ,
    DataType.FP8_E5M2_FNUZ: float_formats.E5M2_FNUZ,
    DataType.FP6_E2M3: float_formats.E2M3,
    DataType.FP6_E3M2: float_formats.E3M2,
    DataType.FP4_E2M1: float_formats.E2M1,
}
"""All but FP8_E8M0, which is an exponent alone."""

_HALF: Final = FloatFormat(5, 10, 15, 0x7C00, nan=0x7E00)
"""As processors without an instruction for it make it; what is too large has the code of infinity."""

_QUIET_NAN: Final = 0x7FC00000


def decoded(e: Builder, codes: Value) -> Value:
    """The FLOAT values of codes; exact."""
    code = Code()
    bits = decode(code, codes.dtype, code.line("arith.extui %i0 : i8 to i32"))
    return _mapped(e, codes, DataType.FLOAT, code, code.line(f"arith.bitcast {bits} : i32 to f32"))


def encoded(e: Builder, values: Value, dtype: DataType) -> Value:
    """The codes of FLOAT or DOUBLE values: to nearest, ties to even; see ``DataType.rounded``."""
    code = Code()
    number = encode(code, dtype, "%i0", values.dtype)
    kind = _kinds(values.dtype)[1]
    return _mapped(e, values, dtype, code, code.line(f"arith.trunci {number} : {kind} to i8"))


def half_text(dims: Sequence[int], source: DataType) -> str:
    """A function that makes HALF of FLOAT or DOUBLE values."""
    code = Code()
    number = encode(code, _HALF, "%i0", source)
    bits = code.line(f"arith.trunci {number} : {_kinds(source)[1]} to i16")
    return _text(dims, source, DataType.HALF, code, code.line(f"arith.bitcast {bits} : i16 to f16"))


def decode(code: Code, dtype: DataType | FloatFormat, number: str) -> str:
    """The bits, i32, of the FLOAT that the code ``number``, i32, stands for."""
    if dtype is DataType.FP8_E8M0:
        power = code.op("shli", number, code.constant(23, "i32"), "i32")
        least = _select(code, _is(code, "eq", number, 0), code.constant(1 << 22, "i32"), power)
        return _select(code, _is(code, "eq", number, 0xFF), code.constant(_QUIET_NAN, "i32"), least)
    f = FORMATS[dtype] if isinstance(dtype, DataType) else dtype
    size = code.op("andi", number, code.constant((1 << f.sign) - 1, "i32"), "i32")
    shifted = code.op("shli", size, code.constant(23 - f.mantissa, "i32"), "i32")
    normal = code.op("addi", shifted, code.constant((127 - f.bias) << 23, "i32"), "i32")
    steps = code.line(f"arith.uitofp {size} : i32 to f32")
    step = code.line(f"arith.constant {2.0 ** (1 - f.bias - f.mantissa)!r} : f32")
    below = code.line(f"arith.bitcast {code.op('mulf', steps, step, 'f32')} : f32 to i32")
    bits = _select(code, _is(code, "ult", size, 1 << f.mantissa), below, normal)
    if f.infinity is not None:
        bits = _select(code, _is(code, "eq", size, f.infinity), code.constant(0x7F800000, "i32"), bits)
    if f.nan is not None and not f.fnuz:
        least = f.nan if f.infinity is None else f.infinity + 1
        bits = _select(code, _is(code, "uge", size, least), code.constant(_QUIET_NAN, "i32"), bits)
    high = code.op("shrui", number, code.constant(f.sign, "i32"), "i32")
    signed = code.op("ori", bits, code.op("shli", high, code.constant(31, "i32"), "i32"), "i32")
    if f.fnuz:
        signed = _select(code, _is(code, "eq", number, 0x80), code.constant(_QUIET_NAN, "i32"), signed)
    return signed


def encode(code: Code, dtype: DataType | FloatFormat, value: str, source: DataType) -> str:
    """The code, an integer as wide as ``source``, of ``value``, which is FLOAT or DOUBLE."""
    real, kind, fraction, bias = _kinds(source)
    width = source.bits
    bits = code.line(f"arith.bitcast {value} : {real} to {kind}")
    size = code.op("andi", bits, code.constant(2 ** (width - 1) - 1, kind), kind)
    infinite = (2 * bias + 1) << fraction
    is_nan = _is(code, "ugt", size, infinite, kind)
    if dtype is DataType.FP8_E8M0:
        return _exponent(code, bits, size, is_nan, kind, fraction, bias)
    f = FORMATS[dtype] if isinstance(dtype, DataType) else dtype
    lost = fraction - f.mantissa
    kept = code.op("shrui", size, code.constant(lost, kind), kind)
    odd = code.op("andi", kept, code.constant(1, kind), kind)
    upward = code.op("addi", code.op("addi", size, code.constant((1 << (lost - 1)) - 1, kind), kind), odd, kind)
    normal = code.op("shrui", upward, code.constant(lost, kind), kind)
    normal = code.op("subi", normal, code.constant((bias - f.bias) << f.mantissa, kind), kind)
    # In the binade of this number, the last bit is the step of the small format: the addition rounds.
    grid = fraction + 1 - f.bias - f.mantissa + bias
    on_grid = code.constant(grid << fraction, kind)
    positive = code.line(f"arith.bitcast {size} : {kind} to {real}")
    total = code.op("addf", positive, code.line(f"arith.bitcast {on_grid} : {kind} to {real}"), real)
    below = code.op("subi", code.line(f"arith.bitcast {total} : {real} to {kind}"), on_grid, kind)
    least_normal = (1 - f.bias + bias) << fraction
    number = _select(code, _is(code, "ult", size, least_normal, kind), below, normal, kind)
    number = code.op("minui", number, code.constant(f.largest, kind), kind)
    sign = code.op("shrui", bits, code.constant(width - 1, kind), kind)
    sign = code.op("shli", sign, code.constant(f.sign, kind), kind)
    signed = code.op("ori", number, sign, kind)
    zero = code.constant(0, kind)
    if f.fnuz:
        signed = _select(code, _is(code, "eq", number, 0, kind), zero, signed, kind)
        return _select(code, is_nan, code.constant(0x80, kind), signed, kind)
    if f.nan is None:
        return _select(code, is_nan, zero, signed, kind)
    return _select(code, is_nan, code.op("ori", code.constant(f.nan, kind), sign, kind), signed, kind)


def _exponent(code: Code, bits: str, size: str, is_nan: str, kind: str, fraction: int, bias: int) -> str:
    """The code of FP8_E8M0: the nearest power of two, the upper of two that are equally near."""
    upward = code.op("addi", size, code.constant(1 << (fraction - 1), kind), kind)
    power = code.op("shrui", upward, code.constant(fraction, kind), kind)
    lowest = bias - 127  # the exponent, as it stands in the value, of the least power
    if lowest:
        power = code.op("maxui", power, code.constant(lowest, kind), kind)
        power = code.op("subi", power, code.constant(lowest, kind), kind)
    else:  # of FLOAT that is a subnormal number
        rises = code.line(f"arith.extui {_is(code, 'uge', size, 3 << (fraction - 2), kind)} : i1 to {kind}")
        power = _select(code, _is(code, "ult", size, 1 << fraction, kind), rises, power, kind)
    power = code.op("minui", power, code.constant(0xFE, kind), kind)
    none = code.op("ori", is_nan, _is(code, "sle", bits, 0, kind), "i1")
    return _select(code, none, code.constant(0xFF, kind), power, kind)


def _kinds(source: DataType) -> tuple[str, str, int, int]:
    """Float and integer type, bits of the fraction, and bias of the exponent."""
    return ("f32", "i32", 23, 127) if source is DataType.FLOAT else ("f64", "i64", 52, 1023)


def _is(code: Code, relation: str, a: str, number: int, kind: str = "i32") -> str:
    return code.op(f"cmpi {relation},", a, code.constant(number, kind), kind)


def _select(code: Code, condition: str, a: str, b: str, kind: str = "i32") -> str:
    return code.line(f"arith.select {condition}, {a}, {b} : {kind}")


def _mapped(e: Builder, source: Value, dtype: DataType, code: Code, value: str) -> Value:
    """A tensor of which each element is ``value``, computed from that of ``source``, %i0."""
    return e.call(_text(source.dims, source.dtype, dtype, code, value), [source], source.dims, dtype)


def _text(dims: Sequence[int], source: DataType, dtype: DataType, code: Code, value: str) -> str:
    kind, made = builtin_tensor(dims, source), builtin_tensor(dims, dtype)
    index = [f"d{axis}" for axis in range(len(dims))]
    lines = generic(
        "%made",
        [Operand("%x", kind, index)],
        Operand("%empty", made, index),
        ["parallel"] * len(index),
        code.lines,
        value,
    )
    body = "\n".join(lines)
    return f"""func.func private @converted(%x: {kind}) -> {made} {{
  %empty = tensor.empty() : {made}
{body}
  return %made : {made}
}}"""
