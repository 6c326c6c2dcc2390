"""What is compiled for the AMD targets, and what is declined. No GPU is needed."""

from __future__ import annotations

import pytest

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Target
from iree_bridge.compile.compiler import compile_code
from tests.cases import all_cases
from tests.support.cases import is_declined
from tests.support.outcomes import GFX_TARGETS

pytestmark = pytest.mark.mlir


def test_a_fused_convolution_compiles_to_one_dispatch() -> None:
    g = Graph("conv_bias_relu", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(1, 16, 14, 14), layout="NHWC")
    w = g.tensor("w", dim=(16, 16, 3, 3), layout="NHWC")
    b = g.tensor("b", dim=(1, 16, 1, 1), layout="NHWC")
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w, padding=1), b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    code = compile_code(g, Target.parse("gfx942"))
    assert code.vmfb
    assert code.dispatches == 1


def test_extremes_that_keep_nan_are_fused() -> None:
    g = Graph("matmul_max", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    y = g.matmul(g.tensor(dim=(64, 128)), g.tensor(dim=(128, 96)))
    y = g.pointwise(PointwiseMode.MAX, y, g.tensor(dim=(64, 96)))
    g.pointwise(PointwiseMode.MIN, y, 6.0).set_output(True)
    assert compile_code(g, Target.parse("gfx942")).dispatches == 1


@pytest.mark.parametrize("target", GFX_TARGETS)
def test_what_is_declined_is_what_the_tables_say(target: str) -> None:
    assert all(isinstance(is_declined(case, Target.parse(target)), bool) for _, case in all_cases())
