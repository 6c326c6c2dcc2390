"""Damaged programs: whatever is changed in the JSON, it is refused, or what comes out keeps to its memory."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hipdnn_backend.offload.memory import verify
from hipdnn_backend.offload.program.document import from_document, to_document
from hipdnn_backend.offload.program.program import Program, ProgramError, Space, lives
from tests.hipdnn_backend.test_interpreter import program

DOCUMENT = json.loads(json.dumps(to_document(program())))
VALUES = st.one_of(
    st.integers(-3, 200), st.integers(), st.booleans(), st.none(), st.floats(), st.text(max_size=8),
    st.sampled_from(["input", "temporary", "float32", "bool", "object", [], {}, [0], [[0, 0]], 2**61]),
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a document can be changed."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


PLACES = [place for place in places(DOCUMENT) if place]


def changed(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    made = copy.deepcopy(document)
    inner = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return made


def keeps_to_its_memory(made: Program) -> bool:
    """Every access of a run lies in the buffer that it is meant for, by the plain definition."""
    for view in made.views:
        elements = {0}
        for dim, stride in zip(view.dims, view.strides, strict=True):
            if dim * len(elements) > 10_000:
                return view.end * view.itemsize <= made.buffers[view.buffer].nbytes
            elements = {at + index * stride for at in elements for index in range(dim)}
        if elements and (view.offset + max(elements) + 1) * view.itemsize > made.buffers[view.buffer].nbytes:
            return False
    for buffer in made.buffers:
        if (
            buffer.space is Space.TEMPORARY
            and any(life.need.name == buffer.name and life.is_live for life in lives(made))
            and not 0 <= buffer.offset <= made.arena - buffer.nbytes
        ):
            return False
    return True


@given(st.sampled_from(PLACES), VALUES)
@settings(max_examples=400, deadline=None)
def test_a_change_is_refused_or_harmless(place: tuple[Any, ...], value: Any) -> None:
    try:
        made = from_document(changed(DOCUMENT, place, value))
    except ProgramError:
        return
    assert keeps_to_its_memory(made)


def test_several_changes_at_once() -> None:
    chance = random.Random(0)
    accepted = 0
    for _ in range(2000):
        document = DOCUMENT
        for _ in range(chance.randrange(1, 4)):
            place = chance.choice(PLACES)
            try:
                document = changed(
                    document, place, chance.choice([0, 1, 2, 3, 5, 24, 64, 128, 1000, -1, "x", [], [1, 2]])
                )
            except (KeyError, IndexError, TypeError):  # an earlier change has taken this place away
                continue
        try:
            made = from_document(document)
        except ProgramError:
            continue
        accepted += 1
        assert keeps_to_its_memory(made)
    assert accepted < 1000


def test_the_program_itself_is_fine() -> None:
    made = from_document(DOCUMENT)
    assert keeps_to_its_memory(made)
    offsets = [b.offset for b in made.buffers if b.space is Space.TEMPORARY]
    verify(lives(made)[: len(offsets)], offsets, made.arena)
