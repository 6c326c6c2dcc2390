"""Follows the rows of an open dim through the nodes of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import OnnxGraph, attributes, captures, subgraphs

__all__ = ["NUMBER", "At", "Axes", "NotPaddableError", "NumberOfRows", "Rows", "Rule", "State", "Walk", "label", "rule"]

Array = np.ndarray[Any, Any]


class NotPaddableError(Exception):
    """Rows that are added would reach results that are kept, or that cannot be told.

    Attributes:
        reason: why.
        node: name of the node that mixes rows, "" if it is not one node.
        what: the node for people, "" likewise.
    """

    def __init__(self, reason: str, node: str = "", what: str = "") -> None:
        self.reason = reason
        self.node = node
        self.what = what
        super().__init__(f"{what}: {reason}" if what else reason)


@dataclass(frozen=True, slots=True)
class Rows:
    """A value has rows along an axis, ``per`` elements for each, those of the first row first."""

    axis: int
    per: int


class NumberOfRows:
    """A number, or constants, that follow from extents: it may say what dims a result has, nothing else."""


NUMBER: Final = NumberOfRows()
State = Rows | NumberOfRows | None


def label(node: onnx.NodeProto) -> str:
    """A node for people."""
    return f"{node.op_type} '{node.name}'"


class Walk:
    """Follows rows through the nodes of a model."""

    def __init__(self, models: Mapping[int, OnnxGraph]) -> None:
        self.sizes = tuple(models)
        self.graphs = tuple(models.values())
        self.states: dict[str, State] = {}
        shapes = {
            tuple((node.op_type, node.domain, *node.input, *node.output) for node in each.nodes) for each in self.graphs
        }
        if len(shapes) > 1:
            raise NotPaddableError("its nodes are others for other sizes")

    def state(self, name: str) -> State:
        return self.states.get(name)

    def dims(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The dims of a value with each size.

        Raises:
            NotPaddableError: they are not known.
        """
        found = []
        for graph in self.graphs:
            type_ = graph.type(name)
            if type_ is None or type_.static is None:
                raise NotPaddableError(f"the dims of '{name}' are not known before a run")
            found.append(type_.static)
        return tuple(found)

    def _rows_of(self, what: str, dims: Sequence[tuple[int, ...]]) -> Rows | None:
        """The axis whose extent follows from the size."""
        if len({len(each) for each in dims}) > 1:
            raise NotPaddableError(f"{what} has another number of dims for other sizes")
        axes = [axis for axis, extents in enumerate(zip(*dims, strict=True)) if len(set(extents)) > 1]
        if not axes:
            return None
        if len(axes) > 1:
            raise NotPaddableError(f"{what} has it in dims {' and '.join(map(str, axes))}")
        per, rest = divmod(dims[0][axes[0]], self.sizes[0])
        if rest or any(each[axes[0]] != per * size for each, size in zip(dims, self.sizes, strict=True)):
            extents = ", ".join(str(each[axes[0]]) for each in dims)
            shown = ", ".join(map(str, self.sizes))
            raise NotPaddableError(f"dim {axes[0]} of {what} is {extents} for sizes {shown}: no multiple of them")
        return Rows(axes[0], per)

    def _of_constant(self, name: str) -> State:
        """A constant is the same for all sizes, or the beginning of that for the next, or follows from extents."""
        arrays = [graph.constants.get(name) for graph in self.graphs]
        known = [array for array in arrays if array is not None]
        if len(known) != len(arrays) or len({array.ndim for array in known}) > 1:
            return NUMBER
        if all(array is known[0] or _same(array, known[0]) for array in known):
            return None
        try:
            rows = self._rows_of(f"constant '{name}'", [array.shape for array in known])
        except NotPaddableError:
            return NUMBER
        if rows is None:
            return NUMBER
        smaller = pairwise(sorted(known, key=lambda array: array.shape[rows.axis]))
        begins = (_same(less, np.take(more, range(less.shape[rows.axis]), rows.axis)) for less, more in smaller)
        return rows if all(begins) else NUMBER

    def go(self) -> None:
        """From the inputs and constants through all nodes.

        Raises:
            NotPaddableError: one mixes rows.
        """
        for name in self.graphs[0].inputs:
            self.states[name] = self._rows_of(f"input '{name}'", self.dims(name))
        for name in self.graphs[0].constants:
            self.states[name] = self._of_constant(name)
        for number, node in enumerate(self.graphs[0].nodes):
            at = At(self, node, [graph.nodes[number] for graph in self.graphs])
            try:
                self._through(at)
            except NotPaddableError as error:
                raise NotPaddableError(error.reason, node.name, label(node)) from None

    def _through(self, at: At) -> None:
        node = at.node
        reads = [self.state(name) for name in (*node.input, *captures(node))]
        if not any(reads):
            for name in filter(None, node.output):
                if len(set(self.dims(name))) > 1:
                    raise NotPaddableError("what it gives has other dims for other sizes")
                self.states[name] = None
            return
        if any(True for _ in subgraphs(node)):
            raise NotPaddableError("what its bodies compute is not looked at")
        rule = None if node.domain else RULES.get(node.op_type)
        if rule is None:
            raise NotPaddableError("nothing is known of how it treats rows")
        if any(attributes(one) != attributes(node) for one in at.nodes if _plain(node)):
            raise NotPaddableError("its attributes are others for other sizes")
        per = {state.per for state in at.states if isinstance(state, Rows)}
        axes = rule(at)
        each = axes if isinstance(axes, Sequence) else [axes] * len(node.output)
        for name, axis in zip(node.output, each, strict=False):
            if name:
                self.states[name] = self._given(name, axis, per if node.op_type not in _REGROUPS else None)

    def _given(self, name: str, axis: int | None, per: set[int] | None) -> Rows | None:
        """What a result is, held against its dims.

        Args:
            name: of the result.
            axis: on which a rule says that it has its rows.
            per: elements for each row that it may have, None for any.
        """
        rows = self._rows_of(f"result '{name}'", self.dims(name))
        if (rows.axis if rows else None) != axis or (rows and per and rows.per not in per):
            raise NotPaddableError(
                f"result '{name}' has dims {list(self.dims(name)[0])}, in which rows are not kept apart"
            )
        return rows


