"""What targets serve of reductions."""

from __future__ import annotations

from graph_api.ops.reduction import ReductionNode
from iree_bridge.support.rules import support_rule
from iree_bridge.targets.target import Target

__all__ = ["reduction"]


@support_rule("reduction")
def reduction(node: ReductionNode, target: Target) -> None:
    """Every reduction of the served data types; is_deterministic asks for what compiled code does anyway."""
