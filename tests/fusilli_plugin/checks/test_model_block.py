from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fusilli_plugin.checks.model_block import MODEL_FILE, ModelBlock, cut_block, fold_batchnorm, read_model
from graph_api import GraphError
from hipdnn_backend.offload.onnx_process.client import check_model

DIMS = (1, 3, 9, 8)


def constant(name: str, value: object) -> onnx.NodeProto:
    array = np.asarray(value, np.float32)
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def conv(name: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
    defaults = {"dilations": [1, 1], "kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "group": 1}
    node = helper.make_node("Conv", inputs, [output], name=name)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in (defaults | attributes).items())
    return node


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """A block of the same kinds of nodes as the text detector's, with a node before and one after it."""
    rng = np.random.default_rng(0)
    constants = [
        constant("w0", rng.standard_normal((4, 3, 3, 3))),
        constant("scale", rng.uniform(0.5, 2, 4)),
        constant("shift", rng.standard_normal(4)),
        constant("mean", rng.standard_normal(4)),
        constant("variance", rng.uniform(0.1, 2, 4)),
        constant("w1", rng.standard_normal((4, 1, 3, 3))),
        constant("b1", rng.standard_normal(4)),
        constant("three", 3.0),
        constant("low", 0.0),
        constant("high", 6.0),
        constant("six", [6.0]),
    ]
    nodes = [
        helper.make_node("Neg", ["picture"], ["x"], name="before"),
        conv("first", ["x", "w0"], "c0", strides=[2, 2], pads=[1, 0, 1, 1]),
        helper.make_node("BatchNormalization", ["c0", "scale", "shift", "mean", "variance"], ["n0"], epsilon=1e-3),
        conv("depthwise", ["n0", "w1", "b1"], "c1", group=4),
        helper.make_node("Add", ["c1", "three"], ["a0"], name="add"),
        helper.make_node("Clip", ["a0", "low", "high"], ["k0"], name="clip"),
        helper.make_node("Mul", ["c1", "k0"], ["m0"], name="mul"),
        helper.make_node("Div", ["m0", "six"], ["y"], name="last"),
        helper.make_node("Sqrt", ["y"], ["z"], name="after"),
    ]
    graph = helper.make_graph(
        [*constants, *nodes],
        "whole",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, [None, 3, None, None])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [None] * 4)],
    )
    # Before opset 14, onnx's reference evaluator mixes the statistics of the batch into the normalisation.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)])


@pytest.fixture(scope="module")
def block(model: onnx.ModelProto) -> ModelBlock:
    return cut_block(model, DIMS, first="first", last="last")


def test_the_block_is_cut_at_both_ends(block: ModelBlock) -> None:
    check_model(block.model)
    assert {"Neg", "Sqrt"}.isdisjoint(node.op_type for node in block.model.graph.node)
    assert (block.x, block.y) == ("x", "y")
    assert [tensor.name for tensor in block.graph.arguments().outputs] == ["y"]
    assert {tensor.name for tensor in block.graph.arguments().inputs} == {"x", *block.weights}


def test_the_graph_computes_what_the_model_computes(block: ModelBlock) -> None:
    x = np.random.default_rng(1).standard_normal(DIMS).astype(np.float32)
    (expected,) = ReferenceEvaluator(block.model).run(None, {"x": x})
    (found,) = block.graph.reference({"x": x, **block.weights}).values()
    assert found.shape == (1, 4, 5, 4)
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-4, atol=1e-4)


def test_folding_a_batch_normalisation() -> None:
    weight = np.full((1, 1, 1, 1), 2.0, np.float32)
    scale, bias, mean, variance = (np.array([value], np.float32) for value in (3.0, 5.0, 7.0, 15.0))
    folded, shift = fold_batchnorm(weight, scale, bias, mean, variance, epsilon=1.0)
    # (2x - 7) / sqrt(15 + 1) * 3 + 5 = 1.5x - 0.25
    assert folded.tolist() == [[[[1.5]]]]
    assert shift.tolist() == [-0.25]


def test_a_model_is_read_from_a_file_and_from_a_wheel(model: onnx.ModelProto, tmp_path: Path) -> None:
    data = model.SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)
    with zipfile.ZipFile(tmp_path / "package.whl", "w") as wheel:
        wheel.writestr(f"package/models/{MODEL_FILE}", data)
    for name in ("model.onnx", "package.whl"):
        assert read_model(tmp_path / name) == model


def test_other_files_are_refused(model: onnx.ModelProto, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_bytes(b"no model at all")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr("other/readme", "")
    with pytest.raises(GraphError, match="neither an ONNX model nor a wheel"):
        read_model(tmp_path / "text.onnx")
    with pytest.raises(GraphError, match=f"no {MODEL_FILE} in this wheel"):
        read_model(tmp_path / "other.whl")
    with pytest.raises(GraphError, match="no nodes 'nowhere' and 'last'"):
        cut_block(model, DIMS, first="nowhere", last="last")


def test_a_node_of_another_kind_is_named(model: onnx.ModelProto) -> None:
    with pytest.raises(GraphError, match="node 'after' is a Sqrt"):
        cut_block(model, DIMS, first="first", last="after")
