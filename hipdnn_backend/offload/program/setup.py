"""Steps whose results are the same in every run move to the front of a program: they run once, when it is loaded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from hipdnn_backend.offload.program.program import Execute, Program, Space, Step

__all__ = ["with_setup"]

_ALWAYS_KEPT: Final = 1 << 20
_MOST_GROWTH: Final = 4
"""How many times larger than the constants behind it a kept result may be: room for INT8 weights as float32."""


def with_setup(program: Program, varying: Collection[str] = ()) -> Program:
    """The program with every step that depends on constants alone in its setup, and what later steps read of them kept.

    A buffer is filled in the setup if only such steps write it, all of them before another step touches it. It is kept
    for as long as the program unless it is over 1 MiB and over four times as large as the constants that it comes from:
    memory that runs share is worth more then.

    Args:
        program: without a setup, its arena not planned yet.
        varying: names of graphs whose results may differ from run to run on the same operands.
    """
    steps = range(len(program.steps))
    written = [{program.views[view].buffer for view in program.written(step)} for step in program.steps]
    touched = [{program.views[view].buffer for view in program.touched(step)} for step in program.steps]
    read = [touched[step] - written[step] for step in steps]
    constant = {n for n, buffer in enumerate(program.buffers) if buffer.space is Space.CONSTANT}
    filled = {n for n, buffer in enumerate(program.buffers) if buffer.space is Space.TEMPORARY}
    while True:
        early = [
            step
            for step in steps
            if read[step] <= constant | filled
            and written[step] <= filled
            and not _is_of(program, program.steps[step], varying)
        ]
        late = sorted(set(steps) - set(early))
        first = {buffer: step for step in reversed(late) for buffer in touched[step]}
        kept = first.keys() & filled
        behind = _constants_behind(early, read, written, constant)
        dropped = {buffer for step in late for buffer in written[step]} & filled
        dropped |= {buffer for step in early for buffer in written[step] if first.get(buffer, step) < step}
        dropped |= {buffer for buffer in kept if _is_too_large(program, buffer, behind.get(buffer, set()))}
        if not dropped:
            break
        filled -= dropped
    buffers = tuple(
        replace(buffer, space=Space.FOLDED) if number in kept else buffer
        for number, buffer in enumerate(program.buffers)
    )
    order = [*early, *late]
    return replace(program, buffers=buffers, steps=tuple(program.steps[step] for step in order), setup=len(early))


def _is_of(program: Program, step: Step, graphs: Collection[str]) -> bool:
    return isinstance(step, Execute) and program.graphs[step.graph].name in graphs


def _constants_behind(
    steps: list[int], read: list[set[int]], written: list[set[int]], constant: set[int]
) -> dict[int, set[int]]:
    """Buffer → the constants that it is computed from."""
    behind: dict[int, set[int]] = {}
    for step in steps:
        sources = {source for buffer in read[step] for source in ({buffer} & constant or behind.get(buffer, set()))}
        for buffer in written[step]:
            behind[buffer] = behind.get(buffer, set()) | sources
    return behind


def _is_too_large(program: Program, buffer: int, constants: set[int]) -> bool:
    known = sum(program.buffers[number].nbytes for number in constants)
    return program.buffers[buffer].nbytes > max(_ALWAYS_KEPT, _MOST_GROWTH * known)
