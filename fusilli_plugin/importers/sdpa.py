"""Attention, forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusilli_plugin.importers.registry import Scope, export_data_type, exporter, importer
from fusilli_plugin.importers.tensors import data_type
from graph_api import NotSupportedError, TensorAttr
from graph_api.ops.sdpa import AttentionImplementation, DiagonalAlignment, SdpaAttributes, SdpaNode
from hipdnn_backend import wire
from hipdnn_backend.wire import WireNode

__all__: list[str] = []

_PLAIN = (
    "attn_scale_value", "padding_mask", "causal_mask", "causal_mask_bottom_right", "left_bound", "right_bound",
    "alibi_mask", "dropout_probability", "max_seq_len_kv",
)  # fmt: skip
"""Attributes of equal name and meaning on both sides."""


@importer(wire.SdpaAttributes)
def import_sdpa(scope: Scope, node: WireNode, table: wire.SdpaAttributes) -> None:
    """Adds an SdpaNode; what no target serves is imported all the same, so that the decline says what it is."""
    alignment = DiagonalAlignment.__members__.get(table.diagonal_alignment.name)
    implementation = AttentionImplementation.__members__.get(table.implementation.name)
    if alignment is None or implementation is None:
        reason = f"alignment {table.diagonal_alignment.name}, implementation {table.implementation.name}: not known"
        raise NotSupportedError(node.name, "attributes", reason)
    attributes = SdpaAttributes(
        generate_stats=bool(table.generate_stats) or table.stats_tensor_uid is not None,
        diagonal_alignment=alignment,
        implementation=implementation,
        mma_core_mode=data_type(table.mma_core_mode, scope.reading, "mma_core_mode"),
        **{name: getattr(table, name) for name in _PLAIN},
    )
    inputs = {port: getattr(table, f"{port}_tensor_uid") for port in SdpaNode.input_ports}
    outputs = {port: getattr(table, f"{port}_tensor_uid") for port in SdpaNode.output_ports}
    scope.add(node, SdpaNode, inputs, outputs, attributes)


@exporter(SdpaNode)
def export_sdpa(node: SdpaNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of an SdpaNode."""
    a = node.attributes
    fields: dict[str, Any] = {name: getattr(a, name) for name in _PLAIN}
    fields |= {f"{port}_tensor_uid": uid(tensor) for port, tensor in (node.inputs | node.outputs).items()}
    return wire.SdpaAttributes(
        generate_stats=a.generate_stats,
        diagonal_alignment=wire.DiagonalAlignment[a.diagonal_alignment.name],
        implementation=wire.AttentionImplementation[a.implementation.name],
        mma_core_mode=wire.DataType.UNSET if a.mma_core_mode is None else export_data_type(a.mma_core_mode),
        **fields,
    )
