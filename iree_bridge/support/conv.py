"""What targets serve of convolutions."""

from __future__ import annotations

from graph_api import DataType
from graph_api.ops.conv import ConvNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["convolution"]


@support_rule("conv_fprop")
@support_rule("conv_dgrad")
@support_rule("conv_wgrad")
def convolution(node: ConvNode, target: Target) -> None:
    """All directions, 1-D to 3-D; any dtype that is a number."""
    spatial = len(node.attributes.stride)
    if spatial > 3:
        raise Decline("rank", f"there are {spatial} spatial dims; convolutions are served with 1 to 3")
    for port, tensor in node.inputs.items():
        if tensor.data_type is DataType.BOOLEAN:
            raise Decline("dtype", f"{port} is BOOLEAN; cast it to a number with a pointwise IDENTITY")
