"""``hipdnn-outline-leftovers``: what no engine takes as hipDNN operations goes to the engines as MLIR."""

from __future__ import annotations

from typing import Any, Final

from hipdnn_backend.offload.passes.concat import CONCAT, concat_of, is_in_place
from hipdnn_backend.offload.passes.graph import (
    LITERAL,
    FunctionGraph,
    bits,
    can_cross,
    functions,
    mask_of,
    source_names,
)
from hipdnn_backend.offload.passes.offload import outline_groups
from hipdnn_backend.offload.passes.regions import (
    EXECUTABLE,
    GRAPH,
    VIEW,
    erase_dead,
    operator_name,
    replace_results,
    view_of,
)
from hipdnn_backend.offload.session import Session
from hipdnn_backend.offload.to_wire import RESHAPES

__all__ = ["MAX_LITERAL", "atoms", "outline_leftovers", "runs"]

MAX_LITERAL: Final = 1024
"""Elements up to which a literal goes into a region; a larger one is a buffer that graphs share."""

_OURS: Final = frozenset({GRAPH, EXECUTABLE, VIEW, CONCAT})


def outline_leftovers(module: Any, session: Session) -> None:
    """Move every maximal convex run of operations that are in no region yet into a region of its own.

    Such a region carries ``hipdnn.custom``: it becomes one custom operation, whatever is in it. Reshapes at the edge
    of a run become ``hipdnn.view`` operations instead, and concatenations of what follows each other in memory
    ``hipdnn.concat``: nothing runs for them.

    Requires: value semantics, static shapes.
    Ensures: nothing but regions, views, concatenations and literals is left.

        %1 = torch.aten.cumsum %0, %int1, %none
        %2 = torch.aten.view %1, %dims
      becomes
        %1 = torch.operator "hipdnn.graph"(%0) {hipdnn.custom} ({ ... torch.aten.cumsum ... })
        %2 = torch.operator "hipdnn.view"(%1)
    """
    erase_dead(module)
    for function in functions(module):
        _merge_equal(function)
        graph = FunctionGraph(function, max_literal=MAX_LITERAL)
        wholes = graph.wholes(session.whole) if session.options.leftovers else []
        for whole in wholes:
            graph.join(whole)
        apart = mask_of(number for whole in wholes for number in bits(whole))
        groups = [*wholes, *runs(graph, apart)] if session.options.leftovers else []
        inside = mask_of(number for group in groups for number in bits(group))
        views = [node.op for node in graph.nodes if node.name in RESHAPES and not inside >> node.number & 1]
        concats = [node for node in graph.nodes if not inside >> node.number & 1 and is_in_place(graph, node)]
        session.report.views += [source_names(op.location) for op in (*views, *(node.op for node in concats))]
        outline_groups(graph, groups, custom=True)
        for op in views:
            view_of(op)
        for node in concats:
            concat_of(graph, node)
    erase_dead(module)


def _merge_equal(function: Any) -> None:
    """Merges equal operations that ``hipdnn-offload`` duplicated."""
    seen: dict[Any, Any] = {}
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        if op.regions or not op.results or op.name in ("torch.operator", LITERAL):
            continue
        attributes = tuple((name, str(op.attributes[name])) for name in op.attributes)
        key = (op.name, tuple(op.operands), attributes, tuple(str(result.type) for result in op.results))
        kept = seen.setdefault(key, op)
        if kept is not op:
            replace_results(op, list(kept.results))
            op.erase()


def runs(graph: FunctionGraph, wholes: int = 0) -> list[int]:
    """Maximal convex runs of the operations that are in no region, without reshapes at their edges.

    Args:
        graph: of the function.
        wholes: operations that are in none of the runs.
    """
    free = [
        node.number
        for node in graph.nodes
        if not wholes >> node.number & 1 and operator_name(node.op) not in _OURS and not is_in_place(graph, node)
    ]
    groups: list[int] = []
    opaque: list[int] = []  # what the front end could not convert fails alone, without taking others along
    for atom in atoms(graph, free):
        if any(graph.nodes[number].name == "torch.operator" for number in bits(atom)):
            opaque.append(atom)
        else:
            groups = _place(graph, groups, atom)
    groups += opaque
    trimmed = (_trim(graph, group) for group in groups)
    return [group for group in trimmed if group]


def atoms(graph: FunctionGraph, free: list[int]) -> list[int]:
    """Operations, together with those that need a result of theirs that cannot cross a boundary."""
    found: list[int] = []
    for number in free:
        mask = 1 << number
        if any(not can_cross(result) for result in graph.nodes[number].op.results):
            mask = graph.close(mask | mask_of(graph.nodes[number].users))
        for other in [other for other in found if other & mask]:
            found.remove(other)
            mask = graph.close(mask | other)
        found.append(mask)
    return sorted(found, key=lambda mask: (mask & -mask).bit_length())


def _place(graph: FunctionGraph, groups: list[int], atom: int) -> list[int]:
    """Joins an atom to every run that it is connected to and can be one with."""
    for group in reversed(groups):
        if _is_connected(graph, group, atom) and graph.is_convex(group | atom):
            groups = [other for other in groups if other != group]
            atom |= group
    graph.join(atom)  # now, so that later runs are convex with this one as a whole
    return [*groups, atom]


def _is_connected(graph: FunctionGraph, group: int, atom: int) -> bool:
    """One feeds the other, or both read a value that some operation makes."""
    before = graph.outside_producers(atom)
    return bool(before & group or graph.outside_producers(group) & atom or before & graph.outside_producers(group))


def _trim(graph: FunctionGraph, group: int) -> int:
    """A run without the reshapes that are its first or last operations."""
    while True:
        edge = mask_of(
            number
            for number in bits(group)
            if graph.nodes[number].name in RESHAPES
            and all(map(can_cross, (graph.nodes[number].op.operands[0], graph.nodes[number].op.results[0])))
            and (not mask_of(graph.nodes[number].producers) & group or not mask_of(graph.nodes[number].users) & group)
        )
        if not edge:
            return group
        group &= ~edge
