"""Normalisations: values by hand and against PyTorch, statistics, readings of inv_variance, messages, error bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph_api import (
    DataType,
    Graph,
    GraphError,
    InvVarianceReading,
    LayernormAttributes,
    NormFwdPhase,
    NotSupportedError,
    numerics,
)
from graph_api.ops.norm import BatchnormNode
from tests.cases.norm import CASES, batchnorm_graph, trailing_graph

D = DataType
TRAINING, INFERENCE = NormFwdPhase.TRAINING, NormFwdPhase.INFERENCE
VARIANCE = "batchnorm_inference_variance_ext"
Arrays = dict[str, np.ndarray[Any, Any]]
Dims = tuple[int, ...]


def run(graph: Graph, seed: int = 0, **arrays: Any) -> tuple[Arrays, Arrays]:
    """Inputs and reference results by name; what is not given is random, variances positive."""
    graph.validate()
    pack: Arrays = {}
    for tensor, array in graph.random_inputs(seed).items():
        value = np.asarray(arrays.get(tensor.name, array), np.float64)
        pack[tensor.name] = np.abs(value) + 0.1 if "variance" in tensor.name and tensor.name not in arrays else value
    return pack, {tensor.name: value for tensor, value in graph.reference(dict(pack)).items()}


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="the other expectations do not need it; pip install '.[torch]'")


def test_inference_by_hand() -> None:
    _, out = run(batchnorm_graph("batchnorm_inference", (1, 2, 2)), x=[[[1, 2], [3, 4]]], mean=[[[1], [2]]],
                 inv_variance=[[[10], [100]]], scale=[[[1], [2]]], bias=[[[0.5], [-1]]])  # fmt: skip
    assert out["y"].tolist() == [[[0.5, 10.5], [199, 399]]]


def test_training_by_hand() -> None:
    g = batchnorm_graph("batchnorm", (2, 1, 2), D.DOUBLE, D.DOUBLE, running=True, epsilon=D.DOUBLE, momentum=D.DOUBLE)
    one = np.ones((1, 1, 1))
    _, out = run(g, x=[[[1, 3]], [[5, 7]]], scale=2 * one, bias=one, epsilon=0 * one, momentum=0.25 * one,
                 prev_mean=8 * one, prev_variance=4 * one)  # fmt: skip
    deviation = 5**0.5  # of 1, 3, 5, 7 about 4
    np.testing.assert_allclose(out["y"].ravel(), 2 * np.array([-3, -1, 1, 3]) / deviation + 1, rtol=1e-15)
    found = {name: out[name].item() for name in ("mean", "inv_variance", "next_mean", "next_variance")}
    expected = {"mean": 4, "inv_variance": 1 / deviation, "next_mean": 7, "next_variance": 0.75 * 4 + 0.25 * 20 / 3}
    assert found == pytest.approx(expected, rel=1e-15)


def test_one_element_per_channel_has_no_correction() -> None:
    pack, out = run(batchnorm_graph("batchnorm", (1, 3, 1, 1), running=True, momentum=1.0))
    assert (out["next_variance"] == 0).all()
    assert (out["y"] == pack["bias"]).all()


def test_layernorm_by_hand() -> None:
    g = trailing_graph("layernorm", (2, 2), 1, D.DOUBLE, D.DOUBLE, TRAINING, epsilon=D.DOUBLE)
    _, out = run(g, x=[[1, 3], [7, 7]], scale=[[1, 2]], bias=[[0, 10]], epsilon=[0.25])
    inverse = 1 / 1.25**0.5
    np.testing.assert_allclose(out["y"], [[-inverse, 2 * inverse + 10], [0, 10]], rtol=1e-15)
    np.testing.assert_allclose(out["mean"], [[2], [7]])
    np.testing.assert_allclose(out["inv_variance"], [[inverse], [2]], rtol=1e-15)


def test_rmsnorm_by_hand() -> None:
    g = trailing_graph("rmsnorm", (1, 2), 1, D.DOUBLE, D.DOUBLE, TRAINING, epsilon=D.DOUBLE)
    _, out = run(g, x=[[3, 4]], scale=[[1, 2]], bias=[[0, 10]], epsilon=[12.5])
    assert out["inv_rms"].tolist() == [[0.2]]
    np.testing.assert_allclose(out["y"], [[0.6, 11.6]], rtol=1e-15)


@pytest.mark.parametrize("dims", [(8, 5), (4, 3, 7), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
def test_batchnorm_agrees_with_pytorch(torch: Any, dims: Dims) -> None:
    def flat(value: Any) -> Any:
        return torch.tensor(value).reshape(-1)

    call = torch.nn.functional.batch_norm
    pack, out = run(batchnorm_graph("batchnorm", dims, D.DOUBLE, D.DOUBLE, running=True, epsilon=0.0625, momentum=0.25))
    mean, variance = flat(pack["prev_mean"]), flat(pack["prev_variance"])
    y = call(torch.tensor(pack["x"]), mean, variance, flat(pack["scale"]), flat(pack["bias"]), True, 0.25, 0.0625)
    np.testing.assert_allclose(out["y"], y.numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(out["next_mean"].ravel(), mean.numpy(), rtol=1e-12)
    np.testing.assert_allclose(out["next_variance"].ravel(), variance.numpy(), rtol=1e-12)

    pack, out = run(batchnorm_graph(VARIANCE, dims, D.DOUBLE, D.DOUBLE, epsilon=0.0625))
    expected = call(
        torch.tensor(pack["x"]), *(flat(pack[n]) for n in ("mean", "variance", "scale", "bias")), False, 0.1, 0.0625
    )
    np.testing.assert_allclose(out["y"], expected.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("dims", "count"), [((5, 33), 1), ((2, 3, 4, 5), 2), ((2, 3, 4, 5), 3)])
def test_trailing_norms_agree_with_pytorch(torch: Any, dims: Dims, count: int) -> None:
    def tail(value: Any) -> Any:
        return torch.tensor(value).reshape(dims[-count:])

    shape = dims[-count:]
    options: Any = {"epsilon": 0.0625}
    pack, out = run(trailing_graph("layernorm", dims, count, D.DOUBLE, D.DOUBLE, TRAINING, **options))
    y, mean, inverse = torch.native_layer_norm(
        torch.tensor(pack["x"]), shape, tail(pack["scale"]), tail(pack["bias"]), 0.0625
    )
    for got, expected in ((out["y"], y), (out["mean"], mean), (out["inv_variance"], inverse)):
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-11, atol=1e-12)
    pack, out = run(trailing_graph("rmsnorm", dims, count, D.DOUBLE, D.DOUBLE, bias=False, **options))
    expected = torch.nn.functional.rms_norm(torch.tensor(pack["x"]), shape, tail(pack["scale"]), 0.0625)
    np.testing.assert_allclose(out["y"], expected.numpy(), rtol=1e-11, atol=1e-12)


def test_inv_variance_is_the_inverse_deviation_unless_it_is_read_as_variance() -> None:
    dims = (2, 3, 4, 5)
    given = np.full((1, 3, 1, 1), 0.25)
    pack, named = run(batchnorm_graph("batchnorm_inference", dims), inv_variance=given)
    np.testing.assert_allclose(named["y"], (pack["x"] - pack["mean"]) * 0.25 * pack["scale"] + pack["bias"])
    other = batchnorm_graph("batchnorm_inference", dims, inv_variance_reading=InvVarianceReading.VARIANCE)
    pack, read = run(other, inv_variance=given)
    inverse = 1 / np.sqrt(0.25 + float(np.float32(1e-5)))
    np.testing.assert_allclose(read["y"], (pack["x"] - pack["mean"]) * inverse * pack["scale"] + pack["bias"])
    (node,) = other.nodes
    assert (node.op, node.inputs["variance"].name) == (VARIANCE, "inv_variance"), (
        "the graph knows one meaning per operation"
    )


def test_batchnorm_inference_writes_to_a_tensor_of_the_user() -> None:
    for reading in InvVarianceReading:
        g = Graph(io_data_type=D.FLOAT)
        x, y = g.tensor("x", dim=(2, 3, 4)), g.tensor("mine", dim=(2, 3, 4))
        rest = [g.tensor(name, dim=(1, 3, 1)) for name in "misb"]
        assert g.batchnorm_inference(x, *rest, inv_variance_reading=reading, y=y) is y
        assert g.validate().arguments().outputs == (y,)


@pytest.mark.parametrize("case", [case for case in CASES if "peers" not in case.name], ids=lambda case: case.name)
def test_json_round_trip(case: Any) -> None:
    g = case.graph()
    assert g.find("y").dims == (case.dims or {})["y"]
    assert Graph.from_json(g.to_json()).to_json() == g.to_json()


def test_statistics_have_the_stride_order_of_x_and_the_compute_type() -> None:
    g = Graph(io_data_type=D.HALF)
    x = g.tensor(dim=(2, 3, 4, 5), layout="NHWC")
    y, mean, *_ = g.batchnorm(x, *(g.tensor(dim=(1, 3, 1, 1), data_type=D.FLOAT) for _ in range(2)), epsilon=1e-5)
    y.set_output(True)
    g.validate()
    assert (y.strides, y.data_type) == (x.strides, D.HALF)
    assert (mean.dims, mean.data_type) == ((1, 3, 1, 1), D.FLOAT)


@pytest.mark.parametrize("op", ["layernorm", "rmsnorm"])
def test_statistics_exist_in_training_only(op: str) -> None:
    names = {"layernorm": {"mean", "inv_variance"}, "rmsnorm": {"inv_rms"}}[op]
    for phase, expected in ((INFERENCE, set()), (TRAINING, names)):
        g = trailing_graph(op, (2, 3, 4), 2, phase=phase).validate()
        assert {t.name for t in g.arguments().outputs} == {"y"} | expected
        assert all(g.find(name).dims == (2, 1, 1) for name in expected)


@pytest.mark.parametrize(
    ("dims", "scale", "count", "normalized"),
    [
        ((2, 3, 4), (1, 1, 4), None, 1),
        ((2, 3, 4), (3, 4), None, 2),
        ((2, 3, 4), (4,), None, 1),
        ((2, 3, 4), (2, 3, 4), None, 3),
        ((2, 3, 4), (1, 3, 4), 2, 2),
        ((6,), (6,), None, 1),
    ],
)
def test_layernorm_finds_its_dims(dims: Dims, scale: Dims, count: int | None, normalized: int) -> None:
    g = Graph(io_data_type=D.FLOAT)
    x, s, b = g.tensor(dim=dims), g.tensor(dim=scale), g.tensor(dim=scale)
    g.layernorm(x, s, b, epsilon=1e-5, forward_phase=INFERENCE, normalized_dim_count=count)[0].set_output(True)
    (node,) = g.validate().nodes
    assert node.normalized_dim_count == normalized  # type: ignore[attr-defined]


def _build(op: str, x: Dims, scale: Dims, **options: Any) -> Graph:
    g = Graph(io_data_type=D.FLOAT)
    tensors = [g.tensor("x", dim=x), g.tensor("scale", dim=scale), g.tensor("bias", dim=scale)]
    if op == "rmsnorm":
        options["bias"] = tensors.pop()
    epsilon = options.pop("epsilon", 1e-5)
    getattr(g, op)(*tensors, epsilon=epsilon, **options)[0].set_output(True)
    return g.validate()


@pytest.mark.parametrize(
    ("op", "x", "scale", "options", "message"),
    [
        ("batchnorm", (2, 3, 4), (3,), {}, r"scale 'scale' has dims \(3,\); for x \(2, 3, 4\) it must be \(1, 3, 1\)"),
        ("batchnorm", (3,), (3,), {}, r"x \(3,\) must have dims \[N, C, spatial\.\.\.\]"),
        ("batchnorm", (2, 3), (1, 3), {"epsilon": -1.0}, "epsilon is -1.0; it must be finite and at least 0"),
        ("batchnorm", (2, 3), (1, 3), {"epsilon": "no"}, "epsilon must be a number or a tensor of one element"),
        (
            "batchnorm",
            (2, 3),
            (1, 3),
            {"momentum": 0.1},
            "give prev_running_mean, prev_running_variance and momentum, or none",
        ),
        (
            "layernorm",
            (2, 3),
            (1, 2),
            {"forward_phase": INFERENCE},
            r"scale \(1, 2\) has no trailing dim in common with x",
        ),
        ("layernorm", (2, 3), (3,), {"forward_phase": INFERENCE, "normalized_dim_count": 2}, r"must be \(2, 3\)"),
        ("layernorm", (2, 3), (3,), {"forward_phase": INFERENCE, "normalized_dim_count": 3}, "more than the dims of x"),
        ("layernorm", (2, 3), (3,), {"forward_phase": "TRAINING"}, "forward_phase must be a NormFwdPhase"),
        ("rmsnorm", (2, 3), (3,), {"forward_phase": INFERENCE}, r"scale \(3,\) must have the rank of x"),
        (
            "rmsnorm",
            (4, 3),
            (4, 3),
            {"forward_phase": INFERENCE},
            r"for 1 normalised dims of x \(4, 3\) it must be \(1, 3\)",
        ),
    ],
)
def test_wrong_uses_are_named(op: str, x: Dims, scale: Dims, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        _build(op, x, scale, **options)


def test_more_wrong_uses_are_named() -> None:
    with pytest.raises(GraphError, match="normalized_dim_count must be at least 1, got 0"):
        LayernormAttributes(forward_phase=INFERENCE, normalized_dim_count=0)
    with pytest.raises(GraphError, match="at most 64 are possible"):
        batchnorm_graph("batchnorm", (2, 3), peers=65)
    reading: Any = "VARIANCE"
    with pytest.raises(GraphError, match="is no InvVarianceReading: 'VARIANCE'"):
        batchnorm_graph("batchnorm_inference", (2, 3), inv_variance_reading=reading)
    g = Graph(io_data_type=D.FLOAT)
    x, s, b, two = g.tensor(dim=(2, 3)), g.tensor(dim=(1, 3)), g.tensor(dim=(1, 3)), g.tensor("two", dim=(2,))
    g.batchnorm(x, s, b, epsilon=two)[0].set_output(True)
    with pytest.raises(GraphError, match=r"epsilon 'two' has dims \(2,\); it must hold one number"):
        g.validate()


def test_running_statistics_need_their_inputs() -> None:
    g = Graph(io_data_type=D.FLOAT)
    inputs = {name: g.tensor(name, dim=(1, 3)) for name in ("scale", "bias", "prev_running_mean")}
    inputs |= {"x": g.tensor("x", dim=(2, 3)), "epsilon": g.scalar(1e-5)}
    node = g.add_node(BatchnormNode, inputs, optional_outputs=("next_running_mean",))
    node.outputs["y"].set_output(True)
    with pytest.raises(
        GraphError, match="next_running_mean cannot be computed without prev_running_variance, momentum"
    ):
        g.validate()


def test_peers_have_no_reference() -> None:
    g = batchnorm_graph("batchnorm", (2, 3), peers=1).validate()
    with pytest.raises(NotSupportedError, match="no defined meaning"):
        g.reference(dict(g.random_inputs()))


def _one_pass(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the bound must not excuse: a variance as the difference of two large numbers in f32."""
    mean = x.mean(-1, keepdims=True, dtype=np.float32)
    variance = (x * x).mean(-1, keepdims=True, dtype=np.float32) - mean * mean
    return (x - mean) / np.sqrt(np.abs(variance) + np.float32(1e-5))


