"""A traced graph cut into stages: what PyTorch runs, and between that groups of nodes which become programs.

A node is in the group whose number is that of PyTorch's stages that have to run before it. So every path out of a
group leads through PyTorch to a later one, and groups are convex without being searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

from hipdnn_backend.offload.torch_compile.claims import Claims, Eager, Kind, tensors_of
from hipdnn_backend.offload.torch_compile.known import draws, moves_only

__all__ = ["Group", "Partition", "partition"]

Node = torch.fx.Node

_SINGLE: Final = Eager("number", "it computes a single number, for which a launch takes longer")
_MOVES: Final = Eager("moves", "it stands between operations of PyTorch and only moves elements")


@dataclass(frozen=True)
class Group:
    """Nodes that become one program.

    Attributes:
        number: of its stage.
        nodes: COMPUTED ones, in program order.
        inputs: values from outside that they read, views taken away.
        outputs: values that others read.
        shown: output → the one view by which others see it, where all of it is seen by one.
    """

    number: int
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    shown: Mapping[Node, Node]


@dataclass(frozen=True)
class Partition:
    """What runs where.

    Attributes:
        claims: kinds of the nodes.
        groups: in the order in which they run.
        stages: EAGER nodes by the number of the group that they run before.
        reasons: EAGER node → why.
    """

    claims: Claims
    groups: tuple[Group, ...]
    stages: Mapping[int, tuple[Node, ...]]
    reasons: Mapping[Node, Eager]


def partition(graph: torch.fx.Graph, refused: Mapping[str, Eager], min_nodes: int) -> Partition:
    """Cut a traced graph into stages.

    Args:
        graph: of operators that write to nothing, values in ``meta["val"]``.
        refused: node → why no engine does it, found earlier.
        min_nodes: groups of fewer nodes run in PyTorch.
    """
    refused = dict(refused)
    while True:
        claims = Claims(graph, refused)
        numbers = _Stages(graph, claims).numbers
        members: dict[int, list[Node]] = {}
        for node in graph.nodes:
            if claims.kind(node) is Kind.COMPUTED:
                members.setdefault(numbers[node], []).append(node)
        given_up = {number: why for number, nodes in members.items() if (why := _useless(nodes, min_nodes))}
        alone = [node for nodes in members.values() for node in nodes if _is_single(node, claims)]
        if not given_up and not alone:
            break
        refused |= {node.name: why for number, why in given_up.items() for node in members[number]}
        refused |= {node.name: _SINGLE for node in alone}
    stages: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op in ("call_function", "get_attr", "call_module") and claims.kind(node) is Kind.EAGER:
            stages.setdefault(numbers[node], []).append(node)
    return Partition(
        claims,
        tuple(_group(number, members[number], claims, numbers) for number in sorted(members)),
        {number: tuple(nodes) for number, nodes in stages.items()},
        claims.reasons,
    )


class _Stages:
    """The number of each node's stage. FREE nodes have none: they are where their users are."""

    def __init__(self, graph: torch.fx.Graph, claims: Claims) -> None:
        self._claims = claims
        self.numbers: dict[Node, int] = {}
        drawn = 0  # draws stay in order
        for node in graph.nodes:
            kind = claims.kind(node)
            if kind is Kind.FREE:
                continue
            self.numbers[node] = max((self._after(source, kind) for source in node.all_input_nodes), default=0)
            if kind is Kind.EAGER and node.op == "call_function" and _has_order(node):
                drawn = self.numbers[node] = max(self.numbers[node], drawn)

    def _after(self, source: Node, kind: Kind) -> int:
        """The first stage in which a node of a kind may read ``source``."""
        if self._claims.kind(source) is Kind.FREE:
            return max((self._after(each, kind) for each in source.all_input_nodes), default=0)
        crosses = self._claims.kind(source) is Kind.COMPUTED and kind is Kind.EAGER
        return self.numbers[source] + crosses


def _has_order(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (draws(node) or target._schema.is_mutable)


def _useless(nodes: Iterable[Node], min_nodes: int) -> Eager | None:
    """Why a group is not worth a program."""
    operators = [node for node in nodes if isinstance(node.target, torch._ops.OpOverload)]
    if all(moves_only(node.target) for node in operators):
        return _MOVES
    if len(operators) < min_nodes:
        return Eager("few", f"{len(operators)} operations stand alone, which is below min_nodes={min_nodes}")
    return None


def _is_single(node: Node, claims: Claims) -> bool:
    """It computes one number of what PyTorch has anyway, so that nothing is cut by leaving it there."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False  # a result of an operation with several
    if any(value.numel() > 1 for value in tensors_of(node.meta["val"])):
        return False
    sources = node.all_input_nodes
    return all(source.meta["val"].numel() <= 1 and _is_outside(source, claims) for source in sources)


def _is_outside(node: Node, claims: Claims) -> bool:
    if claims.kind(node) is Kind.FREE:
        return all(_is_outside(source, claims) for source in node.all_input_nodes)
    return claims.kind(node) is Kind.EAGER


def _group(number: int, nodes: list[Node], claims: Claims, numbers: Mapping[Node, int]) -> Group:
    inside = set(nodes)
    inputs: dict[Node, None] = {}

    def read(source: Node) -> None:
        if claims.kind(source) is Kind.FREE:
            for each in source.all_input_nodes:
                read(each)
        elif source not in inside:
            inputs[source] = None

    for node in nodes:
        for source in node.all_input_nodes:
            read(source)
    outputs = [node for node in nodes if isinstance(node.meta["val"], torch.Tensor) and _leaves(node, inside, claims)]
    shown = {node: view for node in outputs if (view := _shown(node, inside, claims)) is not None}
    return Group(number, tuple(nodes), tuple(inputs), tuple(outputs), shown)


def _shown(node: Node, inside: set[Node], claims: Claims) -> Node | None:
    """The view that everybody outside reads of a node, if it is one and has all elements."""
    seen: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        each = waiting.pop()
        for user in each.users:
            if claims.kind(user) is Kind.FREE:
                waiting.append(user)
            elif user not in inside:  # another program reads what it gets without views
                seen[node if claims.kind(user) is Kind.COMPUTED else each] = None
    if len(seen) != 1 or node in seen:
        return None
    (view,) = seen
    return view if view.meta["val"].numel() == node.meta["val"].numel() else None


def _leaves(node: Node, inside: set[Node], claims: Claims) -> bool:
    """Whether somebody outside reads it, perhaps through views."""
    return any(
        _leaves(user, inside, claims) if claims.kind(user) is Kind.FREE else user not in inside for user in node.users
    )
