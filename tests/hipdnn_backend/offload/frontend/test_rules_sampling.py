"""Samples at computed positions, against ONNX Runtime; and positions that are none."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload import load
from hipdnn_backend.offload.frontend import prepare
from tests.support.onnx_rewritten import check_rewrite, one_node, rewritten

RANDOM = np.random.default_rng(19)


def _grid_sample(x: np.ndarray, grid: np.ndarray, **given: Any) -> Any:
    return one_node("GridSample", {"x": x, "g": grid}, {"y": x.dtype}, opset=22, **given)


@pytest.mark.parametrize(
    ("mode", "padding", "aligned"),
    list(itertools.product(("nearest", "linear", "cubic"), ("zeros", "border", "reflection"), (0, 1))),
)
def test_grids(mode: str, padding: str, aligned: int) -> None:
    x = RANDOM.standard_normal((2, 3, 4, 5)).astype(np.float32)
    grid = RANDOM.uniform(-2.2, 2.2, (2, 3, 7, 2)).astype(np.float32)
    model, feeds = _grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=aligned)
    check_rewrite(model, feeds, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mode", "padding"), [("nearest", "border"), ("linear", "zeros"), ("linear", "reflection")])
def test_grids_in_space(mode: str, padding: str) -> None:
    x = RANDOM.standard_normal((2, 2, 3, 4, 5)).astype(np.float32)
    grid = RANDOM.uniform(-1.5, 1.5, (2, 2, 3, 2, 3)).astype(np.float32)
    model, feeds = _grid_sample(x, grid, mode=mode, padding_mode=padding)
    check_rewrite(model, feeds, rtol=1e-4, atol=1e-4)


def test_halves_and_pictures_of_one_element() -> None:
    x, grid = np.full((1, 1, 1, 1), 3, np.float16), np.array([[[[0, 0], [0.5, -0.5], [9, 9]]]], np.float16)
    for padding, want in (("zeros", [3, 3 * 0.75 * 0.75, 0]), ("border", [3, 3, 3]), ("reflection", [3, 3, 3])):
        model, feeds = _grid_sample(x, grid, padding_mode=padding)
        check_rewrite(model, feeds, expected=[np.array(want, np.float16).reshape(1, 1, 1, 3)], rtol=1e-3)


@pytest.mark.iree_cpu
def test_grids_that_lead_nowhere_read_inside() -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    far = [[np.nan, 0], [0, np.nan], [np.inf, 0], [0, -np.inf], [1e30, 1e30], [-1e30, 0]]
    for padding, mode in (("zeros", "linear"), ("border", "nearest"), ("reflection", "linear")):
        model, feeds = _grid_sample(x, np.array([[far]], np.float32), padding_mode=padding, mode=mode)
        with load(model, device="cpu") as compiled:
            (y,) = compiled.run(feeds).values()
        if padding == "zeros":
            np.testing.assert_array_equal(y, 0)
        assert ((y >= 0) & (y <= 5)).all()
        want = rewritten(prepare(model), feeds)[0]
        np.testing.assert_allclose(y, want, rtol=1e-5)


def test_infinite_elements_outside_a_sample_do_not_reach_it() -> None:
    x = np.array([[[[1, 2], [np.inf, 4]]]], np.float32)
    model, feeds = _grid_sample(x, np.array([[[[0.5, -1.5]]]], np.float32))  # half of row 0, half of what is above it
    check_rewrite(model, feeds, expected=[np.zeros((1, 1, 1, 1), np.float32)])
