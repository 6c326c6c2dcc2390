"""Gradients of normalisations: PyTorch's autograd, finite differences of the forward operations, messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError, LayernormBackwardAttributes, NormFwdPhase, NotSupportedError
from tests.cases.norm_backward import CASES, batchnorm_graph, trailing_graph

D = DataType
Arrays = dict[str, np.ndarray[Any, Any]]
Dims = tuple[int, ...]
TRAILING = [((5, 33), 1), ((2, 3, 4, 5), 2), ((2, 3, 4, 5), 3), ((3, 1), 1)]


def run(graph: Graph, **arrays: Any) -> tuple[Arrays, Arrays]:
    """Inputs and reference results by name; what is not given is random."""
    graph.validate()
    pack = {tensor.name: np.asarray(arrays.get(tensor.name, array), np.float64)
            for tensor, array in graph.random_inputs(seed=1).items()}  # fmt: skip
    return pack, {tensor.name: value for tensor, value in graph.reference(dict(pack)).items()}


def forward(op: str, dims: Dims, count: int, epsilon: float) -> tuple[Graph, tuple[str, ...]]:
    """A forward norm in training, DOUBLE, and the names of its statistics."""
    g = Graph(op, io_data_type=D.DOUBLE, compute_data_type=D.DOUBLE)
    x = g.tensor("x", dim=dims)
    lead = len(dims) - count
    affine = (1, dims[1], *(1 for _ in dims[2:])) if op == "batchnorm" else (1,) * lead + dims[lead:]
    scale, bias = (g.tensor(name, dim=affine) for name in ("scale", "bias"))
    if op == "batchnorm":
        made, names = g.batchnorm(x, scale, bias, epsilon=epsilon)[:3], ("mean", "inv_variance")
    elif op == "layernorm":
        made = g.layernorm(x, scale, bias, epsilon=epsilon, forward_phase=NormFwdPhase.TRAINING,
                           normalized_dim_count=count)  # fmt: skip
        names = ("mean", "inv_variance")
    else:
        made, names = g.rmsnorm(x, scale, epsilon=epsilon, forward_phase=NormFwdPhase.TRAINING, bias=bias), ("inv_rms",)
    for name, tensor in zip(("y", *names), made, strict=True):
        assert tensor is not None
        tensor.set_output(True).set_name(name)
    return g.validate(), names


def differences(loss: Callable[[np.ndarray[Any, Any]], float], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Central differences."""
    found, step = np.zeros(at.shape), 1e-5
    for index in np.ndindex(at.shape):
        moved = np.zeros(at.shape)
        moved[index] = step
        found[index] = (loss(at + moved) - loss(at - moved)) / (2 * step)
    return found


@pytest.mark.parametrize(
    ("op", "dims", "count"),
    [("batchnorm", (4, 3, 5), 0), ("batchnorm", (3, 2, 2, 3), 0), *((op, dims, count) for op in ("layernorm", "rmsnorm")
     for dims, count in (((3, 7), 1), ((2, 2, 3, 2), 2)))],
)  # fmt: skip
def test_finite_differences_of_the_forward_operation(op: str, dims: Dims, count: int) -> None:
    """Saved statistics are those of the forward pass, whose derivative by x the gradient must contain."""
    g, names = forward(op, dims, count, 1e-5)
    pack, out = run(g)
    weights = np.random.default_rng(3).standard_normal(dims)

    def loss_of(name: str) -> Callable[[np.ndarray[Any, Any]], float]:
        return lambda value: float((run(g, **{**pack, name: value})[1]["y"] * weights).sum())

    saved = {name: out[name] for name in names}
    if op == "batchnorm":
        graph = batchnorm_graph(dims, D.DOUBLE, D.DOUBLE)
        again = [batchnorm_graph(dims, D.DOUBLE, D.DOUBLE, saved=False)]
    else:
        graph = trailing_graph(op, dims, count, D.DOUBLE, D.DOUBLE)
        again = [trailing_graph(op, dims, count, D.DOUBLE, D.DOUBLE, saved=False)] if op == "layernorm" else []
    for backward in (graph, *again):
        _, gradients = run(backward, dy=weights, x=pack["x"], scale=pack["scale"], **saved)
        for port, name in (("dx", "x"), ("dscale", "scale"), ("dbias", "bias")):
            expected = differences(loss_of(name), pack[name])
            np.testing.assert_allclose(gradients[port], expected, rtol=1e-6, atol=1e-8)


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="finite differences do not need it; pip install '.[torch]'")


def autograd(torch: Any, call: Callable[..., Any], dy: Any, *operands: Any) -> list[Any]:
    leaves = [torch.tensor(each).requires_grad_() for each in operands]
    return [each.numpy() for each in torch.autograd.grad(call(*leaves), leaves, torch.tensor(dy))]


