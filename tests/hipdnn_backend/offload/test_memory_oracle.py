"""The planner and the verifier beside MLIR's own planner: it is no larger, and it finds that one's plans right."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from hipdnn_backend.offload.memory import Need, PlacementError, lifetimes, plan, verify
from hipdnn_backend.offload.mlir import PassManager, ir, new_context

pytestmark = pytest.mark.mlir

_PASS = "builtin.module(func.func(static-memory-planner-analysis{algorithm=best-fit arena-mode=allocate}))"
_VIEW = re.compile(r"%(\w+) = memref\.view %alloc\[%(\w+)\]\[\] : memref<(\d+)xi8> to memref<(\d+)xi8>")
_OFFSET = re.compile(r"%(\w+) = arith\.constant (\d+) : index")


@pytest.fixture(scope="module")
def context() -> Any:
    return new_context()


def spans(seed: int) -> list[tuple[int, int, int]]:
    """Size, first and last step of each piece of memory; at each step one is made, as in a program of graphs."""
    chance = random.Random(seed)
    count = chance.randrange(3, 40)
    return [
        (chance.randrange(1, 4000), step, min(count - 1, step + chance.choice((1, 1, 2, 6)))) for step in range(count)
    ]


def module_of(found: list[tuple[int, int, int]]) -> str:
    """The same as allocations, uses and deallocations."""
    lines = []
    for step in range(len(found)):
        size = found[step][0]
        lines.append(f"%m{step} = memref.alloc() {{alignment = 64 : i64}} : memref<{size}xi8>")
        used = [number for number, (_, first, last) in enumerate(found) if first <= step <= last]
        types = ", ".join(f"memref<{found[number][0]}xi8>" for number in used)
        lines.append(f'"test.use"({", ".join(f"%m{number}" for number in used)}) : ({types}) -> ()')
        lines += [
            f"memref.dealloc %m{number} : memref<{found[number][0]}xi8>"
            for number, (_, _, last) in enumerate(found)
            if last == step
        ]
    return "func.func @main() {\n" + "\n".join(lines) + "\nreturn\n}"


def upstream(text: str, context: Any) -> tuple[int, list[int]]:
    """Size of the arena and the offsets that MLIR's planner chooses, in the order of the allocations."""
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        PassManager.parse(_PASS).run(module.operation)
        planned = str(module)
    offsets = {name: int(value) for name, value in _OFFSET.findall(planned)}
    views = _VIEW.findall(planned)
    return int(views[0][2]), [offsets[offset] for _, offset, _, _ in views]


@pytest.mark.parametrize("seed", range(12))
def test_beside_upstreams_planner(context: Any, seed: int) -> None:
    found = spans(seed)
    size, offsets = upstream(module_of(found), context)
    steps = [
        [number for number, (_, first, last) in enumerate(found) if first <= step <= last] for step in range(len(found))
    ]
    lives = lifetimes([Need(f"m{number}", each[0]) for number, each in enumerate(found)], steps)
    assert [(life.first, life.last) for life in lives] == [(first, last) for _, first, last in found]
    verify(lives, offsets, size)
    assert plan(lives).size <= size
    # One step closer together, some of it has to overlap or stick out.
    moved = [max(0, offset - 64) for offset in offsets]
    if moved != offsets:
        with pytest.raises(PlacementError):
            verify(lives, moved, size)
