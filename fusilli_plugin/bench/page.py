"""Results as Markdown, and as a page with a bar for each ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fusilli_plugin.bench.run import Row, summary

__all__ = ["html", "markdown", "template"]

_WIDEST: float = 3.0
"""Times the other side's time, or its inverse, where a bar is as long as it can be."""


def markdown(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """A table with a line for each row, and what they come to."""
    lines = [", ".join(f"{name}: {text}" for name, text in about.items()), ""]
    lines += [f"* {name}: {_number(value)}" for name, value in summary(rows).items()]
    lines += [
        "",
        "| row | threads | busy | ours, ms | ONNX Runtime | PyTorch | ratio | to PyTorch | net | error | form | |",
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        times, ratios = (row.ours_ms, row.onnxruntime_ms, row.torch_ms), (row.ratio_onnxruntime, row.ratio_torch)
        cells = " | ".join(map(_number, (*times, *ratios, row.ratio_net, row.max_error)))
        lines.append(f"| {row.name} | {row.threads} | {row.busy} | {cells} | {row.variant} | {row.verdict} |")
    problems = dict.fromkeys((row.name, row.problems["ours"]) for row in rows if "ours" in row.problems)
    lines += [f"* {name}: ours: {why}" for name, why in problems]
    return "\n".join(lines) + "\n"


def html(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    """A page of its own."""
    bars = [(row, _bar(row.ratio_onnxruntime), _bar(row.ratio_torch)) for row in rows]
    return template("bench.html").render(bars=bars, about=about, summary=summary(rows))


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
