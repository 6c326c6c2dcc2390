"""Nodes of other domains and loops that a run ends: each is left to ONNX Runtime, the rest of the model is served."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.fallback.ort_engine import OnnxRuntimeEngine
from hipdnn_backend.offload import load
from hipdnn_backend.offload.errors import UnsupportedNodeError
from hipdnn_backend.offload.frontend import load as import_model
from hipdnn_backend.offload.frontend import prepare
from tests.support.onnx_rewritten import ort, rewritten

pytestmark = [pytest.mark.mlir, pytest.mark.ort]

OURS, LAST = "FUSILLI_ENGINE", "ONNXRUNTIME_ENGINE"
ENGINES = (FusilliEngine("cpu"), OnnxRuntimeEngine("cpu"))
RANDOM = np.random.default_rng(7)


def _value(name: str, *dims: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(dims))


def _model(nodes: Any, inputs: Any, outputs: Any, constants: dict[str, Any], opset: int = 17) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "model", inputs, outputs, weights)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _loop(
    *, limit: int = 3, trips: int | None = 5, go: bool | None = True, scan: bool = False, counts: bool = False
) -> onnx.ModelProto:
    """``s = tanh(s @ w)`` until the body's condition says stop, and a Neg behind it."""
    inner = [helper.make_node("MatMul", ["s", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["s2"])]
    inner.append(helper.make_node(*(("Identity", ["c"]) if counts else ("Less", ["i", "limit"])), ["c2"]))
    made = [_value("c2", kind=TensorProto.BOOL), _value("s2", 1, 4)]
    if scan:
        inner.append(helper.make_node("Identity", ["s2"], ["each"]))
        made.append(_value("each", 1, 4))
    taken = [_value("i", kind=TensorProto.INT64), _value("c", kind=TensorProto.BOOL), _value("s", 1, 4)]
    body = helper.make_graph(inner, "body", taken, made)
    operands = ["" if trips is None else "trips", "" if go is None else "go", "x"]
    nodes = [
        helper.make_node("Loop", operands, ["y", "all"] if scan else ["y"], "loop", body=body),
        helper.make_node("Neg", ["y"], ["z"], "neg"),
    ]
    steps = 0 if go is False else min(n for n in (trips, None if counts else limit + 1) if n is not None)
    outputs = [_value("z", 1, 4), *([_value("all", steps, 1, 4)] if scan else [])]
    constants: dict[str, Any] = {"w": (RANDOM.standard_normal((4, 4)) * 0.5).astype(np.float32)}
    constants |= {} if counts else {"limit": np.int64(limit)}
    constants |= {} if trips is None else {"trips": np.int64(trips)}
    constants |= {} if go is None else {"go": np.bool_(go)}
    return _model(nodes, [_value("x", 1, 4)], outputs, constants)


def _served(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[tuple[str, ...], str]:
    """The engine of each graph; the results are ONNX Runtime's."""
    with load(model, engines=ENGINES) as compiled:
        for have, want in zip(compiled.run(feeds).values(), ort(model, feeds), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
        return {graph.nodes: graph.engine for graph in compiled.program.graphs}


@pytest.mark.iree_cpu
@pytest.mark.parametrize("given", [{}, {"limit": 1, "scan": True}, {"trips": None, "go": None}], ids=str)
def test_loops_that_a_run_ends(given: dict[str, Any]) -> None:
    """Torch-MLIR's conversion would run all trips."""
    engines = _served(_loop(**given), {"x": np.ones((1, 4), np.float32)})
    assert engines == {("loop",): "CONTROL_ENGINE", ("neg",): OURS}


@pytest.mark.parametrize(
    "given",
    [
        {"go": False},
        {"counts": True},
        {"counts": True, "go": None},
        {"counts": True, "scan": True},
        {"go": False, "scan": True},
        {"trips": 0, "counts": True, "scan": True},
    ],
    ids=str,
)
def test_loops_that_count_are_written_out(given: dict[str, Any]) -> None:
    model, x = _loop(**given), np.ones((1, 4), np.float32)
    graph = prepare(model)
    assert "Loop" not in {node.op_type for node in graph.nodes}
    for have, want in zip(rewritten(graph, {"x": x}), ort(model, {"x": x}), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-6)


def test_a_loop_whose_state_grows_is_refused_with_the_reason() -> None:
    model = _loop()
    body = model.graph.node[0].attribute[0].g
    body.node.append(helper.make_node("Concat", ["s2", "s2"], ["s3"], axis=0))
    body.output[1].CopyFrom(_value("s3", None, 4))
    body.input[2].CopyFrom(_value("s", None, 4))
    model.graph.output[0].CopyFrom(_value("z", None, 4))
    with pytest.raises(UnsupportedNodeError, match="its body computes whether it goes on"):
        import_model(model, strict=False)


def _learned(op_type: str, outputs: list[str], **given: Any) -> onnx.ModelProto:
    """Nothing says the dims of what a node of ``ai.onnx.ml`` gives."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "relu"),
        helper.make_node(op_type, ["a"], outputs, "learned", domain="ai.onnx.ml", **given),
        helper.make_node("Tanh", [outputs[-1]], ["y"], "tanh"),
    ]
    return _model(nodes, [_value("x", 8, 4)], [_value("y", None, None)], {})


_CASES = {
    "Scaler": (["s"], {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [1.0, 2.0, 3.0, 4.0]}, (8, 4)),
    "Normalizer": (["s"], {"norm": "L2"}, (8, 4)),
    "Imputer": (["s"], {"imputed_value_floats": [1.0], "replaced_value_float": 0.0}, (8, 4)),
    "LinearRegressor": (["s"], {"coefficients": [0.5] * 8, "intercepts": [0.1, 0.2], "targets": 2}, (8, 2)),
    "LinearClassifier": (
        ["label", "s"],
        {"coefficients": [0.1 * k for k in range(12)], "intercepts": [0.1, 0.2, 0.3], "classlabels_ints": [0, 1, 2],
         "post_transform": "SOFTMAX"},
        (8, 3),
    ),
    "FeatureVectorizer": (["s"], {"inputdimensions": [4]}, (8, 4)),
}  # fmt: skip


@pytest.mark.parametrize("op_type", _CASES)
def test_what_nodes_of_machine_learning_give(op_type: str) -> None:
    outputs, given, dims = _CASES[op_type]
    model = _learned(op_type, outputs, **given)
    imported = import_model(model, strict=False)
    assert set(imported.opaque) == {"learned"}
    assert imported.outputs[0].dims == dims == ort(model, {"x": np.ones((8, 4), np.float32)})[0].shape


@pytest.mark.iree_cpu
def test_a_node_of_another_domain_is_left_alone() -> None:
    outputs, given, _ = _CASES["LinearClassifier"]
    x = RANDOM.standard_normal((8, 4)).astype(np.float32)
    engines = _served(_learned("LinearClassifier", outputs, **given), {"x": x})
    assert engines == {("relu",): OURS, ("learned",): LAST, ("tanh",): OURS}


def test_the_model_s_word_counts_where_nothing_else_says_a_type() -> None:
    """With a symbolic dim; onnx has no schema of the operator."""
    nodes = [
        helper.make_node("Unknown", ["x"], ["s"], "unknown", domain="com.microsoft"),
        helper.make_node("Tanh", ["s"], ["y"], "tanh"),
    ]
    model = _model(nodes, [_value("x", "n", 4)], [_value("y", "n", 6)], {})
    with pytest.raises(UnsupportedNodeError, match="Unknown"):
        import_model(model, strict=False, dims={"n": 8})
    model.graph.value_info.append(_value("s", "n", 6))
    imported = import_model(model, strict=False, dims={"n": 8})
    assert set(imported.opaque) == {"unknown"}
    assert imported.outputs[0].dims == (8, 6)
