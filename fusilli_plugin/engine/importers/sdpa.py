"""Attention, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fusilli_plugin.engine.importers.registry import Elsewhere, Scope, export_data_type, exporter, importer
from fusilli_plugin.engine.importers.tensors import data_type
from graph_api import DataType, NotSupportedError, TensorAttr
from graph_api.ops.attention import AttentionNode, DiagonalAlignment
from graph_api.ops.sdpa import AttentionImplementation, SdpaAttributes, SdpaNode
from graph_api.ops.sdpa_backward import SdpaBackwardAttributes, SdpaBackwardNode
from hipdnn_backend import wire
from hipdnn_backend.wire import WireNode

__all__: list[str] = []

_PLAIN = (
    "padding_mask", "causal_mask", "causal_mask_bottom_right", "left_bound", "right_bound", "alibi_mask",
    "dropout_probability",
)  # fmt: skip
"""Attributes of equal name and meaning on both sides."""

_Table = wire.SdpaAttributes | wire.SdpaBackwardAttributes
# Our own reading, a sliding window, is neither of these: such graphs are written in the newer spelling.
_FLAG_AND_BOUND = (
    "older versions of hipDNN drop the bound, the newest refuses the pair; write right_bound 0 and the alignment in "
    "place of the flag"
)


@importer(wire.SdpaAttributes)
def import_sdpa(scope: Scope, node: WireNode, table: wire.SdpaAttributes) -> None:
    """Adds an SdpaNode; what no target serves is imported all the same, so that the decline says what it is."""
    implementation = AttentionImplementation.__members__.get(table.implementation.name)
    if implementation is None:
        raise NotSupportedError(node.name, "attributes", f"implementation {table.implementation.name} is not known")
    attributes = SdpaAttributes(
        generate_stats=bool(table.generate_stats) or table.stats_tensor_uid is not None,
        max_seq_len_kv=table.max_seq_len_kv,
        implementation=implementation,
        mma_core_mode=data_type(table.mma_core_mode, scope.reading, "mma_core_mode"),
        **_common(scope, node, table),
    )
    scope.add(node, SdpaNode, _uids(table, SdpaNode.input_ports), _uids(table, SdpaNode.output_ports), attributes)


@importer(wire.SdpaBackwardAttributes)
def import_sdpa_backward(scope: Scope, node: WireNode, table: wire.SdpaBackwardAttributes) -> None:
    """Adds an SdpaBackwardNode."""
    inputs, outputs = _uids(table, _BACKWARD_INPUTS), _uids(table, _BACKWARD_OUTPUTS)
    scope.add(node, SdpaBackwardNode, inputs, outputs, SdpaBackwardAttributes(**_common(scope, node, table)))


_SINK_PORTS = ("sink_token", "dsink_token")
"""What the schema's table of the gradients does not have."""
_BACKWARD_INPUTS = tuple(port for port in SdpaBackwardNode.input_ports if port not in _SINK_PORTS)
_BACKWARD_OUTPUTS = tuple(port for port in SdpaBackwardNode.output_ports if port not in _SINK_PORTS)


def _common(scope: Scope, node: WireNode, table: _Table) -> dict[str, Any]:
    """Attributes of both directions."""
    alignment = DiagonalAlignment.__members__.get(table.diagonal_alignment.name)
    if alignment is None:
        raise NotSupportedError(node.name, "attributes", f"alignment {table.diagonal_alignment.name} is not known")
    flagged = table.causal_mask or table.causal_mask_bottom_right
    if flagged and table.left_bound is not None and table.left_bound >= 0:
        reason = f"a causal flag beside left_bound {table.left_bound}: {_FLAG_AND_BOUND}"
        raise NotSupportedError(node.name, "window", reason)
    plain = {name: getattr(table, name) for name in _PLAIN}
    return {**plain, "diagonal_alignment": alignment, "attn_scale_value": _scale(scope, table)}


def _uids(table: _Table, ports: Sequence[str]) -> dict[str, int | None]:
    return {port: getattr(table, f"{port}_tensor_uid") for port in ports}


def _scale(scope: Scope, table: _Table) -> float | None:
    """The factor as a number, None for that of the head size: the same graph, spelled out or not, is the same code."""
    value = table.attn_scale_value
    if table.scale_tensor_uid is not None:
        return value
    if value is None:
        return 1.0 if scope.reading.attention_scale_one else None
    sizes = scope.wire_tensor(table.q_tensor_uid).dims
    return None if sizes and sizes[-1] > 0 and value == np.float32(1.0 / math.sqrt(sizes[-1])) else value


@exporter(SdpaNode, elsewhere=Elsewhere.ALONE)
def export_sdpa(node: SdpaNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of an SdpaNode."""
    a = node.attributes
    return wire.SdpaAttributes(
        generate_stats=a.generate_stats,
        max_seq_len_kv=a.max_seq_len_kv,
        implementation=wire.AttentionImplementation[a.implementation.name],
        mma_core_mode=wire.DataType.UNSET if a.mma_core_mode is None else export_data_type(a.mma_core_mode),
        **_fields(node, uid),
    )


@exporter(SdpaBackwardNode, elsewhere=Elsewhere.ALONE)
def export_sdpa_backward(node: SdpaBackwardNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of an SdpaBackwardNode."""
    if "dsink_token" in node.outputs:
        reason = "hipDNN's schema has no gradient of a sink; take dsink_token out of the graph"
        raise NotSupportedError(node.name, "dsink_token", reason)
    return wire.SdpaBackwardAttributes(**_fields(node, uid))


def _fields(node: AttentionNode, uid: Callable[[TensorAttr], int]) -> dict[str, Any]:
    """Fields that both tables have."""
    a = node.masking
    fields: dict[str, Any] = {name: getattr(a, name) for name in _PLAIN}
    fields["attn_scale_value"] = a.attn_scale_value
    if a.attn_scale_value is None and "scale" not in node.inputs:
        fields["attn_scale_value"] = _spelled_out(node)
    fields["diagonal_alignment"] = wire.DiagonalAlignment[a.diagonal_alignment.name]
    return fields | {f"{port}_tensor_uid": uid(tensor) for port, tensor in (node.inputs | node.outputs).items()}


def _spelled_out(node: AttentionNode) -> float | None:
    """The scale of a node that has none, for readers who take that for 1; None where 32 bits would round it further."""
    scale = node.constant_scale
    exact = scale is None or node.compute is not DataType.DOUBLE or float(np.float32(scale)) == scale
    return scale if exact else None
