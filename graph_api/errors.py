"""The exceptions that users of the four packages can meet.

Every message names the node or tensor, the rule that was broken, the values that were seen and the likely fix.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "CompileError",
    "ExecutionError",
    "FusilliError",
    "GraphError",
    "NotSupportedError",
    "did_you_mean",
]


class FusilliError(Exception):
    """Base class of everything that this project raises on purpose."""


class GraphError(FusilliError):
    """The graph, or what was passed to build it, breaks a rule of the operation graph API."""


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


class CompileError(FusilliError):
    """The compiler failed, crashed or ran out of time or memory; the next compile is not affected.

    Attributes:
        reproducer: folder with the graph, the IR, the flags and the diagnostics, or None if it could not be written.
        kind: ``refused`` (the compiler refuses the input, and would again), ``crash``, ``memory``, ``timeout``,
            ``start`` (no compile worker could be started), or "".
    """

    def __init__(self, message: str, reproducer: Path | None = None, kind: str = "") -> None:
        self.reproducer = reproducer
        self.kind = kind
        super().__init__(message)


class ExecutionError(FusilliError):
    """A buffer does not fit its tensor, a device is not there, or the device reported a failure."""


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`` (did you mean X?)`` for the known name that is most like ``name``, whatever its case; "" if none is."""
    import difflib

    asked = str(name)[:64].lower()
    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(asked, spelled, 5, cutoff)
    # Of the near ones that which begins alike: gfx90a for gfx90b, not gfx950.
    begins = [next((n for n in range(len(asked), 0, -1) if each.startswith(asked[:n])), 0) for each in close]
    return f" (did you mean {spelled[close[begins.index(max(begins))]]}?)" if close else ""
