"""The graph that the front end works on: ONNX nodes in order, weights as arrays beside them, types in a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.tensors import to_array
from hipdnn_backend.offload.node_outcomes import Absorbed

__all__ = [
    "TORCH_DOMAIN",
    "OnnxGraph",
    "Output",
    "TensorType",
    "attributes",
    "captures",
    "inlined",
    "node_label",
    "numpy_type",
    "rename",
    "subgraphs",
]

SMALL = 1024
"""Elements up to which a constant may matter to shape inference, which sees larger ones as inputs."""
_IR_VERSION = 10
TORCH_DOMAIN = "torch"
"""Domain of the nodes that stand for a torch operation, see `torch_ops`."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and dims of a tensor.

    Attributes:
        element: ``TensorProto.DataType``.
        dims: an int, the name of a symbolic dim or "" for an unknown one; None if the rank is unknown.
    """

    element: int
    dims: tuple[int | str, ...] | None

    @property
    def static(self) -> tuple[int, ...] | None:
        """The dims if all are known."""
        if self.dims is None or not all(isinstance(dim, int) for dim in self.dims):
            return None
        return tuple(int(dim) for dim in self.dims)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type in numpy's words."""
        return numpy_type(self.element)

    @classmethod
    def of(cls, type_: onnx.TypeProto, name: str = "") -> TensorType | None:
        """Of a value; None if it is no tensor or has no element type.

        Raises:
            ModelError: the element type is none of ONNX's; names the value.
        """
        if not type_.HasField("tensor_type") or not type_.tensor_type.elem_type:
            return None
        tensor = type_.tensor_type
        numpy_type(tensor.elem_type, name)
        if not tensor.HasField("shape"):
            return cls(tensor.elem_type, None)
        return cls(tensor.elem_type, tuple(_dim(dim) for dim in tensor.shape.dim))

    @classmethod
    def of_array(cls, array: np.ndarray) -> TensorType:
        """Of a constant."""
        return cls(helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def numpy_type(element: int, name: str = "") -> np.dtype[Any]:
    """A ``TensorProto.DataType`` in numpy's words.

    Raises:
        ModelError: it is none; ``name`` has it.
    """
    try:
        return helper.tensor_dtype_to_np_dtype(element)
    except KeyError as error:
        raise ModelError(name, "tensor-type", f"element type {element} is none that onnx knows") from error


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str:
    """Exporters write "not known" as no value, as -1, or as the name "?"; of which two need not be equal."""
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else ""
    return dim.dim_param if dim.dim_param != "?" else ""


@dataclass(slots=True)
class Output:
    """A result of the graph.

    Attributes:
        name: the model's word for it.
        value: the tensor that it is now; rewriting may change it.
        type: as declared, without a shape.
    """

    name: str
    value: str
    type: onnx.TypeProto


class OnnxGraph:
    """An ONNX graph under work; `nodes` are in topological order and have unique, non-empty names.

    Attributes:
        name: of the model.
        opsets: domain → version; "" is ONNX's own.
        nodes: owned by this graph.
        inputs: name → declared type, in order; no constants among them.
        outputs: in order.
        constants: name → array, the initializers.
        types: name → type as `shapes.infer` found it last; values that are no tensors are missing.
        declared: name → type of results that onnx cannot infer: of `TORCH_DOMAIN` operators, and see `untold`.
        hints: name → type as the model says it, which nobody checked; used where nothing else says one.
        whole: names of nodes, see `Imported.whole`.
        sources: see `Imported.sources`.
        absorbed: see `Imported.absorbed`.
        room: bytes that its constants may have, 0 if nobody has decided yet.
    """

    def __init__(self, name: str, opsets: Mapping[str, int]) -> None:
        self.name = name
        self.opsets = dict(opsets)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, TensorType] = {}
        self.outputs: list[Output] = []
        self.constants: dict[str, np.ndarray] = {}
        self.types: dict[str, TensorType] = {}
        self.declared: dict[str, TensorType] = {}
        self.hints: dict[str, TensorType] = {}
        self.whole: set[str] = set()
        self.sources: dict[str, str] = {}
        self.absorbed: dict[str, Absorbed] = {}
        self.room = 0
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}  # hint → where `fresh` goes on: from 1, it would take the square of the time
        self._protos: dict[str, tuple[np.ndarray, TensorProto]] = {}

    @property
    def opset(self) -> int:
        """Version of ONNX's own operators."""
        return self.opsets.get("", onnx.defs.onnx_opset_version())

    def type(self, value: str) -> TensorType | None:
        """What is known of a tensor."""
        constant = self.constants.get(value)
        if constant is not None:
            return TensorType.of_array(constant)
        return self.types.get(value) or self.inputs.get(value)

    def take(self, names: Iterable[str]) -> None:
        """Names that `fresh` must not give."""
        self._taken.update(names)

    def fresh(self, hint: str) -> str:
        """A tensor name that nothing has."""
        name, number = hint, self._numbers.get(hint, 1)
        while name in self._taken or name in self.constants or not name:
            name, number = f"{hint}_{number}", number + 1
        self._numbers[hint] = number
        self._taken.add(name)
        return name

    def add_constant(self, hint: str, value: np.ndarray) -> str:
        """A new initializer; its name."""
        name = self.fresh(hint)
        self.constants[name] = value
        return name

    def uses(self) -> dict[str, int]:
        """Tensor → how many node inputs, captures of subgraphs and results of the graph read it."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            for name in [*node.input, *captures(node)]:
                counts[name] = counts.get(name, 0) + 1
        for output in self.outputs:
            counts[output.value] = counts.get(output.value, 0) + 1
        return counts

    def is_small(self, name: str) -> bool:
        """Whether a constant's elements go into protos that are made for onnx's own tools."""
        return self.constants[name].size <= SMALL

    def tensor(self, name: str) -> TensorProto:
        """A constant as a proto, kept for the next time."""
        array = self.constants[name]
        known = self._protos.get(name)
        if known is None or known[0] is not array:
            known = self._protos[name] = (array, numpy_helper.from_array(array, name))
        return known[1]

    def to_proto(
        self, lifted: Iterable[str] | None = None, functions: Iterable[onnx.FunctionProto] = ()
    ) -> onnx.ModelProto:
        """The graph as a model.

        Args:
            lifted: constants that become inputs, in this order; by default those that are not small.
            functions: of the model.
        """
        chosen = [name for name in self.constants if not self.is_small(name)] if lifted is None else list(lifted)
        types = {**self.inputs, **{name: TensorType.of_array(self.constants[name]) for name in chosen}}
        inputs = [
            helper.make_tensor_value_info(name, type_.element, _proto_dims(type_)) for name, type_ in types.items()
        ]
        graph = onnx.GraphProto(name=self.name or "main", node=self.nodes, input=inputs)
        graph.output.extend(self._result(output) for output in self.outputs)
        inside = self.constants.keys() - set(chosen)
        graph.initializer.extend(self.tensor(name) for name in self.constants if name in inside)
        results = {output.value for output in self.outputs}
        graph.value_info.extend(
            helper.make_tensor_value_info(name, type_.element, _proto_dims(type_))
            for name, type_ in self.declared.items()
            if name not in results
        )
        if self.declared:
            self.opsets.setdefault(TORCH_DOMAIN, 1)
        imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        model = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=imports)
        model.functions.extend(functions)
        return model

    def _result(self, output: Output) -> onnx.ValueInfoProto:
        """An output's type: what no inference will find is said."""
        known = self.declared.get(output.value) or self.inputs.get(output.value)
        if output.value in self.constants:
            known = self.type(output.value)
        if known is not None:
            return helper.make_tensor_value_info(output.value, known.element, _proto_dims(known))
        return onnx.ValueInfoProto(name=output.value, type=output.type)


