from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_api import GraphError
from graph_api.layout import (
    PhysicalLayout,
    broadcast_dims,
    extent,
    layout_strides,
    nested_extents,
    packed_strides,
    physical,
    stride_order,
    strides_in_order,
)

Dims = tuple[int, ...]


@pytest.mark.parametrize(
    ("layout", "dims", "expected"),
    [
        ("NCW", (2, 3, 4), (12, 4, 1)),
        ("NWC", (2, 3, 4), (12, 1, 3)),
        ("NCHW", (2, 3, 4, 5), (60, 20, 5, 1)),
        ("NHWC", (2, 3, 4, 5), (60, 1, 15, 3)),
        ("nhwc", (2, 3, 4, 5), (60, 1, 15, 3)),
        ("NCDHW", (2, 3, 4, 5, 6), (360, 120, 30, 6, 1)),
        ("NDHWC", (2, 3, 4, 5, 6), (360, 1, 90, 18, 3)),
    ],
)
def test_named_layouts(layout: str, dims: Dims, expected: Dims) -> None:
    assert layout_strides(layout, dims) == expected


@pytest.mark.parametrize(
    ("layout", "dims", "message"),
    [
        (
            "NHCW",
            (1, 2, 3, 4),
            r"layout 'NHCW' is unknown \(did you mean NHWC\?\); known are NCW, NWC, NCHW, NHWC, NCDHW, NDHWC; or",
        ),
        ("", (1,), "layout '' is unknown"),
        (["NHWC"], (1, 2, 3, 4), "layout .* is unknown"),
        ("NHWC", (1, 2, 3), r"layout NHWC has 4 dims, dim=\(1, 2, 3\) has 3"),
    ],
)
def test_layouts_that_do_not_fit(layout: Any, dims: Dims, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        layout_strides(layout, dims)


def test_strides_in_order() -> None:
    assert packed_strides((2, 3, 4)) == (12, 4, 1)
    assert packed_strides(()) == ()
    assert strides_in_order((2, 3, 4), (2, 0, 1)) == (3, 1, 6)


@pytest.mark.parametrize(
    ("dims", "strides", "expected"),
    [
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1)),
        ((2, 3, 4, 5), (60, 20, 5, 1), (0, 1, 2, 3)),
        # the stride of a size-1 dim says nothing: it stays beside the axis before it
        ((2, 1, 4, 5), (20, 1, 5, 1), (0, 1, 2, 3)),
        ((2, 1, 4, 5), (20, 999, 1, 4), (0, 1, 3, 2)),
        ((1, 3), (0, 1), (0, 1)),
        ((), (), ()),
        # so do repeated dims
        ((2, 3, 4), (4, 0, 1), (0, 1, 2)),
    ],
)
def test_stride_order(dims: Dims, strides: Dims, expected: Dims) -> None:
    assert stride_order(dims, strides) == expected


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(2, 3), (3,)], (2, 3)),
        ([(4, 1), (1, 5)], (4, 5)),
        ([(), (2,)], (2,)),
        ([(2, 3), (2,)], None),
        ([(1, 1), (7, 1), (1, 3)], (7, 3)),
        ([(2,), (3,)], None),
    ],
)
def test_broadcast_dims(shapes: list[Dims], expected: Dims | None) -> None:
    assert broadcast_dims(shapes) == expected


@pytest.mark.parametrize(
    ("dims", "strides", "expected"),
    [
        ((2, 3), (3, 1), PhysicalLayout((2, 3), (0, 1), 6, True)),
        ((2, 3, 4, 5), (60, 1, 15, 3), PhysicalLayout((2, 4, 5, 3), (0, 2, 3, 1), 120, True)),
        ((4, 3), (0, 1), PhysicalLayout((1, 3), (0, 1), 3, True)),
        ((2, 3), (8, 1), PhysicalLayout((11,), (0, 1), 11, False)),
        ((3,), (2,), PhysicalLayout((5,), (0,), 5, False)),
        ((1, 3), (77, 1), PhysicalLayout((1, 3), (0, 1), 3, True)),
        ((), (), PhysicalLayout((), (), 1, True)),
    ],
)
def test_physical(dims: Dims, strides: Dims, expected: PhysicalLayout) -> None:
    assert physical(dims, strides) == expected
    assert extent(dims, strides) == expected.extent


@pytest.mark.parametrize(
    ("dims", "strides", "expected"),
    [
        ((2, 3), (8, 1), (2, 8, 1)),
        ((2, 3, 5), (40, 10, 2), (2, 4, 5, 2)),
        ((2, 3), (1, 16), (3, 16, 1)),
        ((2, 3), (5, 2), None),
        ((1, 1), (5, 2), (1,)),
    ],
)
def test_nested_extents(dims: Dims, strides: Dims, expected: Dims | None) -> None:
    assert nested_extents(dims, strides) == expected


@st.composite
def dense(draw: st.DrawFn) -> tuple[Dims, Dims]:
    """Dims and packed strides in any order."""
    dims = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    order = draw(st.permutations(range(len(dims))))
    return dims, strides_in_order(dims, order)


@given(dense())
def test_a_dense_tensor_is_its_physical_array_permuted(case: tuple[Dims, Dims]) -> None:
    dims, strides = case
    layout = physical(dims, strides)
    assert layout.dense
    store = np.arange(layout.extent)
    logical = np.lib.stride_tricks.as_strided(store, dims, [8 * stride for stride in strides])
    np.testing.assert_array_equal(logical.transpose(layout.order), store.reshape(layout.shape))


@given(dense(), st.integers(1, 3), st.integers(1, 3))
def test_a_padded_tensor_is_the_corner_of_its_nested_extents(case: tuple[Dims, Dims], fast: int, slow: int) -> None:
    """Strides of a slice ``[..., ::fast]`` of an array whose slowest steps are ``slow`` times as wide."""
    dims, packed = case
    order = stride_order(dims, packed)
    strides = list(packed)
    for rank, axis in enumerate(order):
        strides[axis] *= fast * (slow if rank < len(order) - 1 else 1)
    nested = nested_extents(dims, strides)
    assert nested is not None
    axes = [axis for axis in stride_order(dims, strides) if dims[axis] > 1]
    if not axes:
        assert nested == (1,)
        return
    store = np.arange(np.prod(nested)).reshape(nested)
    corner = store[(*(slice(dims[axis]) for axis in axes), 0)].ravel()
    places = [range(dims[axis]) for axis in axes]
    expected = [sum(i * strides[a] for i, a in zip(at, axes, strict=True)) for at in itertools.product(*places)]
    np.testing.assert_array_equal(corner, expected)
