"""What pooling looks like in IR, and what becomes of it on AMD targets."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fusilli_plugin.emulator import Emulator
from graph_api import DataType, Graph, ResampleMode
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.resample import pool_graph
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

GFX = Target.parse("gfx942")
M = ResampleMode


def test_a_maximum_reads_the_nearest_element_where_there_is_padding() -> None:
    graph = pool_graph((2, 3, 8, 8), M.MAXPOOL, dtype=DataType.HALF, layout="NHWC", window=3, stride=2, padding=1)
    check_ir(
        emit_module(graph.validate(), GFX).ir,
        """
        CHECK-NOT: constant_pad_nd
        CHECK: call @pool_0({{.*}}) : (tensor<2x8x8x3xf16>) -> tensor<2x4x4x3xi32>
        CHECK: func.func private @pool_0
        CHECK: linalg.generic
        CHECK: arith.maxsi
        CHECK: arith.minsi
        CHECK: tensor.extract
        CHECK: arith.extf {{.*}} : f16 to f32
        CHECK: arith.maxui
        """,
    )


def test_a_maximum_of_a_large_window_is_one_reduction_over_memory_order() -> None:
    graph = pool_graph((2, 3, 8, 8), M.MAXPOOL, dtype=DataType.HALF, layout="NHWC", window=7, stride=2, padding=3)
    check_ir(
        emit_module(graph.validate(), GFX).ir,
        """
        CHECK: torch.constant.float 0xFFF0000000000000
        CHECK: torch.aten.constant_pad_nd {{.*}} -> !torch.vtensor<[2,13,13,3],f16>
        CHECK: call @pool_0({{.*}}) : (tensor<2x13x13x3xf16>) -> tensor<2x4x4x3xi32>
        CHECK: func.func private @pool_0
        CHECK: linalg.generic
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
def test_one_dispatch(mode: ResampleMode, layout: str) -> None:
    """Padding as a part of a reduction's kernel was compiled wrongly for some pools, so it was another one."""
    graph = pool_graph((2, 16, 16, 16), mode, dtype=DataType.HALF, layout=layout, window=3, stride=2, padding=1)
    assert inspect_graph(graph, GFX).dispatches == 1


@pytest.mark.a_few(*map(str, range(6)))
@pytest.mark.parametrize("seed", range(60))
def test_padded_pools(seed: int) -> None:
    """Windows up to 4 in 1 to 3 dims, padding that may be larger than they are: emulated, against NumPy in float64."""
    draw = random.Random(seed)
    rank = draw.choice([1, 2, 2, 3])
    window, stride = ([draw.randint(1, most) for _ in range(rank)] for most in (4, 3))
    size = [draw.randint(side, 9) for side in window]
    pads = [(draw.randint(0, side + 1), draw.randint(0, side)) for side in window]
    mode = draw.choice([M.MAXPOOL, M.AVGPOOL_INCLUDE_PADDING])
    g = Graph("padded", io_data_type=DataType.FLOAT)
    layout = draw.choice([{1: "NCW", 2: "NCHW", 3: "NCDHW"}, {1: "NWC", 2: "NHWC", 3: "NDHWC"}])[rank]
    x = g.tensor("x", dim=(draw.choice([1, 2]), draw.choice([1, 2, 3, 8]), *size), layout=layout)
    before, after = zip(*pads, strict=True)
    y = g.resample_fwd(x, mode=mode, window=window, stride=stride, pre_padding=before, post_padding=after)[0]
    y.set_output(True)
    g.validate()
    pack = {x: x.empty()}
    pack[x][...] = np.random.default_rng(seed).standard_normal(x.dims)
    made = Emulator("gfx942").run(g, pack)[0][y]
    image = pack[x].astype(np.float64)
    padded = np.pad(image, [(0, 0), (0, 0), *pads], constant_values=-np.inf if mode is M.MAXPOOL else 0)
    met = np.lib.stride_tricks.sliding_window_view(padded, window, axis=tuple(range(2, 2 + rank)))
    met = met[(slice(None), slice(None), *(slice(None, None, step) for step in stride))]
    inner = tuple(range(-rank, 0))
    np.testing.assert_allclose(made, met.max(inner) if mode is M.MAXPOOL else met.mean(inner), rtol=1e-6, atol=1e-6)
