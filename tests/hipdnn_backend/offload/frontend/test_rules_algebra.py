"""Products, norms, activations, slices and reductions against ONNX Runtime or onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.graph import attributes
from tests.support.onnx_rewritten import check_rewrite, one_node

RANDOM = np.random.default_rng(3)


def _normal(*dims: int) -> np.ndarray:
    return RANDOM.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize(
    ("a", "b"), [((3,), (3, 4)), ((2, 3), (3,)), ((3,), (2, 3, 4)), ((2, 5, 4, 3), (3,)), ((3,), (3,))]
)
def test_products_with_vectors(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    model, feeds = one_node("MatMul", {"a": _normal(*a), "b": _normal(*b)}, {"y": np.float32})
    check_rewrite(model, feeds)
    assert "?" not in str(load(model).module)


@pytest.mark.parametrize("constants", [[], ["b"], ["b", "c"]], ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "given", [{"alpha": 0.5}, {"beta": 2.0}, {"alpha": 0.5, "beta": 2.0, "transA": 1, "transB": 1}]
)
def test_no_gemm_keeps_a_factor(given: dict[str, Any], bias: bool, constants: list[str]) -> None:
    """Torch-MLIR's conversion drops alpha where there is no C."""
    inputs = {"a": _normal(3, 3), "b": _normal(3, 3), **({"c": _normal(3)} if bias else {})}
    known = [name for name in constants if name in inputs]
    model, feeds = one_node("Gemm", inputs, {"y": np.float32}, constants=known, **given)
    graph = check_rewrite(model, feeds)
    for node in graph.nodes:
        factors = attributes(node)
        assert factors.get("alpha", 1.0) == 1.0
        assert factors.get("beta", 1.0) == 1.0 or len(node.input) < 3


@pytest.mark.parametrize("dims", [(1, 1), (2, 2), (3, 3), (2, 4, 3, 3)])
def test_small_determinants(dims: tuple[int, ...]) -> None:
    x = _normal(*dims)
    model, feeds = one_node("Det", {"x": x}, {"y": np.float32})
    graph = check_rewrite(model, feeds, expected=[np.linalg.det(x.astype(np.float64)).astype(np.float32)], atol=1e-5)
    assert all(node.op_type != "Det" for node in graph.nodes)


def test_a_determinant_that_needs_rows_exchanged() -> None:
    x = np.array([[0, 2, 0], [0, 0, 3], [4, 0, 0]], np.float32)
    model, feeds = one_node("Det", {"x": x}, {"y": np.float32})
    check_rewrite(model, feeds, expected=[np.array(24, np.float32)])


def test_larger_determinants_are_not_converted() -> None:
    model, _ = one_node("Det", {"x": _normal(2, 4, 4)}, {"y": np.float32})
    with pytest.raises(UnsupportedNodeError, match="node: Det: of 4 x 4 matrices; up to 3 x 3 is written out"):
        prepare(model)


@pytest.mark.parametrize("given", [{"transB": 1}, {"transA": 1, "alpha": 0.5, "beta": 2.0}, {"alpha": -1.0}])
def test_a_gemm_has_its_weight_as_it_is_read(given: dict[str, Any]) -> None:
    a = _normal(3, 2) if given.get("transA") else _normal(2, 3)
    b = _normal(4, 3) if given.get("transB") else _normal(3, 4)
    model, feeds = one_node("Gemm", {"a": a, "b": b, "c": _normal(4)}, {"y": np.float32}, constants=["b", "c"], **given)
    graph = check_rewrite(model, feeds)
    left = attributes(graph.nodes[0])
    assert (left["transB"], left["alpha"], left["beta"]) == (0, 1.0, 1.0)


@pytest.mark.parametrize(("axis", "scale"), [(-1, (5,)), (1, (4, 5)), (1, (1, 5)), (-2, (5,))])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rms_normalization(axis: int, scale: tuple[int, ...], dtype: type) -> None:
    x, weight = _normal(2, 4, 5).astype(dtype), _normal(*scale).astype(dtype)
    model, feeds = one_node("RMSNormalization", {"x": x, "w": weight}, {"y": dtype}, opset=23, axis=axis)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    rtol = 1e-5 if dtype is np.float32 else 4e-3
    graph = check_rewrite(model, feeds, expected=[np.asarray(expected)], rtol=rtol, atol=rtol)
    whole = scale == (2, 4, 5)[axis:]
    assert (len(graph.nodes) == 1) is whole
    assert ("torch.aten.rms_norm" in str(load(model).module)) is whole


def test_group_normalization_stays_whole() -> None:
    inputs = {"x": _normal(2, 4, 3, 3), "w": _normal(4), "b": _normal(4)}
    model, feeds = one_node("GroupNormalization", inputs, {"y": np.float32}, num_groups=2)
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    check_rewrite(model, feeds, expected=[np.asarray(expected)], atol=1e-5)
    assert "torch.aten.group_norm" in str(load(model).module)


def test_a_layer_norm_whose_scale_broadcasts() -> None:
    inputs = {"x": _normal(2, 3, 4), "w": _normal(4), "b": _normal(1, 4)}
    model, feeds = one_node("LayerNormalization", inputs, {"y": np.float32}, axis=1)
    expected = next(iter(ReferenceEvaluator(model).run(None, feeds)))
    check_rewrite(model, feeds, expected=[np.asarray(expected)], atol=1e-5)


