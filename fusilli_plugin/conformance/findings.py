"""What checks say: exceptions of a check, and rows of a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["FAILURES", "BrokenRule", "NotTried", "Row", "Tally"]

FAILURES: Final = ("failed", "crashed", "hung")


class BrokenRule(Exception):  # noqa: N818 - a verdict
    """The plugin does what it must not do; the text says what."""


class NotTried(Exception):  # noqa: N818 - a verdict
    """The check has nothing to look at in this plugin, or here; the text says why."""


@dataclass(frozen=True)
class Row:
    """What came of a check.

    Attributes:
        verdict: ``passed``, ``failed``, ``crashed``, ``hung`` or ``skipped``.
        text: what was seen.
        seconds: the process's whole life.
    """

    check: str
    verdict: str
    text: str
    seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        """Whether the plugin fails the suite for it."""
        return self.verdict in FAILURES


@dataclass
class Tally:
    """Graphs with an operation: how many the plugin was asked about, claimed, and what its results were."""

    asked: int = 0
    claimed: int = 0
    right: int = 0
    wrong: int = 0
    broken: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)
