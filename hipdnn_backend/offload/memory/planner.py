"""Places lifetimes in one arena: greedy placement in several orders, improved by a bounded search."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hipdnn_backend.offload.memory.lifetimes import Lifetime, aligned, lower_bound, naive_size

__all__ = ["Placement", "plan"]

_SEED: Final = 1
# Pairs of lifetimes that the search looks at: about 0.2 s.
_BUDGET: Final = 2_000_000
_MAX_TRIES: Final = 400

# Which lifetime is placed first. The largest first leaves the smallest holes; long ones first does where many short
# ones pass by a few that stay.
_ORDERS: Final[tuple[Callable[[Lifetime], tuple[int, ...]], ...]] = (
    lambda life: (-life.size, life.first),
    lambda life: (-life.size * (life.last - life.first + 1), life.first),
    lambda life: (-(life.last - life.first), -life.size),
    lambda life: (life.first, -life.size),
    lambda life: (-life.last, -life.size),
)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where everything lies.

    Attributes:
        offsets: bytes from the start of the arena, one for each lifetime; 0 for those that no step touches.
        size: bytes of the arena.
        naive: bytes that it would take without sharing.
        bound: bytes that no arena can do without.
    """

    offsets: tuple[int, ...]
    size: int
    naive: int
    bound: int


def plan(lives: Sequence[Lifetime], *, tries: int = _MAX_TRIES) -> Placement:
    """An arena for the lifetimes; never larger than `naive_size`. The same lifetimes give the same placement.

    Args:
        lives: what is to be placed.
        tries: how many more orders the search may look at after the fixed ones; less are looked at where there are
            many lifetimes.
    """
    live = [index for index, life in enumerate(lives) if life.is_live]
    naive, bound = naive_size(lives), lower_bound(lives)
    arena = _Arena(lives, live)
    best = arena.one_after_the_other()
    for order in _ORDERS:
        if best.size <= bound:
            break
        best = min(best, arena.place(sorted(live, key=lambda index: order(lives[index]))), key=lambda made: made.size)
    allowed = min(tries, _BUDGET // max(1, arena.pairs))
    best = _search(arena, best, bound, allowed)
    offsets = [0] * len(lives)
    for index in live:
        offsets[index] = best.offsets[index]
    return Placement(tuple(offsets), best.size, naive, bound)


@dataclass(frozen=True)
class _Made:
    """A placement and the order that gave it."""

    order: tuple[int, ...]
    offsets: dict[int, int]
    size: int


class _Arena:
    """Places lifetimes in a given order."""

    def __init__(self, lives: Sequence[Lifetime], live: Sequence[int]) -> None:
        self._lives = lives
        self._live = live
        self._neighbours = _meeting(lives, live)
        self.pairs = sum(map(len, self._neighbours.values())) + len(live)

    def top(self, made: _Made) -> list[int]:
        """The lifetimes that end where the arena ends."""
        return [index for index in made.order if made.offsets[index] + self._lives[index].size == made.size]

    def place(self, order: Sequence[int]) -> _Made:
        """Each lifetime goes into the smallest hole that holds it, between those placed before that it meets."""
        offsets: dict[int, int] = {}
        for index in order:
            offsets[index] = self._best_hole(index, offsets)
        return _Made(tuple(order), offsets, self._size(offsets))

    def one_after_the_other(self) -> _Made:
        """Nothing shares memory. The most aligned come first, so that there are no holes."""
        order = sorted(self._live, key=lambda index: -self._lives[index].need.alignment)
        offsets: dict[int, int] = {}
        end = 0
        for index in order:
            offsets[index] = aligned(end, self._lives[index].need.alignment)
            end = offsets[index] + self._lives[index].room
        return _Made(tuple(order), offsets, self._size(offsets))

    def _size(self, offsets: dict[int, int]) -> int:
        return max((offset + self._lives[index].size for index, offset in offsets.items()), default=0)

    def _best_hole(self, index: int, offsets: dict[int, int]) -> int:
        need = self._lives[index].need
        lives = self._lives
        taken = sorted(
            (offsets[other], offsets[other] + lives[other].size)
            for other in self._neighbours[index]
            if other in offsets
        )
        end, best, best_room = 0, None, 0
        for start, stop in taken:
            offset = -(-end // need.alignment) * need.alignment
            room = start - offset
            if room >= need.size and (best is None or room < best_room):
                best, best_room = offset, room
            end = max(end, stop)
        return aligned(end, need.alignment) if best is None else best


def _meeting(lives: Sequence[Lifetime], live: Sequence[int]) -> dict[int, list[int]]:
    """For each lifetime in use those that some step needs beside it; `Lifetime.meets`, for many at once."""
    numbers = np.array(live, np.int64)
    first = np.array([lives[index].first for index in live], np.int64)
    last = np.array([lives[index].last for index in live], np.int64)
    found: dict[int, list[int]] = {}
    for at, index in enumerate(live):
        together = (first <= last[at]) & (first[at] <= last)
        together[at] = False
        found[index] = numbers[together].tolist()
    return found


def _search(arena: _Arena, best: _Made, bound: int, tries: int) -> _Made:
    """Lifetimes that stick out at the top get an earlier turn, until the bound is met or the tries are used up."""
    chance = random.Random(_SEED)
    current = best
    for _ in range(tries):
        if best.size <= bound or len(current.order) < 2:
            break
        order = list(current.order)
        moved = chance.choice(arena.top(current))
        at = order.index(moved)
        order.insert(chance.randrange(at) if at else chance.randrange(len(order)), order.pop(at))
        made = arena.place(order)
        if made.size <= current.size:
            current = made
        if made.size < best.size:
            best = made
    return best
