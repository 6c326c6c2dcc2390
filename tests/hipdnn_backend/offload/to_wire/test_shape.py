"""Views: what strides say of inputs and outputs, and what no graph can express."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusilli_ground.strides import row_major
from hipdnn_backend.offload.to_wire import NotTranslated, views
from tests.hipdnn_backend.offload.to_wire.recorder import Recorder

pytestmark = pytest.mark.mlir


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("view", ([6, 4],)),
        ("reshape", ([-1],)),
        ("flatten.using_ints", (1, 2)),
        ("unflatten.int", (2, [2, 2])),
        ("unsqueeze", (1,)),
        ("permute", ([2, 0, 1],)),
        ("transpose.int", (0, -1)),
        ("numpy_T", ()),
        ("expand", ([5, 2, 3, 4],)),
        ("repeat", ([3, 1, 1, 1],)),
        ("slice.Tensor", (1, 0, 2, 1)),
        ("slice.Tensor", (2, 0, 100, 2)),
        ("select.int", (0, 0)),
        ("movedim.int", (0, 2)),
    ],
)
@pytest.mark.parametrize("side", ["in", "out", "alone"])
def test_views_at_the_border(name: str, arguments: tuple[Any, ...], side: str) -> None:
    """A view before the node, after the node, or without one (a copy)."""
    r = Recorder()
    x = r.input(2, 3, 4)
    if side == "in":
        r.check(r.op("relu", r.op(name, x, *arguments)))
    elif side == "alone":
        r.check(r.op(name, x, *arguments))
    elif name not in ("slice.Tensor", "select.int"):
        r.check(r.op(name, r.op("relu", x), *arguments))


def test_elementwise_nodes_follow_transposed_results() -> None:
    """A transposition between two nodes is free when what follows is elementwise."""
    r = Recorder()
    x, w = r.input(2, 3, 5, 5), r.input(4, 3, 3, 3)
    y = r.op("convolution", x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    last = r.op("permute", y, [0, 2, 3, 1])
    graph = r.check(r.op("tanh", r.op("mul.Tensor", r.op("add.Tensor", last, r.input(4)), r.input(2, 3, 3, 4))))
    assert graph.arguments().outputs[0].strides == (36, 1, 12, 4)


def test_reductions_follow_transposed_results() -> None:
    r = Recorder()
    y = r.op("permute", r.op("exp", r.input(2, 3, 4)), [2, 0, 1])
    r.check(r.op("sum.dim_IntList", y, [0], False), r.op("softmax.int", y, 1))


def test_results_of_every_kind() -> None:
    """A result twice, a result and its transposition, an input as it is, a constant."""
    r = Recorder()
    x = r.input(2, 3)
    y = r.op("relu", x)
    fill = r.op("full_like", x, 2.5)
    graph = r.check(y, y, r.op("t", y), x, r.op("t", x), fill, r.op("expand", y, [4, 2, 3]))
    assert len(graph.arguments().outputs) == 7


def test_constants_of_a_kind() -> None:
    r = Recorder()
    x = r.input(2, 3)
    ones, zeros = r.op("ones_like", x), r.op("zeros_like", x)
    r.check(r.op("sub.Tensor", r.op("add.Tensor", x, ones), r.op("maximum", x, zeros)))


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("slice.Tensor", (1, 1, 3, 1), "no offset"),
        ("select.int", (0, 1), "no offset"),
        ("repeat", ([1, 2, 1],), "need a copy"),
        ("constant_pad_nd", ([1, 1], 0.0), "is padded"),
        ("pad", ([1, 1], "reflect"), "reflect"),
    ],
)
def test_refusals(name: str, arguments: tuple[Any, ...], reason: str) -> None:
    r = Recorder()
    made = r.op("relu", r.op(name, r.input(2, 3, 4), *arguments))
    with pytest.raises(NotTranslated, match=reason):
        r.translate(made)


def test_split_axes_of_a_result_are_refused() -> None:
    r = Recorder()
    made = r.op("relu", r.op("view", r.op("exp", r.input(2, 6)), [2, 2, 3]))
    with pytest.raises(NotTranslated, match="splits or joins"):
        r.translate(made)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_strides_agree_with_numpy(data: st.DataObject) -> None:
    """Every chain of views that numpy makes without a copy has numpy's strides; every other one has none."""
    dims = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    array = np.empty(dims, np.uint8)
    strides: tuple[int, ...] = row_major(dims)
    for _ in range(data.draw(st.integers(1, 3))):
        order = data.draw(st.permutations(range(array.ndim)))
        array, strides = array.transpose(order), views.permuted(strides, order)
        new = data.draw(st.sampled_from(_factorings(array.size)))
        found = views.reshaped(array.shape, strides, new)
        moved = array.reshape(new)
        shares = np.shares_memory(moved, array) if array.size else True
        assert (found is not None) == shares
        if found is None:
            return
        array, strides = moved, found
        assert [s for s, d in zip(strides, array.shape, strict=True) if d > 1] == [
            s for s, d in zip(array.strides, array.shape, strict=True) if d > 1
        ]


def _factorings(size: int) -> list[tuple[int, ...]]:
    pairs = [(a, size // a) for a in range(1, size + 1) if size % a == 0]
    return [
        (size,),
        *pairs,
        *((a, 1, b) for a, b in pairs),
        *((a, c, b // c) for a, b in pairs for c in (2, 3) if b % c == 0),
    ]
