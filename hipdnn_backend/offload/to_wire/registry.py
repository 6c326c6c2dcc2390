"""The registry of rules: how each torch operation becomes nodes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.values import Value

__all__ = ["RULES", "Result", "Rule", "lookup", "rule"]

Result = Value | Sequence[Value | None]
Rule = Callable[[Builder, Op], Result]
RULES: Final[dict[str, Rule]] = {}
"""Rule by operation, e.g. ``torch.aten.relu``. A rule returns the value of the first result, or of each result, None
for one that it cannot make; it raises NotTranslated."""

R = TypeVar("R", bound=Rule)


def rule(*names: str) -> Callable[[R], R]:
    """Decorator: registers the rule of torch operations, named without ``torch.``, e.g. ``aten.relu``."""

    def register(function: R) -> R:
        for name in names:
            register_rule(name, function)
        return function

    return register


def register_rule(name: str, function: Rule) -> None:
    """Registers one rule; for tables of operations.

    Raises:
        ValueError: the operation has a rule already.
    """
    full = f"torch.{name}"
    if full in RULES:
        raise ValueError(f"{full} has the rules of {RULES[full].__module__} and {function.__module__}")
    RULES[full] = function


def lookup(op: Op) -> Rule:
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
