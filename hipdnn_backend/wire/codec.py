"""Bytes ↔ records. Reading trusts nothing, writing refuses what the chosen layout cannot say.

Example:
    graph = decode_graph(data)                                      # either layout
    data = encode_graph(graph, layout=Layout.NOVEMBER_2025)
    config = decode_engine_config(data)
"""

from __future__ import annotations

from typing import TypeVar

from hipdnn_backend.wire import layout as tables
from hipdnn_backend.wire import reader
from hipdnn_backend.wire.check import check_graph
from hipdnn_backend.wire.enums import DataType, Layout
from hipdnn_backend.wire.model import (
    EngineApiVersion,
    EngineConfig,
    EngineDetails,
    SerializedExecutionPlan,
    SerializedGraphAndPlan,
    WireGraph,
)
from hipdnn_backend.wire.record import Record
from hipdnn_backend.wire.writer import write_root

__all__ = [
    "decode_engine_config",
    "decode_engine_details",
    "decode_graph",
    "decode_graph_and_plan",
    "decode_plan",
    "encode_engine_config",
    "encode_engine_details",
    "encode_graph",
    "encode_graph_and_plan",
    "encode_plan",
    "graph_in_layout",
    "graph_layout",
]

_MAX_GRAPH = 8 << 20
_MAX_CONFIG = 1 << 20
_MAX_PLAN = (1 << 31) - 1  # offsets have 31 bits
_FIRST_API = EngineApiVersion(major=1, minor=0, patch=0)

_R = TypeVar("_R", bound=Record)


def decode_graph(data: bytes | bytearray | memoryview) -> WireGraph:
    """The operation graph in a buffer of either layout.

    Operations, data types and other enums that the schema does not list are kept with their numbers, as
    `UnknownAttributes` and ``UNKNOWN_<n>`` members. Nothing of ``data`` is referred to afterwards.

    Raises:
        WireError: the bytes are damaged, too many (8 MiB), or a uid breaks a rule of `check_graph`.
    """
    graph = _decode(data, tables.GRAPH, WireGraph, _MAX_GRAPH)
    check_graph(graph)
    return graph


def graph_layout(data: bytes | bytearray | memoryview) -> Layout:
    """Which layout a buffer with a graph has, told by the length of its nodes' vtables; newest if it has no nodes.

    Raises:
        WireError: the bytes are damaged.
    """
    source = reader.Source(bytes(data), _MAX_GRAPH)
    reader.read_buffer(source, tables.GRAPH)
    return Layout.NOVEMBER_2025 if True in source.older else Layout.NEWEST


def graph_in_layout(data: bytes, layout: Layout) -> bytes:
    """A graph in a layout; the bytes themselves if they have it already.

    The older layout has no compute type per node, no wish for an engine (front ends heed that, backends do not), no
    identity for logs, and no version but 1.0.0. Nodes that all compute in one type have the graph's.

    Raises:
        WireError: the bytes are damaged, or the layout has no word for something else.
    """
    if graph_layout(data) is layout:
        return data
    graph = decode_graph(data)
    if layout is Layout.NOVEMBER_2025:
        of_nodes = {node.compute_data_type or graph.compute_data_type for node in graph.nodes}
        if len(of_nodes) == 1:
            nodes = tuple(node.replace(compute_data_type=DataType.UNSET) for node in graph.nodes)
            graph = graph.replace(nodes=nodes, compute_data_type=of_nodes.pop())
        graph = graph.replace(preferred_engine_id=None, id=None)
        if graph.min_required_engine_api_version == _FIRST_API:
            graph = graph.replace(min_required_engine_api_version=None)
    return encode_graph(graph, layout=layout)


def encode_graph(graph: WireGraph, *, layout: Layout = Layout.NEWEST) -> bytes:
    """A finished buffer with the graph.

    Raises:
        WireError: a rule of `check_graph` is broken, a value does not fit its field, or the layout has no word for it.
    """
    data = write_root(graph, tables.GRAPH, layout=layout)
    check_graph(graph)  # second, because writing finds values of the wrong class
    return data


def decode_engine_config(data: bytes | bytearray | memoryview) -> EngineConfig:
    """What the host asks of an engine; the November 2025 form has the engine id only.

    Raises:
        WireError: the bytes are damaged or too many (1 MiB), or a knob has no value or one of unknown type.
    """
    return _decode(data, tables.ENGINE_CONFIG, EngineConfig, _MAX_CONFIG)


def encode_engine_config(config: EngineConfig) -> bytes:
    """A finished buffer; hosts and engines of November 2025 skip what they do not know in it.

    Raises:
        WireError: a value does not fit its field.
    """
    return write_root(config, tables.ENGINE_CONFIG)


def decode_engine_details(data: bytes | bytearray | memoryview) -> EngineDetails:
    """What an engine tells of itself; candidate pages are skipped.

    Raises:
        WireError: the bytes are damaged or too many (1 MiB), or a knob lacks its default value.
    """
    return _decode(data, tables.ENGINE_DETAILS, EngineDetails, _MAX_CONFIG)


def encode_engine_details(details: EngineDetails) -> bytes:
    """A finished buffer that the verifier of either host accepts.

    Raises:
        WireError: a value does not fit its field.
    """
    return write_root(details, tables.ENGINE_DETAILS)


def decode_plan(data: bytes | bytearray | memoryview) -> SerializedExecutionPlan:
    """The host's container of a plan.

    Raises:
        WireError: the bytes are damaged.
    """
    return _decode(data, tables.PLAN, SerializedExecutionPlan, _MAX_PLAN)


def encode_plan(plan: SerializedExecutionPlan) -> bytes:
    """A finished buffer.

    Raises:
        WireError: a value does not fit its field.
    """
    return write_root(plan, tables.PLAN)


def decode_graph_and_plan(data: bytes | bytearray | memoryview) -> SerializedGraphAndPlan:
    """The two blobs of a plan file, not decoded further.

    Raises:
        WireError: the bytes are damaged or lack the identifier ``HDGP``.
    """
    identifier = tables.PLAN_FILE_IDENTIFIER
    return _decode(data, tables.PLAN_FILE, SerializedGraphAndPlan, _MAX_PLAN, identifier=identifier)


def encode_graph_and_plan(both: SerializedGraphAndPlan) -> bytes:
    """A finished buffer with the identifier ``HDGP``.

    Raises:
        WireError: a value does not fit its field.
    """
    return write_root(both, tables.PLAN_FILE, identifier=tables.PLAN_FILE_IDENTIFIER)


def _decode(
    data: bytes | bytearray | memoryview,
    table: tables.Table,
    cls: type[_R],
    max_size: int,
    *,
    identifier: bytes | None = None,
) -> _R:
    record = reader.read_buffer(reader.Source(bytes(data), max_size), table, identifier=identifier)
    assert isinstance(record, cls)
    return record
