"""The root of the exceptions, and those that several packages raise.

Every message names the node or tensor, the rule that was broken, the values that were seen and the likely fix.
"""

from __future__ import annotations

__all__ = ["FusilliError", "NotSupportedError", "OptionError"]


class FusilliError(Exception):
    """Base class of everything that this project raises on purpose."""


class NotSupportedError(FusilliError):
    """The graph is valid, but the target does not serve it.

    Attributes:
        node: name of the node that is declined ("" when the whole graph is).
        rule: short stable name of the rule, e.g. ``"dtype"``.
        reason: one sentence with the values seen and what would help.
    """

    def __init__(self, node: str, rule: str, reason: str) -> None:
        self.node = node
        self.rule = rule
        self.reason = reason
        super().__init__(f"node '{node}': {reason} [{rule}]" if node else f"{reason} [{rule}]")


class OptionError(FusilliError):
    """An option, or the environment variable that sets it, is unknown or has a value that means nothing."""
