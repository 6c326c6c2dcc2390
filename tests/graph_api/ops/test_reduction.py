"""Reductions: every mode by hand and against PyTorch, axes, inference, messages, error bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_api import DataType, Graph, GraphError, ReductionAttributes, ReductionMode, numerics
from tests.cases.reduction import CASES
from tests.cases.reduction import graph as reduction_graph

D, M = DataType, ReductionMode
Dims = tuple[int, ...]


def run(graph: Graph, x: Any) -> np.ndarray[Any, Any]:
    (out,) = graph.validate().arguments().outputs
    return graph.reference({"x": np.asarray(x, np.float64)})[out]


BY_HAND = {
    M.ADD: -2, M.MUL: 0, M.MIN: -4, M.MAX: 2, M.AMAX: 4, M.AVG: -0.5, M.NORM1: 6, M.NORM2: 20**0.5, M.MUL_NO_ZEROS: -8,
}  # fmt: skip


@pytest.mark.parametrize("mode", M)
def test_every_mode_by_hand(mode: ReductionMode) -> None:
    got = run(reduction_graph(mode, (2, 4), (2, 1)), [[2, 0, -4, 0], [1, 1, 1, 1]])
    second = {M.ADD: 4, M.AVG: 1, M.NORM1: 4, M.NORM2: 2}.get(mode, 1)
    assert got.tolist() == [[BY_HAND[mode]], [second]]


def test_the_product_of_no_elements_is_1() -> None:
    assert run(reduction_graph(M.MUL_NO_ZEROS, (1, 3), (1, 1)), [[0, 0, 0]]).tolist() == [[1]]


def test_integers_truncate() -> None:
    g = reduction_graph(M.AVG, (2, 4), (2, 1), D.INT32)
    assert run(g, [[1, 2, 3, 5], [-1, -2, -3, -5]]).tolist() == [[2], [-2]]
    assert g.nodes[0].compute is D.FLOAT
    assert reduction_graph(M.NORM2, (2, 4), (2, 1), D.INT64).validate().nodes[0].compute is D.DOUBLE
    assert reduction_graph(M.ADD, (2, 4), (2, 1), D.INT8).validate().nodes[0].compute is D.INT32


@pytest.mark.parametrize("y", [(3, 1, 5), (1, 4, 1), (1, 1, 1), (3, 4, 1)])
@pytest.mark.parametrize("mode", M)
def test_agrees_with_pytorch(mode: ReductionMode, y: Dims) -> None:
    torch = pytest.importorskip("torch", reason="the other expectations do not need it; pip install '.[torch]'")
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    x[1, 2] = 0
    axes = tuple(axis for axis, dim in enumerate(y) if dim == 1)
    t = torch.tensor(x)

    def prod(value: Any) -> Any:
        for axis in axes:
            value = value.prod(axis, keepdim=True)
        return value

    expected = {
        M.ADD: lambda: t.sum(axes, keepdim=True),
        M.MUL: lambda: prod(t),
        M.MIN: lambda: t.amin(axes, keepdim=True),
        M.MAX: lambda: t.amax(axes, keepdim=True),
        M.AMAX: lambda: t.abs().amax(axes, keepdim=True),
        M.AVG: lambda: t.mean(axes, keepdim=True),
        M.NORM1: lambda: torch.linalg.vector_norm(t, 1, axes, keepdim=True),
        M.NORM2: lambda: torch.linalg.vector_norm(t, 2, axes, keepdim=True),
        M.MUL_NO_ZEROS: lambda: prod(torch.where(t == 0, 1.0, t)),
    }[mode]()
    np.testing.assert_allclose(
        run(reduction_graph(mode, (3, 4, 5), y, D.DOUBLE), x), expected.numpy(), rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("case", [case for case in CASES if case.dims], ids=lambda case: case.name)
def test_json_round_trip(case: Any) -> None:
    g = case.graph()
    assert g.find("y").dims == case.dims["y"]
    assert Graph.from_json(g.to_json()).to_json() == g.to_json()


def test_y_may_be_a_tensor_of_the_user() -> None:
    g = Graph(io_data_type=D.HALF)
    y = g.tensor("mine", dim=(2, 1), data_type=D.FLOAT)
    assert g.reduction(g.tensor("x", dim=(2, 3)), y, mode=M.ADD, is_deterministic=True) is y
    assert g.validate().arguments().outputs == (y,)
    assert g.nodes[0].attributes == ReductionAttributes(mode=M.ADD, is_deterministic=True)


def test_y_takes_the_stride_order_of_x() -> None:
    g = reduction_graph(M.ADD, (2, 8, 5, 5), (2, 8, 1, 5), stride=(200, 1, 40, 8)).validate()
    assert g.find("y").strides == (40, 1, 40, 8)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ((2, 3), r"has dims \(2, 3\); each must be 1 \(reduced\) or that of x \(2, 3, 4\)"),
        ((2, 2, 1), r"each must be 1 \(reduced\) or that of x"),
        ((2, 3, 4), "nothing is reduced, use a pointwise IDENTITY"),
    ],
)
def test_dims_that_do_not_fit_are_named(y: Dims, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        reduction_graph(M.ADD, (2, 3, 4), y).validate()


def test_other_wrong_uses_are_named() -> None:
    g = Graph(io_data_type=D.FLOAT)
    g.reduction(g.tensor(dim=(2, 3)), mode=M.ADD, name="sum").set_output(True)
    with pytest.raises(GraphError, match=r"reduction 'sum'.*has no dims; set_dim says which of x \(2, 3\) are reduced"):
        g.validate()
    with pytest.raises(GraphError, match="x is FLOAT and compute_data_type INT32"):
        reduction_graph(M.ADD, (2, 3), (2, 1), compute_data_type=D.INT32).validate()
    wrong: Any = "ADD"
    with pytest.raises(GraphError, match="mode must be a ReductionMode, got 'ADD'"):
        reduction_graph(wrong, (2, 3), (2, 1))
    with pytest.raises(GraphError, match="is_deterministic must be a bool, got 1"):
        ReductionAttributes(mode=M.ADD, is_deterministic=1)  # type: ignore[arg-type]


def test_the_same_axes_stay_reduced_for_other_dims() -> None:
    g = reduction_graph(M.ADD, (1, 8, 5, 5), (1, 8, 1, 1)).validate().with_dims({"x": (4, 16, 7, 7)})
    assert g.find("y").dims == (4, 16, 1, 1), "a batch of 1 is kept, not reduced"


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4), st.sampled_from(list(M)))
def test_reductions_over_any_axes_can_be_split(axes: list[tuple[int, bool]], mode: ReductionMode) -> None:
    x = tuple(dim for dim, _ in axes)
    y = tuple(1 if reduced else dim for dim, reduced in axes)
    if 1 not in y or mode in (M.AVG, M.MUL_NO_ZEROS):
        return
    values = np.random.default_rng(1).uniform(0.5, 1.5, x)
    whole = run(reduction_graph(mode, x, y, D.DOUBLE), values)
    stepwise = values
    for axis, (_, reduced) in enumerate(axes):
        if reduced:
            dims = tuple(1 if i == axis else d for i, d in enumerate(stepwise.shape))
            stepwise = run(reduction_graph(mode, stepwise.shape, dims, D.DOUBLE), stepwise)
    np.testing.assert_allclose(whole, stepwise, rtol=1e-12)


@pytest.mark.parametrize("mode", M)
def test_the_bound_holds_for_f32_and_catches_a_lost_element(mode: ReductionMode) -> None:
    g = reduction_graph(mode, (3, 8), (3, 1)).validate()
    x = np.random.default_rng(2).uniform(1.1, 1.9, (3, 8)).astype(np.float32)
    x[:, 3] = 2.5 if mode in (M.MAX, M.AMAX) else 0.5
    formula = {
        M.ADD: np.sum, M.MUL: np.prod, M.MIN: np.min, M.MAX: np.max, M.AMAX: np.max, M.AVG: np.mean, M.NORM1: np.sum,
        M.NORM2: lambda v, a, keepdims: np.sqrt(np.sum(v * v, a, keepdims=keepdims)), M.MUL_NO_ZEROS: np.prod,
    }[mode]  # fmt: skip
    assert numerics.check(g, {"x": x}, {"y": formula(x, 1, keepdims=True)})[0].ok
    lost = formula(np.delete(x, 3, 1), 1, keepdims=True)
    assert not numerics.check(g, {"x": x}, {"y": lost})[0].ok
