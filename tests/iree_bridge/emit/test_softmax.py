"""Softmax along rows on a CPU: one kernel in vectors of the target, right wherever rows end and whatever they hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode, ReductionMode
from iree_bridge.api import compile_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.cpu import host_arch
from iree_bridge.targets.target import Target

pytestmark = pytest.mark.mlir

Array = np.ndarray[Any, Any]
_KERNEL = "flow.dispatch.workgroups"
_LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4")
_ONLY_X86 = pytest.mark.skipif(host_arch() != "x86_64", reason="these are x86's vectors")


def _graph(dims: tuple[int, ...], *, shows_weights: bool = False, dtype: DataType = DataType.FLOAT) -> Graph:
    g = Graph("softmax", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    rows = (*dims[:-1], 1)
    x = g.tensor("x", dim=dims)
    top = g.reduction(x, mode=ReductionMode.MAX).set_dim(rows)
    weights = g.pointwise(PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, x, top)).set_output(shows_weights)
    total = g.reduction(weights, mode=ReductionMode.ADD).set_dim(rows)
    g.pointwise(PointwiseMode.DIV, weights, total).set_output(True)
    return g.validate()


def _expected(x: Array) -> Array:
    """By float64; rows with NaN, plus infinity or nothing finite have no softmax."""
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        weights = np.exp(wide - wide.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)


def _values(seed: int, dims: tuple[int, ...]) -> Array:
    """Numbers near each other or far apart; some rows end, or are all of, what makes special cases."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(dims) * rng.choice([1e-3, 1.0, 30.0, 1e4])).astype(np.float32).reshape(-1, dims[-1])
    for row in range(1, len(x), 2):
        value = rng.choice([-np.inf, np.inf, np.nan, 3e38, -3e38, 1e-40])
        at = rng.integers(dims[-1])
        kind = rng.integers(4)
        x[row, slice(None) if kind == 0 else slice(at, None) if kind == 1 else at] = value
    return x.reshape(dims)


def _check(seed: int, level: str) -> None:
    r = random.Random(seed)
    width = r.choice((r.randint(16, 70), r.randint(70, 500), r.choice((1000, 4099, 8192, 9001))))
    dims = (r.randint(1, 3), r.randint(1, 4), width) if r.random() < 0.5 else (r.randint(1, 40), width)
    graph, target = _graph(dims), Target.parse(level)
    assert _KERNEL in emit_module(graph, target).ir
    artifact = compile_graph(graph, [target])
    missing = next(iter(artifact.codes.values())).missing()
    if missing:
        pytest.skip(f"this machine lacks {', '.join(missing)}")
    x = _values(seed, dims)
    # 2 ulp of an exponential, the sum's and the quotient's; and of an argument of up to 88 half an ulp of that.
    np.testing.assert_allclose(artifact.on("cpu")(x), _expected(x), rtol=1e-5, atol=1e-37)


@pytest.mark.a_few("0-cpu:x86-64-v3")
@_ONLY_X86
@pytest.mark.iree_cpu
@pytest.mark.parametrize("level", _LEVELS[:2])
@pytest.mark.parametrize("seed", range(1))
def test_rows_are_what_float64_says(seed: int, level: str) -> None:
    _check(seed, level)


@_ONLY_X86
@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.parametrize("level", _LEVELS)
@pytest.mark.parametrize("seed", range(1, 60))
def test_many_rows_are_what_float64_says(seed: int, level: str) -> None:
    _check(seed, level)


@pytest.mark.iree_cpu
def test_exponentials_are_within_three_units_of_the_last_place() -> None:
    """Of two numbers 0 and -d, the rest of the row being minus infinity, the quotient of the results is exp(-d)."""
    distances = np.concatenate([np.linspace(0, 87, 20001), np.linspace(0, 1e-3, 1001)]).astype(np.float32)
    x = np.full((len(distances), 16), -np.inf, np.float32)
    x[:, 3], x[:, 11] = 0.0, -distances
    y = compile_graph(_graph(x.shape), [Target.parse("cpu")]).on("cpu")(x).astype(np.float64)
    np.testing.assert_array_equal(y[:, [0, 1, 15]], 0.0)
    np.testing.assert_allclose(y[:, 11] / y[:, 3], np.exp(-distances.astype(np.float64)), rtol=3 * 2**-23)


@_ONLY_X86
@pytest.mark.parametrize(("level", "lanes"), [*zip(_LEVELS, (4, 8, 16), strict=True)])
def test_vectors_are_those_of_the_target_and_products_fused_where_it_can(level: str, lanes: int) -> None:
    text = emit_module(_graph((8, 100)), Target.parse(level)).ir
    assert f"vector<{lanes}xf32>" in text
    assert ("math.fma" in text) is (level != _LEVELS[0])  # else a function call for each element


@pytest.mark.parametrize(
    "graph",
    [
        _graph((8, 100), shows_weights=True),
        _graph((8, 15)),
        _graph((8, 100), dtype=DataType.HALF),
    ],
    ids=["exponentials are a result", "short rows", "16 bits"],
)
def test_others_stay_with_the_compiler(graph: Graph) -> None:
    assert _KERNEL not in emit_module(graph, Target.parse("cpu")).ir


def test_gpus_have_none() -> None:
    assert _KERNEL not in emit_module(_graph((8, 100)), Target.parse("gfx942")).ir
