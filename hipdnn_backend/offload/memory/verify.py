"""Checks a placement, whoever made it: knows no algorithm."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hipdnn_backend.offload.memory.lifetimes import Lifetime

__all__ = ["PlacementError", "verify"]


class PlacementError(ValueError):
    """Memory that is in use at one time overlaps, sticks out of the arena, or is misaligned."""


def verify(lives: Sequence[Lifetime], offsets: Sequence[int], size: int) -> None:
    """Check that what is in use at one time has bytes of its own, in the arena and aligned.

    Args:
        lives: what was placed.
        offsets: bytes from the start of the arena, one for each lifetime.
        size: bytes of the arena.

    Raises:
        PlacementError: it is not so; the message names the memory and the step.
    """
    if len(offsets) != len(lives):
        raise PlacementError(f"{len(offsets)} offsets for {len(lives)} pieces of memory")
    live = [index for index, life in enumerate(lives) if life.is_live]
    for index in live:
        need, offset = lives[index].need, offsets[index]
        if offset < 0 or offset + need.size > size:
            raise PlacementError(
                f"memory '{need.name}' of {need.size} bytes at {offset} sticks out of the arena of {size} bytes"
            )
        if offset % need.alignment:
            raise PlacementError(f"memory '{need.name}' at {offset} is not aligned to {need.alignment} bytes")
    for step in sorted({lives[index].first for index in live}):  # an overlap begins where one of the two does
        current = sorted((offsets[i], lives[i].size, i) for i in live if lives[i].first <= step <= lives[i].last)
        for (start, length, one), (next_start, _, other) in itertools.pairwise(current):
            if start + length > next_start:
                raise PlacementError(
                    f"step {step} uses '{lives[one].need.name}' at {start} to {start + length} and "
                    f"'{lives[other].need.name}' from {next_start}"
                )
