"""Matrix products: hand-computed values, PyTorch, repeated batch dims, inference, messages, the error bound."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_api import DataType, Graph, GraphError, numerics
from graph_api.ops.matmul import batch_factors
from tests.cases.matmul import CASES
from tests.cases.matmul import graph as matmul_graph

D = DataType
Dims = tuple[int, ...]


def run(graph: Graph, a: Any, b: Any) -> np.ndarray[Any, Any]:
    (out,) = graph.validate().arguments().outputs
    return graph.reference({"a": a, "b": b})[out]


def test_by_hand() -> None:
    assert run(matmul_graph((2, 2), (2, 1)), [[1, 2], [3, 4]], [[10], [1]]).tolist() == [[12], [34]]


def test_strides_do_not_change_the_logical_product() -> None:
    g = matmul_graph((2, 2), (2, 2), strides=((1, 2), None, (1, 2)))
    assert run(g, [[1, 2], [3, 4]], [[0, 1], [1, 0]]).tolist() == [[2, 1], [4, 3]]


def test_the_smaller_batch_repeats_each_matrix_in_a_row() -> None:
    scales = np.array([1.0, 10.0]).reshape(2, 1, 1)
    out = run(matmul_graph((6, 1, 1), (2, 1, 1)), np.ones((6, 1, 1)), scales)
    assert out.ravel().tolist() == [1, 1, 1, 10, 10, 10]
    out = run(matmul_graph((2, 1, 1), (4, 1, 1)), scales, np.ones((4, 1, 1)))
    assert out.ravel().tolist() == [1, 1, 10, 10]


def _by_index(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Each matrix of the result on its own: index i reads i // (size of the result / own size)."""
    batch = tuple(map(max, a.shape[:-2], b.shape[:-2]))
    out = np.zeros((*batch, a.shape[-2], b.shape[-1]))
    for index in product(*map(range, batch)):
        own = [tuple(i // (n // d) for i, n, d in zip(index, batch, x.shape[:-2], strict=True)) for x in (a, b)]
        out[index] = a[own[0]] @ b[own[1]]
    return out


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((6, 2, 3), (2, 3, 4)),
        ((2, 4, 2, 3), (4, 2, 3, 2)),
        ((1, 6, 2, 3), (4, 1, 3, 2)),
        ((2, 3, 4, 1, 2), (2, 1, 8, 2, 1)),
    ],
)
def test_every_batch_index(a: Dims, b: Dims) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal(a), rng.standard_normal(b)
    got = run(matmul_graph(a, b, D.DOUBLE), left, right)
    np.testing.assert_allclose(got, _by_index(left, right), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("a", "b"), [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (1, 5, 4, 2))])
def test_agrees_with_pytorch(a: Dims, b: Dims) -> None:
    torch = pytest.importorskip("torch", reason="the other expectations do not need it; pip install '.[torch]'")
    rng = np.random.default_rng(1)
    left, right = rng.standard_normal(a), rng.standard_normal(b)
    expected = torch.matmul(torch.tensor(left), torch.tensor(right)).numpy()
    np.testing.assert_allclose(run(matmul_graph(a, b, D.DOUBLE), left, right), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in CASES if case.dims], ids=lambda case: case.name)
def test_dims_are_inferred(case: Any) -> None:
    g = case.graph()
    assert g.find("c").dims == case.dims["c"]
    assert Graph.from_json(g.to_json()).to_json() == g.to_json()


def test_the_result_is_row_major_and_has_the_compute_type() -> None:
    g = Graph(io_data_type=D.HALF)
    c = g.matmul(g.tensor(dim=(2, 4, 3), stride=(12, 1, 4)), g.tensor(dim=(1, 3, 5)))
    d = g.matmul(c, g.tensor(dim=(2, 5, 1))).set_output(True)
    g.validate()
    assert (c.dims, c.strides, c.data_type) == ((2, 4, 5), (20, 5, 1), D.FLOAT)
    assert (d.data_type, g.flops()) == (D.HALF, 2 * 2 * 4 * 5 * 3 + 2 * 2 * 4 * 1 * 5)


