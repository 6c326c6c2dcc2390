"""Graphs that the compiler fails on, or makes wrong, for AMD targets in the form that comes to mind first: emulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusilli_plugin.emulator import Emulator
from fusilli_plugin.emulator.program import Assembled
from graph_api import DataType, Graph, PointwiseMode, ReductionMode, ResampleMode
from iree_bridge import Target
from iree_bridge.compile.compiler import compile_assembly, compile_code
from tests.support.gfx_sweep import Job, examine

pytestmark = pytest.mark.mlir

HALF, BF16, FLOAT = DataType.HALF, DataType.BFLOAT16, DataType.FLOAT


def convolution(kind: str, dtype: DataType, x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Graph:
    rank = len(x) - 2
    pad, stride, dilation = (
        options.get(name, (one,) * rank) for name, one in (("pad", 0), ("stride", 1), ("dilation", 1))
    )
    size = [(x[i + 2] + 2 * pad[i] - dilation[i] * (w[i + 2] - 1) - 1) // stride[i] + 1 for i in range(rank)]
    dims = {"x": x, "w": w, "dy": (x[0], w[0], *size)}
    used = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}[kind]
    g = Graph(kind, io_data_type=dtype, compute_data_type=FLOAT)
    tensors = [g.tensor(name, dim=dims[name], layout=options.get("layout")) for name in used]
    add = {"fprop": g.conv_fprop, "dgrad": g.conv_dgrad, "wgrad": g.conv_wgrad}[kind]
    out = add(*tensors, padding=pad, stride=stride, dilation=dilation).set_output(True)
    if kind != "fprop":
        out.set_dim(dims["x" if kind == "dgrad" else "w"])
    return g.validate()


def product(dtype: DataType, a: tuple[int, ...], b: tuple[int, ...]) -> Graph:
    g = Graph("product", io_data_type=dtype, compute_data_type=FLOAT)
    g.matmul(g.tensor("a", dim=a), g.tensor("b", dim=b)).set_output(True)
    return g.validate()


def check(graph: Graph) -> None:
    outcome = Emulator(Target.parse("gfx942")).examine(graph, graph.random_inputs(seed=1))
    assert outcome.ok, f"{outcome.verdict}: {outcome.text}"


ROWS = (4, 16, 1, 30), (32, 16, 2, 2)
FAST = {
    "one row": convolution("fprop", HALF, *ROWS, pad=(1, 1), layout="NHWC"),
}
SLOW = {
    "one row, dgrad": convolution("dgrad", HALF, *ROWS, pad=(1, 1), layout="NHWC"),
    "one row, wgrad": convolution("wgrad", HALF, *ROWS, pad=(1, 1), layout="NHWC"),
    "one row, stride, dilation": convolution(
        "fprop", FLOAT, (4, 16, 1, 30), (32, 16, 3, 2), pad=(4, 1), stride=(3, 1), dilation=(2, 1), layout="NHWC"
    ),
    "one slice": convolution("fprop", HALF, (2, 16, 1, 4, 4), (16, 16, 2, 3, 3), pad=(1, 1, 1), layout="NDHWC"),
    "one pixel, groups": convolution("fprop", FLOAT, (2, 16, 1, 1), (8, 8, 3, 2), pad=(1, 1)),
    "full height": convolution("dgrad", FLOAT, (4, 16, 8, 30), (32, 16, 8, 3), layout="NHWC"),
    "one channel, groups": convolution("wgrad", FLOAT, (1, 8, 9, 9), (8, 4, 3, 3), stride=(2, 2)),
    "one channel, fprop": convolution("fprop", FLOAT, (8, 1, 9, 9), (32, 1, 4, 4), dilation=(2, 2)),
}


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_right(name: str) -> None:
    check((FAST | SLOW)[name])


@pytest.mark.a_few("DataType.HALF-ReductionMode.AMAX")
@pytest.mark.parametrize("mode", [ReductionMode.MAX, ReductionMode.MIN, ReductionMode.AMAX])
@pytest.mark.parametrize("dtype", [HALF, pytest.param(FLOAT, marks=pytest.mark.slow)])
def test_nan_wins(mode: ReductionMode, dtype: DataType) -> None:
    g = Graph("extreme", io_data_type=dtype, compute_data_type=FLOAT)
    x = g.tensor("x", dim=(5, 67))
    y = g.reduction(x, mode=mode).set_dim((5, 1)).set_output(True)
    g.validate()
    values = np.asarray(g.random_inputs(seed=2)[x]).copy()
    values[1, 40], values[2, 3], values[3, 5] = np.nan, -np.inf, np.inf
    values[4, :] = -0.0
    values[0, 66] = np.copysign(np.nan, -1)
    results, _ = Emulator(Target.parse("gfx942")).run(g, {x: values})
    got = results[y].astype(np.float64)[:, 0]
    wide = values.astype(np.float64)
    right = {ReductionMode.MAX: wide, ReductionMode.MIN: -wide, ReductionMode.AMAX: np.abs(wide)}[mode].max(axis=1)
    np.testing.assert_array_equal(got, -right if mode is ReductionMode.MIN else right)


@pytest.mark.a_few("gfx90a")
@pytest.mark.parametrize("target", ["gfx90a", "gfx950"])
def test_products_of_few_rows_compile(target: str) -> None:
    code = compile_code(product(HALF, (8, 256), (256, 32)), Target.parse(target))
    assert code.form == "no product tiles"


@pytest.mark.thorough
def test_a_barrier_that_some_waves_skip_is_not_served() -> None:
    code = compile_code(product(HALF, (3, 2, 14, 10), (1, 2, 10, 6)), Target.parse("gfx950"))
    assert code.form != "plain"


@pytest.mark.a_few("convolution-NHWC")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("reader", ["pool", "convolution"])
def test_the_form_of_one_reader_is_right(reader: str, layout: str) -> None:
    """The last form of such graphs, which none of these needs, on even and ragged sizes."""
    for rows, columns, channels in ((8, 8, 16), (5, 7, 3)):
        g = Graph("shared", io_data_type=FLOAT)
        x = g.tensor("x", dim=(2, channels, rows, columns), layout=layout)
        image = g.pointwise(PointwiseMode.NEG, x).set_dim(x.dims).set_stride(x.strides).set_output(True)
        options: dict[str, Any] = {"stride": (2, 3), "pre_padding": (0, 0), "post_padding": (0, 0)}
        if reader == "pool":
            g.resample_fwd(image, mode=ResampleMode.MAXPOOL, window=(1, 1), **options)[0].set_output(True)
        else:
            g.conv_fprop(image, g.tensor("w", dim=(4, channels, 1, 1)), **options).set_output(True)
        target = Target.parse("gfx942")
        compiled, text = compile_assembly(g.validate(), target, form="one reader")
        code = Assembled(compiled.vmfb, text, compiled.flags, compiled.dispatches)
        outcome = Emulator(target).examine(g, g.random_inputs(seed=1), code)
        assert outcome.ok, outcome.text


@pytest.mark.thorough
def test_a_product_of_few_rows_beside_what_cannot_be_split() -> None:
    g = Graph("both", io_data_type=HALF, compute_data_type=FLOAT, intermediate_data_type=FLOAT)
    g.matmul(g.tensor("a", dim=(4, 128)), g.tensor("b", dim=(128, 24))).set_output(True)
    x = g.tensor("x", dim=(31, 56, 14), data_type=FLOAT)
    g.reduction(g.pointwise(PointwiseMode.NEG, x), mode=ReductionMode.ADD).set_dim((1, 1, 14)).set_output(True)
    assert compile_code(g, Target.parse("gfx950")).form == "no product tiles, whole sums"


@pytest.mark.thorough
def test_more_local_memory_than_there_is() -> None:
    graph = convolution("dgrad", HALF, (8, 2, 32, 32), (64, 2, 3, 3), pad=(1, 1), stride=(2, 2))
    assert compile_code(graph, Target.parse("gfx942")).form == "no tiles"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950"])
def test_whatever_is_served_compiles(target: str) -> None:
    found = [examine(Job(seed, target, compile_only=True)) for seed in range(7000, 7060)]
    assert not [each for each in found if each["outcome"] == "failed"]
