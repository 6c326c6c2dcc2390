"""Resize as gathers and sums, against ONNX Runtime and against values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hipdnn_backend.offload.errors import UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from tests.support.onnx_rewritten import check_rewrite, one_node, rewritten

RANDOM = np.random.default_rng(11)
SHAPE = (1, 2, 5, 7)


def _model(x: np.ndarray, *, scales: Any = None, sizes: Any = None, roi: Any = None, **given: Any) -> Any:
    inputs = {
        "x": x, "roi": None if roi is None else np.asarray(roi, np.float32),
        "scales": None if scales is None else np.asarray(scales, np.float32),
        "sizes": None if sizes is None else np.asarray(sizes, np.int64),
    }  # fmt: skip
    while list(inputs.values())[-1] is None:
        inputs.popitem()
    constants = [name for name, value in inputs.items() if name != "x" and value is not None]
    return one_node("Resize", inputs, {"y": x.dtype}, constants=constants, **given)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]
)
@pytest.mark.parametrize("sizes", [(3, 15), (11, 1)])
def test_interpolation(mode: str, coordinates: str, sizes: tuple[int, int]) -> None:
    x = RANDOM.standard_normal(SHAPE).astype(np.float32)
    model, feeds = _model(x, sizes=(1, 2, *sizes), mode=mode, coordinate_transformation_mode=coordinates)
    check_rewrite(model, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("sizes", [(3, 14), (10, 3)])
def test_the_nearest_element(nearest: str, coordinates: str, sizes: tuple[int, int]) -> None:
    x = RANDOM.standard_normal(SHAPE).astype(np.float32)
    given = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": coordinates}
    model, feeds = _model(x, sizes=(1, 2, *sizes), **given)
    check_rewrite(model, feeds, rtol=0, atol=0)


@pytest.mark.parametrize("scales", [(1, 1, 0.6, 1.7), (1, 1, 2, 3), (1, 1, 0.5, 0.34)])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_scales(scales: tuple[float, ...], mode: str) -> None:
    model, feeds = _model(RANDOM.standard_normal(SHAPE).astype(np.float32), scales=scales, mode=mode)
    check_rewrite(model, feeds, rtol=1e-4, atol=1e-5)


def test_sums_of_many_taps_and_weights_inside_only() -> None:
    x = RANDOM.standard_normal((1, 1, 9, 16)).astype(np.float32)
    for given in ({"mode": "linear"}, {"mode": "cubic"}, {"mode": "cubic", "exclude_outside": 1}):
        model, feeds = _model(x, sizes=(1, 1, 4, 3), antialias=1, **given)
        check_rewrite(model, feeds, expected=[np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)])
    model, feeds = _model(x, sizes=(1, 1, 4, 25), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
    check_rewrite(model, feeds, rtol=1e-4, atol=1e-5)


def test_any_axes_and_kept_ratios() -> None:
    x = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
    for policy in ("stretch", "not_larger", "not_smaller"):
        given = {"axes": [2, 0], "keep_aspect_ratio_policy": policy, "mode": "linear"}
        model, feeds = _model(x, sizes=(7, 5), **given)
        check_rewrite(model, feeds, expected=[np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)])


def test_what_lies_outside_of_a_crop() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    given = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 9.0}
    model, feeds = _model(x, sizes=(1, 1, 1, 3), roi=[0, 0, 0, 0.5, 1, 1, 1, 1.5], **given)
    (y,) = rewritten(prepare(model), feeds)
    np.testing.assert_allclose(y, [[[[1.5, 3, 9]]]])


def test_integers_are_rounded() -> None:
    x = np.array([[[[0, 255]]]], np.uint8)
    model, feeds = _model(x, sizes=(1, 1, 1, 4), mode="linear")
    check_rewrite(model, feeds, expected=[np.array([[[[0, 64, 191, 255]]]], np.uint8)])


def test_halves_are_computed_in_single_precision() -> None:
    x = RANDOM.standard_normal(SHAPE).astype(np.float16)
    model, feeds = _model(x, sizes=(1, 2, 9, 4), mode="cubic")
    (want,) = ReferenceEvaluator(model).run(None, feeds)
    check_rewrite(model, feeds, expected=[np.asarray(want)], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op_type", "opset", "scales"),
    [("Resize", 10, (1, 1, 1.5, 0.6)), ("Resize", 10, (1, 1, 0.4, 0.6)), ("Upsample", 9, (1, 1, 1.5, 2.3))],
)
def test_before_it_had_coordinates(mode: str, op_type: str, opset: int, scales: tuple[float, ...]) -> None:
    value = helper.make_tensor_value_info
    x, y = value("x", TensorProto.FLOAT, SHAPE), value("y", TensorProto.FLOAT, None)
    constant = numpy_helper.from_array(np.array(scales, np.float32), "s")
    graph = helper.make_graph([helper.make_node(op_type, ["x", "s"], ["y"], mode=mode)], "g", [x], [y], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5)
    check_rewrite(model, {"x": RANDOM.standard_normal(SHAPE).astype(np.float32)})


def test_where_onnx_contradicts_itself_it_is_refused() -> None:
    given = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    x = RANDOM.standard_normal(SHAPE).astype(np.float32)
    model, _ = _model(x, scales=(1, 1, 0.5, 1), **given)
    with pytest.raises(UnsupportedNodeError, match=r"scale 0.5 of 5.*give sizes instead"):
        prepare(model)
    model, feeds = _model(x, scales=(1, 1, 2, 1), **given)
    check_rewrite(model, feeds, rtol=1e-4, atol=1e-5)
    assert isinstance(model, onnx.ModelProto)
    assert "?" not in str(load(model).module)
