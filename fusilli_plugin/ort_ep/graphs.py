"""ONNX Runtime's graphs as ONNX models.

ONNX Runtime shows a graph through handles that are valid during a call only. `read` takes what matters into plain data;
`model_of` makes a ModelProto of some of its nodes. Their names in it are ``n<index>``: those of a model may be missing
or the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.abi import Api, AttributeType, OrtError, string

__all__ = [
    "Dim",
    "Node",
    "SessionGraph",
    "Value",
    "attributes_of",
    "bound_model",
    "boundary",
    "model_of",
    "node_name",
    "node_proto",
    "opset_imports",
    "read",
    "read_by",
    "tensor_proto",
    "values_of",
]

Dim = int | str | None
"""An extent, the name of one, or nothing known."""

_LOCAL: Final = onnx.TensorProto
# Types whose tensors are arrays of numbers: ONNX Runtime's numbers are those of ONNX.
_NUMERIC: Final = frozenset(
    {
        *(_LOCAL.FLOAT, _LOCAL.FLOAT16, _LOCAL.BFLOAT16, _LOCAL.DOUBLE, _LOCAL.BOOL),
        *(_LOCAL.UINT8, _LOCAL.UINT16, _LOCAL.UINT32, _LOCAL.UINT64),
        *(_LOCAL.INT8, _LOCAL.INT16, _LOCAL.INT32, _LOCAL.INT64),
        *(_LOCAL.FLOAT8E4M3FN, _LOCAL.FLOAT8E4M3FNUZ, _LOCAL.FLOAT8E5M2, _LOCAL.FLOAT8E5M2FNUZ),
    }
)
# Types whose elements share bytes in ONNX Runtime's tensors; compiled code takes and gives a byte for each.
_PACKED: Final = frozenset({_LOCAL.INT4, _LOCAL.UINT4, _LOCAL.INT2, _LOCAL.UINT2, _LOCAL.FLOAT4E2M1})
_LEAST_IR: Final = 8  # initializers need not be inputs, and bfloat16 is known
_OF_MICROSOFT: Final = "com.microsoft"
# ONNX Runtime counts these among ONNX's own operators; ONNX does not.
_UNOFFICIAL: Final = frozenset({"SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "MatMulNBits"})


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a graph.

    Attributes:
        name: unique in the graph.
        dtype: number of its element type in ONNX; 0 if it is no tensor of numbers.
        dims: None if even their number is unknown.
    """

    name: str
    dtype: int
    dims: tuple[Dim, ...] | None

    @property
    def is_static(self) -> bool:
        """All extents are known."""
        return self.dims is not None and all(isinstance(dim, int) for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph.

    Attributes:
        index: its place in topological order.
        handle: ONNX Runtime's, valid during the call.
        name: that of the model, may be "".
        inputs: names, "" where an optional one is missing.
        hidden: names of values that only its subgraphs use.
        has_subgraphs: it is an If, a Loop or alike.
        bodies: attribute → names of what that body gives.
    """

    index: int
    handle: Any
    name: str
    op_type: str
    domain: str
    since_version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    hidden: tuple[str, ...]
    has_subgraphs: bool
    bodies: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def label(self) -> str:
        """For people: type and name."""
        kind = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return f"{kind} '{self.name or ', '.join(self.outputs)}'"


@dataclass(frozen=True)
class SessionGraph:
    """A graph as it was read.

    Attributes:
        inputs: what comes from outside, initializers that can be overridden included.
        constants: name of a constant initializer → ONNX Runtime's handle of its value.
        values: all tensors by name.
        opsets: domain → version.
        is_nested: the graph is the body of a node.
        parent: type of that node, "" if there is none.
        parent_outputs: names of what that node gives.
        bodies: index of a node → attribute → that body, where they can be shown to the engines; see `Bodies`.
        bound: input → the value that it is expected to have.
    """

    api: Api
    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Any]
    values: Mapping[str, Value]
    opsets: Mapping[str, int]
    is_nested: bool
    parent: str = ""
    parent_outputs: tuple[str, ...] = ()
    model_path: str = ""
    consumers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bodies: dict[int, Mapping[str, onnx.GraphProto]] = field(default_factory=dict)
    bound: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)


def node_name(index: int) -> str:
    """The name that a node has in the model that is made of a graph."""
    return f"n{index}"


class _Reader:
    """Reads values once each."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.values: dict[str, Value] = {}
        self.constants: dict[str, Any] = {}

    def names(self, handles: Iterable[Any]) -> tuple[str, ...]:
        return tuple(self._name(handle) for handle in handles)

    def _name(self, handle: Any) -> str:
        if handle == ffi.NULL:
            return ""
        name = self.api.text("GetValueInfoName", handle)
        if name and name not in self.values:
            is_constant = self.api.get("ValueInfo_IsConstantInitializer", "_Bool", handle)
            self.values[name] = Value(name, *self._type(handle, _NUMERIC | _PACKED if is_constant else _NUMERIC))
            if is_constant:
                self.constants[name] = self.api.get("ValueInfo_GetInitializerValue", "void *", handle)
        return name

    def _type(self, handle: Any, known: frozenset[int]) -> tuple[int, tuple[Dim, ...] | None]:
        info = self.api.get("GetValueInfoTypeInfo", "void *", handle)
        tensor = self.api.get("CastTypeInfoToTensorInfo", "void *", info) if info != ffi.NULL else ffi.NULL
        if tensor == ffi.NULL:
            return 0, None
        dtype = self.api.get("GetTensorElementType", "int", tensor)
        return (dtype if dtype in known else 0), self._dims(tensor)

    def _dims(self, tensor: Any) -> tuple[Dim, ...] | None:
        if not self.api.plain("TensorTypeAndShape_HasShape", tensor):
            return None
        rank = self.api.get("GetDimensionsCount", "size_t", tensor)
        dims: Any = ffi.new("int64_t[]", max(rank, 1))
        names: Any = ffi.new("char *[]", max(rank, 1))
        self.api.call("GetDimensions", tensor, dims, rank)
        self.api.call("GetSymbolicDimensions", tensor, names, rank)
        return tuple(dims[i] if dims[i] >= 0 else string(names[i]) or None for i in range(rank))


def read(api: Api, handle: Any) -> SessionGraph:
    """The graph behind ONNX Runtime's handle.

    Raises:
        OrtError: ONNX Runtime cannot tell.
    """
    reader = _Reader(api)
    inputs = reader.names(api.objects("Graph_GetNumInputs", "Graph_GetInputs", handle))
    outputs = reader.names(api.objects("Graph_GetNumOutputs", "Graph_GetOutputs", handle))
    nodes: list[Node] = []
    for index, node in enumerate(api.objects("Graph_GetNumNodes", "Graph_GetNodes", handle)):
        nodes.append(
            Node(
                index=index,
                handle=node,
                name=api.text("Node_GetName", node),
                op_type=api.text("Node_GetOperatorType", node),
                domain=api.text("Node_GetDomain", node),
                since_version=api.get("Node_GetSinceVersion", "int", node),
                inputs=reader.names(api.objects("Node_GetNumInputs", "Node_GetInputs", node)),
                outputs=reader.names(api.objects("Node_GetNumOutputs", "Node_GetOutputs", node)),
                hidden=reader.names(api.objects("Node_GetNumImplicitInputs", "Node_GetImplicitInputs", node)),
                has_subgraphs=api.get("Node_GetNumSubgraphs", "size_t", node) > 0,
                bodies=_bodies(api, node),
            )
        )
    parent = api.get("Graph_GetParentNode", "void *", handle)
    return SessionGraph(
        api=api,
        name=api.text("Graph_GetName", handle),
        nodes=tuple(nodes),
        inputs=tuple(name for name in inputs if name not in reader.constants),
        outputs=outputs,
        constants=reader.constants,
        values=reader.values,
        opsets=_opsets(api, handle),
        is_nested=parent != ffi.NULL,
        parent=api.text("Node_GetOperatorType", parent) if parent != ffi.NULL else "",
        parent_outputs=_Reader(api).names(api.objects("Node_GetNumOutputs", "Node_GetOutputs", parent))
        if parent != ffi.NULL
        else (),
        model_path=api.text("Graph_GetModelPath", handle),
        consumers=_consumers(nodes),
    )


def _bodies(api: Api, node: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    count = api.get("Node_GetNumSubgraphs", "size_t", node)
    if not count:
        return ()
    graphs: Any = ffi.new("void *[]", count)
    names: Any = ffi.new("char *[]", count)
    api.call("Node_GetSubgraphs", node, graphs, count, names)
    return tuple(
        (
            string(names[i]),
            tuple(
                api.text("GetValueInfoName", each)
                for each in api.objects("Graph_GetNumOutputs", "Graph_GetOutputs", graphs[i])
            ),
        )
        for i in range(count)
    )


def _consumers(nodes: Sequence[Node]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for node in nodes:
        for name in {*node.inputs, *node.hidden} - {""}:
            found.setdefault(name, []).append(node.index)
    return {name: tuple(indices) for name, indices in found.items()}


def _opsets(api: Api, handle: Any) -> dict[str, int]:
    count = api.get("Graph_GetNumOperatorSets", "size_t", handle)
    domains: Any = ffi.new("char *[]", max(count, 1))
    versions: Any = ffi.new("int64_t[]", max(count, 1))
    api.call("Graph_GetOperatorSets", handle, domains, versions, count)
    return {string(domains[i]): versions[i] for i in range(count)}


def values_of(api: Api, node: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the inputs and outputs of a node, e.g. of the one that stands for a compiled group."""
    reader = _Reader(api)
    inputs = reader.names(api.objects("Node_GetNumInputs", "Node_GetInputs", node))
    return inputs, reader.names(api.objects("Node_GetNumOutputs", "Node_GetOutputs", node))


def read_by(graph: SessionGraph, node: Node) -> tuple[str, ...]:
    """What a node reads, by itself or in the bodies that it is shown with; "" for what is missing."""
    return (*node.inputs, *node.hidden) if node.index in graph.bodies else node.inputs


def boundary(graph: SessionGraph, indices: Iterable[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of what some nodes read from and what they give to the rest of the graph, constants not counted."""
    chosen = set(indices)
    nodes = [graph.nodes[index] for index in sorted(chosen)]
    made = {name for node in nodes for name in node.outputs if name}
    inputs = dict.fromkeys(
        name
        for node in nodes
        for name in read_by(graph, node)
        if name and name not in made and name not in graph.constants
    )
    used_outside = set(graph.outputs) | {
        name for name in made if any(index not in chosen for index in graph.consumers.get(name, ()))
    }
    outputs = tuple(name for node in nodes for name in node.outputs if name in used_outside)
    return tuple(inputs), outputs


def model_of(
    graph: SessionGraph,
    indices: Iterable[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dims: Mapping[str, Sequence[int | None]],
) -> onnx.ModelProto:
    """A model of some nodes, with the constants they use.

    Args:
        graph: where they are from.
        indices: of the nodes.
        inputs: names of the model's inputs.
        outputs: names of its outputs.
        dims: extents of each input, None where they are not known.

    Raises:
        OrtError: ONNX Runtime cannot tell an attribute or a constant.
    """
    nodes = [graph.nodes[index] for index in sorted(indices)]
    constants = dict.fromkeys(name for node in nodes for name in node.inputs if name in graph.constants)
    # an output that no node makes is a constant that goes through
    made = helper.make_graph(
        [node_proto(graph, node) for node in nodes],
        graph.name or "graph",
        [_value_proto(graph.values[name], dims[name]) for name in inputs],
        [_output_proto(graph.values[name]) for name in outputs],
        [tensor_proto(graph.api, name, graph.constants[name]) for name in constants],
    )
    opsets = opset_imports(graph, made.node)
    version = max(_LEAST_IR, helper.find_min_ir_version_for(opsets, ignore_unknown=True))
    return helper.make_model(made, opset_imports=opsets, ir_version=version, producer_name="fusilli-plugin")


def bound_model(model: onnx.ModelProto, bound: Mapping[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """A model in which some inputs are constants; it still takes them, under other names, and reads nothing of them."""
    if not any(value.name in bound for value in model.graph.input):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for value in made.graph.input:
        if value.name in bound:
            made.graph.initializer.append(numpy_helper.from_array(bound[value.name], value.name))
            value.name = f"{value.name}/given"
    return made


def opset_imports(graph: SessionGraph, nodes: Iterable[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
    """The versions of the domains that some nodes are of."""
    used = {node.domain for node in nodes} | {""}
    return [
        helper.make_opsetid(domain, version)
        for domain, version in sorted({_OF_MICROSOFT: 1, **graph.opsets}.items())
        if domain in used
    ]


def _value_proto(value: Value, dims: Sequence[int | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(value.name, value.dtype, list(dims))


def _output_proto(value: Value) -> onnx.ValueInfoProto:
    """Without dims that are not known: they follow from those of the inputs."""
    return helper.make_tensor_value_info(value.name, value.dtype, value.dims if value.is_static else None)


def tensor_proto(api: Api, name: str, handle: Any) -> onnx.TensorProto:
    """A copy of an OrtValue in host memory."""
    info = api.get("GetTensorTypeAndShape", "void *", handle)
    try:
        dtype = api.get("GetTensorElementType", "int", info)
        rank = api.get("GetDimensionsCount", "size_t", info)
        dims: Any = ffi.new("int64_t[]", max(rank, 1))
        api.call("GetDimensions", info, dims, rank)
    finally:
        api.plain("ReleaseTensorTypeAndShapeInfo", info)
    size = api.get("GetTensorSizeInBytes", "size_t", handle)
    proto = onnx.TensorProto(name=name, data_type=dtype, dims=list(dims[0:rank]))
    proto.raw_data = bytes(ffi.buffer(api.get("GetTensorData", "void *", handle), size)) if size else b""
    return proto


def attributes_of(api: Api, node: Node) -> dict[str, Any]:
    """The attributes of a node by name: numbers, bytes and lists of them.

    Raises:
        OrtError: ONNX Runtime cannot tell.
    """
    proto = _plain_proto(api, node)
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute}


def node_proto(graph: SessionGraph, node: Node) -> onnx.NodeProto:
    """A node of a graph, called `node_name`.

    Raises:
        OrtError: ONNX Runtime cannot tell an attribute, or the node has a body that is not known.
    """
    bodies = graph.bodies.get(node.index, {})
    if len(bodies) != len(node.bodies):
        raise OrtError(f"{node.label} has bodies that are not known")
    proto = _plain_proto(graph.api, node)
    proto.attribute.extend(helper.make_attribute(name, body) for name, body in bodies.items())
    return proto


def _plain_proto(api: Api, node: Node) -> onnx.NodeProto:
    """A node without its bodies."""
    attributes = (
        _attribute_proto(api, attribute)
        for attribute in api.objects("Node_GetNumAttributes", "Node_GetAttributes", node.handle)
    )
    return onnx.NodeProto(
        op_type=node.op_type,
        domain=_OF_MICROSOFT if node.op_type in _UNOFFICIAL and not node.domain else node.domain,
        name=node_name(node.index),
        input=_without_end(node.inputs),
        output=_without_end(node.outputs),
        attribute=[attribute for attribute in attributes if attribute is not None],
    )


def _without_end(names: Sequence[str]) -> list[str]:
    """Names without the missing ones behind the last that is there."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _attribute_proto(api: Api, handle: Any) -> onnx.AttributeProto | None:
    """An attribute as ONNX writes it; None for graphs, which are read elsewhere."""
    name = api.text("OpAttr_GetName", handle)
    kind = AttributeType(api.get("OpAttr_GetType", "int", handle))
    if kind in (AttributeType.UNDEFINED, AttributeType.GRAPH):
        return None
    if kind is AttributeType.TENSOR:
        value = api.get("OpAttr_GetTensorAttributeAsOrtValue", "void *", handle)
        try:
            return helper.make_attribute(name, tensor_proto(api, "", value))
        finally:
            api.plain("ReleaseValue", value)
    data = _attribute_bytes(api, handle, kind)
    proto = onnx.AttributeProto(name=name)
    if kind in (AttributeType.INT, AttributeType.INTS):
        numbers = list(memoryview(data).cast("q"))
        proto.type = onnx.AttributeProto.INT if kind is AttributeType.INT else onnx.AttributeProto.INTS
        proto.ints.extend(numbers) if kind is AttributeType.INTS else setattr(proto, "i", numbers[0])
    elif kind in (AttributeType.FLOAT, AttributeType.FLOATS):
        floats = list(memoryview(data).cast("f"))
        proto.type = onnx.AttributeProto.FLOAT if kind is AttributeType.FLOAT else onnx.AttributeProto.FLOATS
        proto.floats.extend(floats) if kind is AttributeType.FLOATS else setattr(proto, "f", floats[0])
    elif kind is AttributeType.STRING:
        proto.type = onnx.AttributeProto.STRING
        proto.s = data
    else:
        proto.type = onnx.AttributeProto.STRINGS
        proto.strings.extend(data.split(b"\0")[:-1])
    return proto


def _attribute_bytes(api: Api, handle: Any, kind: AttributeType) -> bytes:
    size = 64
    for _ in range(2):
        data: Any = ffi.new("char[]", size)
        needed: Any = ffi.new("size_t[1]")
        try:
            api.call("ReadOpAttr", handle, int(kind), data, size, needed)
        except OrtError:
            if needed[0] <= size:
                raise
            size = needed[0]
        else:
            return bytes(ffi.buffer(data, needed[0]))
    raise OrtError("an attribute changes its size while it is read")
