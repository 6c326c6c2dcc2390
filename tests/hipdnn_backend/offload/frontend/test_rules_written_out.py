"""What is written out as other operators: remainders, Einsum, LpPool, CumProd, Scan, steps of learning, ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.offload import load as backend_load
from hipdnn_backend.offload.errors import UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.graph import attributes
from tests.support.onnx_rewritten import check_rewrite, one_node

RANDOM = np.random.default_rng(23)


def _normal(*dims: int) -> np.ndarray:
    return RANDOM.standard_normal(dims).astype(np.float32)


@pytest.mark.iree_cpu
def test_remainders_of_large_quotients_are_exact() -> None:
    x = np.array([1e8, -1e8, 1e15, 7.5, -7.5, 5, -5, 3], np.float32)
    y = np.array([3, 3, 7, -2, 2, np.inf, -np.inf, 0], np.float32)
    model, feeds = one_node("Mod", {"x": x, "y": y}, {"z": np.float32}, fmod=1)
    with backend_load(model, device="cpu") as compiled:
        (z,) = compiled.run(feeds).values()
    np.testing.assert_array_equal(z, np.array([1, -1, 1, 1.5, -1.5, 5, -5, np.nan], np.float32))


def test_remainders_of_doubles_are_refused() -> None:
    model, _ = one_node("Mod", {"x": np.zeros(2), "y": np.ones(2)}, {"z": np.float64}, fmod=1)
    with pytest.raises(UnsupportedNodeError, match="float64"):
        prepare(model)


@pytest.mark.parametrize("equation", ["abc->ca", "abc", "cab", "a b c -> ", "abc->b"])
def test_einsum_of_one_operand(equation: str) -> None:
    x = _normal(2, 3, 4)
    model, feeds = one_node("Einsum", {"x": x}, {"y": np.float32}, equation=equation)
    graph = check_rewrite(model, feeds, expected=[np.asarray(np.einsum(equation.replace(" ", ""), x))])
    assert {node.op_type for node in graph.nodes} <= {"ReduceSum", "Transpose"}


@pytest.mark.parametrize("equation", ["ij,jk", "...ij,...kj", "ba,ab", "ii"])
def test_einsum_says_the_letters_of_its_result(equation: str) -> None:
    dims = {"ij,jk": [(2, 3), (3, 4)], "...ij,...kj": [(5, 2, 3), (5, 4, 3)], "ba,ab": [(2, 3), (3, 2)], "ii": [(3, 3)]}
    operands = [_normal(*each) for each in dims[equation]]
    inputs = {f"x{i}": x for i, x in enumerate(operands)}
    model, feeds = one_node("Einsum", inputs, {"y": np.float32}, equation=equation)
    graph = check_rewrite(model, feeds, expected=[np.asarray(np.einsum(equation, *operands))])
    assert all("->" in attributes(node)["equation"] for node in graph.nodes)


@pytest.mark.thorough
@pytest.mark.iree_cpu
def test_slices_that_run_backwards() -> None:
    x = np.arange(60, dtype=np.float32).reshape(5, 12)
    for cut in ((20, 0, 1, -3), (-2, -9, 1, -1), (4, -30, 0, -1), (3, 1, 0, -5)):
        start, end, axis, step = cut
        inputs = {"x": x, **{name: np.array([value]) for name, value in zip("seat", cut, strict=True)}}
        model, feeds = one_node("Slice", inputs, {"y": np.float32}, constants=list("seat"))
        picks = list(range(x.shape[axis]))[start:end:step]
        with backend_load(model, device="cpu", engines=[FusilliEngine("cpu")]) as compiled:
            (y,) = compiled.run(feeds).values()
        np.testing.assert_array_equal(y, x.take(picks, axis))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    "given", [{"dilations": [2, 1]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"pads": [1, 0, 0, 1]}]
)
def test_norms_of_windows(p: int, given: dict[str, Any]) -> None:
    x = _normal(1, 2, 6, 5)
    model, feeds = one_node("LpPool", {"x": x}, {"y": np.float32}, opset=22, kernel_shape=[3, 2], p=p, **given)
    check_rewrite(model, feeds, rtol=1e-5)
    model, feeds = one_node("GlobalLpPool", {"x": x}, {"y": np.float32}, p=p)
    want = (np.abs(x).astype(np.float64) ** p).sum((2, 3), keepdims=True) ** (1 / p)
    check_rewrite(model, feeds, expected=[want.astype(np.float32)])


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize(("dims", "axis"), [((7,), 0), ((3, 5, 2), -2), ((1, 4), 0)])
def test_products_along_an_axis(dims: tuple[int, ...], axis: int, exclusive: int, reverse: int) -> None:
    x = RANDOM.integers(-3, 4, dims)
    want = np.flip(x, axis) if reverse else x
    if exclusive:
        ones = np.ones_like(want.take([0], axis))
        want = np.concatenate([ones, want.take(range(dims[axis] - 1), axis)], axis)
    want = np.cumprod(want, axis)
    want = np.flip(want, axis) if reverse else want
    inputs = {"x": x, "a": np.array(axis)}
    given = {"opset": 26, "exclusive": exclusive, "reverse": reverse, "constants": ["a"]}
    model, feeds = one_node("CumProd", inputs, {"y": np.int64}, **given)
    check_rewrite(model, feeds, expected=[want])


def _scan_model(steps: int, **given: Any) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Mul", ["t", "k"], ["u"]),
         helper.make_node("Identity", ["t"], ["o"])],
        "body", [value("s", TensorProto.FLOAT, [2]), value("e", TensorProto.FLOAT, [2])],
        [value("u", TensorProto.FLOAT, [2]), value("o", TensorProto.FLOAT, [2])],
        [helper.make_tensor("k", TensorProto.FLOAT, [], [0.5])],
    )  # fmt: skip
    node = helper.make_node("Scan", ["i", "x"], ["last", "all"], "scan", body=body, num_scan_inputs=1, **given)
    along = given.get("scan_input_axes", [0])[0]
    dims = [steps, 2] if along == 0 else [2, steps]
    inputs = [value("i", TensorProto.FLOAT, [2]), value("x", TensorProto.FLOAT, dims)]
    outputs = [value(name, TensorProto.FLOAT, None) for name in ("last", "all")]
    graph = helper.make_graph([node], "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


@pytest.mark.parametrize("given", [{}, {"scan_input_axes": [1], "scan_output_axes": [-1]},
                                   {"scan_input_directions": [1], "scan_output_directions": [1]}])  # fmt: skip
def test_scans_are_written_out(given: dict[str, Any]) -> None:
    x = _normal(2, 3) if given.get("scan_input_axes") else _normal(3, 2)
    graph = check_rewrite(_scan_model(3, **given), {"i": _normal(2), "x": x})
    assert "Scan" not in {node.op_type for node in graph.nodes}
    assert {node.name for node in graph.nodes} == {"scan"}


def test_long_scans_are_refused() -> None:
    with pytest.raises(UnsupportedNodeError, match="scan: Scan: 2000 steps of 3 nodes"):
        prepare(_scan_model(2000))


def test_bodies_of_operators_with_operands_left_out() -> None:
    inputs = {"q": _normal(2, 3, 8), "k": _normal(2, 3, 8), "v": _normal(2, 3, 8), "s": None, "d": None}
    inputs["b"] = _normal(2, 3, 2)
    given = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "delta", "opset": 27}
    model, _ = one_node("LinearAttention", inputs, {"y": np.float32, "z": np.float32}, **given)
    assert "torch.operator" not in str(load(model).module)


_TRAINING = "ai.onnx.preview.training"


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("op_type", "states", "given"),
    [
        ("Momentum", 1, {"mode": "standard", "alpha": 0.9, "beta": 0.2, "norm_coefficient": 0.01}),
        ("Momentum", 1, {"mode": "nesterov", "alpha": 0.9, "beta": 0.2, "norm_coefficient": 0.0}),
        ("Adagrad", 1, {"decay_factor": 0.1, "norm_coefficient": 0.01}),
        ("Adam", 2, {"alpha": 0.8, "beta": 0.9, "norm_coefficient": 0.01, "norm_coefficient_post": 0.1}),
    ],
)
def test_steps_of_learning(op_type: str, states: int, given: dict[str, Any], steps: int) -> None:
    """Two tensors in a node, as each alone, by onnx's reference."""
    rate, count = np.array(0.1, np.float32), np.array(steps, np.int64)
    groups = {f"{kind}{i}": np.abs(_normal(2 + i)) for kind in "xgvh"[: 2 + states] for i in (0, 1)}
    outputs = {f"new{kind}{i}": np.float32 for kind in "xvh"[: 1 + states] for i in (0, 1)}
    given = {"domain": _TRAINING, **given}
    model, feeds = one_node(op_type, {"r": rate, "t": count, **groups}, outputs, **given)
    want: dict[str, np.ndarray] = {}
    for i in (0, 1):
        alone = {name: value for name, value in groups.items() if name.endswith(str(i))}
        single, fed = one_node(
            op_type, {"r": rate, "t": count, **alone}, {n: outputs[n] for n in outputs if n[-1] == str(i)}, **given
        )
        names = (name for name in outputs if name[-1] == str(i))
        for name, value in zip(names, ReferenceEvaluator(single).run(None, fed), strict=True):
            want[name] = np.asarray(value, np.float32)
    check_rewrite(model, feeds, expected=[want[name] for name in outputs])


