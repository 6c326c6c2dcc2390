"""Sums of many terms on the CPU: what they lose does not grow with their number, and they cost no further kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode, ReductionMode, ResampleMode, TensorAttr, numerics
from graph_api.ops.norm import NormFwdPhase
from iree_bridge import build, compile_graph
from iree_bridge.devices.device import Device

pytestmark = pytest.mark.iree_cpu

F = DataType.FLOAT
EPS = float(np.finfo(np.float32).eps)
Build = Callable[[Graph, TensorAttr], TensorAttr]


def reduced(mode: ReductionMode, *dims: int) -> Build:
    return lambda g, x: g.reduction(x, mode=mode).set_dim(dims)


def softmax(g: Graph, x: TensorAttr) -> TensorAttr:
    rows = (*x.dims[:-1], 1)
    top = g.reduction(x, mode=ReductionMode.MAX).set_dim(rows)
    weights = g.pointwise(PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, x, top))
    return g.pointwise(PointwiseMode.DIV, weights, g.reduction(weights, mode=ReductionMode.ADD).set_dim(rows))


def log_sum_exp(g: Graph, x: TensorAttr) -> TensorAttr:
    rows = (*x.dims[:-1], 1)
    total = g.reduction(g.pointwise(PointwiseMode.EXP, x), mode=ReductionMode.ADD).set_dim(rows)
    return g.pointwise(PointwiseMode.LOG, total)


def layernorm(g: Graph, x: TensorAttr) -> TensorAttr:
    one, zero = (g.tensor(name, dim=(1, x.dims[1])) for name in ("scale", "bias"))
    return g.layernorm(x, one, zero, epsilon=1e-5)[0]


def inverse_deviation(g: Graph, x: TensorAttr) -> TensorAttr:
    one, zero = (g.tensor(name, dim=(1, x.dims[1])) for name in ("scale", "bias"))
    y, _, inverse = g.layernorm(x, one, zero, epsilon=1e-5, forward_phase=NormFwdPhase.TRAINING)
    y.set_output()
    assert inverse is not None
    return inverse


def rmsnorm(g: Graph, x: TensorAttr) -> TensorAttr:
    return g.rmsnorm(x, g.tensor("scale", dim=(1, x.dims[1])), epsilon=1e-5)[0]


def batchnorm(g: Graph, x: TensorAttr) -> TensorAttr:
    one, zero = (g.tensor(name, dim=(1, x.dims[1], 1, 1)) for name in ("scale", "bias"))
    y, mean, _, _, _ = g.batchnorm(x, one, zero, epsilon=1e-5)
    y.set_output()
    return mean


def pooled(g: Graph, x: TensorAttr) -> TensorAttr:
    return g.resample_fwd(x, mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, window=x.dims[2:])[0]


CASES: dict[str, tuple[tuple[int, ...], Build, int]] = {
    "rows": ((4, 18385), reduced(ReductionMode.ADD, 4, 1), 1),
    "rows_of_whole_vectors": ((4, 65536), reduced(ReductionMode.ADD, 4, 1), 1),
    "rows_short_and_odd": ((4, 1021), reduced(ReductionMode.ADD, 4, 1), 1),
    "rows_of_eights": ((4, 5000), reduced(ReductionMode.ADD, 4, 1), 1),
    "rows_just_long": ((4, 4097), reduced(ReductionMode.ADD, 4, 1), 1),
    "columns": ((18385, 8), reduced(ReductionMode.ADD, 1, 8), 1),
    "middle": ((2, 4096, 16), reduced(ReductionMode.ADD, 2, 1, 16), 1),
    "channels": ((8, 4, 50, 50), reduced(ReductionMode.ADD, 1, 4, 1, 1), 1),
    "everything": ((64, 64, 128), reduced(ReductionMode.ADD, 1, 1, 1), 2),
    "mean": ((4, 18385), reduced(ReductionMode.AVG, 4, 1), 1),
    "norm1": ((4, 18385), reduced(ReductionMode.NORM1, 4, 1), 1),
    "norm2": ((4, 18385), reduced(ReductionMode.NORM2, 4, 1), 1),
    "softmax": ((4, 18385), softmax, 1),
    "log_sum_exp": ((4, 18385), log_sum_exp, 1),
    "layernorm": ((4, 18385), layernorm, 1),
    "inverse_deviation": ((4, 18385), inverse_deviation, 2),
    "rmsnorm": ((4, 18385), rmsnorm, 1),
    "batchnorm": ((8, 4, 50, 50), batchnorm, 2),
    "average_pool": ((1, 4, 150, 150), pooled, 1),
}
"""Dims of x, what is made of it, kernels at most."""


@pytest.mark.a_few("rows_short_and_odd", "rows", "channels")
@pytest.mark.parametrize("name", CASES)
def test_errors_of_long_sums_are_those_of_a_few_roundings(name: str) -> None:
    dims, make, kernels = CASES[name]
    g = Graph(name, io_data_type=F)
    x = g.tensor("x", dim=dims)
    y = make(g, x).set_output()
    g.validate()
    rng = np.random.default_rng(0)
    pack = {tensor: np.ones(tensor.dims, np.float32) for tensor in g.arguments().inputs}
    pack[x] = rng.random(dims, dtype=np.float32) + np.float32(0.5)  # of one sign: serial sums drift
    results = {tensor: tensor.empty() for tensor in g.arguments().outputs}
    build(g, "cpu").run({**pack, **results})
    wanted = g.reference(pack)[y]
    error = float(np.max(np.abs(results[y] - wanted)) / np.max(np.abs(wanted)))
    assert error <= 4 * EPS, f"{error / EPS:.1f} eps"
    assert all(comparison.ok for comparison in numerics.check(g, pack, results))
    code = next(iter(compile_graph(g, [Device.parse("cpu").target]).codes.values()))
    assert code.dispatches is not None
    assert code.dispatches <= kernels


@pytest.mark.a_few("16-65536-16-False")
@pytest.mark.parametrize(
    ("m", "k", "n", "transposed"),
    [(64, 16384, 64, False), (64, 16384, 64, True), (16, 65536, 16, False), (2, 4096, 40, False)],
)
def test_deep_products_are_summed_in_parts(m: int, k: int, n: int, transposed: bool) -> None:
    g = Graph("deep", io_data_type=F)
    a, b = g.tensor("a", dim=(m, k)), g.tensor("b", dim=(k, n), stride=(1, k) if transposed else None)
    c = g.matmul(a, b).set_output()
    g.validate()
    rng = np.random.default_rng(1)
    pack = {tensor: tensor.empty() for tensor in (a, b)}
    for array in pack.values():
        array[...] = rng.random(array.shape, dtype=np.float32)
    out = c.empty()
    build(g, "cpu").run({**pack, c: out})
    wanted = g.reference(pack)[c]
    assert float(np.max(np.abs(out - wanted)) / np.max(wanted)) <= 12 * EPS


def test_attention_over_many_keys() -> None:
    g = Graph("keys", io_data_type=F)
    q, k, v = (g.tensor(name, dim=(1, 2, rows, 32)) for name, rows in (("q", 16), ("k", 16384), ("v", 16384)))
    o = g.sdpa(q, k, v).o.set_output()
    g.validate()
    rng = np.random.default_rng(2)
    pack = {tensor: 0.3 * rng.standard_normal(tensor.dims, np.float32) for tensor in (q, k)}
    pack[v] = rng.random(v.dims, dtype=np.float32)
    out = o.empty()
    build(g, "cpu").run({**pack, o: out})
    wanted = g.reference(pack)[o]
    assert float(np.max(np.abs(out - wanted)) / np.max(wanted)) <= 12 * EPS


@pytest.mark.parametrize("terms", [4096, 18385, 2**18, 2**24])
def test_the_bound_grows_with_the_logarithm(terms: int) -> None:
    g = Graph("sum", io_data_type=F)
    g.reduction(g.tensor("x", dim=(1, terms)), mode=ReductionMode.ADD).set_dim((1, 1)).set_output()
    (node,) = g.validate().nodes
    assert node.sum_gamma(terms) <= EPS * (130.0 + np.log2(terms))
    assert node.sum_gamma(terms) >= node.sum_gamma(terms - 1)
