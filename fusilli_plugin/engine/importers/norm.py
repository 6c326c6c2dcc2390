"""Normalisations: batchnorm in inference and training, layer norm, RMS norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusilli_plugin.engine.importers.registry import Elsewhere, Scope, exporter, importer
from graph_api import DataType, NotSupportedError, TensorAttr
from graph_api.ops.batchnorm import (
    PEER_PORTS,
    READ_AS_VARIANCE_EPSILON,
    BatchnormInferenceNode,
    BatchnormInferenceVarianceNode,
    BatchnormNode,
)
from graph_api.ops.norm import LayernormAttributes, LayernormNode, NormFwdPhase, RmsnormAttributes, RmsnormNode
from hipdnn_backend import wire
from hipdnn_backend.wire import (
    BatchnormAttributes,
    BatchnormInferenceAttributes,
    BatchnormInferenceAttributesVarianceExt,
    RMSNormAttributes,
    WireNode,
)

__all__ = ["Uid", "fields_of", "peer_uids", "uids_of"]

Uid = Callable[[TensorAttr], int]
_BATCHNORM = Elsewhere.ALONE | Elsewhere.WITH_EPILOGUE | Elsewhere.IN_PAIRS


def uids_of(table: wire.Attributes, *ports: str) -> dict[str, int | None]:
    """Uids by port; the schema's fields have the ports' names."""
    return {port: getattr(table, f"{port}_tensor_uid") for port in ports}


def fields_of(uid: Uid, tensors: dict[str, TensorAttr]) -> dict[str, int]:
    """The schema's fields of tensors by port."""
    return {f"{port}_tensor_uid": uid(tensor) for port, tensor in tensors.items()}


def peer_uids(node: WireNode, peers: Sequence[int]) -> dict[str, int]:
    """Uids of the statistics of other devices, by port."""
    if len(peers) > len(PEER_PORTS):
        raise NotSupportedError(
            node.name, "peer-stats", f"{len(peers)} peer statistics, at most {len(PEER_PORTS)} are read"
        )
    return dict(zip(PEER_PORTS, peers, strict=False))


def _phase(node: WireNode, phase: wire.NormFwdPhase) -> NormFwdPhase:
    found = NormFwdPhase.__members__.get(phase.name)
    if found is None:
        raise NotSupportedError(node.name, "phase", f"forward phase {phase.name} is neither INFERENCE nor TRAINING")
    return found


@importer(BatchnormInferenceAttributes)
def import_batchnorm_inference(scope: Scope, node: WireNode, table: BatchnormInferenceAttributes) -> None:
    """Adds a BatchnormInferenceNode, or its variant with variances where the reading says so."""
    shared = uids_of(table, "x", "mean", "scale", "bias")
    outputs = uids_of(table, "y")
    if not scope.reading.batchnorm_variance:
        scope.add(node, BatchnormInferenceNode, {**shared, "inv_variance": table.inv_variance_tensor_uid}, outputs)
        return
    epsilon = scope.graph.scalar(READ_AS_VARIANCE_EPSILON, data_type=DataType.FLOAT)
    inputs = {**shared, "variance": table.inv_variance_tensor_uid}
    scope.add(node, BatchnormInferenceVarianceNode, inputs, outputs, constants={"epsilon": epsilon})


@importer(BatchnormInferenceAttributesVarianceExt)
def import_batchnorm_variance(scope: Scope, node: WireNode, table: BatchnormInferenceAttributesVarianceExt) -> None:
    """Adds a BatchnormInferenceVarianceNode."""
    inputs = uids_of(table, "x", "mean", "variance", "scale", "bias", "epsilon")
    scope.add(node, BatchnormInferenceVarianceNode, inputs, uids_of(table, "y"))


@importer(BatchnormAttributes)
def import_batchnorm(scope: Scope, node: WireNode, table: BatchnormAttributes) -> None:
    """Adds a BatchnormNode."""
    inputs = uids_of(table, "x", "scale", "bias", "epsilon", "prev_running_mean", "prev_running_variance", "momentum")
    inputs |= peer_uids(node, table.peer_stats_tensor_uid)
    outputs = uids_of(table, "y", "mean", "inv_variance", "next_running_mean", "next_running_variance")
    scope.add(node, BatchnormNode, inputs, outputs)


@importer(wire.LayernormAttributes)
def import_layernorm(scope: Scope, node: WireNode, table: wire.LayernormAttributes) -> None:
    """Adds a LayernormNode."""
    phase = _phase(node, table.forward_phase)
    attributes = LayernormAttributes(forward_phase=phase, normalized_dim_count=table.normalized_dim_count or None)
    inputs = uids_of(table, "x", "scale", "bias", "epsilon")
    scope.add(node, LayernormNode, inputs, uids_of(table, "y", "mean", "inv_variance"), attributes)


@importer(RMSNormAttributes)
def import_rmsnorm(scope: Scope, node: WireNode, table: RMSNormAttributes) -> None:
    """Adds an RmsnormNode."""
    attributes = RmsnormAttributes(forward_phase=_phase(node, table.forward_phase))
    inputs = uids_of(table, "x", "scale", "epsilon", "bias")
    scope.add(node, RmsnormNode, inputs, uids_of(table, "y", "inv_rms"), attributes)


@exporter(BatchnormInferenceNode, elsewhere=_BATCHNORM)
def export_batchnorm_inference(node: BatchnormInferenceNode, uid: Uid) -> wire.Attributes:
    """The table of a BatchnormInferenceNode."""
    return BatchnormInferenceAttributes(**fields_of(uid, node.inputs | node.outputs))


@exporter(BatchnormInferenceVarianceNode, elsewhere=_BATCHNORM)
def export_batchnorm_variance(node: BatchnormInferenceVarianceNode, uid: Uid) -> wire.Attributes:
    """The table of a BatchnormInferenceVarianceNode."""
    return BatchnormInferenceAttributesVarianceExt(**fields_of(uid, node.inputs | node.outputs))


@exporter(BatchnormNode, elsewhere=_BATCHNORM)
def export_batchnorm(node: BatchnormNode, uid: Uid) -> wire.Attributes:
    """The table of a BatchnormNode."""
    peers = tuple(uid(node.inputs[port]) for port in PEER_PORTS if port in node.inputs)
    known = {port: tensor for port, tensor in (node.inputs | node.outputs).items() if port not in PEER_PORTS}
    return BatchnormAttributes(peer_stats_tensor_uid=peers, **fields_of(uid, known))


@exporter(LayernormNode, elsewhere=Elsewhere.ALONE)
def export_layernorm(node: LayernormNode, uid: Uid) -> wire.Attributes:
    """The table of a LayernormNode."""
    a = node.attributes
    phase = wire.NormFwdPhase[a.forward_phase.name]
    count = a.normalized_dim_count or 0
    return wire.LayernormAttributes(
        normalized_dim_count=count, forward_phase=phase, **fields_of(uid, node.inputs | node.outputs)
    )


@exporter(RmsnormNode, elsewhere=Elsewhere.ALONE)
def export_rmsnorm(node: RmsnormNode, uid: Uid) -> wire.Attributes:
    """The table of an RmsnormNode."""
    phase = wire.NormFwdPhase[node.attributes.forward_phase.name]
    return RMSNormAttributes(forward_phase=phase, **fields_of(uid, node.inputs | node.outputs))
