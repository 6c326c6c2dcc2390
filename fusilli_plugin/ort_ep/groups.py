"""Which nodes are claimed together. Plain graph algorithms; nothing of ONNX Runtime here.

A group becomes one node of ONNX Runtime's graph, so no path may leave a group and come back, not even through other
groups. Nodes are taken in waves: all that are ready and not wanted, then all that are ready and wanted, and so on.
What is taken later never feeds what was taken earlier, so the wanted nodes of a wave are safe as a group, and so is
each connected part of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

__all__ = ["Role", "group"]


class Role(IntEnum):
    """What a node is to the engines.

    Attributes:
        NONE: no engine takes it.
        FREE: nothing runs for it: it is computed while compiling, or became a view.
        LEFTOVER: an engine takes it, but as no hipDNN operation.
        CORE: an engine takes it as hipDNN operations, at least in part.
    """

    NONE = 0
    FREE = 1
    LEFTOVER = 2
    CORE = 3


def group(roles: Sequence[Role], edges: Mapping[int, Iterable[int]], least: int = 1) -> list[tuple[int, ...]]:
    """Groups of nodes to claim, in an order in which they can run.

    Leftovers are claimed only between core nodes, free ones only before or between them.

    Args:
        roles: of the nodes, by number, in topological order.
        edges: number of a node → numbers of those that use its results.
        least: smaller groups are not made.
    """
    after = {number: sorted(set(edges.get(number, ()))) for number in range(len(roles))}
    before: dict[int, list[int]] = {number: [] for number in range(len(roles))}
    for number, users in after.items():
        for user in users:
            before[user].append(number)
    wanted = {number for number, role in enumerate(roles) if role is not Role.NONE}
    while True:
        parts = [part for wave in _waves(wanted, after, before) for part in _connected(wave, after, before)]
        kept = [part & _useful(part, roles, after, before) for part in parts]
        remaining = set().union(*kept)
        if remaining == wanted:
            return [tuple(sorted(part)) for part in kept if len(part) >= least]
        wanted = remaining


def _waves(wanted: set[int], after: Mapping[int, list[int]], before: Mapping[int, list[int]]) -> list[set[int]]:
    missing = {number: len(sources) for number, sources in before.items()}
    ready: tuple[list[int], list[int]] = ([], [])  # not wanted, wanted
    for number, count in missing.items():
        if not count:
            ready[number in wanted].append(number)
    waves: list[set[int]] = []
    while ready[0] or ready[1]:
        _take(ready, 0, missing, wanted, after)
        wave = _take(ready, 1, missing, wanted, after)
        if wave:
            waves.append(wave)
    return waves


def _take(
    ready: tuple[list[int], list[int]],
    kind: int,
    missing: dict[int, int],
    wanted: set[int],
    after: Mapping[int, list[int]],
) -> set[int]:
    """Takes all of one kind that are ready, and those that become so."""
    taken: set[int] = set()
    while ready[kind]:
        number = ready[kind].pop()
        taken.add(number)
        for user in after[number]:
            missing[user] -= 1
            if not missing[user]:
                ready[user in wanted].append(user)
    return taken


def _connected(nodes: set[int], after: Mapping[int, list[int]], before: Mapping[int, list[int]]) -> list[set[int]]:
    parts: list[set[int]] = []
    left = set(nodes)
    while left:
        part: set[int] = set()
        stack = [min(left)]
        while stack:
            number = stack.pop()
            if number in left:
                left.remove(number)
                part.add(number)
                stack += [other for other in (*after[number], *before[number]) if other in left]
        parts.append(part)
    return sorted(parts, key=min)


def _useful(
    part: set[int], roles: Sequence[Role], after: Mapping[int, list[int]], before: Mapping[int, list[int]]
) -> set[int]:
    """The nodes of a part that stay: core ones, and those that stand where their role lets them."""
    core = {number for number in part if roles[number] is Role.CORE}
    leads_to_core = _reach(core, part, before)
    comes_from_core = _reach(core, part, after)
    return core | {
        number
        for number in part - core
        if number in leads_to_core and (roles[number] is Role.FREE or number in comes_from_core)
    }


def _reach(starts: set[int], within: set[int], step: Mapping[int, list[int]]) -> set[int]:
    seen: set[int] = set()
    stack = list(starts)
    while stack:
        for number in step[stack.pop()]:
            if number in within and number not in seen:
                seen.add(number)
                stack.append(number)
    return seen
