"""Maxima and minima on AMD chips as those of integers of the same order, keys, in which NaN wins.

Once they are spread over vectors or lanes, the compiler makes of a maximum of floats an instruction that gives the
other operand where one is NaN. Parts of an extreme of integers it begins with the least or greatest number: of 32 bits
with that of unsigned, of 64 bits with that of signed ones, whatever the operation. So keys of 32 bits are unsigned,
those of 64 bits signed.
"""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Code, Operand, element_type, generic, made_by_elements
from iree_bridge.targets.types import builtin_tensor

__all__ = ["decoded", "encoded", "extreme", "is_keyed", "key_kind", "key_of", "operation"]


def is_keyed(e: Emitter, dtype: DataType) -> bool:
    """Whether extremes of this type have to be taken of keys."""
    return e.target.backend == "rocm" and dtype is not DataType.BOOLEAN


def key_kind(dtype: DataType) -> DataType:
    """The type of the keys of ``dtype``; those of 32 bits are unsigned, whatever it says."""
    return DataType.INT64 if dtype.bits == 64 else DataType.INT32


def operation(keys: DataType, *, least: bool) -> tuple[str, int]:
    """The operation of the arith dialect on two keys of this type, and the key that it begins with."""
    sign = "u" if keys is DataType.INT32 else "s"
    lowest, highest = _ends(element_type(keys))
    return (f"min{sign}i", highest) if least else (f"max{sign}i", lowest)


def encoded(e: Emitter, x: Value, *, least: bool = False) -> Value:
    """The keys of ``x``: their order is that of the numbers, NaN greater than all or, with ``least``, less than all."""
    code = Code()
    return _elementwise(e, x, key_kind(x.dtype), code, key_of(code, "%i0", x.dtype, least=least))


def decoded(e: Emitter, keys: Value, dtype: DataType) -> Value:
    """The numbers of type ``dtype`` that ``keys`` are of."""
    code = Code()
    return _elementwise(e, keys, dtype, code, _number_of(code, "%i0", dtype))


def extreme(e: Emitter, keys: Value, axes: Sequence[int], *, least: bool) -> Value:
    """The greatest or the least key over ``axes``, which stay as dims of 1."""
    name, begin = operation(keys.dtype, least=least)
    kind, rank = element_type(keys.dtype), range(len(keys.dims))
    dims = tuple(1 if axis in axes else dim for axis, dim in enumerate(keys.dims))
    source, made = builtin_tensor(keys.dims, keys.dtype), builtin_tensor(dims, keys.dtype)
    code = Code()
    value = code.op(name, "%i0", "%o", kind)
    lines = [
        f"func.func private @extreme(%x: {source}) -> {made} {{",
        f"  %first = arith.constant {begin} : {kind}",
        f"  %empty = tensor.empty() : {made}",
        f"  %begun = linalg.fill ins(%first : {kind}) outs(%empty : {made}) -> {made}",
        *generic(
            "%found",
            [Operand("%x", source, [f"d{axis}" for axis in rank])],
            Operand("%begun", made, ["0" if axis in axes else f"d{axis}" for axis in rank]),
            ["reduction" if axis in axes else "parallel" for axis in rank],
            code.lines,
            value,
        ),
        f"  return %found : {made}",
        "}",
    ]
    return e.call("\n".join(lines), [keys], dims, keys.dtype)


def key_of(code: Code, value: str, dtype: DataType, *, least: bool = False) -> str:
    """The key of the element ``value``: its bits, some inverted; of a negative float all but the sign."""
    if not dtype.is_float:
        kind = element_type(key_kind(dtype))
        if element_type(dtype) != kind:
            extension = "extui" if dtype is DataType.UINT8 else "extsi"
            value = code.line(f"arith.{extension} {value} : {element_type(dtype)} to {kind}")
        return _moved(code, value, kind)
    number, kind = _wide(dtype)
    if element_type(dtype) != number:
        value = code.line(f"arith.extf {value} : {element_type(dtype)} to {number}")
    key = _moved(code, _turned(code, code.line(f"arith.bitcast {value} : {number} to {kind}"), kind), kind)
    is_nan = code.line(f"arith.cmpf uno, {value}, {value} : {number}")
    end = code.constant(_ends(kind)[0 if least else 1], kind)
    return code.line(f"arith.select {is_nan}, {end}, {key} : {kind}")


def _number_of(code: Code, key: str, dtype: DataType) -> str:
    """The element of type ``dtype`` whose key is ``key``; of floats, the extremes are NaN."""
    kind = element_type(key_kind(dtype))
    value, number = _moved(code, key, kind), kind
    if dtype.is_float:
        number = _wide(dtype)[0]
        value = code.line(f"arith.bitcast {_turned(code, value, kind)} : {kind} to {number}")
    if element_type(dtype) == number:
        return value
    return code.line(f"arith.{'truncf' if dtype.is_float else 'trunci'} {value} : {number} to {element_type(dtype)}")


def _wide(dtype: DataType) -> tuple[str, str]:
    """The types whose bits are looked at: of numbers and of integers. 16-bit floats are widened, which is exact."""
    return ("f64", "i64") if dtype is DataType.DOUBLE else ("f32", "i32")


def _ends(kind: str) -> tuple[int, int]:
    """The lowest and the highest key."""
    return (0, -1) if kind == "i32" else (-(2**63), 2**63 - 1)


def _moved(code: Code, value: str, kind: str) -> str:
    """A signed number as a key, or a key as a signed number."""
    return code.op("xori", value, code.constant(-(2**31), kind), kind) if kind == "i32" else value


def _turned(code: Code, bits: str, kind: str) -> str:
    """The bits of a float as a signed number of the same order, and back."""
    size = int(kind[1:])
    sign = code.op("shrsi", bits, code.constant(size - 1, kind), kind)
    return code.op("xori", bits, code.op("andi", sign, code.constant(2 ** (size - 1) - 1, kind), kind), kind)


def _elementwise(e: Emitter, x: Value, dtype: DataType, code: Code, result: str) -> Value:
    source = builtin_tensor(x.dims, x.dtype)
    ins = [Operand("%x", source, [f"d{axis}" for axis in range(len(x.dims))])]
    return e.call(made_by_elements("ordered", source, (x.dims, dtype), code, result, ins=ins), [x], x.dims, dtype)
