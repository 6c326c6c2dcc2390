"""Running a case on a device."""

from __future__ import annotations

from graph_api import numerics
from iree_bridge import Target, build, support
from iree_bridge.device import Device
from tests.cases import OpCase

__all__ = ["assert_right", "is_declined"]


def is_declined(case: OpCase, target: Target) -> bool:
    """Whether the target declines the case; asserts that it does so exactly where the table says."""
    answer = support(case.graph(), target)
    if target.backend == "cuda":
        return not answer.ok  # the tables speak of the targets that users have
    expected = (case.declined or {}).get(target.backend)
    assert (answer.rule or None) == expected, f"{case.name} on {target}: expected {expected}, got {answer}"
    return not answer.ok


def assert_right(case: OpCase, device: str = "cpu") -> None:
    """Compiles and runs the case; every element must be within its tolerance."""
    graph = case.graph()
    place = Device.parse(device)
    if is_declined(case, place.target):
        return
    pack = case.pack(graph)
    results = {tensor: tensor.empty() for tensor in graph.arguments().outputs}
    for array in results.values():
        array[...] = array.dtype.type(77)
    build(graph, place).run({**pack, **results})
    for comparison in numerics.check(graph, pack, results):
        assert comparison.ok, str(comparison)
