"""Follows the rows of one open dim through a graph that was traced with a symbol for it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from hipdnn_backend.offload.frontend.padding import NUMBER, NotPaddableError, NumberOfRows, Rows

__all__ = ["RULES", "At", "Axes", "Walk", "expression", "is_symbol", "nodes_of", "rule"]

Node = torch.fx.Node
_ATEN: Final = torch.ops.aten


def is_symbol(size: Any) -> bool:
    """Whether a size is no number."""
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def expression(size: Any) -> Any:
    """A number, or the expression of a size."""
    return size.node.expr if is_symbol(size) else int(size)


@dataclass
class At:
    """A node of which something has rows."""

    walk: Walk
    node: Node

    def __post_init__(self) -> None:
        self.given = given(self.node)
        self.names = list(self.given)

    def dims(self, name: str) -> tuple[Any, ...]:
        return tuple(map(expression, self.given[name].meta["val"].shape))

    def rank(self, name: str) -> int:
        return self.given[name].meta["val"].dim()

    def rank_out(self) -> int:
        return self.node.meta["val"].dim()

    def rows(self, name: str) -> Rows | None:
        found = self.given.get(name)
        state = self.walk.states[found] if isinstance(found, Node) else None
        return state if isinstance(state, Rows) else None

    def axis(self, name: str) -> int | None:
        rows = self.rows(name)
        return None if rows is None else rows.axis

    def only(self, *names: str, sizes: Sequence[str] = ()) -> None:
        """Refuse rows, or their number, in other operands."""
        for name, value in self.given.items():
            states = [self.walk.states[node] for node in nodes_of(value)]
            if name not in names and any(isinstance(state, Rows) for state in states):
                raise NotPaddableError(f"operand '{name}' has rows, all of which it reads at once")
            if name not in sizes and any(isinstance(state, NumberOfRows) for state in states):
                raise NotPaddableError(f"operand '{name}' follows from the number of rows")

    def not_along(self, name: str, axes: Sequence[int], what: str) -> int | None:
        """The axis of an operand's rows, if it is none of those."""
        at, rank = self.axis(name), max(self.rank(name), 1)
        if at is not None and at in {axis % rank for axis in axes}:
            raise NotPaddableError(f"{what} along dim {at}, in which the rows are")
        return at


Axes = int | None | tuple[int | None, ...]
Rule = Callable[[At], Axes]
RULES: Final[dict[Any, Rule]] = {}


def rule(*names: str | torch.Tag) -> Callable[[Rule], Rule]:
    """Decorates the function that says how operators treat rows; it raises `NotPaddableError`.

    Args:
        names: of operators in ``torch.ops.aten``, or a tag that they have.
    """

    def add(rule: Rule) -> Rule:
        for name in names:
            RULES[getattr(_ATEN, name) if isinstance(name, str) else name] = rule
        return rule

    return add


class Walk:
    """Follows the rows of one open dim through a graph."""

    def __init__(self, symbol: Any) -> None:
        self._symbol = symbol
        self.states: dict[Node, Any] = {}

    def rows_of(self, value: torch.Tensor) -> Rows | None:
        """The axis whose extent follows from the size."""
        dims = [expression(size) for size in value.shape]
        axes = [axis for axis, size in enumerate(dims) if self._follows(size)]
        if not axes:
            return None
        if len(axes) > 1:
            raise NotPaddableError(f"a tensor has it in dims {' and '.join(map(str, axes))}")
        per = dims[axes[0]] / self._symbol
        if not per.is_Integer:
            raise NotPaddableError(f"dim {axes[0]} of a tensor is {dims[axes[0]]}, no multiple of it")
        return Rows(axes[0], int(per))

    def _follows(self, size: Any) -> bool:
        return not isinstance(size, int) and self._symbol in size.free_symbols

    def through(self, node: Node) -> None:
        """Tells what a node gives.

        Raises:
            NotPaddableError: it mixes rows.
        """
        value = node.meta.get("val")
        try:
            if node.op == "placeholder" or node.op == "get_attr":
                self.states[node] = self.rows_of(value) if isinstance(value, torch.Tensor) else self._number(value)
            elif node.target is operator.getitem and isinstance(self.states[node.args[0]], tuple):  # type: ignore[index]
                self.states[node] = self.states[node.args[0]][node.args[1]]  # type: ignore[index]
            elif isinstance(value, torch.SymInt | int):
                if not all(isinstance(each.meta["val"], torch.SymInt) for each in node.all_input_nodes) and (
                    node.target is not _ATEN.sym_size.int
                ):
                    raise NotPaddableError("it makes a number of a tensor")
                self.states[node] = self._number(value)
            else:
                self.states[node] = self._computed(node)
        except NotPaddableError as error:
            raise NotPaddableError(error.reason, node.name, f"{node.target} '{node.name}'") from None

    def _number(self, value: Any) -> Any:
        return NUMBER if isinstance(value, torch.SymInt) and self._follows(expression(value)) else None

    def _computed(self, node: Node) -> Any:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            raise NotPaddableError("it is no operator on tensors")
        if target._schema.is_mutable:
            raise NotPaddableError("it writes to an argument")
        if torch.Tag.nondeterministic_seeded in target.tags and not draws_nothing(node):
            raise NotPaddableError("it draws a number for each element")
        values = node.meta["val"]
        results = list(values) if isinstance(values, tuple | list) else [values]
        found = [None if each is None else self.rows_of(each) for each in results]
        if not any(self.states[source] for source in node.all_input_nodes):
            if any(found):
                raise NotPaddableError("what it gives follows from the size")
            return tuple(found) if isinstance(values, tuple | list) else None
        rule = RULES.get(target.overloadpacket)
        if rule is None and torch.Tag.pointwise in target.tags:
            rule = RULES[torch.Tag.pointwise]
        if rule is None:
            raise NotPaddableError("nothing is known of how it treats rows")
        axes = rule(At(self, node))
        each = axes if isinstance(axes, tuple) else (axes,) * len(found)
        for rows, axis in zip(found, each, strict=True):
            if (rows.axis if rows else None) != axis:
                raise NotPaddableError("what it gives has rows that are not kept apart")
        self._check_per(node, target, found)
        return tuple(found) if isinstance(values, tuple | list) else found[0]

    def _check_per(self, node: Node, target: Any, found: Sequence[Rows | None]) -> None:
        read = {state.per for source in node.all_input_nodes if isinstance(state := self.states[source], Rows)}
        made = {rows.per for rows in found if rows}
        if target.overloadpacket not in _REGROUPS and made - (read or {1}):
            raise NotPaddableError("what it gives has other numbers of elements for each row")
        if target.overloadpacket not in _REGROUPS and len(read) > 1:
            raise NotPaddableError("its operands have different numbers of elements for each row")


_REGROUPS: Final = frozenset({_ATEN.view, _ATEN._unsafe_view, _ATEN.reshape, _ATEN.arange, _ATEN.full})


def nodes_of(value: Any) -> list[Node]:
    """The nodes in an argument of one."""
    found: list[Node] = []
    torch.fx.map_arg(value, found.append)
    return found


def given(node: Node) -> dict[str, Any]:
    """The arguments of an operator by name, in their order, with the defaults of those that are left out."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    found = {argument.name: argument.default_value for argument in arguments}
    return found | dict(zip(found, node.args, strict=False)) | dict(node.kwargs)


def draws_nothing(node: Node) -> bool:
    """Whether an operator that may drop elements keeps them all."""
    return given(node).get("dropout_p", 1.0) == 0.0
