"""Wire graphs ↔ graphs of the graph API: two vocabularies and their only translator, a file per operation family."""

from __future__ import annotations

from fusilli_ground.discovery import import_files
from fusilli_plugin.engine.importers.reading import Reading
from fusilli_plugin.engine.importers.registry import EXPORTERS, IMPORTERS, Elsewhere, Scope, elsewhere, export_data_type
from fusilli_plugin.engine.importers.tensors import tensor_value
from graph_api import DataType, Graph, NotSupportedError, TensorAttr
from graph_api.errors import naming
from hipdnn_backend import wire

__all__ = [
    "EXPORTERS",
    "IMPORTERS",
    "Elsewhere",
    "Reading",
    "elsewhere",
    "export_graph",
    "import_graph",
    "unread_results",
]

# A family registers itself when its file is imported; a new family is a new file and nothing else.
import_files(__name__, __path__)


def unread_results(source: wire.WireGraph) -> frozenset[int]:
    """Uids of virtual tensors that a node writes and none reads.

    They can be meant as outputs: hipDNN's builders make every result virtual, and a variant pack may name one that
    nobody has marked otherwise.
    """
    tables = [node.attributes for node in source.nodes if not isinstance(node.attributes, wire.UnknownAttributes)]
    written = {uid for table in tables for _, uid in table.output_uids()}
    read = {uid for table in tables for _, uid in table.input_uids()}
    return frozenset(tensor.uid for tensor in source.tensors if tensor.virtual and tensor.uid in written - read)


def import_graph(source: wire.WireGraph, reading: Reading | None = None) -> Graph:
    """The validated graph that a wire graph describes; uids stay, names where they are unique.

    A graph without a non-virtual result has those as outputs that no node reads: they have nowhere else to go.

    Raises:
        GraphError: the graph breaks a rule of the graph API.
        NotSupportedError: it has an operation or a feature that is not known here.
    """
    scope = Scope(source, reading or Reading())
    for node in source.nodes:
        table = node.attributes
        if isinstance(table, wire.UnknownAttributes):
            raise NotSupportedError(node.name, "operation", f"operation {table.tag} of the schema is not known")
        add = IMPORTERS.get(type(table))
        if add is None:
            name = type(table).__name__.removesuffix("Attributes")
            raise NotSupportedError(node.name, "operation", f"operation {name} is not served")
        with naming(node.name):
            add(scope, node, table)
    results = [tensor for node in scope.graph.nodes for tensor in node.outputs.values()]
    if all(tensor.is_virtual for tensor in results):
        for uid in unread_results(source):
            scope.tensor(uid).set_output()
    return scope.graph.validate()


def export_graph(graph: Graph, *, is_override_shape_enabled: bool = False) -> wire.WireGraph:
    """The wire form of a graph, complete: every tensor with its dims, strides and data type.

    Raises:
        GraphError: the graph is not valid.
        NotSupportedError: the schema has no word for something in it.
    """
    graph.validate()
    nodes: list[wire.WireNode] = []
    for node in graph.nodes:
        write = EXPORTERS.get(type(node))
        if write is None:
            raise NotSupportedError(node.name, "operation", f"hipDNN's schema has no operation {node.op}")
        table = write(node, lambda tensor: tensor.uid)
        compute = export_data_type(node.compute)
        nodes.append(wire.WireNode(name=node.name, compute_data_type=compute, attributes=table))
    return wire.WireGraph(
        name=graph.name,
        compute_data_type=_or_float(graph.compute_data_type),
        intermediate_data_type=_or_float(graph.intermediate_data_type),
        io_data_type=_or_float(graph.io_data_type),
        tensors=tuple(_tensor(tensor) for tensor in graph.tensors),
        nodes=tuple(nodes),
        is_override_shape_enabled=is_override_shape_enabled,
    )


def _or_float(dtype: DataType | None) -> wire.DataType:
    """Every tensor and node says its own type, but hosts want the graph's to be set as well."""
    return wire.DataType.FLOAT if dtype is None else export_data_type(dtype)


def _tensor(tensor: TensorAttr) -> wire.WireTensor:
    return wire.WireTensor(
        uid=tensor.uid,
        name=tensor.name,
        data_type=export_data_type(tensor.data_type),
        strides=tensor.strides,
        dims=tensor.dims,
        virtual=tensor.is_virtual,
        value=None if tensor.value is None else tensor_value(tensor.data_type, tensor.value),
        is_runtime_pass_by_value=tensor.is_pass_by_value,
    )
