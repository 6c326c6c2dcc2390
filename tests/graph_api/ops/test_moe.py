"""Mixture of experts: by hand, against PyTorch row by row and its autograd, finite differences, routing, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import DataType as D
from graph_api import Graph, GraphError, MoeGroupedMatmulAttributes
from graph_api import MoeGroupedMatmulMode as M
from tests.cases.moe import CASES, backward_graph, forward_graph


def run(g: Graph, **arrays: Any) -> Any:
    """The one result; what is not given is random."""
    g.validate()
    pack = {tensor: np.asarray(arrays.get(tensor.name, array)).reshape(tensor.dims)
            for tensor, array in g.random_inputs(seed=2).items()}  # fmt: skip
    (result,) = g.reference(pack).values()
    return result


ROWS = [[[1.0], [2.0], [3.0], [4.0]]]
TENS = [[[10.0]], [[100.0]]]


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([0, 1], [10, 200, 300, 400]),
        ([0, 0], [100, 200, 300, 400]),
        ([0, 4], [10, 20, 30, 40]),
        ([2, 3], [0, 0, 30, 400]),
        ([3, 1], [0, 20, 30, 400]),  # as [1, 3]
        ([-7, 9], [10, 20, 30, 40]),
        ([0, 1, 2, 3], [10, 200, 30, 400]),  # two batches: experts 0, 1, 0, 1
    ],
)
def test_groups_by_hand(offsets: list[int], expected: list[float]) -> None:
    g = forward_graph(2, 4, 1, 1, groups=len(offsets))
    assert run(g, token=ROWS, weight=TENS, offsets=offsets).ravel().tolist() == expected


def test_gather_by_hand() -> None:
    g = forward_graph(2, 5, 1, 1, M.GATHER, tokens=4)
    found = run(g, token=ROWS, weight=TENS, offsets=[0, 2], index=[3, 0, 3, 4, -1])
    assert found.ravel().tolist() == [40, 10, 400, 0, 0], "rows that are not there give 0"


def test_scatter_by_hand() -> None:
    g = forward_graph(2, 4, 1, 1, M.SCATTER, top_k=2)
    found = run(g, token=ROWS, weight=TENS, offsets=[0, 2], index=[1, 0, 0, 1], ks=[0, 1, 0, 1])
    assert found.ravel().tolist() == [300, 20, 10, 400]
    found = run(forward_graph(2, 4, 1, 1, M.SCATTER, top_k=2), token=ROWS, weight=TENS, offsets=[0, 2],
                index=[1, 1, 5, 0], ks=[0, 0, 0, 2])  # fmt: skip
    assert found.ravel().tolist() == [0, 0, 20, 0], "the last one stays; rows that are nowhere go nowhere"


def test_backward_by_hand() -> None:
    g = backward_graph(2, 4, 1, 1)
    found = run(g, doutput=ROWS, token=[[[10.0], [20.0], [30.0], [40.0]]], offsets=[0, 2])
    assert found.ravel().tolist() == [50, 250]
    found = run(backward_graph(2, 4, 1, 1), doutput=[[[np.nan], [2.0], [3.0], [4.0]]], token=ROWS, offsets=[1, 4])
    assert found.ravel().tolist() == [29, 0], "a row of no group is in no sum, whatever it holds"


@pytest.mark.parametrize("mode", M)
def test_pytorch_row_by_row_and_its_autograd(mode: M) -> None:
    torch = pytest.importorskip("torch", reason="the other expectations do not need it; pip install '.[torch]'")
    rng = np.random.default_rng(4)
    experts, tokens, k, n, top_k = 3, 5, 4, 6, 2
    rows = tokens * top_k
    chosen = torch.tensor(rng.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)[:, :top_k])
    order = torch.argsort(chosen.reshape(-1), stable=True)
    index, ks = order // top_k, order % top_k
    offsets = torch.searchsorted(chosen.reshape(-1)[order].contiguous(), torch.arange(experts))
    x = torch.tensor(rng.standard_normal((tokens, k)))
    weight = torch.tensor(rng.standard_normal((experts, k, n)), requires_grad=True)
    by_token = torch.stack([torch.stack([x[t] @ weight[chosen[t, j]] for j in range(top_k)]) for t in range(tokens)])
    routed = by_token.reshape(rows, n)[order]
    given = x.numpy() if mode is M.GATHER else x[index].numpy()
    g = forward_graph(experts, rows, k, n, mode, tokens=len(given), dtype=D.DOUBLE, compute_data_type=D.DOUBLE,
                      top_k=top_k if mode is M.SCATTER else 0)  # fmt: skip
    found = run(g, token=given, weight=weight.detach().numpy(), offsets=offsets, index=index, ks=ks)
    expected = by_token.reshape(rows, n) if mode is M.SCATTER else routed
    np.testing.assert_allclose(found[0], expected.detach().numpy(), rtol=1e-12)
    dy = torch.tensor(rng.standard_normal((rows, n)))
    (dweight,) = torch.autograd.grad(routed, weight, dy)
    g = backward_graph(experts, rows, k, n, dtype=D.DOUBLE, compute_data_type=D.DOUBLE)
    found = run(g, doutput=dy.numpy(), token=x[index].numpy(), offsets=offsets)
    np.testing.assert_allclose(found, dweight.numpy(), rtol=1e-12, atol=1e-12)


def test_finite_differences_of_the_forward_operation() -> None:
    rng = np.random.default_rng(6)
    token, weight, dy = (rng.standard_normal(dims) for dims in ((1, 7, 2), (2, 2, 3), (1, 7, 3)))
    offsets = [1, 3, 4, 6]
    g = forward_graph(2, 7, 2, 3, groups=4, dtype=D.DOUBLE, compute_data_type=D.DOUBLE)
    expected = np.zeros(weight.shape)
    for place in np.ndindex(weight.shape):
        step = np.zeros(weight.shape)
        step[place] = 0.5  # the product is linear
        ends = [run(g, token=token, weight=weight + sign * step, offsets=offsets) for sign in (1, -1)]
        expected[place] = ((ends[0] - ends[1]) * dy).sum()
    g = backward_graph(2, 7, 2, 3, groups=4, dtype=D.DOUBLE, compute_data_type=D.DOUBLE)
    found = run(g, doutput=dy, token=token, offsets=offsets)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_json_round_trip(case: Any) -> None:
    g = case.graph()
    for name, dims in (case.dims or {}).items():
        assert g.find(name).dims == dims
    assert Graph.from_json(g.to_json()).validate().canonical_json() == g.canonical_json()


def test_layout_of_the_gradient() -> None:
    dweight = backward_graph(3, 8, 4, 5).validate().find("dweight")
    assert (dweight.dims, dweight.strides) == ((3, 4, 5), (20, 1, 4))


_GOOD: dict[str, tuple[int, ...]] = {"token": (1, 8, 4), "weight": (2, 4, 5), "first_token_offset": (2, 1, 1)}


@pytest.mark.parametrize(
    ("changed", "kw", "message"),
    [
        ({"token": (8, 4)}, {}, r"token 'token' has dims \(8, 4\); it must have dims \[1, rows, width\]"),
        ({"token": (2, 8, 4)}, {}, r"it must have dims \[1, rows, width\]"),
        ({"weight": (4, 5)}, {}, r"it must have dims \[experts, K, N\]"),
        ({"weight": (2, 5, 4)}, {}, r"inner dims differ \(token \(1, 8, 4\) has K=4, .*K=5\); is weight transposed\?"),
        ({"first_token_offset": (3, 1, 1)}, {}, "has 3 groups for 2 experts; it must be a multiple"),
        ({"first_token_offset": (2,)}, {}, r"it must have dims \[groups, 1, 1\]"),
        ({"token_index": (1, 8, 1)}, {}, "mode NONE has no operand token_index"),
        ({}, {"mode": M.GATHER}, "mode GATHER needs operand token_index"),
        ({"token_index": (1, 8, 1)}, {"mode": M.SCATTER, "top_k": 2}, "mode SCATTER needs operand token_ks"),
        ({"token_index": (8, 1, 1)}, {"mode": M.GATHER}, r"token_index has dims .*must have dims \[1, rows, 1\]"),
        ({"token_index": (1, 6, 1), "token_ks": (1, 6, 1)}, {"mode": M.SCATTER, "top_k": 2},
         r"SCATTER routes each of 8 token rows, token_index \(1, 6, 1\) has 6"),
    ],
)  # fmt: skip
def test_messages(changed: dict[str, tuple[int, ...]], kw: dict[str, Any], message: str) -> None:
    g = Graph(io_data_type=D.FLOAT)
    tensors = {name: g.tensor(name, dim=dim, data_type=D.FLOAT if name in ("token", "weight") else D.INT32)
               for name, dim in (_GOOD | changed).items()}  # fmt: skip
    g.moe_grouped_matmul(**tensors, **kw).set_output(True)
    with pytest.raises(GraphError, match=message):
        g.validate()


def test_messages_of_the_gradient_types_and_attributes() -> None:
    g = Graph(io_data_type=D.FLOAT)
    doutput, token = g.tensor(dim=(1, 8, 5)), g.tensor(dim=(1, 7, 4))
    g.moe_grouped_matmul_bwd(doutput, token, g.tensor(dim=(2, 1, 1), data_type=D.INT32)).set_output(True)
    with pytest.raises(GraphError, match=r"must have as many rows, they have 8 and 7"):
        g.validate()
    g = backward_graph(2, 8, 4, 5)
    g.find("dweight").set_dim((2, 5, 4))
    with pytest.raises(GraphError, match=r"must have dims \(2, 4, 5\), it was given \(2, 5, 4\)"):
        g.validate()
    g = forward_graph(2, 8, 4, 5)
    g.find("offsets").set_data_type(D.INT64)
    with pytest.raises(GraphError, match="first_token_offset 'offsets' is INT64; it must be INT32"):
        g.validate()
    with pytest.raises(GraphError, match="SCATTER needs top_k"):
        MoeGroupedMatmulAttributes(mode=M.SCATTER)
    with pytest.raises(GraphError, match="at least 0; got -1"):
        MoeGroupedMatmulAttributes(top_k=-1)
    with pytest.raises(GraphError, match="mode must be a MoeGroupedMatmulMode, got 'NONE'"):
        MoeGroupedMatmulAttributes(mode="NONE")  # pyright: ignore[reportArgumentType]
