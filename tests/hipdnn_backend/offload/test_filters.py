"""Constant filters lie in memory as the engine reads them; models compute the same, also from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.offload import Model, load
from hipdnn_backend.offload.session import Layout, OffloadOptions
from tests.support.passes import TWO_CONVS, run_text

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]

RNG = np.random.default_rng(5)
X = RNG.standard_normal((1, 8, 7, 7), np.float32)
WEIGHTS = {
    "alone": RNG.standard_normal((16, 8, 3, 3), np.float32),
    "of_two": RNG.standard_normal((16, 16, 3, 3), np.float32),
    "also_added": RNG.standard_normal((16, 16, 1, 1), np.float32),
    "of_groups": RNG.standard_normal((16, 4, 3, 3), np.float32),
    "square": RNG.standard_normal((16, 16), np.float32),
}


def convolution(x: str, w: str, y: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [helper.make_node("Conv", [x, w], [f"{y}_"], **attributes), helper.make_node("Relu", [f"{y}_"], [y])]


def proto() -> onnx.ModelProto:
    nodes = [
        *convolution("x", "alone", "a", pads=[1] * 4),
        *convolution("a", "of_two", "b", pads=[1] * 4),
        *convolution("b", "of_two", "c", pads=[1] * 4),
        *convolution("c", "also_added", "d"),
        *convolution("d", "of_groups", "e", group=4),
        helper.make_node("GlobalAveragePool", ["e"], ["pooled"]),
        helper.make_node("Add", ["pooled", "also_added"], ["y"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "square"], ["z"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "filters",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yz"],
        [numpy_helper.from_array(array, name) for name, array in WEIGHTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def check(model: Model) -> None:
    session = onnxruntime.InferenceSession(proto().SerializeToString(), providers=["CPUExecutionProvider"])
    results: Any = session.run(None, {"x": X})
    for got, expected in zip(model.run({"x": X}).values(), results, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def strides_of(model: Model) -> dict[str, tuple[int, ...]]:
    return {each.name: model.program.views[each.view].strides for each in model.program.constants}


@pytest.mark.thorough
def test_filters_of_small_images_lie_by_taps(tmp_path: Path) -> None:
    with load(proto(), engines=[FusilliEngine("cpu")], options=OffloadOptions(layout=Layout.CHANNELS_LAST)) as model:
        strides = strides_of(model)
        assert strides["alone"] == (1, 16, 3 * 8 * 16, 8 * 16)
        assert strides["of_two"] == (1, 16, 3 * 16 * 16, 16 * 16)
        # others read these in the model's order
        assert strides["also_added"] == (16, 1, 1, 1)
        assert strides["of_groups"] == (36, 9, 3, 1)
        check(model)
        model.save(tmp_path / "filters.fusilli")
    with load(tmp_path / "filters.fusilli") as restored:
        assert strides_of(restored) == strides
        check(restored)


@pytest.mark.thorough
def test_row_major_models_have_row_major_filters() -> None:
    with load(proto(), engines=[FusilliEngine("cpu")], options=OffloadOptions(layout=Layout.ROW_MAJOR)) as model:
        assert strides_of(model)["alone"] == (72, 9, 3, 1)
        check(model)


def test_gpus_get_filters_with_channels_last() -> None:
    from hipdnn_backend.engine import FilterOrder

    engine = FusilliEngine("cpu").for_target("gfx942")
    assert engine.filter_order((64, 64, 3, 3), (8, 64, 56, 56)) is FilterOrder.CHANNELS_LAST


def test_a_filter_that_is_an_input_stays_as_it_comes() -> None:
    """Of the text's three arguments none is called a constant."""
    passes = ("hipdnn-offload", "hipdnn-assign-layouts")
    ir, _ = run_text(
        TWO_CONVS, *passes, engines=[FusilliEngine("cpu")], options=OffloadOptions(layout=Layout.CHANNELS_LAST)
    )
    assert "by_taps" not in ir
    assert "channels_last" in ir
