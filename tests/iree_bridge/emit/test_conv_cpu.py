"""Convolutions on the CPU: products of matrices whose tiles the emitter sets."""

from __future__ import annotations

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import build
from iree_bridge.compiler import compile_code
from iree_bridge.emitter import emit_module
from iree_bridge.target import Target
from tests.cases.conv import conv_graph
from tests.support.cases import aligned
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

CPU = Target.parse("cpu")


def test_channels_first_filters_are_rows_and_places_columns() -> None:
    graph = conv_graph("fprop", (1, 8, 20, 20), (32, 8, 3, 3), padding=1).validate()
    check_ir(
        emit_module(graph, CPU).ir,
        """
        CHECK-DAG: vector_common_parallel = [4, 16, 0], vector_reduction = [0, 0, 4]
        CHECK-DAG: torch.aten.view %arg2, {{.*}} -> !torch.vtensor<[32,72],f32>
        CHECK-DAG: torch.aten.constant_pad_nd %arg1, {{.*}} -> !torch.vtensor<[1,8,22,22],f32>
        CHECK: call @matrix_0({{.*}}) : (tensor<1x8x22x22xf32>) -> tensor<1x8x3x3x20x20xf32>
        CHECK: call @product_1({{.*}}) : (tensor<32x72xf32>, tensor<72x400xf32>) -> tensor<32x400xf32>
        CHECK-NOT: torch.aten.convolution
        """,
    )


def test_channels_last_places_are_rows_and_filters_lie_in_panels() -> None:
    graph = conv_graph("fprop", (2, 8, 20, 20), (24, 8, 3, 3), padding=1, layout="NHWC").validate()
    check_ir(
        emit_module(graph, CPU).ir,
        """
        CHECK-DAG: vector_common_parallel = [4, 1, 8, 0], vector_reduction = [0, 0, 0, 4]
        CHECK: torch.aten.permute {{.*}} -> !torch.vtensor<[3,3,3,8,8],f32>
        CHECK: util.optimization_barrier {{.*}} : tensor<3x3x3x8x8xf32>
        CHECK: call @matrix_0({{.*}}) : (tensor<2x22x22x8xf32>) -> tensor<2x20x20x3x3x8xf32>
        CHECK: call @product_1({{.*}}) : (tensor<800x72xf32>, tensor<3x72x8xf32>) -> tensor<800x3x8xf32>
        """,
    )


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_point_needs_no_copy(layout: str) -> None:
    text = emit_module(conv_graph("fprop", (1, 8, 6, 6), (16, 8, 1, 1), layout=layout).validate(), CPU).ir
    assert "@matrix" not in text
    assert text.count("call @product") == 1


@pytest.mark.parametrize(
    ("layout", "dispatches"),
    [
        pytest.param("NCHW", 1, id="channels first"),
        pytest.param("NHWC", 2, id="channels last: one for the filter"),
    ],
)
def test_what_follows_joins_the_product(layout: str, dispatches: int) -> None:
    g = Graph("block", io_data_type=DataType.FLOAT)
    x, w = (g.tensor(name, dim=dim, layout=layout) for name, dim in (("x", (1, 32, 7, 7)), ("w", (64, 32, 1, 1))))
    bias, residual = g.tensor("bias", dim=(1, 64, 1, 1)), g.tensor("residual", dim=(1, 64, 7, 7), layout=layout)
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w), bias)
    g.pointwise(PointwiseMode.RELU_FWD, g.pointwise(PointwiseMode.ADD, y, residual)).set_output()
    assert compile_code(g.validate(), CPU).dispatches == dispatches


@pytest.mark.parametrize("strided", ["x", "y"])
def test_the_form_is_that_of_the_result(strided: str) -> None:
    """Else its transpose costs more than the product."""
    last, first = (8 * 49, 1, 7 * 8, 8), (8 * 49, 49, 7, 1)
    g = Graph("mixed", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(1, 8, 7, 7), stride=last if strided == "x" else first)
    y = g.conv_fprop(x, g.tensor("w", dim=(8, 8, 1, 1))).set_output()
    y.set_stride(last if strided == "y" else first)
    text = emit_module(g.validate(), CPU).ir
    product = "(tensor<49x8xf32>, tensor<1x8x8xf32>)" if strided == "y" else "(tensor<8x8xf32>, tensor<8x49xf32>)"
    assert f": {product}" in text


@pytest.mark.iree_cpu
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_large_matrix_is_made_in_parts(layout: str) -> None:
    """600 x 600 places of 75 taps are 103 MiB."""
    graph = conv_graph("fprop", (1, 3, 600, 600), (2, 3, 5, 5), padding=2, layout=layout).validate()
    text = emit_module(graph, CPU).ir
    assert text.count("call @product") == 2
    assert text.count("torch.aten.cat") == 1
    x, w = (np.random.default_rng(7).standard_normal(t.dims).astype("f") for t in graph.arguments().inputs)
    arrays = {t: aligned(t.empty()) for t in (*graph.arguments().inputs, *graph.arguments().outputs)}
    for tensor, values in zip(graph.arguments().inputs, (x, w), strict=True):
        arrays[tensor][...] = values
    build(graph, "cpu").run(arrays)
    framed = np.pad(x[0], ((0, 0), (2, 2), (2, 2))).astype(np.float64)
    expected = sum(
        w[:, :, r, s].astype(np.float64) @ framed[:, r : r + 600, s : s + 600].reshape(3, -1)
        for r in range(5)
        for s in range(5)
    )
    result = arrays[graph.arguments().outputs[0]]
    np.testing.assert_allclose(result.reshape(2, -1), expected, rtol=0, atol=1e-4)
