"""Sigmoids on a CPU, by an exponential of ours: what float64 says, on each level of x86, wherever rows end."""

from __future__ import annotations

import random

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode, numerics
from iree_bridge.api import compile_graph
from iree_bridge.artifact import Artifact
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.cpu import host_arch
from iree_bridge.targets.target import Target

pytestmark = pytest.mark.mlir

_LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")
_MODES = (PointwiseMode.SIGMOID_FWD, PointwiseMode.SWISH_FWD, PointwiseMode.SIGMOID_BWD)
_ONLY_X86 = pytest.mark.skipif(host_arch() != "x86_64", reason="these are x86's vectors")


def _graph(dims: tuple[int, ...], mode: PointwiseMode, dtype: DataType = DataType.FLOAT) -> Graph:
    g = Graph("sigmoid", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    operands = [g.tensor(name, dim=dims) for name in (("dy", "x") if mode.value.endswith("BWD") else ("x",))]
    g.pointwise(mode, *operands).set_output(True)
    return g.validate()


def _compiled(graph: Graph, level: str) -> Artifact:
    artifact = compile_graph(graph, [Target.parse(level)])
    missing = next(iter(artifact.codes.values())).missing()
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    return artifact


@_ONLY_X86
@pytest.mark.iree_cpu
@pytest.mark.parametrize("level", _LEVELS[:2])
def test_sigmoids_are_within_three_units_of_the_last_place(level: str) -> None:
    """Below 1e-37 they may be 0, as what processors without denormal numbers make of them."""
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38, 88.3, -88.3, 88.5, -88.5, 89.5, -89.5]
    x = np.concatenate([np.linspace(-110, 110, 20001), np.linspace(-1, 1, 2002), special]).astype(np.float32)
    y = _compiled(_graph(x.shape, PointwiseMode.SIGMOID_FWD), level).on("cpu")(x)
    with np.errstate(over="ignore"):
        expected = 1.0 / (1.0 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(y, expected, rtol=3 * 2.0**-23, atol=1e-37)


@_ONLY_X86
@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.parametrize("level", _LEVELS)
@pytest.mark.parametrize("seed", range(40))
def test_odd_extents_are_what_the_reference_says(seed: int, level: str) -> None:
    r = random.Random(seed)
    dims = tuple(r.choice((1, 2, 3, 5, 7, 9, 17, 31, 33, 64)) for _ in range(r.randint(1, 4)))
    dtype = r.choice((DataType.FLOAT, DataType.FLOAT, DataType.HALF, DataType.BFLOAT16))
    graph = _graph(dims, r.choice(_MODES), dtype)
    inputs = graph.random_inputs(seed)
    results = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
    _compiled(graph, level).on("cpu").run({**inputs, **results})
    for comparison in numerics.check(graph, inputs, results):
        assert comparison.ok, str(comparison)


@_ONLY_X86
def test_products_are_fused_where_the_processor_can_and_gpus_have_their_own() -> None:
    graph = _graph((4, 9), PointwiseMode.SIGMOID_FWD)
    texts = [emit_module(graph, Target.parse(name)).ir for name in (*_LEVELS[:2], "gfx942")]
    assert ["math.fma" in text for text in texts] == [False, True, False]
    assert ["torch.aten.sigmoid" in text for text in texts] == [False, False, True]
