"""Lifetimes, planner and verifier."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hipdnn_backend.offload.memory import (
    Lifetime,
    Need,
    PlacementError,
    lifetimes,
    live_bytes,
    lower_bound,
    naive_size,
    plan,
    verify,
)


def life(size: int, first: int, last: int, alignment: int = 64, name: str = "m") -> Lifetime:
    return Lifetime(Need(name, size, alignment), first, last)


@st.composite
def lives(draw: st.DrawFn) -> list[Lifetime]:
    """Up to 24 lifetimes over 12 steps; some are never touched, some have no bytes."""
    made = []
    for number in range(draw(st.integers(0, 24))):
        first = draw(st.integers(0, 11))
        last = draw(st.one_of(st.integers(first, 11), st.just(-1)))
        size = draw(st.one_of(st.just(0), st.integers(1, 5000), st.integers(0, 8).map(lambda n: n * 1024)))
        made.append(life(size, first, last, draw(st.sampled_from((1, 16, 64, 256))), f"m{number}"))
    return made


def share_bytes(one: tuple[Lifetime, int], other: tuple[Lifetime, int]) -> bool:
    """The plain definition: some step needs both, and some byte belongs to both."""
    (a, at), (b, bt) = one, other
    steps = set(range(a.first, a.last + 1)) & set(range(b.first, b.last + 1))
    return bool(steps) and max(at, bt) < min(at + a.size, bt + b.size)


def is_right(found: list[Lifetime], offsets: list[int], size: int) -> bool:
    live = [(each, offset) for each, offset in zip(found, offsets, strict=True) if each.is_live]
    inside = all(at >= 0 and at + each.size <= size and at % each.need.alignment == 0 for each, at in live)
    return inside and not any(share_bytes(a, b) for a, b in itertools.combinations(live, 2))


@given(lives())
@settings(max_examples=50, deadline=None)
def test_a_plan_is_right_and_never_above_the_naive_sum(found: list[Lifetime]) -> None:
    made = plan(found)
    verify(found, made.offsets, made.size)
    assert is_right(found, list(made.offsets), made.size)
    assert lower_bound(found) == made.bound <= made.size <= made.naive == naive_size(found)
    assert plan(found) == made


@given(lives(), st.data())
@settings(max_examples=50, deadline=None)
def test_the_verifier_sees_what_the_definition_sees(found: list[Lifetime], data: st.DataObject) -> None:
    offsets = [data.draw(st.integers(-1, 40).map(lambda n: n * 64)) for _ in found]
    size = data.draw(st.integers(0, 8000))
    if is_right(found, offsets, size):
        verify(found, offsets, size)
    else:
        with pytest.raises(PlacementError):
            verify(found, offsets, size)


@given(lives())
@example([])
@settings(max_examples=40, deadline=None)
def test_the_lower_bound_is_the_largest_live_set(found: list[Lifetime]) -> None:
    by_hand = [sum(each.size for each in found if each.first <= step <= each.last) for step in range(12)]
    assert lower_bound(found) == max(by_hand)
    assert live_bytes(found, 12) == by_hand


def test_lifetimes_reach_from_the_first_to_the_last_step() -> None:
    needs = [Need("a", 100), Need("b", 200), Need("unused", 300)]
    scratch = [Need("w0", 10), Need("w1", 0), Need("w2", 30)]
    found = lifetimes(needs, [(0,), (0, 1), (1,)], scratch)
    assert [(each.need.name, each.first, each.last) for each in found] == [
        ("a", 0, 1),
        ("b", 1, 2),
        ("unused", 0, -1),
        ("w0", 0, 0),
        ("w1", 1, 1),
        ("w2", 2, 2),
    ]
    assert live_bytes(found) == [110, 300, 230]
    assert lower_bound(found) == 300
    assert naive_size(found) == 128 + 256 + 64 + 64


def test_a_chain_takes_two_buffers() -> None:
    """Each step reads what the step before wrote: two places are enough, whatever the length."""
    found = [life(4096, step, step + 1, 256) for step in range(50)]
    assert plan(found).size == 8192


def test_one_that_stays_while_others_pass() -> None:
    """The skip connection of a UNet: the bound is met although the largest comes last."""
    found = [life(1024, 0, 9), life(2048, 0, 1), life(2048, 2, 3), life(3072, 4, 5), life(3072, 6, 9)]
    assert plan(found).size == 4096 == lower_bound(found)


def test_the_search_improves_on_the_fixed_orders() -> None:
    """Random programs of the shape of real models come within 5 % of the bound; without the search some do not."""
    excess, without = [], []
    for seed in range(12):
        chance = random.Random(seed)
        found = [
            life(chance.choice((64, 128, 192, 256, 512)) * 64, step, step + chance.choice((1, 1, 1, 2, 5)))
            for step in range(60)
        ]
        bound = lower_bound(found)
        excess.append(plan(found).size / bound)
        without.append(plan(found, tries=0).size / bound)
    assert max(excess) <= 1.05
    assert sum(excess) < sum(without)


def test_a_large_program_is_planned_quickly() -> None:
    chance = random.Random(0)
    found = [life(chance.randrange(1, 1 << 20), step // 2, step // 2 + chance.randrange(1, 8)) for step in range(1500)]
    start = time.process_time()  # other processes may keep this one waiting
    made = plan(found)
    assert time.process_time() - start < 5
    verify(found, made.offsets, made.size)


@pytest.mark.parametrize(
    ("offsets", "size", "message"),
    [
        ([0, 64], 256, "step 1 uses 'a' at 0 to 100 and 'b' from 64"),
        ([0, 130], 512, "'b' at 130 is not aligned to 64"),
        ([0, 192], 256, "'b' of 100 bytes at 192 sticks out of the arena of 256 bytes"),
        ([0], 256, "1 offsets for 2 pieces"),
        ([-64, 64], 256, "'a' of 100 bytes at -64 sticks out"),
    ],
)
def test_wrong_placements_are_named(offsets: list[int], size: int, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        verify([life(100, 0, 1, name="a"), life(100, 1, 2, name="b")], offsets, size)


def test_bad_needs_are_refused() -> None:
    with pytest.raises(ValueError, match="no power of two: 48"):
        Need("a", 1, 48)
    with pytest.raises(ValueError, match="negative"):
        Need("a", -1)
    with pytest.raises(ValueError, match="step 1 touches memory 2, there are 1"):
        lifetimes([Need("a", 1)], [(0,), (2,)])
    with pytest.raises(ValueError, match="1 pieces of scratch memory for 2 steps"):
        lifetimes([], [(), ()], [Need("w", 1)])
