"""Kernels of a CPU that are written out in vectors: what the compiler makes of loops is several times slower there.

A kernel is one dispatch, whose body is text of ``vector`` operations on rows of a tensor; the compiler allots registers
and nothing else. Workgroups share out the rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from graph_api import DataType
from iree_bridge.emit.linalg import Code
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import builtin_tensor

__all__ = ["Vectors", "rows_kernel"]

_WORK: Final = 16384
"""Elements of a workgroup: about 10 us."""
_LEAST: Final = -88.1
"""Here and below an exponential is 0; from -87.7 on it is a number without a full exponent, which becomes 0."""
_MAGIC: Final = 12582912.0
"""1.5 * 2**23: a float of this size has no bits behind the point, so adding it rounds to a whole number."""
_LN_2: Final = (0.693359375, -2.12194440e-4)
"""ln 2 in two parts; products of the first, of 10 bits, with whole numbers of 7 are exact, fused or not."""
_EXP: Final = (0.0013814534759148955, 0.00836874544620514, 0.04166839271783829, 0.1666652113199234, 0.4999999403953552)
"""(exp(r) - 1 - r) / r**2, the coefficient of the highest power first; exp(r) is within 3.1e-9 for |r| <= ln(2) / 2."""


class Vectors(Code):
    """Operations on vectors of f32, of ``lanes`` elements; what is constant stands in front of all loops.

    With 0 lanes they are on single numbers, in the body of a loop that the compiler makes vectors of.
    """

    def __init__(self, target: Target, lanes: int) -> None:
        super().__init__()
        self.lanes = lanes
        self.kind, self.integers, self.truth = (f"vector<{lanes}x{t}>" if lanes else t for t in ("f32", "i32", "i1"))
        self.first: list[str] = []
        self._fuses = target.fuses_products
        self._known: dict[str, str] = {}
        self._loops = 0

    def known(self, value: str, kind: str) -> str:
        """A constant, made once."""
        text = f"arith.constant {value} : {kind}"
        if text not in self._known:
            self._known[text] = f"%c{len(self._known)}"
            self.first.append(f"{self._known[text]} = {text}")
        return self._known[text]

    def at(self, value: int) -> str:
        """A constant index."""
        return self.known(str(value), "index")

    def number(self, value: float) -> str:
        """A vector of one number."""
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        return self.known(self._all(f"0x{bits:08X}"), self.kind)

    def _all(self, value: str) -> str:
        return f"dense<{value}>" if self.lanes else value

    def binary(self, name: str, a: str, b: str) -> str:
        return self.op(name, a, b, self.kind)

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded once where the processor can: elsewhere it would be a function call for each element."""
        if self._fuses:
            return self.line(f"math.fma {a}, {b}, {c} : {self.kind}")
        return self.binary("addf", self.binary("mulf", a, b), c)

    def greater(self, a: str, b: str) -> str:
        """The greater one; the second where one is NaN. One instruction."""
        return self._chosen("ogt", a, b)

    def lesser(self, a: str, b: str) -> str:
        """The lesser one; the second where one is NaN. One instruction."""
        return self._chosen("olt", a, b)

    def _chosen(self, order: str, a: str, b: str) -> str:
        is_first = self.line(f"arith.cmpf {order}, {a}, {b} : {self.kind}")
        kinds = f"{self.truth}, {self.kind}" if self.lanes else self.kind
        return self.line(f"arith.select {is_first}, {a}, {b} : {kinds}")

    def exp(self, x: str) -> str:
        """The exponential, within 2 units of the last place; NaN of NaN, 0 below -87.7; from 88.37 to 89 infinity.

        What is above 89 has to be made less before.
        """
        x = self.greater(self.number(_LEAST), x)
        rounded = self.fma(x, self.number(1.4426950408889634), self.number(_MAGIC))
        whole = self.binary("subf", rounded, self.number(_MAGIC))
        rest = x
        for part in _LN_2:
            rest = self.fma(whole, self.number(-part), rest)
        made = self.number(_EXP[0])
        for factor in (*_EXP[1:], 1.0, 1.0):
            made = self.fma(made, rest, self.number(factor))
        bits = self.line(f"arith.bitcast {rounded} : {self.kind} to {self.integers}")
        exponent = self.op("shli", bits, self.known(self._all("23"), self.integers), self.integers)
        power = self.op("addi", exponent, self.known(self._all("0x3F800000"), self.integers), self.integers)
        return self.binary("mulf", made, self.line(f"arith.bitcast {power} : {self.integers} to {self.kind}"))

    def read(self, row: str, kind: str, at: str) -> str:
        """Elements of a row, ``tensor<1xCxf32>``."""
        zero = self.known("0.0", "f32")
        return self.line(
            f"vector.transfer_read {row}[{self.at(0)}, {at}], {zero} {{in_bounds = [true]}} : {kind}, {self.kind}"
        )

    def wrote(self, value: str, row: str, kind: str, at: str) -> str:
        """The row with these elements."""
        return self.line(
            f"vector.transfer_write {value}, {row}[{self.at(0)}, {at}] {{in_bounds = [true]}} : {self.kind}, {kind}"
        )

    def over(self, name: str, value: str, kind: str | None = None) -> str:
        """A scalar: all elements of a vector combined."""
        kind = kind or self.kind
        return self.line(f"vector.reduction <{name}>, {value} : {kind} into {kind.rpartition('x')[2][:-1]}")

    def spread(self, scalar: str) -> str:
        """A vector of a scalar."""
        return self.line(f"vector.broadcast {scalar} : f32 to {self.kind}")

    def rounds(
        self,
        bounds: tuple[str, str, int],
        begin: Sequence[tuple[str, str]],
        body: Callable[[str, list[str]], Sequence[str]],
    ) -> list[str]:
        """The values that a loop ends with.

        Args:
            bounds: first index, the one behind the last, step.
            begin: values that the first round gets, and their types.
            body: from index and values of a round to those of the next one.
        """
        number, self._loops = self._loops, self._loops + 1
        index, kinds = f"%at{number}", ", ".join(kind for _, kind in begin)
        names = [f"%turn{number}_{i}" for i in range(len(begin))]
        carried = ", ".join(f"{name} = {value}" for name, (value, _) in zip(names, begin, strict=True))
        result = f"%end{number}:{len(begin)} = " if begin else ""
        tail = f" iter_args({carried}) -> ({kinds})" if begin else ""
        first, last, step = bounds
        self.lines.append(f"{result}scf.for {index} = {first} to {last} step {self.at(step)}{tail} {{")
        values = body(index, names)
        self.lines.append(f"scf.yield {', '.join(values)} : {kinds}" if begin else "scf.yield")
        self.lines.append("}")
        return [f"%end{number}#{i}" for i in range(len(begin))]


