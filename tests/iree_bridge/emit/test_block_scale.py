"""What compiled block scaling and conversions give, bit by bit, and into how many kernels they go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fusilli_plugin.emulator import Emulator
from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import Target, build
from iree_bridge.compile.inspect import inspect_graph
from tests.cases.block_scale import FORMATS, product_graph, quantize_graph
from tests.cases.small_types import SMALL, SMALL_FLOATS, every_code, hard_values, matmul_graph
from tests.graph_api.ops.test_block_scale import loop

pytestmark = pytest.mark.mlir

D = DataType
GFX = Target.parse("gfx942")


def conversion(source: DataType, target: DataType, dims: tuple[int, ...]) -> Graph:
    g = Graph("conversion")
    x = g.tensor("x", dim=dims, data_type=source)
    g.pointwise(PointwiseMode.IDENTITY, x).set_output(True).set_name("y").set_data_type(target)
    return g.validate()


def run(graph: Graph, target: str, **inputs: Any) -> dict[str, Any]:
    """Results as values."""
    if target == "cpu":
        found = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
        build(graph, "cpu").run({**inputs, **{tensor.name: array for tensor, array in found.items()}})
    else:
        emulator = Emulator(Target.parse(target))
        found, _ = emulator.run(graph, {graph.find(name): array for name, array in inputs.items()})
    return {t.name: t.unpack(array) if t.data_type.is_packed else array for t, array in found.items()}


def saturated(values: Any, dtype: DataType) -> Any:
    """What ml_dtypes makes of values that it need not overflow on; NaN is 0 where there is none."""
    largest = float(dtype.finfo.max)
    with np.errstate(invalid="ignore"):
        kept = np.where(np.isnan(values) & (dtype.bits < 8), 0, np.clip(values, -largest, largest))
        return kept.astype(dtype.numpy)


def bits(values: Any) -> Any:
    return np.where(np.isnan(values.astype(np.float32)), 0x100, values.view(np.uint8).astype(np.uint16))


@pytest.mark.a_few("FP8_E4M3-cpu", "FP8_E5M2-gfx942", "FP8_E4M3_FNUZ-gfx942", "FP8_E8M0-gfx942")
@pytest.mark.parametrize("target", ["cpu", "gfx942"])
@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=lambda dtype: dtype.name)
def test_every_rounding_is_that_of_ml_dtypes(dtype: DataType, target: str) -> None:
    x = hard_values(dtype, (24, 48)).astype(np.float32)
    got = run(conversion(D.FLOAT, dtype, x.shape), target, x=x)["y"]
    np.testing.assert_array_equal(bits(got), bits(saturated(x, dtype)))


@pytest.mark.a_few(
    "FP8_E4M3-gfx942", "FP8_E5M2-gfx942", "FP8_E4M3_FNUZ-cpu", "FP8_E5M2_FNUZ-gfx942", "FP6_E3M2-cpu", "INT4-cpu"
)
@pytest.mark.parametrize("target", ["cpu", "gfx942"])
@pytest.mark.parametrize("dtype", SMALL, ids=lambda dtype: dtype.name)
def test_every_code_is_read_as_by_ml_dtypes(dtype: DataType, target: str) -> None:
    x = every_code(dtype, (4, 64))
    got = run(conversion(dtype, D.FLOAT, x.shape), target, x=x)["y"]
    np.testing.assert_array_equal(got, x.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(x.astype(np.float32)[got == 0]))


@pytest.mark.a_few("mxfp8_e4m3-cpu", "nvfp4-gfx942", "fp8_f16-cpu")
@pytest.mark.parametrize("target", ["cpu", "gfx942"])
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp6_e2m3", "nvfp4", "fp8_f16", "fp8_bf16", "fp8_f32"])
def test_quantised_bits_are_those_of_the_loop(name: str, target: str) -> None:
    y_type, scale_type, block = FORMATS[name]
    x = (np.random.default_rng(2).standard_normal((8, 96)) * 2.0 ** np.arange(-16, 16, 4)[:, None]).astype(np.float32)
    x[:, 0] = [0, 448, 449, 6, 7.5, 240, 57344, 28]
    x[0, :block] = 0
    y, scales = loop(x, y_type, scale_type, block)
    got = run(quantize_graph(y_type, scale_type, block, x.shape).validate(), target, x=x)
    np.testing.assert_array_equal(got["scale"].view(np.uint8), scales.view(np.uint8))
    np.testing.assert_array_equal(got["y"].view(np.uint8), y.view(np.uint8))


@pytest.mark.a_few(
    "gfx942-DataType.FP8_E4M3_FNUZ-v_mfma_f32_16x16x32_fp8_fp8-True",
    "gfx942-DataType.FP8_E5M2_FNUZ-v_mfma_f32_16x16x32_bf8_bf8-True",
    "gfx950-DataType.FP8_E4M3-v_mfma_f32_16x16x128_f8f6f4-False",
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("chip", "dtype", "mnemonic"),
    [
        ("gfx942", D.FP8_E4M3_FNUZ, "v_mfma_f32_16x16x32_fp8_fp8"),
        ("gfx942", D.FP8_E5M2_FNUZ, "v_mfma_f32_16x16x32_bf8_bf8"),
        ("gfx950", D.FP8_E4M3, "v_mfma_f32_16x16x128_f8f6f4"),
        ("gfx942", D.FP8_E4M3, "v_mfma_f32_16x16x16_f16"),
        ("gfx950", D.FP8_E4M3_FNUZ, "v_mfma_f32_16x16x32_f16"),
        ("gfx90a", D.FP8_E4M3, "v_mfma_f32_16x16x16f16"),
    ],
)
def test_products_use_the_matrix_instructions_of_the_chip(chip: str, dtype: D, mnemonic: str, transposed: bool) -> None:
    graph = matmul_graph(dtype, dtype, D.HALF, (128, 64, 256), scaled=True, transposed=transposed).validate()
    found = inspect_graph(graph, Target.parse(chip))
    assert (found.dispatches, found.spills, list(found.matrix)) == (1, 0, [mnemonic])


@pytest.mark.a_few("<lambda>-1_0")
@pytest.mark.parametrize(
    ("graph", "dispatches"),
    [
        (lambda: quantize_graph(D.FP8_E4M3, D.FP8_E8M0, 32, (64, 256)), 1),
        (lambda: product_graph("mxfp8_e4m3", (128, 128, 256), D.HALF, values=D.HALF), 1),
    ],
)
def test_dispatches(graph: Any, dispatches: int) -> None:
    found = inspect_graph(graph().validate(), GFX)
    assert (found.dispatches, found.spills) == (dispatches, 0)
