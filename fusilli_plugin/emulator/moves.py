"""Where an instruction takes each lane of an operand from: DPP and swizzles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fusilli_plugin.emulator.assembly import UnmodelledError
from fusilli_plugin.emulator.layout import LANES

__all__ = ["MODIFIERS", "source_lanes", "swizzled_lanes"]

_MOVES: Final = (
    "quad_perm", "row_shl", "row_shr", "row_ror", "row_mirror", "row_half_mirror", "row_newbcast", "row_bcast",
    "wave_shl", "wave_shr", "wave_rol", "wave_ror",
)  # fmt: skip
MODIFIERS: Final = (*_MOVES, "row_mask", "bank_mask", "bound_ctrl")
"""The modifiers of DPP."""


def source_lanes(modifiers: Mapping[str, str]) -> list[int] | None:
    """For each lane the lane that DPP takes it from, -1 if none; None if the modifiers have no DPP.

    Raises:
        UnmodelledError: another form of it.
    """
    named = [name for name in _MOVES if name in modifiers]
    if not named:
        if modifiers.keys() & {"row_mask", "bank_mask"}:
            raise UnmodelledError("DPP without a move")
        return None
    name = named[0]
    if len(named) > 1:
        raise UnmodelledError(f"DPP with {named}")
    sources = [_source(name, modifiers[name], lane) for lane in range(LANES)]
    if not all(-1 <= source < LANES for source in sources):
        raise UnmodelledError(f"{name}:{modifiers[name]}")
    return sources


def _source(name: str, value: str, lane: int) -> int:
    """The lane that a DPP modifier reads for ``lane``; -1 where there is none."""
    row, place = lane // 16 * 16, lane % 16
    if name == "quad_perm":
        return lane // 4 * 4 + int(re.findall(r"\d", value)[lane % 4])
    if name == "row_mirror":
        return row + 15 - place
    if name == "row_half_mirror":
        return lane // 8 * 8 + 7 - lane % 8
    if name == "row_newbcast":
        return row + int(value)
    if name == "row_ror":
        return row + (place - int(value)) % 16
    if name == "row_shr":
        return lane - int(value) if place >= int(value) else -1
    if name == "row_shl":
        return lane + int(value) if place + int(value) < 16 else -1
    if name == "row_bcast":
        if value == "15":
            return row - 1 if lane >= 16 else -1
        return (31 if lane >= 32 else -1) if value == "31" else _unknown(name, value)
    if name in ("wave_shr", "wave_ror"):
        return lane - 1 if lane else (LANES - 1 if name == "wave_ror" else -1)
    return lane + 1 if lane + 1 < LANES else (0 if name == "wave_rol" else -1)


def _unknown(name: str, value: str) -> int:
    raise UnmodelledError(f"{name}:{value}")


def swizzled_lanes(text: str) -> list[int]:
    """For each lane the lane that ``ds_swizzle_b32`` takes it from.

    Raises:
        UnmodelledError: another form of it.
    """
    sources = _swizzled(text)
    if not all(0 <= source < LANES for source in sources):
        raise UnmodelledError(f"offset:{text}")
    return sources


def _swizzled(text: str) -> list[int]:
    match = re.fullmatch(r"swizzle\((\w+),\s*(.*)\)", text)
    if match is None:
        raise UnmodelledError(f"offset:{text}")
    kind, rest = match[1], match[2].replace(" ", "")
    lanes = range(LANES)
    if kind == "SWAP":
        return [lane ^ int(rest) for lane in lanes]
    if kind == "REVERSE":
        size = int(rest)
        return [lane // size * size + size - 1 - lane % size for lane in lanes]
    if kind == "BROADCAST":
        size, of = map(int, rest.split(","))
        return [lane // size * size + of for lane in lanes]
    if kind == "QUAD_PERM":
        order = [int(part) for part in rest.split(",")]
        return [lane // 4 * 4 + order[lane % 4] for lane in lanes]
    if kind == "BITMASK_PERM":
        # The mask's characters are those of the lane's bits 4 to 0: 0, 1, p for kept, i for inverted.
        return [_masked(rest.strip('"'), lane) for lane in lanes]
    raise UnmodelledError(f"offset:{text}")


def _masked(mask: str, lane: int) -> int:
    found = lane & 32
    for place, how in zip(range(4, -1, -1), mask, strict=True):
        bit = lane >> place & 1
        found |= {"0": 0, "1": 1, "p": bit, "i": 1 - bit}[how] << place
    return found
