"""The registry of importers and exporters, and what each of them is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Flag, auto
from typing import Any, TypeVar

from fusilli_plugin.engine.importers.reading import Reading
from fusilli_plugin.engine.importers.tensors import data_type, scalar
from graph_api import Attributes, DataType, Graph, GraphError, Node, NotSupportedError, TensorAttr
from hipdnn_backend import wire

__all__ = [
    "EXPORTERS",
    "IMPORTERS",
    "Elsewhere",
    "Exporter",
    "Importer",
    "Scope",
    "elsewhere",
    "export_data_type",
    "exporter",
    "importer",
]

Uids = Mapping[str, int | None]


class Scope:
    """A graph while it is imported.

    Attributes:
        graph: what is built.
        reading: choices where the wire format is ambiguous.
    """

    def __init__(self, source: wire.WireGraph, reading: Reading) -> None:
        self.reading = reading
        self.graph = Graph(
            source.name or "graph",
            io_data_type=data_type(source.io_data_type, reading, "graph.io_data_type"),
            intermediate_data_type=data_type(source.intermediate_data_type, reading, "graph.intermediate_data_type"),
            compute_data_type=data_type(source.compute_data_type, reading, "graph.compute_data_type"),
        )
        self._wire = {tensor.uid: tensor for tensor in source.tensors}
        self._names: set[str] = set()
        self._node_names: set[str] = set()
        self.tensors: dict[int, TensorAttr] = {}

    def wire_tensor(self, uid: int) -> wire.WireTensor:
        """The tensor of a uid as the host described it."""
        return self._wire[uid]

    def tensor(self, uid: int) -> TensorAttr:
        """The tensor of a uid, made at its first use; what no node uses is not made."""
        if uid not in self.tensors:
            self.tensors[uid] = self._make(self._wire[uid])
        return self.tensors[uid]

    def value(self, uid: int) -> float | int | bool | None:
        """The compile-time value of a scalar tensor, None if it has none."""
        tensor = self._wire[uid]
        return None if tensor.value is None else scalar(tensor)

    def add(
        self,
        source: wire.WireNode,
        node_type: type[Node],
        inputs: Uids,
        outputs: Uids,
        attributes: Attributes | None = None,
        *,
        constants: Mapping[str, TensorAttr] | None = None,
    ) -> None:
        """Add the node; ports whose uid is None are left out, ``constants`` are inputs that the host does not know.

        Raises:
            GraphError: it does not fit.
            NotSupportedError: it uses something that no node has.
        """
        used = {port: uid for port, uid in outputs.items() if uid is not None}
        given = {port: self.tensor(uid) for port, uid in used.items() if self._is_described(uid)}
        known = {port: self.tensor(uid) for port, uid in inputs.items() if uid is not None}
        known |= constants or {}
        node = self.graph.add_node(
            node_type,
            {port: known[port] for port in node_type.input_ports if port in known},
            name=self._node_name(source.name),
            attributes=attributes,
            outputs=given,
            optional_outputs=[port for port in used if port not in given],
            compute_data_type=data_type(source.compute_data_type, self.reading, f"node '{source.name}'"),
        )
        for port, uid in used.items():
            if port not in given:
                self.tensors[uid] = self._complete(node.outputs[port], self._wire[uid])

    def _is_described(self, uid: int) -> bool:
        """False for an intermediate tensor without dims: the node that makes it finds them."""
        return bool(self._wire[uid].dims) or not self._wire[uid].virtual

    def _make(self, source: wire.WireTensor) -> TensorAttr:
        """A tensor of the wire as one of a graph: a value makes it a scalar, raggedness declines it."""
        if source.ragged_offset_tensor_uid is not None:
            raise NotSupportedError(source.name, "ragged", f"tensor {source.uid} is ragged; copy it to a dense one")
        dtype = data_type(source.data_type, self.reading, f"tensor '{source.name}'")
        name, uid = self._tensor_name(source.name), _uid(source)
        if source.value is not None:
            if math.prod(source.dims) != 1:
                raise GraphError(
                    f"tensor '{source.name}' has a scalar value, which needs 1 element; dims are {source.dims}"
                )
            return self.graph.scalar(scalar(source), data_type=dtype, name=name, rank=max(len(source.dims), 1), uid=uid)
        tensor = self.graph.tensor(
            name,
            dim=source.dims,
            stride=source.strides,
            data_type=dtype,
            uid=uid,
            is_pass_by_value=source.is_runtime_pass_by_value,
        )
        tensor.is_virtual = source.virtual
        return tensor

    def _complete(self, tensor: TensorAttr, source: wire.WireTensor) -> TensorAttr:
        tensor.set_uid(_uid(source))
        dtype = data_type(source.data_type, self.reading, f"tensor '{source.name}'")
        name = self._tensor_name(source.name)
        if dtype is not None:
            tensor.set_data_type(dtype)
        return tensor if name is None else tensor.set_name(name)

    def _tensor_name(self, name: str) -> str | None:
        """The host's name if it is one and not taken: names need not be unique on the wire."""
        if not name or name in self._names:
            return None
        self._names.add(name)
        return name

    def _node_name(self, name: str) -> str | None:
        if not name or name in self._node_names:
            return None
        self._node_names.add(name)
        return name


