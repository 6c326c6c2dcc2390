"""Running a case on a device."""

from __future__ import annotations

import numpy as np

from graph_api import numerics
from iree_bridge import Target, build, support
from iree_bridge.devices.device import Device
from tests.cases import OpCase

__all__ = ["aligned", "assert_right", "is_declined"]

_ALIGNMENT = 64
"""Of addresses that executables take as they are; they copy what others hold."""


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy with the same strides at an aligned address."""
    extent = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    raw = np.zeros((extent if array.size else 0) + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    made = np.ndarray(array.shape, array.dtype, raw.data, start, array.strides)
    made[...] = array
    return made


def is_declined(case: OpCase, target: Target) -> bool:
    """Whether the target declines the case; asserts that it does so exactly where the table says."""
    answer = support(case.graph(), target)
    if target.backend == "cuda":
        return not answer.ok  # the tables speak of the targets that users have
    expected = (case.declined or {}).get(target.backend)
    assert (answer.rule or None) == expected, f"{case.name} on {target}: expected {expected}, got {answer}"
    return not answer.ok


def assert_right(case: OpCase, device: str = "cpu") -> None:
    """Compiles and runs the case; every element must be within its tolerance, and no input may be written to."""
    graph = case.graph()
    place = Device.parse(device)
    if is_declined(case, place.target):
        return
    pack = case.pack(graph)
    results = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
    for array in results.values():
        array[...] = array.dtype.type(77)
    given = {tensor: aligned(array) for tensor, array in pack.items()}
    build(graph, place).run({**given, **results})
    for tensor, array in given.items():
        assert array.tobytes() == pack[tensor].tobytes(), f"input '{tensor.name}' has been written to"
    for comparison in numerics.check(graph, pack, results):
        assert comparison.ok, str(comparison)
