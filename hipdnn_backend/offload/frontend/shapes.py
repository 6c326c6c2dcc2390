"""Types of all tensors, by onnx's shape inference; what it rejects is an error that names the node."""

from __future__ import annotations

import re

import onnx

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import OnnxGraph, TensorType
from hipdnn_backend.offload.frontend.growth import check_ranks, check_types, is_small
from hipdnn_backend.offload.onnx_process import client
from hipdnn_backend.offload.onnx_process.client import OnnxError

__all__ = ["check", "infer", "inferred_model"]

_INFERENCE_NODE = re.compile(
    r"\(op_type:\s*(?P<op>[^,)]*)(?:, node name:\s*(?P<name>[^)]*))?\):?\s*(?P<reason>.*)", re.S
)
_CHECKER_NODE = re.compile(r"Context: Bad node spec for node\. Name: (?P<name>.*?) OpType: (?P<op>\S+)", re.S)


def check(graph: OnnxGraph) -> None:
    """Operators exist in their opset, with their attributes and numbers of inputs.

    Raises:
        ModelError: one does not.
    """
    model = graph.to_proto()
    for value in [*model.graph.input, *model.graph.output]:  # the checker wants a shape there, and does not read it
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    try:
        client.check_model(model)
    except OnnxError as error:
        text = str(error)
        found = _CHECKER_NODE.search(text)
        reason = " ".join(text.split("==> Context")[0].split())
        unknown = "No Op registered" in reason
        if unknown:
            reason += "; the name is misspelt, or the opset or domain is another"
        rule = "unknown-operator" if unknown else "checker"
        raise ModelError(found["name"] if found else "", rule, reason) from error


def infer(graph: OnnxGraph, *, strict: bool = True) -> None:
    """Fill `Graph.types`.

    Args:
        graph: changed in place.
        strict: whether a node whose shapes or types contradict each other is an error; else its results are unknown.

    Raises:
        ModelError: there is such a node, or onnx cannot read the graph.
    """
    check_ranks(graph)
    try:
        inferred = inferred_model(graph.to_proto(), strict=strict)
    except OnnxError as error:
        raise _shape_error(graph, str(error)) from error
    check_types(inferred)
    types = {}
    for value in [*inferred.graph.value_info, *inferred.graph.output]:
        type_ = TensorType.of(value.type, value.name)
        if type_ is not None:
            types[value.name] = type_
    graph.types = types


def inferred_model(model: onnx.ModelProto, *, strict: bool = False) -> onnx.ModelProto:
    """A model with the types that follow.

    Data is propagated where it is little: a chain of ``Concat(t, t)``, say, would take gigabytes.

    Raises:
        OnnxError, OnnxProcessError: see `native_onnx`.
    """
    inferred = client.infer_shapes(model)
    propagate = is_small(inferred)
    if not propagate and not strict:
        return inferred
    return client.infer_shapes(model, check_type=strict, strict_mode=strict, data_prop=propagate)


def _shape_error(graph: OnnxGraph, text: str) -> ModelError:
    text = text.removeprefix("[ShapeInferenceError] Inference error(s): ")
    found = _INFERENCE_NODE.search(text)
    if not found:
        return ModelError(graph.name, "shapes", " ".join(text.split()))
    name, reason = (found["name"] or "").strip(), " ".join(found["reason"].split())
    reason = reason.split("(op_type:")[0].replace("[ShapeInferenceError] ", "").replace("[TypeInferenceError] ", "")
    node = next((node for node in graph.nodes if node.name == name), None)
    if node is None:
        return ModelError(name or found["op"], "shapes", reason)
    return ModelError(name, "shapes", f"{node.op_type} of {_operands(graph, node)}: {reason.strip()}")


def _operands(graph: OnnxGraph, node: onnx.NodeProto) -> str:
    """Names and dims of a node's inputs, for messages."""
    shown = []
    for name in node.input:
        type_ = graph.type(name)
        dims = "?" if type_ is None or type_.dims is None else list(type_.dims)
        shown.append(f"{name} {dims}" if name else "none")
    return ", ".join(shown)
