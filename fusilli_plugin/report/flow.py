"""The model as a picture: a row for each step from top to bottom, its time, and where its data come from."""

from __future__ import annotations

from collections.abc import Sequence

from fusilli_plugin.report.rows import StepRow, edges
from fusilli_plugin.report.svg import bytes_text, colour_of, document, rect, shortened, text, time_text
from hipdnn_backend.offload.program.program import Named, Program

__all__ = ["flow_svg"]

_ROW, _BOX_HEIGHT, _TOP = 26.0, 19.0, 40.0
_BAR_LEFT, _BAR_RIGHT = 130.0, 300.0
_BOX_LEFT, _BOX_WIDTH = 312.0, 470.0
_LANE, _MAX_LANES = 9.0, 28


def flow_svg(program: Program, rows: Sequence[StepRow]) -> str:
    """The steps of a program.

    Args:
        program: where the data flow comes from.
        rows: of its steps, see `step_rows`.
    """
    engines = list(dict.fromkeys(row.engine for row in rows if row.engine))
    slowest = max((row.seconds or 0.0 for row in rows), default=0.0)
    body = [
        text(_BAR_RIGHT, 18, "time of a run", anchor="end", more='font-weight="600"'),
        text(_BOX_LEFT, 18, "step: the operations in it", more='font-weight="600"'),
        text(_BOX_LEFT + _BOX_WIDTH + 12, 18, "data from earlier steps", more='font-weight="600"'),
        text(_BOX_LEFT, 34, _arrow(program.inputs), fill="#666"),
    ]
    for number, row in enumerate(rows):
        body += _step(number, row, engines, slowest)
    arcs, lanes = _arcs(edges(program))
    body += arcs
    bottom = _TOP + len(rows) * _ROW
    body.append(text(_BOX_LEFT, bottom + 14, _arrow(program.outputs), fill="#666"))
    width = max(980.0, _BOX_LEFT + _BOX_WIDTH + 24 + lanes * _LANE)
    return document(width, bottom + 24, body, f"Steps of {program.name}")


def _arrow(named: Sequence[Named]) -> str:
    return "↓ " + shortened(", ".join(each.name for each in named), 80)


def _step(number: int, row: StepRow, engines: list[str], slowest: float) -> list[str]:
    top = _TOP + number * _ROW
    fill = colour_of(row.kind, row.engine, engines)
    hint = "\n".join(
        (
            f"{row.name} ({row.kind})",
            f"engine: {row.engine or '-'}",
            f"nodes: {', '.join(row.nodes) or '-'}",
            f"moves {bytes_text(row.moved)}, workspace {bytes_text(row.workspace)}, dispatches {row.dispatches}",
            *(f"{name} declined: {reason}" for name, reason in row.declined.items()),
        )
    )
    parts = [
        rect(_BOX_LEFT, top, _BOX_WIDTH, _BOX_HEIGHT, fill, hint, more='rx="4"'),
        text(
            _BOX_LEFT + 7, top + 13.5, shortened(f"{number}  {row.label}", 72), fill="#fff",
            more='pointer-events="none"',
        ),
    ]  # fmt: skip
    if row.seconds is not None:
        length = (_BAR_RIGHT - _BAR_LEFT) * (row.seconds / slowest if slowest else 0)
        parts.append(rect(_BAR_RIGHT - length, top + 3, length, _BOX_HEIGHT - 6, fill, more='fill-opacity="0.55"'))
        parts.append(text(_BAR_LEFT - 8, top + 13.5, time_text(row.seconds), anchor="end"))
    return parts


def _arcs(found: Sequence[tuple[int, int]]) -> tuple[list[str], int]:
    """Lines between steps that exchange data: straight to the next, in a lane of their own around others."""
    parts: list[str] = []
    busy: list[int] = []  # the step up to which each lane is taken
    right = _BOX_LEFT + _BOX_WIDTH
    for source, target in sorted(found, key=lambda pair: (pair[0], -pair[1])):
        start, end = _TOP + source * _ROW + _BOX_HEIGHT, _TOP + target * _ROW
        if source < 0:
            continue
        if target == source + 1:
            x = _BOX_LEFT + 16
            parts.append(f'<path d="M{x:.1f} {start:.1f} V{end:.1f}" stroke="#777" fill="none"/>')
            continue
        lane = next((n for n, until in enumerate(busy) if until <= source), len(busy))
        lane = min(lane, _MAX_LANES - 1)  # where there are too many, the last lane has lines on top of each other
        busy[lane : lane + 1] = [target]
        x = right + 10 + lane * _LANE
        out, into = start - _BOX_HEIGHT / 2 + 3, end + _BOX_HEIGHT / 2 - 3
        path = f"M{right:.1f} {out:.1f} H{x - 4:.1f} Q{x:.1f} {out:.1f} {x:.1f} {out + 4:.1f} V{into - 4:.1f} "
        path += f"Q{x:.1f} {into:.1f} {x - 4:.1f} {into:.1f} H{right:.1f}"
        parts.append(
            f'<path d="{path}" stroke="#777" fill="none" stroke-opacity="0.8"><title>step {source} → {target}</title>'
            "</path>"
        )
    return parts, len(busy)
