"""Nodes that stay ONNX: what goes with them, and that the model which they become says the same."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hipdnn_backend.offload.errors import ModelError, UnsupportedNodeError
from hipdnn_backend.offload.frontend import load
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.passes.graph import source_names
from tests.support.onnx_rewritten import ort

pytestmark = pytest.mark.mlir

WHY = {"ENGINE": "it said no"}


def _node(op_type: str, inputs: str, outputs: str, name: str = "", **given: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), name or outputs.split()[0], **given)


def _model(
    *nodes: onnx.NodeProto, y: tuple[int, ...] = (3, 4), constants: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """A model from float ``x [3, 4]`` to ``y``."""
    graph = helper.make_graph(
        list(nodes), "model", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def _carried(imported: Any) -> list[tuple[set[str], onnx.ModelProto, dict[str, str]]]:
    """Of each operation that carries ONNX: the nodes in its location, its model, who did not take it."""
    found = []
    for view in imported.module.body.operations[0].regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "torch.operator":
            assert ir.StringAttr(op.attributes["name"]).value == "hipdnn.onnx"
            data = base64.b64decode(ir.StringAttr(op.attributes["hipdnn.model"]).value)
            reasons = json.loads(ir.StringAttr(op.attributes["hipdnn.reasons"]).value)
            found.append((set(source_names(op.location)), onnx.load_model_from_string(data), reasons))
    return found


def _names(model: onnx.ModelProto) -> list[str]:
    return [node.name for node in model.graph.node]


def test_what_is_not_converted_stays_onnx() -> None:
    constants = {"to4": np.array([1, 1, 3, 4]), "scales": np.array([1, 1, 1, 0.6], np.float32)}
    resize = _node("Resize", "r", "s", mode="linear", coordinate_transformation_mode="align_corners")
    resize.input.extend(["", "scales"])
    nodes = (_node("Reshape", "x to4", "r"), resize)
    model = _model(*nodes, _node("Tanh", "s", "y"), y=(1, 1, 3, 2), constants=constants)
    with pytest.raises(UnsupportedNodeError) as caught:
        load(model)
    imported = load(model, strict=False)
    assert imported.opaque == {"s": caught.value.reason}
    ((nodes_of, alone, reasons),) = _carried(imported)
    assert (nodes_of, _names(alone)) == ({"s"}, ["s"])
    assert reasons == {"front end": caught.value.reason}
    assert "torch.aten.tanh" in str(imported.module)
    r = np.random.default_rng(0).standard_normal((1, 1, 3, 4), np.float32)
    (expected,) = ort(model, {"x": r.reshape(3, 4)})
    np.testing.assert_allclose(np.tanh(ort(alone, {"r": r})[0]), expected, rtol=1e-6)


def test_a_node_that_converts_stays_onnx_if_it_is_named() -> None:
    model = _model(_node("Relu", "x", "a"), _node("Softmax", "a", "b"), _node("Tanh", "b", "y"))
    imported = load(model, left={"b": WHY})
    ((nodes, alone, reasons),) = _carried(imported)
    assert (nodes, _names(alone), reasons) == ({"b"}, ["b"], WHY)
    assert imported.opaque == {"b": "ENGINE: it said no"}
    assert "softmax" not in str(imported.module)


def test_no_rule_rewrites_it() -> None:
    """RMSNormalization becomes a torch operation, which ONNX does not have; here it does not."""
    weight = {"w": np.ones(4, np.float32)}
    model = _model(_node("RMSNormalization", "x w", "a"), _node("Tanh", "a", "y"), constants=weight)
    model.opset_import[0].version = 23
    assert "torch.aten.rms_norm" in str(load(model).module)
    ((_, alone, _),) = _carried(load(model, strict=False, left={"a": WHY}))
    assert [node.op_type for node in alone.graph.node] == ["RMSNormalization"]


def test_what_is_rewritten_and_has_to_go_along_does_so_too() -> None:
    """A norm between two nodes of one model; it is a torch operation unless it is known beforehand to stay ONNX."""
    weight = {"w": np.ones(4, np.float32), "k": np.array([3])}
    nodes = (
        _node("NonZero", "x", "z"),
        _node("Gather", "x z", "many", axis=0),
        _node("RMSNormalization", "many w", "n"),
        _node("ReduceMax", "n", "y", keepdims=0),
    )
    model = _model(*nodes, y=(), constants=weight)
    model.opset_import[0].version = 23
    ((nodes_of, alone, _),) = _carried(load(model, strict=False, left={"z": WHY}))
    assert nodes_of == {"z", "many", "n", "y"}
    assert {node.op_type for node in alone.graph.node} == {"NonZero", "Gather", "RMSNormalization", "ReduceMax"}


def test_values_without_static_dims_do_not_cross() -> None:
    nodes = (
        _node("Relu", "x", "a"),
        _node("NonZero", "a", "many"),
        _node("Cast", "many", "floats", to=TensorProto.FLOAT),
        _node("ReduceSum", "floats axes", "two", keepdims=0),
        _node("Exp", "two", "y"),
    )
    imported = load(_model(*nodes, y=(2,), constants={"axes": np.array([1])}), left={"many": WHY})
    ((nodes_of, alone, _),) = _carried(imported)
    assert nodes_of == {"many", "floats", "two"}
    assert imported.opaque["floats"].startswith("it stands between nodes")
    x = np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 0]], np.float32)
    np.testing.assert_array_equal(ort(alone, {"a": x})[0], [0 + 0 + 2, 0 + 2 + 1])


def test_what_lies_between_two_of_its_nodes_goes_along() -> None:
    """a → b → d and a → c → d: b and c follow when a and d cannot be apart."""
    nodes = (
        _node("NonZero", "x", "many"),
        _node("ReduceMax", "many", "a", keepdims=0),
        _node("Neg", "a", "b"),
        _node("Gather", "many b", "some", axis=1),
        _node("Cast", "some", "floats", to=TensorProto.FLOAT),
        _node("Neg", "floats", "y"),
    )
    ((nodes_of, _, _),) = _carried(load(_model(*nodes, y=(2,)), left={"many": WHY}))
    assert nodes_of == {"many", "a", "b", "some"}


def test_models_that_would_wait_for_each_other_become_one() -> None:
    """Left and right, each of two nodes tied by a value of unknown dims, feed each other crosswise."""
    nodes = (
        _node("NonZero", "x", "l1"),
        _node("NonZero", "x", "r1"),
        _node("ReduceMax", "l1", "l", keepdims=0),
        _node("ReduceMax", "r1", "r", keepdims=0),
        _node("Gather", "l1 r", "l2", axis=1),
        _node("Gather", "r1 l", "r2", axis=1),
        _node("Add", "l2 r2", "sum"),
        _node("Cast", "sum", "y", to=TensorProto.FLOAT),
    )
    left = {"l1": WHY, "r1": {"OTHER": "nor I"}}
    ((nodes_of, _, reasons),) = _carried(load(_model(*nodes, y=(2,)), left=left))
    assert nodes_of >= {"l1", "l2", "r1", "r2"}
    assert reasons == {"ENGINE": "it said no", "OTHER": "nor I"}


def test_bodies_take_what_they_read_along() -> None:
    """A Scan whose body reads a value of the graph around it."""
    body = helper.make_graph(
        [_node("Add", "state row", "sum"), _node("Mul", "sum outer", "next"), _node("Identity", "next", "out")], "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4,)) for name in ("state", "row")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (4,)) for name in ("next", "out")],
    )  # fmt: skip
    nodes = (
        _node("ReduceMax", "x axes", "outer", keepdims=0),
        _node("Scan", "zero x", "last all", "scan", body=body, num_scan_inputs=1),
        _node("Tanh", "all", "y"),
    )
    constants = {"zero": np.zeros(4, np.float32), "axes": np.array([0])}
    model = _model(*nodes, constants=constants)
    ((nodes_of, alone, _),) = _carried(load(model, left={"scan": WHY}))
    assert nodes_of == {"scan"}
    assert [value.name for value in alone.graph.input] == ["x", "outer"]
    assert [value.name for value in alone.graph.output] == ["all"]
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    (expected,) = ort(model, {"x": x})
    np.testing.assert_allclose(np.tanh(ort(alone, {"x": x, "outer": x.max(0)})[0]), expected, rtol=1e-6)


def test_a_node_in_a_body_takes_the_whole_along() -> None:
    """An If with a branch that is not converted; who reads about it reads of the If."""
    to = helper.make_tensor_value_info("out", TensorProto.FLOAT, (3, 4))
    strange = helper.make_graph([helper.make_node("CumProd", ["x", "axis"], ["out"])], "then", [], [to])
    plain = helper.make_graph([helper.make_node("Neg", ["x"], ["out"])], "else", [], [to])
    nodes = (
        _node("ReduceMax", "x", "largest", keepdims=0),
        _node("Greater", "largest one", "is_large"),
        _node("If", "is_large", "y", "either", then_branch=strange, else_branch=plain),
    )
    model = _model(*nodes, constants={"one": np.array(1, np.float32), "axis": np.array(0)})
    model.opset_import[0].version = 26
    with pytest.raises(UnsupportedNodeError) as caught:
        load(model)
    assert caught.value.node == "either"
    ((nodes_of, alone, _),) = _carried(load(model, strict=False))
    assert (nodes_of, _names(alone)) == ({"either"}, ["either"])


def test_weights_stay_outside_of_it() -> None:
    constants = {"w": np.ones((4, 400), np.float32), "small": np.ones(400, np.float32)}
    model = _model(_node("Gemm", "x w small", "a"), _node("Tanh", "a", "y"), y=(3, 400), constants=constants)
    imported = load(model, left={"a": WHY})
    ((_, alone, _),) = _carried(imported)
    assert [value.name for value in alone.graph.input] == ["x", "w"]
    assert [tensor.name for tensor in alone.graph.initializer] == ["small"]
    assert [constant.name for constant in imported.constants] == ["w"]


def test_a_wrong_node_is_an_error_whatever_may_stay_onnx() -> None:
    model = _model(_node("Slice", "x starts ends axes", "y"), constants={
        "starts": np.array([0]), "ends": np.array([1]), "axes": np.array([7]),
    })  # fmt: skip
    with pytest.raises(ModelError) as caught:
        load(model, strict=False)
    assert not isinstance(caught.value, UnsupportedNodeError)


def test_the_first_error_counts_if_what_stays_has_no_known_dims() -> None:
    """What stays ONNX has to have static dims; that a node's dims are unknown then is no news for the user."""
    node = helper.make_node(
        "FusedConv", ["x4", "w"], ["c"], "odd", domain="com.microsoft", activation="Frobnicate", kernel_shape=[1, 1]
    )
    constants = {"to4": np.array([1, 1, 3, 4]), "w": np.ones((1, 1, 1, 1), np.float32), "to2": np.array([3, 4])}
    model = _model(_node("Reshape", "x to4", "x4"), node, _node("Reshape", "c to2", "y"), constants=constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ModelError, match="Frobnicate") as caught:
        load(model, strict=False)
    assert (caught.value.node, caught.value.rule) == ("odd", "fused-activation")


def test_names_that_no_node_has_change_nothing() -> None:
    model = _model(_node("Tanh", "x", "y"))
    assert str(load(model, left={"nobody": WHY}).module) == str(load(model).module)
