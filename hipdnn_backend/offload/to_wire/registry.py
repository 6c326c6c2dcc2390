"""The registry of rules: how each torch operation becomes nodes, and what part it plays in a fusion."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeVar

from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.values import Value

__all__ = ["RULES", "Result", "Role", "WireRule", "lookup", "register_rule", "role", "rule"]

Result = Value | Sequence[Value | None]
WireRule = Callable[[Builder, Op], Result]
RULES: Final[dict[str, WireRule]] = {}
"""Rule by operation, e.g. ``torch.aten.relu``. A rule returns the value of the first result, or of each result, None
for one that it cannot make; it raises NotTranslated."""

R = TypeVar("R", bound=WireRule)


class Role(Enum):
    """The part of an operation in a fusion. Whether a group can be a graph, the translator and the engines say.

    ANCHOR: what a fusion is built around; no fusion has two, except attention written out.
    REDUCTION: an anchor that may have elementwise operations in front of it.
    VIEW: another look at the same elements, or a frame around them; goes with what uses it.
    ELEMENTWISE: anything else; if it is not elementwise in truth, translation refuses it.
    """

    ANCHOR = "anchor"
    REDUCTION = "reduction"
    VIEW = "view"
    ELEMENTWISE = "elementwise"


_ROLES: Final[dict[str, Role]] = {}


def rule(*names: str, role: Role = Role.ELEMENTWISE) -> Callable[[R], R]:
    """Decorator: registers the rule of torch operations, named without ``torch.``, e.g. ``aten.relu``."""

    def register(function: R) -> R:
        for name in names:
            register_rule(name, function, role)
        return function

    return register


def register_rule(name: str, function: WireRule, role: Role = Role.ELEMENTWISE) -> None:
    """Registers one rule; for tables of operations.

    Raises:
        ValueError: the operation has a rule already.
    """
    full = f"torch.{name}"
    if full in RULES:
        raise ValueError(f"{full} has the rules of {RULES[full].__module__} and {function.__module__}")
    RULES[full] = function
    _ROLES[full] = role


def role(name: str) -> Role:
    """The part of an operation, by its MLIR name. What has no rule is in no fusion, whatever its part."""
    return _ROLES.get(name, Role.ELEMENTWISE)


def lookup(op: Op) -> WireRule:
    """The rule of an operation.

    Raises:
        NotTranslated: there is none.
    """
    found = RULES.get(op.name)
    if found is None:
        near = difflib.get_close_matches(op.name, RULES, n=3, cutoff=0.75)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise op.refuse(f"no hipDNN operation is known for it ({len(RULES)} torch operations have one{hint})")
    return found