def _same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _plain(node: onnx.NodeProto) -> bool:
    """Its attributes can be compared."""
    kinds = (onnx.AttributeProto.TENSOR, onnx.AttributeProto.GRAPH)
    return not any(each.type in kinds for each in node.attribute)


@dataclass
class At:
    """A node of which something has rows.

    Attributes:
        walk: that came to it.
        node: with the first size.
        nodes: the same with each size.
    """

    walk: Walk
    node: onnx.NodeProto
    nodes: Sequence[onnx.NodeProto]

    def __post_init__(self) -> None:
        self.given = attributes(self.node)
        self.states = [self.walk.state(name) for name in self.node.input]

    def name(self, number: int) -> str:
        return self.node.input[number] if number < len(self.node.input) else ""

    def dims(self, number: int) -> tuple[int, ...]:
        """Of an operand, with the first size."""
        return self.walk.dims(self.name(number))[0]

    def rank(self, number: int = 0) -> int:
        return len(self.dims(number))

    def rank_out(self, number: int = 0) -> int:
        return len(self.walk.dims(self.node.output[number])[0])

    def rows(self, number: int) -> Rows | None:
        """Those of an operand.

        Raises:
            NotPaddableError: it says how many there are.
        """
        state = self.states[number] if number < len(self.states) else None
        if isinstance(state, NumberOfRows):
            raise NotPaddableError(f"operand '{self.name(number)}' follows from the number of rows")
        return state

    def only(self, *numbers: int) -> None:
        """Refuse rows, or their number, in other operands."""
        for number in range(len(self.states)):
            if number not in numbers and self.rows(number) is not None:
                raise NotPaddableError(f"operand '{self.name(number)}' has rows, all of which it reads at once")

    def axis(self, number: int = 0) -> int | None:
        found = self.rows(number)
        return None if found is None else found.axis

    def constant(self, number: int) -> list[int]:
        """The elements of a constant operand that is the same for all sizes; () if it is missing.

        Raises:
            NotPaddableError: only a run knows them.
        """
        name = self.name(number)
        if not name:
            return []
        value = self.walk.graphs[0].constants.get(name)
        if value is None or self.rows(number) is not None:
            raise NotPaddableError(f"operand '{name}' is not known before a run, or has rows")
        return [int(each) for each in value.reshape(-1)]

    def not_along(self, axes: Sequence[int], rank: int, what: str) -> int | None:
        """The axis of the first operand's rows, if it is none of those.

        Raises:
            NotPaddableError: it is one of them.
        """
        at = self.axis()
        if at is not None and at in {axis % rank for axis in axes}:
            raise NotPaddableError(f"{what} along dim {at}, in which the rows are")
        return at


Axes = int | Sequence[int | None] | None
"""The axis on which results have their rows, None for no rows: of all of them, or of each."""
Rule = Callable[[At], Axes]
RULES: Final[dict[str, Rule]] = {}
_REGROUPS: Final = frozenset({"Reshape", "Flatten"})


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Decorates the function that says how operators of ONNX's own treat rows; it raises `NotPaddableError`."""

    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, rule))
        return rule

    return add
