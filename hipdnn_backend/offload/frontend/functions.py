"""Operators that ONNX itself defines by a function body are expanded where torch-mlir has no conversion for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
from onnx import defs

from hipdnn_backend.offload.frontend.graph import OnnxGraph, TensorType, rename
from hipdnn_backend.offload.onnx_process import client
from hipdnn_backend.offload.onnx_process.client import OnnxError

__all__ = ["expand"]

_LOCAL = "expanded"
"""Domain of a body while it is put in a node's place."""


def expand(graph: OnnxGraph, names: Collection[str]) -> bool:
    """Replace nodes by the bodies of their operators' definitions.

    Args:
        graph: changed in place; its types are current.
        names: of nodes.

    Returns:
        Whether any node had a body.
    """
    changed = False
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        body = _body(graph, node) if node.name in names and _is_function(node, graph.opset) else None
        changed |= body is not None
        nodes.extend([node] if body is None else body)
    graph.nodes = nodes
    return changed


def _is_function(node: onnx.NodeProto, opset: int) -> bool:
    try:
        schema: Any = defs.get_schema(node.op_type, opset, node.domain)
    except defs.SchemaError:
        return False
    return schema.has_function or schema.has_context_dependent_function


def _body(graph: OnnxGraph, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
    """The nodes of the body under the source node's name, with tensor names of their own."""
    small = OnnxGraph("expand", graph.opsets)
    small.nodes = [node]
    for name in filter(None, node.input):
        type_ = graph.type(name)
        if type_ is None:
            return None
        small.inputs[name] = TensorType(type_.element, type_.dims)
    model = small.to_proto()
    for name in filter(None, node.output):
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    try:
        if "" in node.input:
            result = _inlined_without_some(graph, node, model)
        else:
            selected = [(node.domain, node.op_type)]
            result = client.inline_operators(model, selected)
    except OnnxError:
        return None
    if any(inner.op_type == node.op_type and inner.domain == node.domain for inner in result.graph.node):
        return None
    outer = {*node.input, *node.output}
    names = {n: graph.fresh(f"{node.name}/{n}") for inner in result.graph.node for n in inner.output if n not in outer}
    body = []
    for inner in result.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        rename(copy, names)
        copy.output[:] = [names.get(name, name) for name in inner.output]
        copy.name = node.name
        body.append(copy)
    return body


def _inlined_without_some(graph: OnnxGraph, node: onnx.NodeProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """The body as a function of the model: onnx asks for the types of operands that are not given otherwise."""
    schema: Any = defs.get_schema(node.op_type, graph.opset, node.domain)
    if schema.has_context_dependent_function:
        types = [_type(graph, name) for name in node.input]
        versions = schema.context_dependent_function_opset_versions
        version = max(each for each in versions if each <= graph.opset)
        function = client.body_of(node, graph.opset, version, types)
    else:
        version = max(each for each in schema.function_opset_versions if each <= graph.opset)
        function = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(version))
    function.domain = model.graph.node[0].domain = _LOCAL
    model.functions.append(function)
    model.opset_import.append(onnx.helper.make_opsetid(_LOCAL, 1))
    return client.inline_functions(model)


def _type(graph: OnnxGraph, name: str) -> onnx.TypeProto:
    type_ = graph.type(name) if name else None
    return onnx.TypeProto() if type_ is None else onnx.helper.make_tensor_type_proto(type_.element, type_.dims)