@pytest.mark.parametrize(("opset", "inputs"), [(7, {}), (13, {"ratio": np.float32(0.75), "training": np.False_})])
def test_dropout_drops_nothing_at_inference(opset: int, inputs: dict[str, Any]) -> None:
    x, more = _normal(2, 3), {name: np.asarray(value) for name, value in inputs.items()}
    model, feeds = one_node(
        "Dropout", {"x": x, **more}, {"y": np.float32, "mask": np.bool_}, constants=list(more), opset=opset
    )
    graph = check_rewrite(model, feeds, expected=[x, np.ones((2, 3), bool)])
    assert not graph.nodes


def test_dropout_in_training_is_not_converted() -> None:
    more = {"ratio": np.asarray(np.float32(0.75)), "training": np.asarray(True)}
    outputs = {"y": np.float32, "mask": np.bool_}
    model, _ = one_node("Dropout", {"x": _normal(2, 3), **more}, outputs, constants=list(more))
    with pytest.raises(UnsupportedNodeError, match="Dropout: each run of it in training drops others"):
        prepare(model)


def test_dropout_in_training_that_drops_nothing() -> None:
    more = {"ratio": np.asarray(np.float32(0)), "training": np.asarray(True)}
    outputs, x = {"y": np.float32, "mask": np.bool_}, _normal(2, 3)
    model, feeds = one_node("Dropout", {"x": x, **more}, outputs, constants=list(more))
    assert not check_rewrite(model, feeds, expected=[x, np.ones((2, 3), bool)]).nodes


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_swish(alpha: float) -> None:
    x = _normal(3, 4)
    model, feeds = one_node("Swish", {"x": x}, {"y": np.float32}, opset=24, alpha=alpha)
    expected = x.astype(np.float64) / (1 + np.exp(-alpha * x.astype(np.float64)))
    check_rewrite(model, feeds, expected=[expected.astype(np.float32)])
    assert ("torch.aten.silu" in str(load(model).module)) is (alpha == 1.0)


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps"),
    [
        ([1, 0], [3, 2**63 - 1], [0, 2], [1, 2]),
        ([-1, -3], [-100, -1], [1, 0], [-1, 1]),
        ([0, 0, 1], [100, 3, 2], None, None),
        ([0, 0], [4, 3], None, None),
    ],
)
def test_slices_of_several_axes(starts: list[int], ends: list[int], axes: Any, steps: Any) -> None:
    inputs = {
        "x": _normal(4, 3, 5), "s": np.array(starts), "e": np.array(ends),
        "a": None if axes is None else np.array(axes), "t": None if steps is None else np.array(steps),
    }  # fmt: skip
    constants = [name for name in inputs if name != "x" and inputs[name] is not None]
    model, feeds = one_node("Slice", inputs, {"y": np.float32}, constants=constants)
    check_rewrite(model, feeds)
    assert "?" not in str(load(model).module)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("amounts", [[1, 2, 2, 1], [-1, 1, 1, -1], [-1, -1, 0, -2]])
def test_pads_of_either_sign(mode: str, amounts: list[int]) -> None:
    model, feeds = one_node(
        "Pad", {"x": _normal(4, 5), "p": np.array(amounts)}, {"y": np.float32}, constants=["p"], mode=mode
    )
    graph = check_rewrite(model, feeds)
    plain = min(amounts) >= 0 and mode in ("constant", "edge")
    assert ([node.op_type for node in graph.nodes] == ["Pad"]) is plain


def test_a_reflection_by_hand() -> None:
    x = np.array([1, 2, 3, 4], np.float32)
    model, feeds = one_node("Pad", {"x": x, "p": np.array([2, -1])}, {"y": np.float32}, constants=["p"], mode="reflect")
    check_rewrite(model, feeds, expected=[np.array([3, 2, 1, 2, 3], np.float32)])


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp"])
@pytest.mark.parametrize(("axes", "noop"), [([1], 0), ([-1, 0], 0), ([], 0), ([], 1), (None, 0)])
def test_reductions(op_type: str, axes: list[int] | None, noop: int) -> None:
    if noop and op_type not in ("ReduceSum", "ReduceMean", "ReduceMax"):
        pytest.skip("ONNX Runtime and the reference differ in what an empty set of axes means here")
    inputs = {"x": _normal(2, 3, 4), "axes": None if axes is None else np.array(axes, np.int64)}
    constants = [] if axes is None else ["axes"]
    model, feeds = one_node(
        op_type, inputs, {"y": np.float32}, constants=constants, noop_with_empty_axes=noop, keepdims=0
    )
    check_rewrite(model, feeds)


def test_axes_that_come_as_an_input_have_to_be_bound() -> None:
    model, feeds = one_node("ReduceSum", {"x": _normal(2, 3), "axes": np.array([1])}, {"y": np.float32})
    with pytest.raises(ModelError, match="node: .*axes.*--input axes=") as caught:
        load(model)
    assert caught.value.node == "node"
    imported = load(model, inputs={"axes": [1]})
    assert [info.name for info in imported.inputs] == ["x"]
    assert imported.outputs[0].dims == (2, 1)
    check_rewrite(model, feeds, inputs={"axes": [1]})


def test_a_rule_that_meets_unknown_shapes_leaves_the_node() -> None:
    model, _ = one_node("MatMul", {"a": _normal(2, 3), "b": _normal(3, 4)}, {"y": np.float32})
    assert [node.op_type for node in prepare(model).nodes] == ["MatMul"]
