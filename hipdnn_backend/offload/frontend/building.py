"""From an untrusted ModelProto to a `OnnxGraph`: every name defined once and before its use, weights as arrays."""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import AttributeProto, TensorProto

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import OnnxGraph, Output, TensorType, captures, node_label, subgraphs
from hipdnn_backend.offload.frontend.tensors import Folder, dense, is_external, to_array

__all__ = ["build", "declared"]

_MISPLACED = {"SimplifiedLayerNormalization"}
"""Contrib operators that ONNX Runtime's tools write without their domain."""


def build(model: onnx.ModelProto, place: Path | None, known: Mapping[str, object] | None = None) -> OnnxGraph:
    """The main graph of a model; the model is not changed.

    Args:
        model: whose header was checked.
        place: where external data may lie.
        known: inputs that are constants of the caller's, as the converters see large weights: not in the inputs.

    Raises:
        ModelError: names are missing, defined twice or in a circle; tensors are damaged; an input is no tensor.
    """
    proto, folder = model.graph, None if place is None else Folder(place)
    opsets = {"" if opset.domain == "ai.onnx" else opset.domain: opset.version for opset in model.opset_import}
    opsets.setdefault("", onnx.defs.onnx_opset_version())
    graph = OnnxGraph(proto.name, opsets)
    for tensor in proto.initializer:
        _define(graph, tensor.name, "initializer")
        graph.constants[tensor.name] = to_array(tensor, folder)
    for sparse in proto.sparse_initializer:
        _define(graph, sparse.values.name, "initializer")
        graph.constants[sparse.values.name] = dense(sparse, folder)
    for name, type_ in declared(proto, known or {}).items():
        _define(graph, name, "input")
        graph.inputs[name] = type_
    graph.take(known or {})
    graph.nodes = _named(_sorted(proto.node, graph, known or {}))
    for node in graph.nodes:
        _resolve(node, folder)
    for node in graph.nodes:
        graph.opsets.setdefault(node.domain, 1)
    graph.outputs = [_output(value) for value in proto.output]
    for value in (*proto.value_info, *proto.output):
        hint = TensorType.of(value.type, value.name)
        if hint is not None and hint.dims is not None:
            graph.hints[value.name] = hint
    _check_outputs(graph, known or {})
    return graph


def declared(proto: onnx.GraphProto, known: Container[str] = ()) -> dict[str, TensorType]:
    """The inputs of a graph that are fed.

    Args:
        proto: the graph.
        known: inputs that are constants of the caller's.

    Raises:
        ModelError: an input is no tensor, or is there twice.
    """
    # up to IR version 3, initializers were inputs too
    made = {tensor.name for tensor in proto.initializer} | {sparse.values.name for sparse in proto.sparse_initializer}
    found: dict[str, TensorType] = {}
    for value in proto.input:
        if value.name in found:
            raise ModelError(value.name, "graph", "the input is defined twice")
        if value.name not in made and value.name not in known:
            found[value.name] = _input_type(value)
    return found


def _define(graph: OnnxGraph, name: str, what: str) -> None:
    if not name:
        raise ModelError("", "graph", f"an {what} has no name")
    if name in graph.constants or name in graph.inputs:
        raise ModelError(name, "graph", f"the {what} is defined twice")
    graph.take([name])


def _input_type(value: onnx.ValueInfoProto) -> TensorType:
    type_ = TensorType.of(value.type, value.name)
    if type_ is None:
        kind = value.type.WhichOneof("value") or "no type"
        raise ModelError(value.name, "input-type", f"the input is {kind.replace('_', ' ')}; only tensors can be fed")
    return type_


def _output(value: onnx.ValueInfoProto) -> Output:
    type_ = onnx.TypeProto()
    type_.CopyFrom(value.type)
    if type_.HasField("tensor_type"):
        type_.tensor_type.ClearField("shape")
    return Output(value.name, value.name, type_)


def _check_outputs(graph: OnnxGraph, known: Mapping[str, object]) -> None:
    made = {name for node in graph.nodes for name in node.output} | graph.inputs.keys() | graph.constants.keys()
    for output in graph.outputs:
        if output.value not in made and output.value not in known:
            raise ModelError(output.name, "graph", "the graph's output is made by no node; is the file truncated?")


def _sorted(nodes: Sequence[onnx.NodeProto], graph: OnnxGraph, known: Mapping[str, object]) -> list[onnx.NodeProto]:
    """Copies in topological order; nodes that are in order already stay so."""
    producer: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in producer or name in graph.constants or name in graph.inputs or name in known:
                raise ModelError(node_label(node, i), "graph", f"its output {name!r} is defined twice")
            producer[name] = i
    graph.take(producer)
    readers: list[list[int]] = [[] for _ in nodes]
    missing = [0] * len(nodes)
    for i, node in enumerate(nodes):
        for name in filter(None, {*node.input, *captures(node)}):
            if name in producer:
                readers[producer[name]].append(i)
                missing[i] += 1
            elif name not in graph.constants and name not in graph.inputs and name not in known:
                reason = f"its input {name!r} is made by no node and is no input or initializer of the graph"
                raise ModelError(node_label(node, i), "graph", reason)
    ready = [i for i, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        _raise_cycle(nodes, producer, missing)
    return [_copy(nodes[i]) for i in order]


def _raise_cycle(nodes: Sequence[onnx.NodeProto], producer: Mapping[str, int], missing: Sequence[int]) -> None:
    """Walk back from a node that never got ready until one is met again."""
    at, seen = next(i for i, count in enumerate(missing) if count), []
    while at not in seen:
        seen.append(at)
        read = [*nodes[at].input, *captures(nodes[at])]
        at = next(producer[name] for name in read if name in producer and missing[producer[name]])
    order = seen[seen.index(at) :][::-1]
    first = order.index(min(order))
    circle = [node_label(nodes[i], i) for i in order[first:] + order[:first]]
    shown = " → ".join([*circle[:6], *(["…"] if len(circle) > 6 else []), circle[0]])
    raise ModelError(circle[0], "graph", f"the graph has a cycle: {shown}")


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    if copy.domain == "ai.onnx":
        copy.domain = ""
    if not copy.domain and copy.op_type in _MISPLACED:
        copy.domain = "com.microsoft"
    return copy


def _named(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Names that are unique: diagnostics and reports speak of nodes by them."""
    taken = {node.name for node in nodes}
    seen: set[str] = set()
    for i, node in enumerate(nodes):
        name, number = node_label(node, i), 1
        base = name
        while name in seen or (name != node.name and name in taken):
            name, number = f"{base}_{number}", number + 1
        node.name = name
        seen.add(name)
    return nodes


def _resolve(node: onnx.NodeProto, folder: Folder | None) -> None:
    """Put external data of tensors inside attributes and bodies in place."""
    for attribute in node.attribute:
        tensors = [*attribute.tensors, attribute.t] if attribute.type == AttributeProto.TENSOR else attribute.tensors
        for tensor in tensors:
            _embed(tensor, folder)
    for body in subgraphs(node):
        for tensor in body.initializer:
            _embed(tensor, folder)
        for inner in body.node:
            _resolve(inner, folder)


def _embed(tensor: TensorProto, folder: Folder | None) -> None:
    if is_external(tensor):
        array = to_array(tensor, folder)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