@pytest.mark.parametrize(
    ("types", "compute"),
    [
        ((D.INT8, D.INT8), D.INT32),
        ((D.INT8, D.INT64), D.INT64),
        ((D.HALF, D.INT8), D.FLOAT),
        ((D.HALF, D.DOUBLE), D.DOUBLE),
    ],
)
def test_default_compute_type(types: tuple[DataType, DataType], compute: DataType) -> None:
    (node,) = matmul_graph((2, 3), (3, 2), *types).validate().nodes
    assert node.compute is compute


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (1, 3, 2), r"must have the same rank, at least 2; give the smaller one leading dims of 1"),
        ((3,), (3,), r"must have the same rank, at least 2"),
        ((8, 64), (32, 16), r"a \(8, 64\) has K=64, b \(32, 16\) has K=32; is one of them transposed\?"),
        ((4, 2, 3), (3, 3, 2), r"batch dim 0 .*neither of 4 and 3 divides the other"),
    ],
)
def test_shapes_that_do_not_fit_are_named(a: Dims, b: Dims, message: str) -> None:
    with pytest.raises(GraphError, match=rf"matmul 'matmul_0'.*{message}"):
        matmul_graph(a, b).validate()


def test_other_wrong_uses_are_named() -> None:
    with pytest.raises(GraphError, match="a is HALF and compute_data_type INT32; use FLOAT or DOUBLE"):
        matmul_graph((2, 3), (3, 2), D.HALF, compute=D.INT32).validate()
    g = matmul_graph((2, 3), (3, 2))
    g.tensors[-1].set_dim((3, 2))
    with pytest.raises(GraphError, match=r"output 'c' must have dims \(2, 2\), it was given \(3, 2\)"):
        g.validate()


def test_dims_follow_the_inputs() -> None:
    g = matmul_graph((2, 6, 7, 9), (2, 3, 9, 5)).validate().with_dims({"a": (4, 6, 1, 9), "b": (4, 2, 9, 5)})
    assert g.find("c").dims == (4, 6, 1, 5)


_DIMS = st.integers(1, 6)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(_DIMS, _DIMS, st.sampled_from("ab=")), max_size=3), _DIMS, _DIMS, _DIMS)
def test_batch_dims_factor_into_shared_and_own(batch: list[tuple[int, int, str]], m: int, k: int, n: int) -> None:
    a = tuple(size * (factor if who == "a" else 1) for size, factor, who in batch)
    b = tuple(size * (factor if who == "b" else 1) for size, factor, who in batch)
    factors = batch_factors(a, b)
    assert [(s * x, s * y) for s, x, y in factors] == list(zip(a, b, strict=True))
    assert all(min(x, y) == 1 for _, x, y in factors)
    c = matmul_graph((*a, m, k), (*b, k, n)).validate().find("c")
    assert c.dims == (*map(max, a, b), m, n)


def test_a_misplaced_element_is_caught() -> None:
    g = matmul_graph((5, 16), (16, 5), D.HALF).validate()
    pack = g.random_inputs()
    (right,) = g.reference(pack).values()
    assert numerics.check(g, pack, {"c": right.astype(np.float16)})[0].ok
    wrong = right.copy()
    wrong[1, 2], wrong[2, 1] = right[2, 1], right[1, 2]
    assert not numerics.check(g, pack, {"c": wrong.astype(np.float16)})[0].ok


def test_the_bound_knows_the_compute_type() -> None:
    """Half-precision operands with an f64 result: a sum in f32 is not enough."""
    g = matmul_graph((4, 40), (40, 4), D.HALF, None, D.DOUBLE, compute=D.DOUBLE).validate()
    pack = g.random_inputs()
    a, b = (pack[tensor].astype(np.float32) for tensor in g.arguments().inputs)
    assert not numerics.check(g, pack, {"c": (a @ b).astype(np.float64)})[0].ok
    assert numerics.check(g, pack, {"c": a.astype(np.float64) @ b.astype(np.float64)})[0].ok
