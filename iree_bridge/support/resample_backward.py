"""What targets serve of the gradient of pooling."""

from __future__ import annotations

from graph_api.ops.resample_backward import ResampleBwdNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target

__all__ = ["resample_bwd"]


@support_rule("resample_bwd")
def resample_bwd(node: ResampleBwdNode, target: Target) -> None:
    """1-D to 3-D, of floating-point gradients."""
    dy, spatial = node.inputs["dy"], len(node.attributes.window)
    if spatial > 3:
        raise Decline("rank", f"there are {spatial} spatial dims; pooling is served with 1 to 3")
    for tensor in (dy, node.outputs["dx"]):
        if not tensor.data_type.is_float:
            raise Decline("dtype", f"'{tensor.name}' is {tensor.data_type.name}; make the gradients floating point")
