"""Random nodes: they are left to ONNX Runtime, and no two of them, and no two runs, give the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hipdnn_backend.offload import load

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]

X = np.linspace(0.1, 0.9, 64, dtype=np.float32).reshape(8, 8)


def model(nodes: list[onnx.NodeProto], dtype: int = TensorProto.FLOAT, dims: Any = (8, 8)) -> onnx.ModelProto:
    """From x [8, 8] and a constant w of the same values to y."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [8, 8])], [value("y", dtype, dims)],
        [onnx.numpy_helper.from_array(X, "w"), onnx.numpy_helper.from_array(np.array(0.5, np.float32), "ratio"),
         onnx.numpy_helper.from_array(np.array(True), "training")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def runs(proto: onnx.ModelProto) -> tuple[Any, Any]:
    with load(proto) as made:
        return made.run({"x": X})["y"].copy(), made.run({"x": X})["y"]


@pytest.mark.parametrize("source", ["x", "w"])
@pytest.mark.parametrize("op_type", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_each_run_has_its_own_numbers(op_type: str, source: str) -> None:
    nodes = [helper.make_node(op_type, [source], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    first, second = runs(model(nodes))
    assert (first != second).any()


def test_two_nodes_alike_are_two() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], [name]) for name in ("a", "b")]
    for y in runs(model([*nodes, helper.make_node("Sub", ["a", "b"], ["y"])])):
        assert (y != 0).mean() > 0.9


def test_dropout_in_training_on_a_constant() -> None:
    nodes = [helper.make_node("Dropout", ["w", "ratio", "training"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
    first, second = runs(model(nodes))
    assert (first != second).any()


def test_multinomial_stays_in_its_memory() -> None:
    """Compiled, it wrote behind its result."""
    node = helper.make_node("Multinomial", ["x"], ["y"], sample_size=1000, dtype=TensorProto.INT64)
    for y in runs(model([node], TensorProto.INT64, [8, 1000])):
        assert y.shape == (8, 1000)
        assert set(np.unique(y)) <= set(range(8))


@pytest.mark.a_few("-1-0")
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_exclusive_sums_keep_small_and_special_values(reverse: int, axis: int) -> None:
    x = np.array([[1, 1e8, -1e8, 2], [1, np.inf, 3, 2], [0.5, 4, 1, 1]], np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=1, reverse=reverse)], "g",
        [value("x", TensorProto.FLOAT, [3, 4])], [value("y", TensorProto.FLOAT, [3, 4])],
        [onnx.numpy_helper.from_array(np.array(axis), "axis")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    ordered = np.flip(x, axis) if reverse else x
    moved = np.roll(ordered, 1, axis)
    moved[(0,) if axis == 0 else (slice(None), 0)] = 0
    expected = np.cumsum(moved, axis, dtype=np.float32)
    expected = np.flip(expected, axis) if reverse else expected
    with load(proto) as made:
        np.testing.assert_array_equal(made.run({"x": x})["y"], expected)
