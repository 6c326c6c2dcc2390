"""Matrix instructions.

A lane holds consecutive k of one row of A or one column of B. For m x m results of one block: row ``lane % m`` and
k from ``lane // m * (registers' elements)`` on; the result's register ``r`` of lane ``l`` is column ``l % m`` and, with
64 / m groups of lanes, row ``4 * (64 / m) * (r // 4) + 4 * (l // m) + r % 4``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from tests.support.gfx_emulator.assembly import Instruction, UnmodelledError
from tests.support.gfx_emulator.state import LANES, Array, Wave, register

__all__ = ["decode"]

_NAME: Final = re.compile(r"v_mfma_f32_(16x16|32x32)x(\d+)_(f16|bf16|f32)")


def decode(instruction: Instruction) -> Callable[[Wave], None]:
    """D = A B + C in float32; the products of one instruction are summed exactly here, and rounded once.

    All lanes take part: the mask does not count.
    """
    match = _NAME.fullmatch(instruction.opcode)
    if not match or instruction.modifiers:
        raise UnmodelledError(instruction.text)
    m, k, kind = int(match[1][:2]), int(match[2]), match[3]
    each, count = k * m // LANES, m * m // LANES
    if each * LANES != k * m:
        raise UnmodelledError(f"several blocks: {instruction.text}")
    destination, left, right, addend = instruction.operands
    words = each * (4 if kind == "f32" else 2) // 4
    firsts = [_first(text, size) for text, size in ((destination, count), (left, words), (right, words))]
    before = _first(addend, count) if register(addend) else None
    if before is None and addend != "0":
        raise UnmodelledError(instruction.text)
    lane, number = np.arange(LANES), np.arange(count)[:, None]
    groups = LANES // m
    rows, columns = 4 * groups * (number // 4) + 4 * (lane // m) + number % 4, np.broadcast_to(lane % m, (count, LANES))

    def run(wave: Wave) -> None:
        a, b = (_elements(wave.v[first : first + words], kind) for first in firsts[1:])
        a = a.reshape(groups, m, each).transpose(1, 0, 2).reshape(m, k)
        b = b.reshape(groups, m, each).transpose(0, 2, 1).reshape(k, m)
        with np.errstate(all="ignore"):
            product = a.astype(np.float64) @ b.astype(np.float64)
            total = product[rows, columns]
            if before is not None:
                total = total + wave.v[before : before + count].view(np.float32)
            wave.v[firsts[0] : firsts[0] + count] = total.astype(np.float32).view(np.uint32)

    return run


def _first(text: str, count: int) -> int:
    place = register(text)
    if place is None or place.kind != "v" or place.count != count:
        raise UnmodelledError(f"matrix operand {text!r}, {count} registers expected")
    return place.first


def _elements(words: Array, kind: str) -> Array:
    """Registers [n, 64] → elements [64, ...]."""
    raw = np.ascontiguousarray(words.T)
    if kind == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(np.float16 if kind == "f16" else np.float32)
