"""Results as Markdown, and as a page with a bar for each ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fusilli_plugin.bench.run import Row, others, summary

__all__ = ["html", "markdown", "template"]

_WIDEST: float = 3.0
"""Times the other side's time, or its inverse, where a bar is as long as it can be."""


def markdown(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """A table with a line for each row, and what they come to."""
    lines = [", ".join(f"{name}: {text}" for name, text in about.items()), ""]
    lines += [f"* {name}: {_number(value)}" for name, value in summary(rows).items()]
    sides = others(rows)
    heads = ["row", "threads", "busy", "ours, ms"]
    heads += [text for name in sides.values() for text in (name, "ratio")] + ["net", "error", "form", ""]
    lines += ["", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        theirs = [number for side in sides for number in row.beside(side)]
        cells = " | ".join(map(_number, (row.ours_ms, *theirs, row.ratio_net, row.max_error)))
        lines.append(f"| {row.name} | {row.threads} | {row.busy} | {cells} | {row.variant} | {row.verdict} |")
    problems = dict.fromkeys((row.name, row.problems["ours"]) for row in rows if "ours" in row.problems)
    lines += [f"* {name}: ours: {why}" for name, why in problems]
    return "\n".join(lines) + "\n"


def html(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """A page of its own."""
    sides = others(rows)
    shown = [(row, [(ms, ratio, _bar(ratio)) for ms, ratio in map(row.beside, sides)]) for row in rows]
    return template("bench.html").render(rows=shown, sides=sides.values(), about=about, summary=summary(rows))


def template(name: str) -> Any:
    """A template of this folder, to be rendered."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fusilli_plugin.bench"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = _number
    return environment.get_template(name)


def _bar(ratio: float | None) -> tuple[float, float] | None:
    """Where a bar begins and how wide it is, in percent: to the left of the middle what is faster than the other."""
    if ratio is None:
        return None
    part = 50 * max(-1.0, min(1.0, math.log(ratio) / math.log(_WIDEST)))
    return (50.0, part) if part >= 0 else (50 + part, -part)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
