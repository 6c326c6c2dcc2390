"""Gradients and experts of floats of 8 bits and less: what `support` promises of them is right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graph_api import DataType, Graph, ResampleMode, TensorAttr, numerics
from iree_bridge import Target, build, support

pytestmark = pytest.mark.iree_cpu


def batchnorm(g: Graph) -> tuple[TensorAttr | None, ...]:
    x, scale = (2, 4, 3, 6), g.tensor("scale", dim=(1, 4, 1, 1))
    return g.batchnorm_backward(g.tensor("dy", dim=x), g.tensor("x", dim=x), scale)


def layernorm(g: Graph) -> tuple[TensorAttr | None, ...]:
    scale = g.tensor("scale", dim=(1, 8))
    return g.layernorm_backward(g.tensor("dy", dim=(4, 8)), g.tensor("x", dim=(4, 8)), scale, epsilon=1e-5)


def rmsnorm(g: Graph) -> tuple[TensorAttr | None, ...]:
    scale, inverse = g.tensor("scale", dim=(1, 8)), g.tensor("inv_rms", dim=(4, 1), data_type=DataType.FLOAT)
    dy, x = g.tensor("dy", dim=(4, 8)), g.tensor("x", dim=(4, 8))
    return g.rmsnorm_backward(dy, x, scale, inverse, compute_dbias=True)


def average(g: Graph) -> tuple[TensorAttr | None, ...]:
    return (g.resample_bwd(g.tensor("dy", dim=(1, 4, 3, 4)), mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, window=2),)


def maximum(g: Graph) -> tuple[TensorAttr | None, ...]:
    x = g.tensor("x", dim=(1, 4, 6, 8))
    return (g.resample_bwd(g.tensor("dy", dim=(1, 4, 3, 4)), x=x, mode=ResampleMode.MAXPOOL, window=2),)


def experts(g: Graph) -> tuple[TensorAttr | None, ...]:
    token, weight = g.tensor("token", dim=(1, 6, 8)), g.tensor("weight", dim=(2, 8, 4))
    return (g.moe_grouped_matmul(token, weight, _offsets(g)),)


def experts_gradient(g: Graph) -> tuple[TensorAttr | None, ...]:
    return (g.moe_grouped_matmul_bwd(g.tensor("dy", dim=(1, 6, 4)), g.tensor("token", dim=(1, 6, 8)), _offsets(g)),)


def _offsets(g: Graph) -> TensorAttr:
    return g.tensor("offsets", dim=(2, 1, 1), data_type=DataType.INT32)


def _graph(make: Callable[[Graph], tuple[TensorAttr | None, ...]], dtype: DataType) -> Graph:
    g = Graph("small", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    for result in make(g):
        assert result is not None
        result.set_output()
    return g.validate()


@pytest.mark.a_few("average-FP4_E2M1", "layernorm-FP8_E4M3")
@pytest.mark.parametrize("dtype", [DataType.FP8_E4M3, DataType.FP4_E2M1], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    "make", [batchnorm, layernorm, rmsnorm, average, maximum, experts, experts_gradient], ids=lambda make: make.__name__
)
def test_they_are_right(make: Callable[[Graph], tuple[TensorAttr | None, ...]], dtype: DataType) -> None:
    g = _graph(make, dtype)
    assert support(g, Target.parse("cpu"))
    inputs = g.random_inputs(seed=3)
    for tensor in inputs:
        if tensor.name == "offsets":
            inputs[tensor] = np.array([0, 3], np.int32).reshape(2, 1, 1)
    results = {tensor: tensor.memory() for tensor in g.arguments().outputs}
    build(g, "cpu").run({**inputs, **results})
    for comparison in numerics.check(g, inputs, results):
        assert comparison.ok, str(comparison)


@pytest.mark.parametrize("dtype", [DataType.FP8_E5M2, DataType.FP8_E4M3_FNUZ, DataType.FP6_E2M3])
@pytest.mark.parametrize("target", ["cpu", "gfx942", "gfx950"])
def test_gradients_of_attention_are_declined(dtype: DataType, target: str) -> None:
    """They were promised, and failed to compile."""
    g = Graph("small", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    q, k, v, o, do = (g.tensor(name, dim=(1, 2, 4, 8)) for name in ("q", "k", "v", "o", "do"))
    stats = g.tensor("stats", dim=(1, 2, 4, 1), data_type=DataType.FLOAT)
    for result in g.sdpa_backward(q, k, v, o, do, stats):
        result.set_output()
    answer = support(g.validate(), Target.parse(target))
    assert (answer.ok, answer.rule, answer.node) == (False, "dtype", "sdpa_backward_0")
    assert f"is {dtype.name}; gradients of attention are served of larger floats" in answer.reason
