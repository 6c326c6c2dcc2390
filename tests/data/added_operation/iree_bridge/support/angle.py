"""What targets serve of angles."""

from __future__ import annotations

from graph_api.ops.angle import ToRadiansNode
from iree_bridge.support.rules import Decline, support_rule
from iree_bridge.targets.target import Target


@support_rule("to_radians")
def to_radians(node: ToRadiansNode, target: Target) -> None:
    """Computed in floating point."""
    if not node.compute.is_float:
        raise Decline("compute", f"radians are no {node.compute.name}; compute in FLOAT")
