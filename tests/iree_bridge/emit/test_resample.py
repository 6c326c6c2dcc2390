"""What pooling looks like in IR, and what becomes of it on AMD targets."""

from __future__ import annotations

import pytest

from graph_api import DataType, ResampleMode
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.resample import pool_graph
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

GFX = Target.parse("gfx942")
M = ResampleMode


def test_a_maximum_is_one_reduction_over_memory_order() -> None:
    graph = pool_graph((2, 3, 8, 8), M.MAXPOOL, dtype=DataType.HALF, layout="NHWC", window=3, stride=2, padding=1)
    check_ir(
        emit_module(graph.validate(), GFX).ir,
        """
        CHECK: torch.constant.float 0xFFF0000000000000
        CHECK: torch.aten.constant_pad_nd {{.*}} -> !torch.vtensor<[2,9,9,3],f16>
        CHECK: call @pool_0({{.*}}) : (tensor<2x9x9x3xf16>) -> tensor<2x4x4x3xi32>
        CHECK: func.func private @pool_0
        CHECK: linalg.generic
        CHECK: arith.extf {{.*}} : f16 to f32
        CHECK: arith.maxui
        """,
    )


def test_an_average_divides_by_what_each_window_holds() -> None:
    graph = pool_graph((1, 1, 4), M.AVGPOOL_EXCLUDE_PADDING, window=2, stride=1, padding=1)
    check_ir(
        emit_module(graph.validate(), GFX).ir,
        """
        CHECK: arith.addf
        CHECK: arith.constant dense<[1.000000e+00, 2.000000e+00, 2.000000e+00, 2.000000e+00, 1.000000e+00]>
        CHECK-NOT: arith.mulf
        CHECK: arith.divf
        """,
    )


@pytest.mark.a_few("ResampleMode.MAXPOOL-NCHW")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", [M.MAXPOOL, M.AVGPOOL_EXCLUDE_PADDING])
def test_two_dispatches(mode: ResampleMode, layout: str) -> None:
    """The padding and the pool: padding as a part of the pool's kernel was compiled wrongly for some pools."""
    graph = pool_graph((2, 16, 16, 16), mode, dtype=DataType.HALF, layout=layout, window=3, stride=2, padding=1)
    assert inspect_graph(graph, GFX).dispatches in (1, 2)