def _two_passes(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    mean = x.mean(-1, keepdims=True, dtype=np.float32)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True, dtype=np.float32)
    return (x - mean) / np.sqrt(variance + np.float32(1e-5))


def test_the_bound_holds_for_two_passes_in_f32_and_not_for_one() -> None:
    g = trailing_graph("layernorm", (4, 64), 1).validate()
    x = (np.random.default_rng(0).standard_normal((4, 64)) + 1000).astype(np.float32)
    pack = {"x": x, "scale": np.ones((1, 64), np.float32), "bias": np.zeros((1, 64), np.float32)}
    assert numerics.check(g, dict(pack), {"y": _two_passes(x)})[0].ok
    assert not numerics.check(g, dict(pack), {"y": _one_pass(x)})[0].ok


def test_the_bound_of_a_constant_row_is_finite() -> None:
    g = trailing_graph("layernorm", (2, 48), 1, phase=TRAINING).validate()
    pack = {"x": np.full((2, 48), 1e4, np.float32), "scale": np.ones((1, 48)), "bias": np.ones((1, 48))}
    evaluation = numerics.evaluate(g, dict(pack))
    assert all(np.isfinite(bound).all() for bound in evaluation.errors.values())


def test_f16_squares_stay_in_range() -> None:
    g = trailing_graph("rmsnorm", (2, 64), 1, D.HALF, D.HALF).validate()
    (node,) = g.nodes
    assert node.compute is D.FLOAT
