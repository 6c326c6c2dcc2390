"""A last use of the inputs, where an operation may become an update.

The compiler updates a tensor in place after its last use, and takes a caller's inputs for tensors of its own. So the
first element of each is looked at once more by a kernel that runs when the result is there: it changes the result's
first element if what it sees is a number that there is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from iree_bridge.emit.builder import Builder, Value
from iree_bridge.emit.linalg import Code, Operand, element_type, generic
from iree_bridge.targets.types import builtin_tensor

__all__ = ["used_last"]


def used_last(e: Builder, value: Value, inputs: Sequence[Value]) -> Value:
    """``value``, made by a kernel that reads all inputs; empty ones have nothing to be read."""
    read = [each for each in inputs if math.prod(each.dims)]
    if not read or not math.prod(value.dims):
        return value
    names = ["%y", *(f"%x{index}" for index in range(len(read)))]
    types = [builtin_tensor(each.dims, each.dtype) for each in (value, *read)]
    firsts = [builtin_tensor((), each.dtype) for each in (value, *read)]
    where = [f"{[0] * rank} {[1] * rank} {[1] * rank}" for rank in (len(each.dims) for each in (value, *read))]
    code, met = Code(), ""
    for index, each in enumerate(read, start=1):
        never = _never(code, f"%i{index}", element_type(each.dtype))
        met = code.op("ori", met, never, "i1") if met else never
    kind = element_type(value.dtype)
    made = code.line(f"arith.select {met}, {_zero(code, kind)}, %i0 : {kind}")
    given = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    ins = [Operand(f"{name}_first", first, []) for name, first in zip(names, firsts, strict=True)]
    lines = [
        f"func.func private @used_last({given}) -> {types[0]} {{",
        *(
            f"  {name}_first = tensor.extract_slice {name}{at} : {whole} to {first}"
            for name, at, whole, first in zip(names, where, types, firsts, strict=True)
        ),
        f"  %empty = tensor.empty() : {firsts[0]}",
        *generic("%made", ins, Operand("%empty", firsts[0], []), [], code.lines, made),
        f"  %result = tensor.insert_slice %made into %y{where[0]} : {firsts[0]} into {types[0]}",
        f"  return %result : {types[0]}",
        "}",
    ]
    return e.call("\n".join(lines), [value, *read], value.dims, value.dtype)


def _zero(code: Code, kind: str) -> str:
    return code.line(
        "arith.constant false" if kind == "i1" else f"arith.constant {'0' if kind[0] == 'i' else '0.0'} : {kind}"
    )


def _never(code: Code, name: str, kind: str) -> str:
    """A condition that no number fulfils: to be 0 and no number, or to have a square of 2, modulo 4."""
    if kind[0] != "i":
        unordered = code.line(f"arith.cmpf uno, {name}, {name} : {kind}")
        is_zero = code.line(f"arith.cmpf oeq, {name}, {_zero(code, kind)} : {kind}")
        return code.op("andi", unordered, is_zero, "i1")
    if kind == "i1":  # whose squares, and what it is as a float, the compiler knows
        number, two = code.line(f"arith.uitofp {name} : i1 to f32"), code.line("arith.constant 2.0 : f32")
        return code.line(f"arith.cmpf oeq, {code.op('mulf', number, number, 'f32')}, {two} : f32")
    rest = code.op("andi", code.op("muli", name, name, kind), code.constant(3, kind), kind)
    return code.line(f"arith.cmpi eq, {rest}, {code.constant(2, kind)} : {kind}")
