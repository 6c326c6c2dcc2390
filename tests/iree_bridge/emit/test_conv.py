"""What convolutions look like in IR, and what becomes of them on AMD targets."""

from __future__ import annotations

from typing import Any

import pytest

from graph_api import DataType, Graph
from iree_bridge.compile.compiler import compile_code
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.conv import conv_graph
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

GFX = Target.parse("gfx942")
HALF = DataType.HALF


def test_a_data_gradient_is_one_convolution_with_an_output_channel_per_phase() -> None:
    graph = conv_graph("dgrad", (2, 3, 8, 10), (4, 3, 3, 3), dtype=HALF, padding=1, stride=2).validate()
    check_ir(
        emit_module(graph, GFX).ir,
        """
        CHECK: call @filter_0({{.*}}) : (tensor<4x3x3x3xf16>) -> tensor<1x3x2x2x2x2x4xf16>
        CHECK: torch.aten.view {{.*}} -> !torch.vtensor<[12,4,2,2],f16>
        CHECK: torch.aten.constant_pad_nd %arg1, {{.*}} -> !torch.vtensor<[2,4,5,6],f16>
        CHECK: [[Y:%.*]] = torch.aten.convolution {{.*}} -> !torch.vtensor<[2,12,4,5],f32>
        CHECK-NOT: torch.aten.convolution
        CHECK: torch.aten.view {{.*}} -> !torch.vtensor<[2,3,8,10],f32>
        CHECK-NOT: torch.aten.slice
        CHECK: func.func private @filter_0
        CHECK: tensor.extract
        """,
    )


def test_a_data_gradient_of_points_needs_no_kernel_for_its_filter() -> None:
    graph = conv_graph("dgrad", (2, 3, 8, 10), (4, 3, 1, 1), dtype=HALF).validate()
    check_ir(
        emit_module(graph, GFX).ir,
        """
        CHECK-NOT: call
        CHECK: torch.aten.permute {{.*}} -> !torch.vtensor<[1,3,4,1,1],f16>
        CHECK: torch.aten.convolution %arg1, {{.*}} -> !torch.vtensor<[2,3,8,10],f32>
        """,
    )


def test_a_weight_gradient_exchanges_batch_and_channels_stride_and_dilation() -> None:
    graph = conv_graph("wgrad", (2, 3, 9, 10), (4, 3, 3, 3), dtype=HALF, padding=1, stride=2, dilation=1).validate()
    check_ir(
        emit_module(graph, GFX).ir,
        """
        CHECK-DAG: [[ONE:%.*]] = torch.prim.ListConstruct %int1, %int1 :
        CHECK-DAG: [[TWO:%.*]] = torch.prim.ListConstruct %int2, %int2 :
        CHECK: torch.aten.convolution {{.*}}, %none, [[ONE]], {{.*}}, [[TWO]], %false,
        CHECK-SAME: -> !torch.vtensor<[3,4,3,3],f32>
        CHECK: torch.aten.permute {{.*}} -> !torch.vtensor<[4,3,3,3],f32>
        """,
    )


def test_8_bit_integers_are_multiplied_as_they_are() -> None:
    graph = conv_graph("fprop", (1, 4, 5, 5), (8, 4, 3, 3), dtype=DataType.INT8, out=DataType.INT32).validate()
    check_ir(
        emit_module(graph, GFX).ir,
        """
        CHECK: call @convolution_0({{.*}}) : (tensor<1x4x5x5xi8>, tensor<8x4x3x3xi8>) -> tensor<1x8x3x3xi32>
        CHECK: arith.extsi %{{.*}} : i8 to i32
        """,
    )


def test_gfx908_multiplies_bf16_in_f32() -> None:
    graph = conv_graph("fprop", (1, 4, 5, 5), (8, 4, 3, 3), dtype=DataType.BFLOAT16).validate()
    check_ir(
        emit_module(graph, Target.parse("gfx908")).ir,
        """
        CHECK: util.optimization_barrier {{.*}}f32>
        CHECK: util.optimization_barrier {{.*}}f32>
        CHECK: torch.aten.convolution {{.*}}f32>, {{.*}}f32>, {{.*}} -> !torch.vtensor<[1,8,3,3],f32>
        """,
    )


@pytest.mark.a_few("padding0")
@pytest.mark.parametrize("padding", [{"padding": 1}, {"pre_padding": (1, 0), "post_padding": (0, 1)}])
def test_two_convolutions_of_one_tensor_with_equal_padding_do_not_share_it(padding: dict[str, Any]) -> None:
    g = Graph("two", io_data_type=HALF)
    x = g.tensor("x", dim=(2, 6, 9, 8))
    for name in ("v", "w"):
        g.conv_fprop(x, g.tensor(name, dim=(8, 6, 3, 3)), **padding).set_output()
    text = emit_module(g.validate(), GFX).ir
    assert text.count("util.optimization_barrier") == 1
    assert compile_code(g, GFX).vmfb


@pytest.mark.a_few("fprop-1-NHWC")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("direction", "dispatches"), [("fprop", 1), ("dgrad", 2)])
def test_matrix_instructions(direction: str, dispatches: int, layout: str) -> None:
    graph = conv_graph(direction, (4, 32, 16, 16), (32, 32, 3, 3), dtype=HALF, padding=1, layout=layout)
    found = inspect_graph(graph, GFX)
    assert found.dispatches == dispatches
    assert found.matrix
    assert found.spills == 0


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", [HALF, DataType.BFLOAT16, DataType.INT8])
@pytest.mark.parametrize(
    ("direction", "groups", "stride", "most"),
    [("dgrad", 1, 2, 3), ("dgrad", 4, 1, 3), ("wgrad", 1, 1, 2), ("wgrad", 1, 2, 2), ("wgrad", 4, 1, 4)],
)
def test_gradients_use_matrix_instructions(
    direction: str, groups: int, stride: int, most: int, dtype: DataType, layout: str
) -> None:
    """With groups, one of the dispatches pads the image: the compiler pads inside the kernel of a product only."""
    out = DataType.INT32 if dtype is DataType.INT8 else None
    graph = conv_graph(
        direction, (8, 64, 28, 28), (64, 64 // groups, 3, 3), dtype=dtype, out=out, padding=1, stride=stride,
        layout=layout,
    )  # fmt: skip
    found = inspect_graph(graph, GFX)
    assert found.dispatches is not None
    assert found.dispatches <= most
    assert found.matrix
    assert found.spills == 0