def test_features_and_thresholds() -> None:
    x = _normal(3, 4)
    given: dict[str, Any] = {"domain": "ai.onnx.ml"}
    model, feeds = one_node("ArrayFeatureExtractor", {"x": x, "i": np.array([3, 0])}, {"y": np.float32}, **given)
    check_rewrite(model, feeds, expected=[x[:, [3, 0]]])
    model, feeds = one_node("Binarizer", {"x": x}, {"y": np.float32}, threshold=0.25, **given)
    check_rewrite(model, feeds, expected=[(x > 0.25).astype(np.float32)])


@pytest.mark.parametrize("axes", [None, [0], [1, 2], [-1, 0], [0, 1, 3]], ids=str)
@pytest.mark.parametrize("keeps", [0, 1])
def test_products_over_axes_keep_their_dims(axes: list[int] | None, keeps: int) -> None:
    """torch-mlir leaves the dims between several axes, and in front of a reshape, open."""
    x = _normal(2, 3, 4, 5)
    inputs = {"x": x} if axes is None else {"x": x, "a": np.array(axes)}
    model, feeds = one_node("ReduceProd", inputs, {"y": np.float32}, keepdims=keeps, constants=[*inputs][1:])
    want = np.prod(x.astype(np.float64), axis=tuple(axes or range(4)), keepdims=bool(keeps)).astype(np.float32)
    check_rewrite(model, feeds, expected=[want], rtol=1e-5)
    assert "?" not in str(load(model).module)
