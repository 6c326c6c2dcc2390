"""The arena as a picture: steps to the right, addresses upwards, a box for each piece of memory while it is in use."""

from __future__ import annotations

from fusilli_plugin.report.svg import bytes_text, document, rect, text
from hipdnn_backend.offload.memory import Lifetime, live_bytes, lower_bound
from hipdnn_backend.offload.program.program import Execute, Program, Space, lives

__all__ = ["memory_svg", "placed_lives"]

_LEFT, _TOP, _RIGHT, _BOTTOM = 80.0, 34.0, 20.0, 46.0
_WIDTH, _HEIGHT = 1040.0, 360.0
_FILLS = ("#2a9d8f", "#3a86c8", "#7b6cd9", "#6a994e", "#43aa8b", "#577590")
_SCRATCH = "#e9a23b"


def placed_lives(program: Program) -> list[tuple[Lifetime, int, bool]]:
    """Each piece of memory that is in use at some time: when, where in the arena, and whether it is a workspace."""
    temporaries = [buffer.offset for buffer in program.buffers if buffer.space is Space.TEMPORARY]
    offsets = temporaries + [step.workspace if isinstance(step, Execute) else 0 for step in program.steps]
    found = zip(lives(program), offsets, strict=True)
    return [(life, offset, number >= len(temporaries)) for number, (life, offset) in enumerate(found) if life.is_live]


def memory_svg(program: Program) -> str:
    """The memory plan of a program."""
    steps, arena = max(1, len(program.steps)), max(1, program.arena)
    across, up = (_WIDTH - _LEFT - _RIGHT) / steps, (_HEIGHT - _TOP - _BOTTOM) / arena
    ground = _HEIGHT - _BOTTOM

    def box(life: Lifetime, offset: int, is_scratch: bool, number: int) -> str:
        hint = f"{life.need.name}: {bytes_text(life.size)} at {offset}, steps {life.first} to {life.last}"
        fill = _SCRATCH if is_scratch else _FILLS[number % len(_FILLS)]
        return rect(
            _LEFT + life.first * across, ground - (offset + life.size) * up, (life.last - life.first + 1) * across,
            life.size * up, fill, hint, more='stroke="#fff" stroke-width="0.5" fill-opacity="0.85"',
        )  # fmt: skip

    found = placed_lives(program)
    body = [rect(_LEFT, _TOP, _WIDTH - _LEFT - _RIGHT, ground - _TOP, "#8882")]
    body += [box(life, offset, scratch, number) for number, (life, offset, scratch) in enumerate(found)]
    body += _line([life for life, _, _ in found], len(program.steps), across, up, ground)
    body += _axes(program, steps, across, up, ground)
    bound = lower_bound([life for life, _, _ in found])
    words = (
        f"arena {bytes_text(program.arena)}; without sharing {bytes_text(program.naive)}; largest live set "
        f"{bytes_text(bound)}; {len(found)} pieces of memory in {len(program.steps)} steps"
    )
    body.append(text(_LEFT, 20, words, more='font-size="13"'))
    return document(_WIDTH, _HEIGHT, body, f"Memory plan of {program.name}")


def _line(found: list[Lifetime], steps: int, across: float, up: float, ground: float) -> list[str]:
    """How many bytes are in use in each step."""
    points: list[str] = []
    for step, size in enumerate(live_bytes(found, steps)):
        points += [f"{_LEFT + at * across:.1f},{ground - size * up:.1f}" for at in (step, step + 1)]
    if not points:
        return []
    line = f'<polyline points="{" ".join(points)}" fill="none" stroke="#c1121f" stroke-width="1.5"/>'
    return [line, text(_WIDTH - _RIGHT, _HEIGHT - 8, "— bytes in use", anchor="end", fill="#c1121f")]


def _axes(program: Program, steps: int, across: float, up: float, ground: float) -> list[str]:
    marks = [0.0, 0.25, 0.5, 0.75, 1.0]
    sizes = [
        text(_LEFT - 6, ground - program.arena * mark * up + 4, bytes_text(program.arena * mark), anchor="end")
        for mark in marks
    ]
    every = max(1, -(-steps // 12))
    numbers = [
        text(_LEFT + (step + 0.5) * across, ground + 16, str(step), anchor="middle") for step in range(0, steps, every)
    ]
    legend = [
        rect(_LEFT, _HEIGHT - 18, 12, 10, _FILLS[0]), text(_LEFT + 17, _HEIGHT - 9, "buffers"),
        rect(_LEFT + 80, _HEIGHT - 18, 12, 10, _SCRATCH), text(_LEFT + 97, _HEIGHT - 9, "workspaces of graphs"),
        text(_WIDTH / 2 + 60, _HEIGHT - 9, "step", anchor="middle"),
    ]  # fmt: skip
    return [*sizes, *numbers, *legend]
