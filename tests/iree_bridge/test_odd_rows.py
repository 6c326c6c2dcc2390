"""Rows that vectors do not divide, in code for each kind of x86 vectors: how they end is a matter of the target."""

from __future__ import annotations

import random

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode, ReductionMode, ResampleMode, numerics
from iree_bridge.api import compile_graph
from iree_bridge.targets.cpu import host_arch
from iree_bridge.targets.target import Target

pytestmark = pytest.mark.mlir

if host_arch() != "x86_64":
    pytest.skip("these are x86's vectors", allow_module_level=True)

_LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")
_MODES = (PointwiseMode.RELU_FWD, PointwiseMode.NEG, PointwiseMode.ABS, PointwiseMode.TANH_FWD)


def _graph(seed: int) -> Graph:
    """A chain on a tensor of odd extents, of which a result is reduced or pooled."""
    r = random.Random(seed)
    dims = [r.randint(1, 3), r.randint(1, 9), *(r.choice((1, 3, 5, 7, 9, 11, 13, 17, 31)) for _ in range(2))]
    dtype = r.choice((DataType.FLOAT, DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.INT8))
    g = Graph(f"odd_{seed}", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    g_type = DataType.FLOAT if dtype is not DataType.INT8 else DataType.INT8
    x = g.tensor("x", dim=dims, layout=r.choice((None, "NHWC")))
    value = g.pointwise(r.choice(_MODES), x).set_data_type(DataType.FLOAT)
    b = g.tensor("b", dim=[1, dims[1], 1, 1], data_type=DataType.FLOAT)
    value = g.pointwise(PointwiseMode.MUL, value, b).set_data_type(DataType.FLOAT)
    value.set_output(True)
    kind = r.choice(("none", "sum", "pool", "sliced"))
    if kind == "sum":
        kept = r.choice(((0, 1), (1,), (0, 2, 3), (0, 1, 2)))
        g.reduction(value, mode=ReductionMode.ADD if g_type is DataType.FLOAT else ReductionMode.MAX).set_dim(
            [extent if axis in kept else 1 for axis, extent in enumerate(dims)]
        ).set_output(True).set_data_type(DataType.FLOAT)
    if kind == "pool":
        g.resample_fwd(
            value,
            mode=ResampleMode.MAXPOOL,
            window=[3, 3],
            pre_padding=[1, 1],
            post_padding=[1, 1],
            stride=[r.choice((1, 2))] * 2,
        )[0].set_output(True).set_data_type(DataType.FLOAT)
    return g.validate()


def test_only_vectors_with_masks_are_masked() -> None:
    for name, peeled in zip(_LEVELS, (True, True, False), strict=True):
        assert any("pproc-strategy=peel" in flag for flag in Target.parse(name).global_flags()) is peeled


def _check(seed: int, name: str) -> None:
    graph, target = _graph(seed), Target.parse(name)
    artifact = compile_graph(graph, [target])
    missing = next(iter(artifact.codes.values())).missing()
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    inputs = graph.random_inputs(seed)
    results = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
    artifact.on("cpu").run({**inputs, **results})
    for comparison in numerics.check(graph, inputs, results):
        assert comparison.ok, str(comparison)


@pytest.mark.a_few("0-cpu:x86-64-v3", "3-cpu:x86-64-v2")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("name", _LEVELS[:2])
@pytest.mark.parametrize("seed", range(4))
def test_rows_end_right(seed: int, name: str) -> None:
    _check(seed, name)


@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.parametrize("name", _LEVELS)
@pytest.mark.parametrize("seed", range(4, 90))
def test_rows_end_right_in_many_graphs(seed: int, name: str) -> None:
    _check(seed, name)


@pytest.mark.iree_cpu
def test_a_row_of_49_is_what_numpy_says() -> None:
    g = Graph("rows", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=[3, 5, 7, 7])
    g.pointwise(PointwiseMode.RELU_FWD, x).set_output(True)
    array = np.random.default_rng(1).standard_normal((3, 5, 7, 7)).astype(np.float32)
    result = compile_graph(g.validate(), [Target.parse("cpu:x86-64-v3")]).on("cpu")(array)
    np.testing.assert_array_equal(result, np.maximum(array, 0))
