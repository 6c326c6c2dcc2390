"""What targets serve of the gradients of normalisations."""

from __future__ import annotations

from graph_api.ops.batchnorm import NormNode
from graph_api.ops.norm_backward import BatchnormBackwardNode
from iree_bridge.support.norm import decline_peers
from iree_bridge.support.rules import support_rule
from iree_bridge.targets.target import Target

__all__ = ["batchnorm_backward", "trailing"]


@support_rule("layernorm_backward")
@support_rule("rmsnorm_backward")
def trailing(node: NormNode, target: Target) -> None:
    """Every gradient of the served data types."""


@support_rule("batchnorm_backward")
def batchnorm_backward(node: BatchnormBackwardNode, target: Target) -> None:
    """Training on one device."""
    decline_peers(node, "combine the dscale and dbias results of the devices yourself")
