"""ONNX models that have a bit of everything, for `tests.support.fuzz` to damage: bodies, functions, external data."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.hipdnn_backend.offload.frontend.test_growth import MODELS
from tests.hipdnn_backend.offload.frontend.test_nesting import functions
from tests.support.onnx_models import bert_layer, mlp, small_cnn

__all__ = ["seeds"]

_GROWING = ("doubled input", "flattened by propagated dims", "doubled in a branch", "many dims", "a range")


def seeds() -> list[bytes]:
    """All of them; the external data is in ``weights.bin``."""
    made = [small_cnn(size=8), bert_layer(hidden=8, heads=2, sequence=2), mlp(), functions(5, 2), _bodies(), _stored()]
    return [model.SerializeToString() for model in made] + [MODELS[name] for name in _GROWING]


def _value(name: str, kind: int, dims: list[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def _bodies() -> onnx.ModelProto:
    """A Loop, a Scan and an If, one in another, with values that they take from outside."""
    flag, number = _value("on", TensorProto.BOOL, []), _value("i", TensorProto.INT64, [])
    state, kept = _value("s", TensorProto.FLOAT, [2]), _value("k", TensorProto.FLOAT, [2])
    then = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["k"], "add")], "then", [], [_value("k", TensorProto.FLOAT, [2])]
    )
    other = helper.make_graph([helper.make_node("Neg", ["s"], ["n"], "neg")], "else", [], [_value("n", 1, [2])])
    body = helper.make_graph(
        [
            helper.make_node("If", ["on"], ["k"], "if", then_branch=then, else_branch=other),
            helper.make_node("Identity", ["on"], ["go"], "id"),
            helper.make_node("Relu", ["k"], ["r"], "relu"),
        ],
        "body", [number, flag, state], [_value("go", TensorProto.BOOL, []), kept, _value("r", 1, [2])],
    )  # fmt: skip
    scanned = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"], "sum"), helper.make_node("Identity", ["c"], ["d"], "out")],
        "scanned", [_value("a", 1, []), _value("b", 1, [])], [_value("c", 1, []), _value("d", 1, [])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["count", "yes", "x"], ["end", "each"], "loop", body=body),
        helper.make_node("Scan", ["zero", "end"], ["total", "y"], "scan", body=scanned, num_scan_inputs=1),
        helper.make_node("SequenceConstruct", ["end", "x"], ["list"], "list"),
        helper.make_node("ConcatFromSequence", ["list"], ["z"], "joined", axis=0),
        helper.make_node("Optional", ["x"], ["maybe"], "maybe"),
        helper.make_node("OptionalGetElement", ["maybe"], ["w"], "got"),
    ]
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in (("count", np.int64(3)), ("yes", np.bool_(True)), ("zero", np.float32(0)))
    ]
    outputs = [_value("y", 1, [2]), _value("z", 1, [4]), _value("each", 1, [3, 2]), _value("w", 1, [2])]
    graph = helper.make_graph(nodes, "bodies", [_value("x", 1, [2])], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def _stored() -> onnx.ModelProto:
    """Constants of each form: raw, in fields, sparse, 4-bit, in attributes, and in a file beside the model."""
    outside = TensorProto(name="outside", data_type=TensorProto.FLOAT, dims=[2, 3])
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "64"), ("length", "24")):
        outside.external_data.add(key=key, value=value)
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray([1.5, -2], np.float32), "sparse"),
        numpy_helper.from_array(np.asarray([1, 5]), "indices"),
        [2, 3],
    )
    constants = [
        outside,
        helper.make_tensor("fields", TensorProto.FLOAT, [2, 3], range(6)),
        helper.make_tensor("half", TensorProto.FLOAT16, [2, 3], range(6)),
        helper.make_tensor("packed", TensorProto.INT4, [2, 3], range(6)),
        numpy_helper.from_array(np.asarray(["a", "b"], object), "words"),
        numpy_helper.from_array(np.asarray(0.5, np.float32), "scale"),
        numpy_helper.from_array(np.asarray([6, -1]), "dims"),
    ]
    nodes = [
        helper.make_node("Add", ["x", "outside"], ["a"], "a"),
        helper.make_node("Mul", ["a", "fields"], ["b"], "b"),
        helper.make_node("Sub", ["b", "sparse"], ["c"], "c"),
        helper.make_node("Cast", ["half"], ["h"], "h", to=1),
        helper.make_node("DequantizeLinear", ["packed", "scale"], ["q"], "q"),
        helper.make_node("Constant", [], ["k"], "k", value=helper.make_tensor("t", 1, [3], [1, 2, 3])),
        helper.make_node("Constant", [], ["s"], "s", sparse_value=sparse),
        helper.make_node("ConstantOfShape", ["dims"], ["f"], "f", value=helper.make_tensor("v", 1, [1], [2])),
        helper.make_node("Sum", ["c", "h", "q", "k", "s"], ["d"], "d"),
        helper.make_node("Reshape", ["d", "dims"], ["y"], "y"),
    ]
    graph = helper.make_graph(nodes, "stored", [_value("x", 1, ["n", 3])], [_value("y", 1, None)], constants)
    graph.sparse_initializer.append(sparse)
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