Importer = Callable[[Scope, wire.WireNode, Any], None]
Exporter = Callable[[Any, Callable[[TensorAttr], int]], wire.Attributes]
IMPORTERS: dict[type[wire.Attributes], Importer] = {}
"""How to import the node of an operation table."""
EXPORTERS: dict[type[Node], Exporter] = {}
"""How to write a node as an operation table."""


class Elsewhere(Flag):
    """In what company other providers of hipDNN take an operation.

    NOWHERE: no other is known to take it.
    ALONE: as the only node of its graph.
    WITH_EPILOGUE: with a few pointwise nodes behind it, too.
    IN_PAIRS: with another such node, too.
    """

    NOWHERE = 0
    ALONE = auto()
    WITH_EPILOGUE = auto()
    IN_PAIRS = auto()


_ELSEWHERE: dict[type[Node], Elsewhere] = {}

I = TypeVar("I", bound=Importer)  # noqa: E741
E = TypeVar("E", bound=Exporter)


def importer(table: type[wire.Attributes]) -> Callable[[I], I]:
    """Decorator: registers the importer of an operation table."""

    def register(function: I) -> I:
        if table in IMPORTERS:
            raise ValueError(f"{table.__name__} is imported by {IMPORTERS[table].__module__} and {function.__module__}")
        IMPORTERS[table] = function
        return function

    return register


def exporter(node_type: type[Node], *, elsewhere: Elsewhere = Elsewhere.NOWHERE) -> Callable[[E], E]:
    """Decorator: registers the exporter of a node class, and who else takes such a node: see `Claim`."""

    def register(function: E) -> E:
        if node_type in EXPORTERS:
            raise ValueError(
                f"{node_type.op} is exported by {EXPORTERS[node_type].__module__} and {function.__module__}"
            )
        EXPORTERS[node_type] = function
        _ELSEWHERE[node_type] = elsewhere
        return function

    return register


def elsewhere(node: Node) -> Elsewhere:
    """In what company other providers take the operation of a node."""
    return _ELSEWHERE.get(type(node), Elsewhere.NOWHERE)


def _uid(source: wire.WireTensor) -> int:
    if source.uid < 0:
        raise GraphError(f"tensor '{source.name}': uid {source.uid} is negative; give it another one")
    return source.uid


def export_data_type(dtype: DataType) -> wire.DataType:
    """The wire's number of a data type.

    Raises:
        NotSupportedError: the wire has none.
    """
    found = wire.DataType.__members__.get(dtype.name)
    if found is None:
        raise NotSupportedError("", "dtype", f"hipDNN's schema has no data type {dtype.name}")
    return found
