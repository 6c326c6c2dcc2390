"""From the steps of a program to the intervals of steps in which each piece of memory is in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Lifetime", "Need", "aligned", "lifetimes", "live_bytes", "lower_bound", "naive_size"]


@dataclass(frozen=True, slots=True)
class Need:
    """A piece of memory that is wanted.

    Attributes:
        name: for messages and pictures.
        size: bytes; 0 is allowed and takes no room.
        alignment: the address is a multiple of it; a power of two.
    """

    name: str
    size: int
    alignment: int = 64

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"memory '{self.name}': the size is negative: {self.size}")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise ValueError(f"memory '{self.name}': the alignment is no power of two: {self.alignment}")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Memory and the steps in which it is in use.

    Attributes:
        need: the memory.
        first: number of the first step that touches it.
        last: number of the last one; less than ``first`` if none does.
    """

    need: Need
    first: int
    last: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.need.size

    @property
    def room(self) -> int:
        """Bytes that it takes where everything next to it has the same alignment."""
        return aligned(self.need.size, self.need.alignment)

    @property
    def is_live(self) -> bool:
        """Some step touches it, and it has bytes to touch."""
        return self.first <= self.last and self.need.size > 0

    def meets(self, other: Lifetime) -> bool:
        """Some step needs both, so that they must not share an address."""
        return (
            self.is_live and other.is_live and self.first <= other.last and other.first <= self.last
        )  # fmt: skip


def lifetimes(needs: Sequence[Need], steps: Sequence[Iterable[int]], scratch: Sequence[Need] = ()) -> list[Lifetime]:
    """The lifetimes of ``needs``, then those of ``scratch``.

    Args:
        needs: what steps share.
        steps: for each step the numbers of the needs that it touches. A view counts as the memory that it looks at.
        scratch: for each step the memory that only this step uses; empty, or as many as there are steps.

    Raises:
        ValueError: a step touches what is not there, or there is not one scratch for each step.
    """
    if scratch and len(scratch) != len(steps):
        raise ValueError(f"{len(scratch)} pieces of scratch memory for {len(steps)} steps")
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, touched in enumerate(steps):
        for index in touched:
            if not 0 <= index < len(needs):
                raise ValueError(f"step {number} touches memory {index}, there are {len(needs)}")
            first.setdefault(index, number)
            last[index] = number
    shared = [Lifetime(need, first.get(index, 0), last.get(index, -1)) for index, need in enumerate(needs)]
    return shared + [Lifetime(need, number, number) for number, need in enumerate(scratch)]


def live_bytes(lives: Sequence[Lifetime], steps: int | None = None) -> list[int]:
    """Bytes in use in each step.

    Args:
        lives: the memory.
        steps: how many steps there are; default: up to the last that is touched.
    """
    count = max((life.last + 1 for life in lives if life.is_live), default=0)
    change = [0] * (max(count, steps or 0) + 1)
    for life in lives:
        if life.is_live:
            change[life.first] += life.size
            change[life.last + 1] -= life.size
    total = 0
    result: list[int] = []
    for delta in change[:-1]:
        total += delta
        result.append(total)
    return result


def lower_bound(lives: Sequence[Lifetime]) -> int:
    """Bytes of the largest set that is in use at one time: no arena can be smaller."""
    return max(live_bytes(lives), default=0)


def naive_size(lives: Sequence[Lifetime]) -> int:
    """Bytes of an arena in which nothing shares memory; what is never touched takes no room."""
    return sum(life.room for life in lives if life.is_live)


def aligned(value: int, alignment: int) -> int:
    """The smallest multiple of ``alignment`` that is not below ``value``."""
    return -(-value // alignment) * alignment
