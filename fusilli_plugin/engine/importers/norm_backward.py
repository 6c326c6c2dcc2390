"""Gradients of normalisations: batch norm, layer norm, RMS norm."""

from __future__ import annotations

from fusilli_plugin.engine.importers.norm import Uid, fields_of, peer_uids, uids_of
from fusilli_plugin.engine.importers.registry import Elsewhere, Scope, exporter, importer
from graph_api.ops.batchnorm import PEER_PORTS
from graph_api.ops.norm_backward import (
    BatchnormBackwardNode,
    LayernormBackwardAttributes,
    LayernormBackwardNode,
    RmsnormBackwardNode,
)
from hipdnn_backend import wire
from hipdnn_backend.wire import BatchnormBackwardAttributes, RMSNormBackwardAttributes, WireNode

__all__: list[str] = []

_RESULTS = ("dx", "dscale", "dbias")


@importer(BatchnormBackwardAttributes)
def import_batchnorm_backward(scope: Scope, node: WireNode, table: BatchnormBackwardAttributes) -> None:
    """Adds a BatchnormBackwardNode."""
    inputs = uids_of(table, "dy", "x", "scale", "mean", "inv_variance")
    inputs |= peer_uids(node, table.peer_stats_tensor_uid)
    scope.add(node, BatchnormBackwardNode, inputs, uids_of(table, *_RESULTS))


@importer(wire.LayernormBackwardAttributes)
def import_layernorm_backward(scope: Scope, node: WireNode, table: wire.LayernormBackwardAttributes) -> None:
    """Adds a LayernormBackwardNode."""
    attributes = LayernormBackwardAttributes(normalized_dim_count=table.normalized_dim_count or None)
    inputs = uids_of(table, "dy", "x", "scale", "mean", "inv_variance", "epsilon")
    scope.add(node, LayernormBackwardNode, inputs, uids_of(table, *_RESULTS), attributes)


@importer(RMSNormBackwardAttributes)
def import_rmsnorm_backward(scope: Scope, node: WireNode, table: RMSNormBackwardAttributes) -> None:
    """Adds an RmsnormBackwardNode."""
    scope.add(node, RmsnormBackwardNode, uids_of(table, "dy", "x", "scale", "inv_rms"), uids_of(table, *_RESULTS))


@exporter(BatchnormBackwardNode, elsewhere=Elsewhere.ALONE | Elsewhere.IN_PAIRS)
def export_batchnorm_backward(node: BatchnormBackwardNode, uid: Uid) -> wire.Attributes:
    """The table of a BatchnormBackwardNode."""
    peers = tuple(uid(node.inputs[port]) for port in PEER_PORTS if port in node.inputs)
    known = {port: tensor for port, tensor in (node.inputs | node.outputs).items() if port not in PEER_PORTS}
    return BatchnormBackwardAttributes(peer_stats_tensor_uid=peers, **fields_of(uid, known))


@exporter(LayernormBackwardNode, elsewhere=Elsewhere.ALONE)
def export_layernorm_backward(node: LayernormBackwardNode, uid: Uid) -> wire.Attributes:
    """The table of a LayernormBackwardNode."""
    count = node.attributes.normalized_dim_count or 0
    fields = fields_of(uid, node.inputs | node.outputs)
    return wire.LayernormBackwardAttributes(normalized_dim_count=count, **fields)


@exporter(RmsnormBackwardNode, elsewhere=Elsewhere.ALONE)
def export_rmsnorm_backward(node: RmsnormBackwardNode, uid: Uid) -> wire.Attributes:
    """The table of an RmsnormBackwardNode."""
    return RMSNormBackwardAttributes(**fields_of(uid, node.inputs | node.outputs))