def _proto_dims(type_: TensorType) -> list[int | str | None] | None:
    return None if type_.dims is None else [dim if dim != "" else None for dim in type_.dims]


def node_label(node: onnx.NodeProto, index: int) -> str:
    """A node's name, or one made from its operator and position."""
    return node.name or f"{node.op_type}_{index}"


def operator_of(node: onnx.NodeProto) -> str:
    """A node's operator, with its domain unless that is ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Attribute name → value: numbers, bytes as str, lists, protos for tensors and graphs."""
    return {attribute.name: _plain(attribute) for attribute in node.attribute}


def _plain(attribute: AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if attribute.type == AttributeProto.STRINGS:
        return [text.decode("utf-8", "replace") for text in value]
    return list(value) if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies that a node has as attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def captures(node: onnx.NodeProto) -> set[str]:
    """Tensors of the enclosing graph that a node's bodies read."""
    result: set[str] = set()
    for body in subgraphs(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        own |= {tensor.values.name for tensor in body.sparse_initializer}
        read: set[str] = {value.name for value in body.output}
        for inner in body.node:
            read |= set(inner.input) | captures(inner)
            own |= set(inner.output)
        result |= read - own
    return result - {""}


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let a node and its bodies read other tensors."""
    for i, name in enumerate(node.input):
        if name in names:
            node.input[i] = names[name]
    for body in subgraphs(node):
        own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
        own |= {name for inner in body.node for name in inner.output}
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in body.node:
            rename(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


def _give_own_names(graph: OnnxGraph, node: onnx.NodeProto, source: str) -> None:
    """Let no value in a node's bodies have the name of another: copies of one body would, and onnx mixes them up."""
    for body in subgraphs(node):
        made = [value.name for value in (*body.input, *body.initializer)]
        made += [name for inner in body.node for name in inner.output if name]
        names = {name: graph.fresh(f"{source}/{name}") for name in made}
        for inner in body.node:
            rename(inner, names)
            inner.output[:] = [names.get(name, "") for name in inner.output]
            _give_own_names(graph, inner, source)
        for value in (*body.input, *body.initializer, *body.output):
            value.name = names.get(value.name, value.name)
        del body.value_info[:]


def inlined(graph: OnnxGraph, body: onnx.GraphProto, names: dict[str, str], source: str) -> list[onnx.NodeProto]:
    """Copies of a body's nodes that can stand beside those of the graph around it.

    Args:
        graph: gets the body's initializers.
        body: its nodes.
        names: value of the body → value of the graph, for its inputs; the others are added.
        source: the name that the copies get.

    Raises:
        ModelError: it has a sparse initializer.
    """
    if body.sparse_initializer:
        raise ModelError(source, "sparse-tensor", "a sparse initializer inside a body is not read")
    for tensor in body.initializer:
        names[tensor.name] = graph.add_constant(f"{source}/{tensor.name}", to_array(tensor))
    for node in body.node:
        names.update((name, graph.fresh(f"{source}/{name}")) for name in node.output if name)
    copies = []
    for node in body.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        rename(copy, names)
        _give_own_names(graph, copy, source)
        copy.name = source
        copy.output[:] = [names.get(name, "") for name in node.output]
        copies.append(copy)
    return copies
