"""Mixture of experts."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Elsewhere, Scope, exporter, importer
from graph_api import MoeGroupedMatmulAttributes, MoeGroupedMatmulMode, NotSupportedError, TensorAttr
from graph_api.ops.moe import MoeGroupedMatmulBwdNode, MoeGroupedMatmulNode
from hipdnn_backend import wire
from hipdnn_backend.wire import MoeGroupedMatmulBwdAttributes, WireNode

__all__: list[str] = []

_INPUTS = ("token", "weight", "first_token_offset", "token_index", "token_ks")


@importer(wire.MoeGroupedMatmulAttributes)
def import_moe(scope: Scope, node: WireNode, table: wire.MoeGroupedMatmulAttributes) -> None:
    """Adds a MoeGroupedMatmulNode."""
    mode = MoeGroupedMatmulMode.__members__.get(table.mode.name)
    if mode is None:
        raise NotSupportedError(node.name, "mode", f"routing mode {table.mode.name} is not known")
    inputs = {port: getattr(table, f"{port}_tensor_uid") for port in _INPUTS}
    attributes = MoeGroupedMatmulAttributes(mode=mode, top_k=table.top_k)
    scope.add(node, MoeGroupedMatmulNode, inputs, {"output": table.output_tensor_uid}, attributes)


@importer(MoeGroupedMatmulBwdAttributes)
def import_moe_bwd(scope: Scope, node: WireNode, table: MoeGroupedMatmulBwdAttributes) -> None:
    """Adds a MoeGroupedMatmulBwdNode."""
    inputs = {port: getattr(table, f"{port}_tensor_uid") for port in MoeGroupedMatmulBwdNode.input_ports}
    scope.add(node, MoeGroupedMatmulBwdNode, inputs, {"dweight": table.dweight_tensor_uid})


@exporter(MoeGroupedMatmulNode, elsewhere=Elsewhere.NOWHERE)
def export_moe(node: MoeGroupedMatmulNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a MoeGroupedMatmulNode."""
    tensors = {f"{port}_tensor_uid": uid(tensor) for port, tensor in (node.inputs | node.outputs).items()}
    mode = wire.MoeGroupedMatmulMode[node.attributes.mode.name]
    return wire.MoeGroupedMatmulAttributes(mode=mode, top_k=node.attributes.top_k, **tensors)


@exporter(MoeGroupedMatmulBwdNode, elsewhere=Elsewhere.NOWHERE)
def export_moe_bwd(node: MoeGroupedMatmulBwdNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a MoeGroupedMatmulBwdNode."""
    tensors = {f"{port}_tensor_uid": uid(tensor) for port, tensor in (node.inputs | node.outputs).items()}
    return MoeGroupedMatmulBwdAttributes(**tensors)