def rows_kernel(
    name: str, rows: int, width: int, code: Vectors, made: Callable[[str, str, str], str], *, pitch: int
) -> str:
    """A function from f32 [rows, pitch] to [rows, width], a row at a time, of which the first ``width`` are read.

    Args:
        name: of the function.
        rows, width, pitch: dims.
        code: what the body is added to.
        made: from a row of x, an empty row and the type of both to the row of the result.
    """
    given, whole, row = (builtin_tensor(dims, DataType.FLOAT) for dims in ((rows, pitch), (rows, width), (1, width)))
    shown = "!iree_tensor_ext.dispatch.tensor"
    each = max(1, _WORK // width)
    part = f"sizes = [1, {width}], strides = [1, 1]"
    group = code.line("flow.dispatch.workgroup.id[0] : index")
    first = code.op("muli", group, code.at(each))
    last = code.op("minui", code.op("addi", first, code.at(each)), code.at(rows))

    def of_row(index: str, _: list[str]) -> Sequence[str]:
        x = code.line(
            f"iree_tensor_ext.dispatch.tensor.load %source, offsets = [{index}, 0], {part} "
            f": {shown}<readonly:{given}> -> {row}"
        )
        y = made(x, code.line(f"tensor.empty() : {row}"), row)
        code.lines.append(
            f"iree_tensor_ext.dispatch.tensor.store {y}, %result, offsets = [{index}, 0], {part} "
            f": {row} -> {shown}<writeonly:{whole}>"
        )
        return []

    code.rounds((first, last, 1), [], of_row)
    return "\n".join([
        f"func.func private @{name}(%x: {given}) -> {whole} {{",
        f"  %y = flow.dispatch.workgroups(%x) : ({given}) -> {whole} =",
        f"      (%source: {shown}<readonly:{given}>, %result: {shown}<writeonly:{whole}>) {{",
        *(f"    {line}" for line in (*code.first, *code.lines)),
        "    flow.return",
        "  } count() -> (index, index, index) {",
        f"    %groups = arith.constant {-(-rows // each)} : index",
        "    %one = arith.constant 1 : index",
        "    flow.return %groups, %one, %one : index, index, index",
        "  }",
        f"  return %y : {whole}",
        "}",
    ])  # fmt: skip
