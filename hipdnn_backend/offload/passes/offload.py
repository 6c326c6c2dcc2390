"""``hipdnn-offload``: what an engine takes moves into ``hipdnn.graph`` regions."""

from __future__ import annotations

from typing import Any

from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.passes.fusion import Decision, decide
from hipdnn_backend.offload.passes.graph import LIST, FunctionGraph, functions
from hipdnn_backend.offload.passes.regions import erase_dead, outline
from hipdnn_backend.offload.session import Session
from hipdnn_backend.offload.to_wire import Role, role

__all__ = ["MAX_LITERAL", "offload", "outline_groups", "split_views"]

MAX_LITERAL = 1
"""Elements up to which a literal goes into a region of hipDNN operations, which knows scalars only."""


def offload(module: Any, session: Session) -> None:
    """Move each group of operations that an engine takes as one graph into a ``torch.operator "hipdnn.graph"``.

    The scalars and lists that it uses are cloned inside, so only tensors cross the region boundary. Operations are
    moved so that each region follows what feeds it.

    Requires: value semantics, static shapes.  Ensures: every region translates to one WireGraph that an engine takes.

        %1 = torch.aten.mm %a, %b
        %2 = torch.aten.relu %1
      becomes
        %2 = torch.operator "hipdnn.graph"(%a, %b) ({ ^bb0(%x, %y):
          %1 = torch.aten.mm %x, %y
          %3 = torch.aten.relu %1
          torch.operator_terminator %3 })
    """
    erase_dead(module)
    for function in functions(module):
        split_views(function)
        graph = FunctionGraph(function, max_literal=MAX_LITERAL)
        decision = decide(graph, session)
        note_refusals(graph, decision, session)
        outline_groups(graph, decision.groups)
    erase_dead(module)


def note_refusals(graph: FunctionGraph, decision: Decision, session: Session) -> None:
    """Puts the reasons for what nobody takes into the report.

    A node of the model may have become several operations; what is said of a view among them tells the least.
    """
    refused = session.report.refused
    for number, answer in sorted(decision.refused.items()):
        node = graph.nodes[number]
        if node.label not in refused or role(node.name) is not Role.VIEW:
            refused[node.label] = answer.declined


def outline_groups(graph: FunctionGraph, groups: list[int], *, custom: bool = False) -> list[Any]:
    """Outlines disjoint groups and puts the block in an order that suits them; returns the regions in that order."""
    end = list(graph.block.operations)[-1].operation
    wanted, made = set(groups), []
    for group in graph.order(groups):
        if group in wanted:
            made.append(outline(graph, group, end, custom=custom))
        else:
            _move(graph, graph.nodes[group.bit_length() - 1].op, end)
    return made


def _move(graph: FunctionGraph, op: Any, end: Any) -> None:
    """Moves an operation before another one, behind the lists that it takes, which follow what makes their elements."""
    for operand in op.operands:
        owner = graph.constants.get(operand)
        if owner is not None and owner.name == LIST and not graph.is_constant(operand):
            _move_list(graph, owner, end)
    op.move_before(end)


def _move_list(graph: FunctionGraph, owner: Any, end: Any) -> None:
    """Moves a list unless an earlier user has: where that stands, it is before the later ones too."""
    if owner.results[0] not in graph.moved:
        graph.moved.add(owner.results[0])
        _move(graph, owner, end)


def split_views(function: Any) -> None:
    """Gives each user of a view a view of its own, so that it can go with that user into a region.

    ``hipdnn-outline-leftovers`` merges those again that stayed outside.
    """
    for view in reversed(list(function.regions[0].blocks[0].operations)):
        op = view.operation
        if role(op.name) is not Role.VIEW:
            continue
        users = []
        for use in op.results[0].uses:
            if use.owner.operation not in users:
                users.append(use.owner.operation)
        for user in users[1:]:
            if user.parent.operation != function or user.name in ("func.return", "torch.prim.ListConstruct"):
                continue
            copy = op.clone(ip=ir.InsertionPoint(op))
            for index, operand in enumerate(user.operands):
                if operand == op.results[0]:
                    user.operands[index] = copy.results[0]
