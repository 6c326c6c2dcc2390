"""Softmax along rows on a CPU, of one kernel in vectors: each exponential is made once, and sums stay in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from graph_api import DataType, Graph, Node, PointwiseMode, ReductionMode, TensorAttr
from graph_api.ops.pointwise import PointwiseNode
from graph_api.ops.reduction import ReductionNode
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.vectors import Vectors, rows_kernel
from iree_bridge.targets.target import Target

__all__ = ["LONG_ROW", "has_rows", "is_served", "of_quotient", "of_sum", "softmax"]

_LEAST_ROW: Final = 16
"""Of shorter rows the loops of the compiler are as fast, which take several rows at a time."""
_AT_ONCE: Final = 4
"""Vectors of a round of a loop: as many sums that do not wait for each other."""
LONG_ROW: Final = 8192
"""Rows of whole vectors are summed in 64 bits from this length on, also by ``reduction.accumulator``."""


def of_sum(graph: Graph, node: ReductionNode, target: Target) -> TensorAttr | None:
    """What `softmax` takes of the softmax that ``node`` sums the exponentials of; None: it sums something else."""
    readers = graph.readers(node.outputs["y"])
    return of_quotient(graph, readers[0], target) if len(readers) == 1 else None


def of_quotient(graph: Graph, node: Node, target: Target) -> TensorAttr | None:
    """What `softmax` takes of the softmax that ``node`` ends; None: it ends none.

    That is exp(x - max(x)) / sum(exp(x - max(x))) of f32 rows that lie in one piece, whose steps nothing else reads.
    """
    if target.is_gpu or not _is(node, PointwiseMode.DIV):
        return None
    weights, sums = node.inputs["in_0"], node.inputs["in_1"]
    exponential, total = _made(graph, weights, PointwiseMode.EXP), _reduced(graph, sums, ReductionMode.ADD)
    if exponential is None or total is None or total.inputs["x"] is not weights:
        return None
    less = exponential.inputs["in_0"]
    shift = _made(graph, less, PointwiseMode.SUB)
    if shift is None:
        return None
    x, most = shift.inputs["in_0"], shift.inputs["in_1"]
    top = _reduced(graph, most, ReductionMode.MAX)
    if top is None or top.inputs["x"] is not x:
        return None
    nodes = (top, shift, exponential, total, node)
    inner = {most: 1, less: 1, weights: 2, sums: 1}
    y = node.outputs["out_0"]
    fits = (
        all(each.compute is DataType.FLOAT for each in nodes)
        and all(tensor.is_virtual and len(graph.readers(tensor)) == count for tensor, count in inner.items())
        and all(tensor.data_type is DataType.FLOAT for tensor in (x, *inner, y))
        and x.dims == y.dims
        and all(has_rows(tensor) for tensor in (x, y))
        and is_served(x.dims, target)
    )
    return x if fits else None


def is_served(dims: Sequence[int], target: Target) -> bool:
    """Whether rows of these dims are computed by `softmax`."""
    return not target.is_gpu and dims[-1] >= _LEAST_ROW and math.prod(dims) > 0


def has_rows(tensor: TensorAttr) -> bool:
    """Whether its dims lie in memory in their order; where those of 1 are does not matter."""
    order = [axis for axis in tensor.physical.order if tensor.dims[axis] > 1]
    return order == sorted(order)


def _is(node: Node | None, mode: PointwiseMode) -> bool:
    return isinstance(node, PointwiseNode) and node.attributes.mode is mode


def _made(graph: Graph, tensor: TensorAttr, mode: PointwiseMode) -> Node | None:
    """The node that makes ``tensor``, if it has this mode."""
    node = graph.maker(tensor)
    return node if _is(node, mode) else None


def _reduced(graph: Graph, tensor: TensorAttr, mode: ReductionMode) -> Node | None:
    """The node that makes ``tensor``, if it reduces rows in this mode."""
    node = graph.maker(tensor)
    if not isinstance(node, ReductionNode) or node.attributes.mode is not mode:
        return None
    dims = node.inputs["x"].dims
    return node if [axis for axis in node.axes if dims[axis] > 1] == [len(dims) - 1] else None


def softmax(e: Emitter, x: Value, scale: float = 1.0, width: int | None = None) -> Value:
    """Along rows of scale * x, f32 [..., C]; NaN in a row that has NaN or plus infinity, or nothing finite.

    Args:
        e: of the graph.
        x: see `is_served`.
        scale: positive.
        width: how much of each row is meant, what is behind it is not read; default: all.

    Returns:
        [..., width]
    """
    *lead, pitch = x.dims
    rows, width = math.prod(lead), width or pitch
    text = _text(e.target, rows, width, pitch, scale)
    return e.reshape(e.call(text, [e.reshape(x, (rows, pitch))], (rows, width), DataType.FLOAT), (*lead, width))


def _text(target: Target, rows: int, width: int, pitch: int, scale: float) -> str:
    lanes = min(target.vector_bytes // 4, 1 << (width.bit_length() - 1))
    row = _Row(Vectors(target, lanes), width, scale)
    return rows_kernel("softmax", rows, width, row.code, row.made, pitch=pitch)


class _Row:
    """A row: rounds of several vectors, whole vectors behind them, and one that ends the row, which may overlap."""

    def __init__(self, code: Vectors, width: int, scale: float) -> None:
        self.code = code
        self.scale = scale
        lanes = code.lanes
        self.at_once = min(_AT_ONCE, width // lanes)
        self.step = self.at_once * lanes
        self.main = width // self.step * self.step
        self.tail = list(range(self.main, width - lanes + 1, lanes))
        self.overlap = -width % lanes
        if self.overlap:
            self.tail.append(width - lanes)
        self.wide = f"vector<{lanes}xf64>" if width >= LONG_ROW else code.kind

    def made(self, x: str, y: str, kind: str) -> str:
        """The lines of the row's result."""
        c = self.code
        ends = [c.read(x, kind, c.at(at)) for at in self.tail]
        top = self._greatest(x, kind, ends)
        bounds = (c.at(0), c.at(self.main), self.step)

        def exponentials(index: str, carried: list[str]) -> list[str]:
            made, *sums = carried
            for i, at in enumerate(self._places(index)):
                one = self._exponential(c.read(x, kind, at), top)
                made = c.wrote(one, made, kind, at)
                sums[i] = self._sum(sums[i], one)
            return [made, *sums]

        nothing = c.known("dense<0.0>", self.wide)
        made, *sums = c.rounds(bounds, [(y, kind), *[(nothing, self.wide)] * self.at_once], exponentials)
        last = [self._exponential(end, top) for end in ends]
        for at, one in zip(self.tail, last, strict=True):
            sums.append(self._sum(sums.pop(), one if at % c.lanes == 0 else self._behind(one)))
        inverse = self._inverse(sums)

        def quotients(index: str, carried: list[str]) -> list[str]:
            (found,) = carried
            places = self._places(index)
            new = [c.binary("mulf", c.read(found, kind, at), inverse) for at in places]
            for at, one in zip(places, new, strict=True):
                found = c.wrote(one, found, kind, at)
            return [found]

        (made,) = c.rounds(bounds, [(made, kind)], quotients)
        for at, one in zip(self.tail, last, strict=True):
            made = c.wrote(c.binary("mulf", one, inverse), made, kind, c.at(at))
        return made

    def _places(self, index: str) -> list[str]:
        c = self.code
        return [index, *(c.op("addi", index, c.at(i * c.lanes)) for i in range(1, self.at_once))]

    def _greatest(self, x: str, kind: str, ends: Sequence[str]) -> str:
        """The maximum, in all elements of a vector. Whether NaN is passed on does not matter: its exponential is."""
        c = self.code

        def greater(index: str, carried: list[str]) -> list[str]:
            return [c.greater(one, c.read(x, kind, at)) for one, at in zip(carried, self._places(index), strict=True)]

        begin = [(c.number(-math.inf), c.kind)] * self.at_once
        tops = [*c.rounds((c.at(0), c.at(self.main), self.step), begin, greater), *ends]
        top = tops[0]
        for other in tops[1:]:
            top = c.greater(top, other)
        return c.spread(c.over("maxnumf", top))

    def _exponential(self, x: str, top: str) -> str:
        c = self.code
        less = c.binary("subf", x, top)
        return c.exp(less if self.scale == 1.0 else c.binary("mulf", less, c.number(self.scale)))

    def _behind(self, one: str) -> str:
        """What of the last vector no other one has; 0 else."""
        c = self.code
        new = ", ".join(str(i >= self.overlap).lower() for i in range(c.lanes))
        kept = c.known(f"dense<[{new}]>", c.truth)
        return c.line(f"arith.select {kept}, {one}, {c.number(0.0)} : {c.truth}, {c.kind}")

    def _sum(self, total: str, one: str) -> str:
        c = self.code
        if self.wide != c.kind:
            one = c.line(f"arith.extf {one} : {c.kind} to {self.wide}")
        return c.op("addf", total, one, self.wide)

    def _inverse(self, sums: Sequence[str]) -> str:
        """1 / the sum of all, in all elements of a vector."""
        c = self.code
        total = sums[0]
        for other in sums[1:]:
            total = c.op("addf", total, other, self.wide)
        whole, element = c.over("add", total, self.wide), "f32" if self.wide == c.kind else "f64"
        inverse = c.op("divf", c.known("1.0", element), whole, element)
        return c.spread(inverse if element == "f32" else c.line(f"arith.truncf {inverse} : f64 to f32"))
