"""Strided copies as rows of bytes, replayed on byte arrays and compared with numpy's own copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hipdnn_backend.device.memory import HostMemory
from hipdnn_backend.offload.program.copying import Block, blocks, host_array
from hipdnn_backend.offload.program.program import View


def replay(found: list[Block], target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """What two-dimensional copies do to bytes."""
    for block in found:
        if block.rows > 1:
            assert min(block.target_pitch, block.source_pitch) >= block.width
        for row in range(block.rows):
            to, of = block.target + row * block.target_pitch, block.source + row * block.source_pitch
            target[to : to + block.width] = source[of : of + block.width]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Dims, and strides of two tensors in some order of dims, with gaps; the source may repeat elements."""
    dims = tuple(draw(st.lists(st.integers(0, 4), min_size=0, max_size=4)))

    def strides(broadcast: bool) -> tuple[int, ...]:
        found = [0] * len(dims)
        step = 1
        for axis in draw(st.permutations(range(len(dims)))):
            found[axis] = 0 if broadcast and draw(st.booleans()) else step
            step = max(1, step * (dims[axis] + draw(st.integers(0, 2))))
        return tuple(found)

    return dims, strides(False), strides(draw(st.booleans()))


@given(layouts(), st.sampled_from(("float32", "int8", "float16", "bool")))
@settings(max_examples=150, deadline=None)
def test_blocks_copy_what_numpy_copies(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], dtype: str
) -> None:
    dims, to, of = layout
    target, source = View(0, 0, dims, to, dtype), View(0, 0, dims, of, dtype)
    values = np.random.default_rng(0).integers(0, 2, max(1, source.end)).astype(dtype)
    expected, got = np.zeros(max(1, target.end), dtype), np.zeros(max(1, target.end), dtype)
    if target.count:
        host_array(expected.ctypes.data, target)[...] = host_array(values.ctypes.data, source)
    replay(blocks(target, source), got.view(np.uint8), values.view(np.uint8))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("target", "source", "count"),
    [
        (View(0, 0, (2, 3, 4), (12, 4, 1), "float32"), View(0, 7, (2, 3, 4), (12, 4, 1), "float32"), 1),
        (View(0, 0, (2, 3, 4), (24, 8, 1), "float32"), View(0, 0, (2, 3, 4), (12, 4, 1), "float32"), 1),
        (View(0, 0, (5, 3, 4), (60, 8, 1), "float32"), View(0, 0, (5, 3, 4), (12, 4, 1), "float32"), 3),
        (View(0, 0, (8, 1, 4), (4, 9, 1), "float32"), View(0, 0, (8, 1, 4), (4, 1, 1), "float32"), 1),
        (View(0, 0, (0, 4), (4, 1), "float32"), View(0, 0, (0, 4), (4, 1), "float32"), 0),
        (View(0, 0, (), (), "float32"), View(0, 0, (), (), "float32"), 1),
    ],
)
def test_there_are_few_blocks(target: View, source: View, count: int) -> None:
    assert len(blocks(target, source)) == count


def test_a_dense_copy_is_one_row() -> None:
    view = View(0, 0, (2, 3, 4), (12, 4, 1), "float32")
    assert blocks(view, view) == [Block(0, 0, 96)]


def test_a_host_array_shares_the_memory() -> None:
    memory = np.arange(24, dtype=np.int32)
    looked = host_array(memory.ctypes.data + 4, View(0, 0, (2, 3), (12, 2), "int32"))
    assert looked.tolist() == [[1, 3, 5], [13, 15, 17]]
    looked[1, 2] = -1
    assert memory[17] == -1


def test_rows_within_host_memory() -> None:
    """The twin does what HIP does on a device."""
    memory = HostMemory()
    target, source = np.zeros(24, np.uint8), np.arange(24, dtype=np.uint8)
    memory.copy_rows(target.ctypes.data + 1, 8, source.ctypes.data, 4, 3, 3)
    expected = np.zeros(24, np.uint8)
    for row in range(3):
        expected[1 + row * 8 : 4 + row * 8] = source[row * 4 : row * 4 + 3]
    np.testing.assert_array_equal(target, expected)
