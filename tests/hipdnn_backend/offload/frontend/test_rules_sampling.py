"""Samples at computed positions, against ONNX Runtime; and positions that are none."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.offload import load
from hipdnn_backend.offload.errors import PassError
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
@pytest.mark.thorough
@pytest.mark.parametrize(("padding", "mode"), [("zeros", "linear"), ("border", "nearest"), ("reflection", "linear")])
def test_grids_that_lead_nowhere_read_inside(padding: str, mode: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    far = [[np.nan, 0], [0, np.nan], [np.inf, 0], [0, -np.inf], [1e30, 1e30], [-1e30, 0]]
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


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_regions(mode: str, coordinates: str) -> None:
    x = RANDOM.standard_normal((2, 3, 7, 9)).astype(np.float32)
    rois = np.array([[0, 0, 8, 6], [2.5, -3, 30, 4], [5, 5, 5.2, 5.1], [-20, -20, -9, -9]], np.float32)
    inputs = {"x": x, "r": rois, "b": np.array([1, 0, 1, 0], np.int64)}
    given = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.75}
    model, feeds = one_node(
        "RoiAlign", inputs, {"y": np.float32}, opset=16, mode=mode, coordinate_transformation_mode=coordinates, **given
    )
    want = [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)] if mode == "max" else None
    check_rewrite(model, feeds, expected=want, rtol=1e-4, atol=1e-5)


@pytest.mark.iree_cpu
def test_regions_whose_samples_only_a_run_knows_are_refused() -> None:
    inputs = {"x": np.zeros((1, 1, 4, 4), np.float32), "r": np.zeros((1, 4), np.float32), "b": np.zeros(1, np.int64)}
    model, _ = one_node("RoiAlign", inputs, {"y": np.float32}, opset=22)
    assert [node.op_type for node in prepare(model).nodes] == ["RoiAlign"]
    with pytest.raises(PassError, match=r"roi_align .* is refused"):
        load(model, device="cpu", engines=[FusilliEngine("cpu")])


@pytest.mark.thorough
@pytest.mark.iree_cpu
def test_regions_of_pictures_that_are_none_read_inside() -> None:
    x = np.stack([np.full((1, 3, 3), 1, np.float32), np.full((1, 3, 3), 2, np.float32)])
    inputs = {"x": x, "r": np.array([[0, 0, 2, 2], [np.nan, 0, 2, 2]], np.float32), "b": np.array([9, -9], np.int64)}
    model, feeds = one_node("RoiAlign", inputs, {"y": np.float32}, opset=22, sampling_ratio=1)
    with load(model, device="cpu") as compiled:
        (y,) = compiled.run(feeds).values()
    np.testing.assert_array_equal(y.reshape(-1), [2, 0])


@pytest.mark.a_few("2-1-False", "1-2-True", "2-2-True")
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(("group", "parts"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_moved_taps(group: int, parts: int, mask: bool) -> None:
    def normal(*dims: int) -> np.ndarray:
        return RANDOM.standard_normal(dims).astype(np.float32)

    inputs = {
        "x": normal(2, 4, 6, 7), "w": normal(6, 4 // group, 2, 3), "o": 2 * normal(2, parts * 12, 4, 5),
        "b": normal(6), "m": RANDOM.random((2, parts * 6, 4, 5)).astype(np.float32) if mask else None,
    }  # fmt: skip
    given = {"group": group, "offset_group": parts, "strides": [2, 1], "pads": [1, 0, 2, 2], "dilations": [2, 2]}
    model, feeds = one_node("DeformConv", inputs, {"y": np.float32}, constants=["w", "b"], opset=22, **given)
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    check_rewrite(model, feeds, expected=[np.asarray(want)], rtol=1e-4, atol=1e-4)
