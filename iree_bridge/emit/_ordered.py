"""Maxima and minima of floats as those of integers of the same order, in which NaN wins.

The compiler makes of a maximum of floats, once it is spread over vectors or lanes, an instruction of AMD chips that
gives the other operand where one is NaN. Of integers it makes the right ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType
from iree_bridge.emit._linalg import Code, Operand, element_type, generic
from iree_bridge.emitter import Emitter, Value
from iree_bridge.types import builtin_tensor

__all__ = ["decoded", "encoded", "float_of", "key_kind", "key_of", "key_of_minus_infinity", "loses_nan"]


def loses_nan(e: Emitter, dtype: DataType) -> bool:
    """Whether maxima of this type have to be taken of keys."""
    return e.target.backend == "rocm" and dtype.is_float


def key_kind(dtype: DataType) -> DataType:
    """The type of the keys of ``dtype``."""
    return DataType.INT64 if dtype is DataType.DOUBLE else DataType.INT32


def encoded(e: Emitter, x: Value, *, least: bool = False) -> Value:
    """The keys of ``x``: their order is that of the numbers, NaN greater than all or, with ``least``, less than all."""
    code = Code()
    return _elementwise(e, x, key_kind(x.dtype), code, key_of(code, "%i0", x.dtype, least=least))


def decoded(e: Emitter, keys: Value, dtype: DataType) -> Value:
    """The numbers of type ``dtype`` that ``keys`` are of."""
    code = Code()
    return _elementwise(e, keys, dtype, code, float_of(code, "%i0", dtype))


def key_of(code: Code, value: str, dtype: DataType, *, least: bool = False) -> str:
    """The key of the element ``value``: its bits, those behind the sign inverted where it is negative."""
    number, kind = _wide(dtype)
    if element_type(dtype) != number:
        value = code.line(f"arith.extf {value} : {element_type(dtype)} to {number}")
    key = _turned(code, code.line(f"arith.bitcast {value} : {number} to {kind}"), kind)
    is_nan = code.line(f"arith.cmpf uno, {value}, {value} : {number}")
    bits = int(kind[1:])
    extreme = code.constant(-(2 ** (bits - 1)) if least else 2 ** (bits - 1) - 1, kind)
    return code.line(f"arith.select {is_nan}, {extreme}, {key} : {kind}")


def float_of(code: Code, key: str, dtype: DataType) -> str:
    """The element of type ``dtype`` whose key is ``key``; the extremes are NaN."""
    number, kind = _wide(dtype)
    value = code.line(f"arith.bitcast {_turned(code, key, kind)} : {kind} to {number}")
    if element_type(dtype) == number:
        return value
    return code.line(f"arith.truncf {value} : {number} to {element_type(dtype)}")


def key_of_minus_infinity(dtype: DataType) -> int:
    """The least key of a number."""
    bits, fraction = (64, 52) if dtype is DataType.DOUBLE else (32, 23)
    return -(2 ** (bits - 1)) + 2**fraction - 1


def _wide(dtype: DataType) -> tuple[str, str]:
    """The types whose bits are looked at: of numbers and of integers. 16-bit floats are widened, which is exact."""
    return ("f64", "i64") if dtype is DataType.DOUBLE else ("f32", "i32")


def _turned(code: Code, bits: str, kind: str) -> str:
    size = int(kind[1:])
    sign = code.op("shrsi", bits, code.constant(size - 1, kind), kind)
    return code.op("xori", bits, code.op("andi", sign, code.constant(2 ** (size - 1) - 1, kind), kind), kind)


def _elementwise(e: Emitter, x: Value, dtype: DataType, code: Code, result: str) -> Value:
    source, made = builtin_tensor(x.dims, x.dtype), builtin_tensor(x.dims, dtype)
    loops: Sequence[str] = [f"d{i}" for i in range(len(x.dims))]
    lines = [
        f"func.func private @ordered(%x: {source}) -> {made} {{",
        f"  %empty = tensor.empty() : {made}",
        *generic(
            "%y", [Operand("%x", source, loops)], Operand("%empty", made, loops), ["parallel"] * len(loops), code.lines,
            result,
        ),
        f"  return %y : {made}",
        "}",
    ]  # fmt: skip
    return e.call("\n".join(lines), [x], x.dims, dtype)
