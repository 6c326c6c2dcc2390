"""The answer to "is this graph served": yes, or no with node, rule and reason."""

from __future__ import annotations

from typing import NamedTuple

from fusilli_ground.errors import NotSupportedError

__all__ = ["Support"]


class Support(NamedTuple):
    """Whether a graph is served.

    Attributes:
        ok: True: it compiles, runs and is right.
        node: name of the node that is declined, "" if none or if the whole graph is.
        rule: short stable name of the rule that declines, "" if ``ok``.
        reason: one sentence with the values seen and what would help, "" if ``ok``.
    """

    ok: bool
    node: str = ""
    rule: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        """``served``, or ``declined: node 'y': reason [rule]``."""
        if self.ok:
            return "served"
        return f"declined: {NotSupportedError(self.node, self.rule, self.reason)}"

    @classmethod
    def yes(cls) -> Support:
        """The graph is served."""
        return cls(True)

    @classmethod
    def no(cls, reason: str, *, node: str = "", rule: str) -> Support:
        """The graph is declined."""
        return cls(False, node, rule, reason)

    def require(self) -> None:
        """Raises NotSupportedError if the graph is declined."""
        if not self.ok:
            raise NotSupportedError(self.node, self.rule, self.reason)
