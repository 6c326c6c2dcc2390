"""What targets serve of normalisations."""

from __future__ import annotations

from graph_api.ops.batchnorm import PEER_PORTS, BatchnormBase, BatchnormNode, NormNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["batchnorm", "decline_peers", "norm"]


@support_rule("batchnorm_inference")
@support_rule("batchnorm_inference_variance_ext")
@support_rule("layernorm")
@support_rule("rmsnorm")
def norm(node: NormNode, target: Target) -> None:
    """Every normalisation of the served data types."""


@support_rule("batchnorm")
def batchnorm(node: BatchnormNode, target: Target) -> None:
    """Training on one device."""
    decline_peers(node, "combine the mean and inv_variance results of the devices yourself")


def decline_peers(node: BatchnormBase, instead: str) -> None:
    """Raises Decline where statistics of other devices take part."""
    if node.has_peers:
        peers = ", ".join(f"'{tensor.name}'" for port, tensor in node.inputs.items() if port in PEER_PORTS)
        raise Decline(
            "peer_stats",
            f"statistics of other devices ({peers}) have no defined meaning; leave peer_stats out and {instead}",
        )
