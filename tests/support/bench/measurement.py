"""What was measured, against its goal, and the table of that."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Measurement", "report", "show"]

Unit = Literal["s", "B"]
_SCALES: Final[dict[Unit, tuple[tuple[str, float], ...]]] = {
    "s": (("s", 1.0), ("ms", 1e3), ("us", 1e6)),
    "B": (("MiB", 2.0**-20), ("KiB", 2.0**-10), ("B", 1.0)),
}


@dataclass(frozen=True)
class Measurement:
    """What was seen of one thing.

    Attributes:
        name: what was measured.
        samples: of each round, in ``unit``; empty if it was skipped.
        goal: for the median: in ``unit``, or as a multiple of the native compiler's median where ``native`` is given.
        native: what the native compiler needed, round by round; empty if it has no part.
        unit: seconds or bytes.
        skipped: why it was not measured; empty if it was.
    """

    name: str
    samples: tuple[float, ...]
    goal: float
    native: tuple[float, ...] = ()
    unit: Unit = "s"
    skipped: str = ""

    @property
    def median(self) -> float:
        """Median of the rounds; not a number if it was skipped."""
        return statistics.median(self.samples) if self.samples else float("nan")

    @property
    def value(self) -> float:
        """What the goal is for: the median, or its ratio to the native compiler's."""
        return self.median / statistics.median(self.native) if self.native else self.median

    @property
    def met(self) -> bool:
        """True if it was measured and the goal is met."""
        return self.value <= self.goal

    @property
    def verdict(self) -> str:
        """One word for the table."""
        if self.skipped:
            return "skipped"
        return "met" if self.met else "MISSED"


def report(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Lines of a table: name, median with spread, goal, verdict; below it why something was skipped."""
    rows: list[tuple[str, ...]] = [("what", "median", "min .. max", "native", "ratio", "goal", "")]
    for m in measurements:
        native = (show(statistics.median(m.native), m.unit), f"{m.value:.2f}") if m.native else ("", "")
        goal = f"<= {m.goal:.2f}x" if m.native else f"<= {show(m.goal, m.unit)}"
        median, spread = "", ""
        if m.samples:
            median = show(m.median, m.unit)
            spread = f"{show(min(m.samples), m.unit)} .. {show(max(m.samples), m.unit)}"
        rows.append((m.name, median, spread, *native, goal, m.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from dict.fromkeys(f"skipped: {m.skipped}" for m in measurements if m.skipped)


def show(value: float, unit: Unit = "s") -> str:
    """A value in the unit that suits its size."""
    scales = _SCALES[unit]
    name, factor = next((scale for scale in scales if value * scale[1] >= 1), scales[-1])
    return f"{value * factor:.3g} {name}"
