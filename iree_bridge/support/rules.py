"""The registry of support rules: one per operation, which passes or raises Decline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iree_bridge.targets.target import Target

__all__ = ["NODE_RULES", "Decline", "SupportRule", "support_rule"]

SupportRule = Callable[[Any, Target], None]
NODE_RULES: dict[str, SupportRule] = {}
"""The rule of each served operation by name; an operation without one is declined."""


class Decline(Exception):  # noqa: N818 - an answer on its way up, not an error
    """Why a node is not served. Never leaves ``support``."""

    def __init__(self, rule: str, reason: str) -> None:
        self.rule = rule
        self.reason = reason
        super().__init__(reason)


def support_rule(op: str) -> Callable[[SupportRule], SupportRule]:
    """Decorator: registers the support rule of operation ``op``."""

    def register(function: SupportRule) -> SupportRule:
        if op in NODE_RULES:
            raise ValueError(
                f"operation {op!r} has the support rules of {NODE_RULES[op].__module__} and {function.__module__}"
            )
        NODE_RULES[op] = function
        return function

    return register
