from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusilli_plugin.ort_ep.groups import Role, group

CORE, LEFTOVER, FREE, NONE = Role.CORE, Role.LEFTOVER, Role.FREE, Role.NONE


def chain(*roles: Role) -> list[tuple[int, ...]]:
    return group(roles, {number: [number + 1] for number in range(len(roles) - 1)})


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ([CORE, CORE, CORE], [(0, 1, 2)]),
        ([CORE, NONE, CORE], [(0,), (2,)]),
        ([CORE, LEFTOVER, CORE], [(0, 1, 2)]),
        ([CORE, FREE, CORE], [(0, 1, 2)]),
        # neither ends with a leftover or a view, nor starts with a leftover
        ([CORE, LEFTOVER, FREE], [(0,)]),
        ([LEFTOVER, CORE], [(1,)]),
        ([FREE, CORE], [(0, 1)]),
        ([FREE, LEFTOVER, CORE], [(2,)]),
        ([CORE, LEFTOVER, NONE, CORE], [(0,), (3,)]),
        ([FREE, FREE, LEFTOVER], []),
        ([NONE], []),
        ([], []),
    ],
)
def test_a_chain(roles: Sequence[Role], expected: list[tuple[int, ...]]) -> None:
    assert chain(*roles) == expected


def test_a_path_that_leaves_and_comes_back_splits_a_group() -> None:
    # 0 feeds 1 (not wanted) and 2; 2 reads 1 as well
    assert group([CORE, NONE, CORE], {0: [1, 2], 1: [2]}) == [(0,), (2,)]


def test_two_groups_must_not_wait_for_each_other() -> None:
    # 0 → 1 → 4 and 3 → 2 → 5 with 1, 2 not wanted: {0, 5} and {3, 4} would each be convex alone
    edges = {0: [1, 5], 1: [4], 3: [2, 4], 2: [5]}
    found = group([CORE, NONE, NONE, CORE, CORE, CORE], {0: [1, 5], 1: [4], 2: [5], 3: [2, 4]})
    assert_runnable(6, edges, found)
    assert sorted(index for part in found for index in part) == [0, 3, 4, 5]


def test_parts_that_are_not_connected_are_groups_of_their_own() -> None:
    assert group([CORE, CORE], {}) == [(0,), (1,)]


def test_small_groups_can_be_refused() -> None:
    assert group([CORE, CORE, NONE, CORE], {0: [1], 1: [2], 2: [3]}, least=2) == [(0, 1)]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Role], dict[int, list[int]]]:
    roles = draw(st.lists(st.sampled_from(Role), min_size=1, max_size=14))
    count = len(roles)
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda pair: pair[0] < pair[1])
    edges: dict[int, list[int]] = {}
    for source, target in draw(st.lists(pairs, max_size=30)) if count > 1 else []:
        edges.setdefault(source, []).append(target)
    return roles, edges


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_groups_hold_what_they_may_and_can_run(given_graph: tuple[list[Role], dict[int, list[int]]]) -> None:
    roles, edges = given_graph
    found = group(roles, edges)
    members = [index for part in found for index in part]
    assert len(members) == len(set(members))
    assert all(roles[index] is not NONE for index in members)
    assert {index for index, role in enumerate(roles) if role is CORE} <= set(members)
    assert_runnable(len(roles), edges, found)
    for part in found:
        core = [index for index in part if roles[index] is CORE]
        for index in part:
            if roles[index] is not CORE:
                assert any(leads(index, other, set(part), edges) for other in core)
            if roles[index] is LEFTOVER:
                assert any(leads(other, index, set(part), edges) for other in core)


def leads(start: int, end: int, within: set[int], edges: dict[int, list[int]]) -> bool:
    return any(
        target == end or (target in within and leads(target, end, within, edges))
        for target in edges.get(start, ())
        if target in within
    )


def assert_runnable(count: int, edges: dict[int, list[int]], groups: list[tuple[int, ...]]) -> None:
    """With each group as one node there is an order in which everything runs."""
    home = {index: -1 - number for number, part in enumerate(groups) for index in part}
    names = {home.get(index, index) for index in range(count)}
    waits = {name: set[int]() for name in names}
    for source, targets in edges.items():
        for target in targets:
            before, after = home.get(source, source), home.get(target, target)
            if before != after:
                waits[after].add(before)
    while waits:
        ready = [name for name, sources in waits.items() if not sources & waits.keys()]
        assert ready, f"{groups} wait for each other"
        for name in ready:
            del waits[name]
