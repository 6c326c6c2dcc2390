"""Does a target serve a graph? The one place that decides it, without a compiler and before any compile."""

# Users may pass anything.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from fusilli_ground.discovery import import_files
from graph_api import Graph, GraphError, NotSupportedError, Support, TensorAttr
from graph_api.layout import nested_extents
from iree_bridge.support.rules import NODE_RULES, Decline
from iree_bridge.targets.target import Target
from iree_bridge.targets.types import SERVED

__all__ = ["support"]

import_files(__name__, __path__)  # each registers its rules


def support(graph: Graph, target: Target) -> Support:
    """Whether ``target`` serves ``graph``: yes means that it compiles, runs and is right.

    Args:
        graph: validated, or valid.
        target: what would be compiled for.

    Returns:
        The answer; when it is no, with the node, the rule and the reason.

    Raises:
        GraphError: the graph is not valid, or is none.
        NotSupportedError: the target is none.
    """
    if not isinstance(graph, Graph):
        raise GraphError(f"expected a Graph, got {type(graph).__name__}")
    if not isinstance(target, Target):
        raise NotSupportedError("", "target", f"expected a Target, got {target!r}; use Target.parse(name)")
    graph.validate()
    for tensor in graph.tensors:
        if (reason := _tensor_reason(tensor)) is not None:
            return Support.no(reason[1], node=tensor.name, rule=reason[0])
    for node in graph.nodes:
        rule = NODE_RULES.get(node.op)
        if rule is None:
            return Support.no(f"no target serves the operation {node.op}", node=node.name, rule="operation")
        try:
            rule(node, target)
        except Decline as decline:
            return Support.no(decline.reason, node=node.name, rule=decline.rule)
    return Support.yes()


def _tensor_reason(tensor: TensorAttr) -> tuple[str, str] | None:
    if tensor.data_type not in SERVED:
        known = ", ".join(dtype.name for dtype in SERVED)
        return "dtype", f"tensor '{tensor.name}' is {tensor.data_type.name}; served are {known}"
    if not tensor.is_virtual and nested_extents(tensor.dims, tensor.strides) is None:
        return "strides", (
            f"tensor '{tensor.name}': strides {tensor.strides} of dims {tensor.dims} do not nest: each must be a "
            "multiple of the next smaller one; copy the tensor to packed strides"
        )
    return None
