"""The gradient of pooling: by hand, finite differences of the forward operation, PyTorch's autograd, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import DataType as D
from graph_api import Graph, GraphError, numerics
from graph_api import PaddingMode as P
from graph_api import ResampleMode as M
from tests.cases.resample_backward import CASES, backward_graph

Dims = tuple[int, ...]
GEOMETRY: list[tuple[Dims, dict[str, Any]]] = [
    ((2, 2, 7), {"window": 3, "stride": 2, "padding": 1}),
    ((2, 2, 5, 6), {"window": (3, 2), "stride": (2, 3), "pre_padding": (1, 0), "post_padding": (0, 1)}),
    ((1, 2, 4, 3, 4), {"window": 2, "stride": (1, 2, 3), "padding": 1}),
]


def gradient(g: Graph, **arrays: Any) -> np.ndarray[Any, Any]:
    g.validate()
    pack = {tensor: arrays[tensor.name] for tensor in g.arguments().inputs}
    return g.reference(pack)[g.find("dx")]


def pooled(x: np.ndarray[Any, Any], mode: M, *, index: bool = False, **kw: Any) -> dict[str, np.ndarray[Any, Any]]:
    g = Graph(io_data_type=D.DOUBLE, compute_data_type=D.DOUBLE)
    y, place = g.resample_fwd(g.tensor("x", dim=x.shape), mode=mode, generate_index=index, **kw)
    y.set_output(True).set_name("y")
    if place is not None:
        place.set_output(True).set_name("index")
    g.validate()
    return {tensor.name: value for tensor, value in g.reference({g.find("x"): x}).items()}


def test_by_hand() -> None:
    kw: dict[str, Any] = {"window": 2, "stride": 1}
    g = backward_graph((1, 1, 4), (1, 1, 3), M.MAXPOOL, **kw)
    assert gradient(g, dy=[[[1.0, 2.0, 4.0]]], index=[[[1, 1, 3]]]).tolist() == [[[0, 3, 0, 4]]]
    g = backward_graph((1, 1, 4), (1, 1, 3), M.MAXPOOL, **kw)
    outside = gradient(g, dy=[[[1.0, 2.0, np.nan]]], index=[[[3, -1, 99]]])
    assert outside.tolist() == [[[0, 0, 0, 0]]], "an index outside its window gives nothing"
    g = backward_graph((1, 1, 4), (1, 1, 3), M.AVGPOOL_INCLUDE_PADDING, **kw)
    assert gradient(g, dy=[[[1.0, 2.0, 4.0]]]).tolist() == [[[0.5, 1.5, 3, 2]]]
    for mode, ends in ((M.AVGPOOL_INCLUDE_PADDING, 0.5), (M.AVGPOOL_EXCLUDE_PADDING, 1.0)):
        g = backward_graph((1, 1, 1), (1, 1, 2), mode, window=2, stride=1, padding=1)
        assert gradient(g, dy=[[[1.0, 1.0]]]).tolist() == [[[2 * ends]]]


@pytest.mark.parametrize(("dims", "kw"), GEOMETRY)
@pytest.mark.parametrize("mode", M)
@pytest.mark.parametrize("padding_mode", P)
def test_finite_differences_of_the_forward_operation(dims: Dims, kw: dict[str, Any], mode: M, padding_mode: P) -> None:
    rng = np.random.default_rng(0)
    x = rng.permutation(np.arange(np.prod(dims)) - 9.5).reshape(dims)
    out = pooled(x, mode, index=mode is M.MAXPOOL, padding_mode=padding_mode, **kw)
    dy = rng.standard_normal(out["y"].shape)
    expected = np.zeros(dims)
    for place in np.ndindex(dims):
        moved = np.zeros(dims)
        moved[place] = 0.25  # less than half of what any two elements differ by
        ends = [pooled(x + sign * moved, mode, padding_mode=padding_mode, **kw)["y"] for sign in (1, -1)]
        expected[place] = ((ends[0] - ends[1]) * dy).sum() / 0.5
    g = backward_graph(dims, dy.shape, mode, padding_mode=padding_mode, dtype=D.DOUBLE, **kw)
    np.testing.assert_allclose(gradient(g, dy=dy, index=out.get("index")), expected, atol=1e-9)
    if mode is M.MAXPOOL:
        again = backward_graph(dims, dy.shape, mode, x=True, padding_mode=padding_mode, dtype=D.DOUBLE, **kw)
        np.testing.assert_array_equal(gradient(again, dy=dy, x=x), gradient(g, dy=dy, index=out["index"]))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("mode", M)
def test_autograd(rank: int, mode: M) -> None:
    torch = pytest.importorskip("torch", reason="finite differences do not need it; pip install '.[torch]'")
    x = torch.tensor(np.random.default_rng(1).standard_normal((2, 3, 7, 6, 8)[: rank + 2]), requires_grad=True)
    if mode is M.MAXPOOL:
        y, index = getattr(torch.nn.functional, f"max_pool{rank}d")(x, 3, 2, 1, return_indices=True)
    else:
        include = mode is M.AVGPOOL_INCLUDE_PADDING
        y, index = getattr(torch.nn.functional, f"avg_pool{rank}d")(x, 3, 2, 1, count_include_pad=include), None
    dy = np.random.default_rng(2).standard_normal(y.shape)
    (expected,) = torch.autograd.grad(y, x, torch.tensor(dy))
    g = backward_graph(tuple(x.shape), dy.shape, mode, window=3, stride=2, padding=1, dtype=D.DOUBLE)
    np.testing.assert_allclose(gradient(g, dy=dy, index=index), expected.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_json_round_trip(case: Any) -> None:
    g = case.graph()
    for name, dims in (case.dims or {}).items():
        assert g.find(name).dims == dims
    assert Graph.from_json(g.to_json()).validate().canonical_json() == g.canonical_json()


def test_dims_that_nobody_set() -> None:
    g = Graph(io_data_type=D.FLOAT)
    dy = g.tensor("dy", dim=(2, 3, 4, 5), layout="NHWC")
    dx = g.resample_bwd(dy, mode=M.AVGPOOL_INCLUDE_PADDING, window=3, stride=2, padding=1).set_output(True)
    assert g.validate().arguments().outputs == (dx,)
    assert (dx.dims, dx.strides) == ((2, 3, 7, 9), (189, 1, 27, 3))
    other = g.with_dims({"dy": (1, 3, 2, 2)}).arguments().outputs[0]
    assert other.dims == (1, 3, 3, 3)


def test_an_uncertain_index_makes_its_window_uncertain() -> None:
    g = backward_graph((1, 1, 4), (1, 1, 2), M.MAXPOOL, x=True, window=2, dtype=D.DOUBLE, compute_data_type=D.FLOAT)
    g.validate()
    x = np.array([[[1.0, 1.0 + 1e-12, 3.0, 1.0]]])
    bound = numerics.evaluate(g, {"dy": np.array([[[5.0, 7.0]]]), "x": x}).errors[g.find("dx")]
    assert (bound[0, 0, :2] >= 5).all()
    assert (bound[0, 0, 2:] < 1e-5).all()


@pytest.mark.parametrize(
    ("message", "dim", "dims", "mode", "kw"),
    [
        (r"pooling of dx \(1, 1, 9\) makes spatial dims \(4,\), dy has \(3,\)", (1, 1, 9), (1, 1, 3), M.MAXPOOL, {}),
        (r"dx cannot have dims \(2, 1, 6\)", (2, 1, 6), (1, 1, 3), M.MAXPOOL, {}),
        ("must be INT8 or INT32 or INT64, it is UINT8", (1, 1, 6), (1, 1, 3), M.MAXPOOL, {"index": D.UINT8}),
        ("144 spatial positions, an INT8 index can name 128", (1, 1, 12, 12), (1, 1, 6, 6), M.MAXPOOL,
         {"index": D.INT8}),
    ],
)  # fmt: skip
def test_messages(message: str, dim: Dims, dims: Dims, mode: M, kw: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match=message):
        backward_graph(dim, dims, mode, window=2, **kw).validate()


def test_messages_about_the_index() -> None:
    for mode, message, shape in (
        (M.MAXPOOL, "MAXPOOL needs the index that resample_fwd wrote", None),
        (M.AVGPOOL_INCLUDE_PADDING, "an index belongs to MAXPOOL, the mode is AVGPOOL_INCLUDE_PADDING", (1, 1, 3)),
        (M.MAXPOOL, r"index 'index' has dims \(1, 1, 2\), dy has \(1, 1, 3\)", (1, 1, 2)),
    ):
        g = Graph(io_data_type=D.FLOAT)
        index = None if shape is None else g.tensor("index", dim=shape, data_type=D.INT32)
        g.resample_bwd(g.tensor("dy", dim=(1, 1, 3)), mode=mode, window=2, index=index).set_output(True)
        with pytest.raises(GraphError, match=message):
            g.validate()
    g = Graph(io_data_type=D.FLOAT)
    with pytest.raises(GraphError, match="resample_bwd: give padding=, or pre_padding="):
        g.resample_bwd(g.tensor(dim=(1, 1, 3)), mode=M.MAXPOOL, window=2, padding=1, pre_padding=1)
