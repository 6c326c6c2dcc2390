"""What targets serve of matrix products."""

from __future__ import annotations

from graph_api.ops.matmul import MatmulNode
from iree_bridge.support.rules import support_rule
from iree_bridge.targets.target import Target

__all__ = ["matmul"]


@support_rule("matmul")
def matmul(node: MatmulNode, target: Target) -> None:
    """Every matrix product of the served data types."""
