"""Text of functions on builtin tensors, for what the torch dialect cannot say; ``Emitter.call`` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graph_api import DataType
from iree_bridge.targets.types import builtin_tensor

__all__ = ["Code", "Operand", "element_type", "generic", "made_by_elements", "mirrored", "padded"]


def element_type(dtype: DataType) -> str:
    """``f16``, ``i32``: the element type of the builtin tensor."""
    return builtin_tensor((), dtype)[len("tensor<") : -1]


class Code:
    """Scalar operations as text, one SSA name each."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> str:
        """Adds an operation; returns the name of its result."""
        name = f"%v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def constant(self, value: int, kind: str = "index") -> str:
        return self.line(f"arith.constant {value} : {kind}")

    def op(self, name: str, a: str, b: str, kind: str = "index") -> str:
        """An operation of the arith dialect on two operands of one type."""
        return self.line(f"arith.{name} {a}, {b} : {kind}")

    def scale(self, a: str, factor: int, kind: str = "index") -> str:
        return a if factor == 1 else self.op("muli", a, self.constant(factor, kind), kind)

    def lowered(self, value: str, by: str, factor: int, most: int) -> str:
        """``value - factor * by``, which lies in 0 to ``most``, as a remainder of a sum without negative terms.

        Of a negative term and a constant the compiler for AMD chips makes a negative offset of a buffer and a positive
        one in the instruction: the right element only if hardware takes their sum modulo 2**32.
        """
        rising = self.op("addi", value, self.scale(by, -factor % (most + 1)))
        return self.op("remui", rising, self.constant(most + 1))

    def loop(self, number: int) -> str:
        """The index of a loop."""
        return self.line(f"linalg.index {number} : index")


@dataclass(frozen=True)
class Operand:
    """A tensor of a ``linalg.generic``: SSA name, type, and the index of each of its dims in terms of d0, d1, ..."""

    name: str
    type: str
    index: Sequence[str]


def generic(
    result: str,
    ins: Sequence[Operand],
    out: Operand,
    loops: Sequence[str],
    body: Sequence[str],
    value: str,
    *,
    attributes: str = "",
) -> list[str]:
    """The lines of a ``linalg.generic``.

    Args:
        result: SSA name of the result.
        ins: inputs; the body knows their elements as %i0, %i1, ...
        out: initial value of the result; the body knows its element as %o.
        loops: "parallel" or "reduction" for each loop.
        body: lines.
        value: SSA name of the element that the body yields.
        attributes: a dictionary as text, for the compiler; "" for none.
    """
    dims = ", ".join(f"d{i}" for i in range(len(loops)))
    maps = ", ".join(f"affine_map<({dims}) -> ({', '.join(operand.index)})>" for operand in (*ins, out))
    kinds = ", ".join(f'"{loop}"' for loop in loops)
    sources = f" ins({', '.join(o.name for o in ins)} : {', '.join(o.type for o in ins)})" if ins else ""
    elements = [f"%i{i}: {_element(operand.type)}" for i, operand in enumerate(ins)]
    return [
        f"  {result} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}}{sources} "
        f"outs({out.name} : {out.type}) {f'attrs = {attributes} ' if attributes else ''}{{",
        f"  ^bb0({', '.join([*elements, f'%o: {_element(out.type)}'])}):",
        *(f"    {line}" for line in body),
        f"    linalg.yield {value} : {_element(out.type)}",
        f"  }} -> {out.type}",
    ]


def made_by_elements(
    name: str,
    source: str,
    result: tuple[Sequence[int], DataType],
    code: Code,
    value: str,
    *,
    ins: Sequence[Operand] = (),
    first: Sequence[str] = (),
) -> str:
    """A function from a tensor to another, each element of which is ``value``.

    Args:
        name: of the function.
        source: type of the tensor, %x.
        result: dims and data type of the other one; there is a loop for each dim.
        code, value, ins: as for `generic`.
        first: lines in front of it.
    """
    dims, made = result[0], builtin_tensor(*result)
    out = Operand("%empty", made, [f"d{axis}" for axis in range(len(dims))])
    lines = [
        f"func.func private @{name}(%x: {source}) -> {made} {{",
        *first,
        f"  %empty = tensor.empty() : {made}",
        *generic("%made", ins, out, ["parallel"] * len(dims), code.lines, value),
        f"  return %made : {made}",
        "}",
    ]
    return "\n".join(lines)


def mirrored(dims: Sequence[int], dtype: DataType, axes: Sequence[int]) -> str:
    """A function that reverses the order along ``axes``."""
    kind = builtin_tensor(dims, dtype)
    code = Code()
    where = [code.loop(axis) for axis in range(len(dims))]
    for axis in axes:
        most = dims[axis] - 1
        where[axis] = code.lowered(code.constant(most), where[axis], 1, most)
    value = code.line(f"tensor.extract %x[{', '.join(where)}] : {kind}")
    return made_by_elements("mirrored", kind, (dims, dtype), code, value)


def padded(dims: Sequence[int], dtype: DataType, amounts: Sequence[tuple[int, int]], fill: str) -> str:
    """A function that puts ``(before, after)`` times the literal ``fill`` around each dim, in one kernel.

    The compiler's padding fills a tensor first. Such that are filled with equal numbers of 8 bytes become one, which it
    does not pad twice ("'stream.yield' op used resource not listed").
    """
    made = tuple(size + sum(both) for size, both in zip(dims, amounts, strict=True))
    code, inside = Code(), ""
    where: list[str] = []
    for axis, (size, (before, after)) in enumerate(zip(dims, amounts, strict=True)):
        place = code.loop(axis)
        bounds = [(before, f"sge, {place}")] * bool(before) + [(before + size, f"slt, {place}")] * bool(after)
        for bound, compared in bounds:
            one = code.line(f"arith.cmpi {compared}, {code.constant(bound)} : index")
            inside = code.line(f"arith.andi {inside}, {one} : i1") if inside else one
        where.append(code.lowered(place, code.constant(before), 1, size - 1) if before or after else place)
    kind, element = builtin_tensor(dims, dtype), element_type(dtype)
    found = code.line(f"tensor.extract %x[{', '.join(where)}] : {kind}")
    number = code.line(f"arith.constant {fill} : {element}")
    value = code.line(f"arith.select {inside}, {found}, {number} : {element}")
    return made_by_elements("padded", kind, (made, dtype), code, value)


def _element(tensor: str) -> str:
    return tensor[len("tensor<") : -1].rsplit("x", 1)[-1]