@pytest.mark.parametrize("dims", [(8, 5), (4, 3, 7), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
def test_batchnorm_agrees_with_autograd(torch: Any, dims: Dims) -> None:
    def call(x: Any, scale: Any, bias: Any) -> Any:
        return torch.nn.functional.batch_norm(x, None, None, scale, bias, True, 0.1, 1e-5)

    pack, out = run(batchnorm_graph(dims, D.DOUBLE, D.DOUBLE, saved=False))
    flat = pack["scale"].ravel()
    expected = autograd(torch, call, pack["dy"], pack["x"], flat, np.zeros(flat.shape))
    for port, value in zip(("dx", "dscale", "dbias"), expected, strict=True):
        np.testing.assert_allclose(out[port].ravel(), value.ravel(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("dims", "count"), TRAILING)
def test_trailing_norms_agree_with_autograd(torch: Any, dims: Dims, count: int) -> None:
    shape = dims[-count:]
    pack, out = run(trailing_graph("layernorm", dims, count, D.DOUBLE, D.DOUBLE, saved=False, epsilon=0.0625))
    flat = pack["scale"].reshape(shape)
    expected = autograd(torch, lambda x, s, b: torch.nn.functional.layer_norm(x, shape, s, b, 0.0625), pack["dy"],
                        pack["x"], flat, np.zeros(shape))  # fmt: skip
    for port, value in zip(("dx", "dscale", "dbias"), expected, strict=True):
        np.testing.assert_allclose(out[port].ravel(), value.ravel(), rtol=1e-9, atol=1e-11)
    inverse = 1 / np.sqrt((pack["x"] ** 2).mean(tuple(range(-count, 0)), keepdims=True) + 0.0625)
    pack, out = run(trailing_graph("rmsnorm", dims, count, D.DOUBLE, D.DOUBLE), dy=pack["dy"], x=pack["x"],
                    scale=pack["scale"], inv_rms=inverse)  # fmt: skip
    expected = autograd(torch, lambda x, s, b: torch.nn.functional.rms_norm(x, shape, s, 0.0625) + b, pack["dy"],
                        pack["x"], flat, np.zeros(shape))  # fmt: skip
    for port, value in zip(("dx", "dscale", "dbias"), expected, strict=True):
        np.testing.assert_allclose(out[port].ravel(), value.ravel(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_json_round_trip(case: Any) -> None:
    g = case.graph()
    for name, dims in (case.dims or {}).items():
        assert g.find(name).dims == dims
    assert Graph.from_json(g.to_json()).validate().canonical_json() == g.canonical_json()


def _one(op: str, dims: dict[str, Dims], **options: Any) -> Graph:
    g = Graph(op, io_data_type=D.FLOAT)
    tensors = {name: g.tensor(name, dim=each) for name, each in dims.items()}
    given = [tensors.pop(name) for name in ("dy", "x", "scale")]
    if op == "rmsnorm_backward":
        given.append(tensors.pop("inv_rms"))
    getattr(g, op)(*given, **tensors, **options)[0].set_output(True)
    return g


_X: Dims = (2, 3, 4)


@pytest.mark.parametrize(
    ("op", "dims", "message"),
    [
        ("batchnorm_backward", {"dy": (2, 3, 5)}, r"dy 'dy' has dims \(2, 3, 5\), x 'x' has \(2, 3, 4\); they must"),
        ("batchnorm_backward", {"scale": (3,)}, r"scale 'scale' has dims \(3,\); for x \(2, 3, 4\) it must be \(1, 3"),
        ("batchnorm_backward", {"mean": (1, 3, 1)}, r"'batchnorm_backward_0': mean is given alone; give mean and inv"),
        ("layernorm_backward", {"inv_variance": (2, 3, 1)}, "inv_variance is given alone"),
        ("layernorm_backward", {}, "without mean and inv_variance of the forward pass it needs an epsilon"),
        ("layernorm_backward", {"mean": (2, 3), "inv_variance": (2, 3, 1)}, r"mean 'mean' has dims \(2, 3\); for 1 n"),
        ("layernorm_backward", {"dy": (2, 3, 1)}, "they must be equal"),
        ("rmsnorm_backward", {"scale": (4,)}, r"scale \(4,\) must have the rank of x"),
        ("rmsnorm_backward", {"inv_rms": (2, 1, 1)}, r"inv_rms 'inv_rms' has dims \(2, 1, 1\).*must be \(2, 3, 1\)"),
        ("rmsnorm_backward", {"dy": (3, 2, 4)}, "they must be equal"),
    ],
)  # fmt: skip
def test_messages(op: str, dims: dict[str, Dims], message: str) -> None:
    scale = (1, 3, 1) if op == "batchnorm_backward" else (1, 1, 4)
    known: dict[str, Dims] = {"dy": _X, "x": _X, "scale": scale}
    if op == "rmsnorm_backward":
        known["inv_rms"] = (2, 3, 1)
    with pytest.raises(GraphError, match=message):
        _one(op, known | dims).validate()


def test_bad_arguments() -> None:
    with pytest.raises(GraphError, match="normalized_dim_count must be at least 1, got 0"):
        LayernormBackwardAttributes(normalized_dim_count=0)
    g = Graph(io_data_type=D.FLOAT)
    x, scale, inverse = g.tensor(dim=_X), g.tensor(dim=(1, 1, 4)), g.tensor(dim=(2, 3, 1))
    with pytest.raises(GraphError, match="compute_dbias"):
        g.rmsnorm_backward(x, x, scale, inverse, compute_dbias="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(GraphError, match="epsilon must be a number"):
        g.layernorm_backward(x, x, scale, epsilon="1")  # pyright: ignore[reportArgumentType]
    with pytest.raises(GraphError, match="65 peer_stats, at most 64"):
        g.batchnorm_backward(x, x, scale, peer_stats=[scale] * 65)


def test_peers_have_no_reference() -> None:
    with pytest.raises(NotSupportedError, match="statistics of peers"):
        run(batchnorm_graph((2, 3, 4), peers=1))
