"""Recurrences written out step by step, cut into pieces that are one custom operation each.

Node by node a step is ten small graphs. A piece has as many steps as a custom operation has ports for what they give to
the outside, which for training is what the gradient needs of each. Pieces of whole steps are alike, and compiled once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch

__all__ = ["recurrence", "wholes"]

Node = torch.fx.Node

_RECURRENT: Final = (torch.nn.RNNBase, torch.nn.RNNCellBase)
_PRODUCTS: Final = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.baddbmm.default,
    }
)
_MOST_PORTS: Final = 32
"""Tensors that a custom operation reads, and that it writes."""
_MOST_PRODUCTS: Final = 16
"""Matrix products of a piece: what compiles in a second."""


def recurrence(node: Node) -> str:
    """The recurrent module whose step a node is, or the gradient of one; "" if it is none."""
    for key, side in (("source_fn_stack", "forward"), ("fwd_source_fn_stack", "backward")):
        for name, source in node.meta.get(key) or ():
            if isinstance(source, type) and issubclass(source, _RECURRENT):
                return f"{name}.{side}"
    return ""


def wholes(graph: torch.fx.Graph, parts: Mapping[str, str]) -> dict[str, str]:
    """Name of a node → of the custom operation that it becomes a part of.

    Args:
        graph: of PyTorch's operators.
        parts: name of a node → of the recurrence that it is a step of.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(parts.values()):
        steps = [node for node in graph.nodes if parts.get(node.name) == name]
        if _fits(steps):
            found |= {node.name: name for node in steps}
            continue
        pieces = _pieces(_loop(graph, name, parts))
        found |= {node.name: f"{name}.{number}" for number, piece in enumerate(pieces) for node in piece}
    return found


def _fits(nodes: Iterable[Node]) -> bool:
    inside = set(nodes)
    read = {source for node in inside for source in node.all_input_nodes} - inside
    written = [node for node in inside if any(user not in inside for user in node.users)]
    products = sum(node.target in _PRODUCTS for node in inside)
    return len(read) <= _MOST_PORTS and 0 < len(written) <= _MOST_PORTS and products <= _MOST_PRODUCTS


def _loop(graph: torch.fx.Graph, name: str, parts: Mapping[str, str]) -> list[Node]:
    """The products whose weights are used again in each step, and all up to the last step that depends on them.

    So every path that leaves a stretch of these nodes leads to later ones.
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    steps = [node for node in order if parts.get(node.name) == name]
    uses: dict[Any, list[Node]] = {}
    for node in steps:
        if node.target in _PRODUCTS:
            for source in node.all_input_nodes:
                uses.setdefault(_seen_of(source), []).append(node)
    products = [node for nodes in uses.values() if len(nodes) > 1 for node in nodes]
    if not products:
        return []
    first, last = min(products, key=order.__getitem__), order[steps[-1]]
    loop: dict[Node, None] = {}
    for node, number in order.items():
        depends = node is first or node in products or any(source in loop for source in node.all_input_nodes)
        if depends and node.op == "call_function" and order[first] <= number <= last:
            loop[node] = None
    return list(loop)


def _seen_of(node: Node) -> Node:
    """What a transposed operand is the other look of."""
    transposed = (torch.ops.aten.t.default, torch.ops.aten.permute.default, torch.ops.aten.transpose.int)
    while node.target in transposed:
        node = node.all_input_nodes[0]
    return node


def _pieces(loop: Sequence[Node]) -> Iterator[list[Node]]:
    """Stretches of steps as long as they fit; a step begins with a product."""
    starts = [number for number, node in enumerate(loop) if node.target in _PRODUCTS]
    piece: list[Node] = []
    for start, end in pairwise([*starts, len(loop)]):
        step = list(loop[start:end])
        if piece and not _fits([*piece, *step]):
            yield piece
            piece = []
        if _fits([*piece, *step]):
            piece += step
    if piece:
        yield piece
