"""Nodes that stay ONNX: each becomes, with what cannot be apart from it, one operation that carries them as a model.

For nodes that the front end does not convert and for those that no engine compiles. An engine that runs ONNX may take
such an operation; `hipdnn_backend.onnx_op` says what it gets then.
"""

from __future__ import annotations

import base64
import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from hipdnn_backend.offload.errors import UnsupportedNodeError
from hipdnn_backend.offload.frontend.graph import TORCH_DOMAIN, OnnxGraph, Output, TensorType, captures

__all__ = ["CARRIED", "FRONT_END", "Reasons", "set_outside"]

Reasons = Mapping[str, str]
"""Who did not take a node → why; an engine's name, or `FRONT_END`."""
FRONT_END = "front end"

CARRIED = "onnx_model"
"""Operator of `TORCH_DOMAIN` with attributes ``model`` (a ``ModelProto`` in base64), ``nodes`` (names of the source
nodes), ``operators`` (what they are) and ``reasons`` (`Reasons` as JSON). Its inputs and outputs are the model's."""

_BETWEEN = "it stands between nodes that stay ONNX, or makes what only those take"
_CROSSING = frozenset(
    getattr(TensorProto, name)
    for name in (
        *("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "BOOL", "INT8", "INT16", "INT32", "INT64"),
        *("UINT8", "UINT16", "UINT32", "UINT64", "FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ"),
    )
)
"""Element types that tensors between graphs can have."""


@dataclass(eq=False)
class _Part:
    """Nodes that stay together, in order; ``outside``: as ONNX."""

    nodes: list[onnx.NodeProto]
    outside: bool = False


def set_outside(graph: OnnxGraph, left: Mapping[str, Reasons]) -> dict[str, str]:
    """Put a `CARRIED` node in the place of each node that stays ONNX.

    What cannot be apart from it goes with it: the other side of a value that is no tensor of static dims, and what lies
    on a path from one of its nodes to another.

    Requires: types are current, nothing is to be rewritten any more.

    Args:
        graph: changed in place.
        left: name of a node → who did not take it.

    Returns:
        Name → why, of every node that is in such a model now.

    Raises:
        UnsupportedNodeError: a node that goes along was rewritten to what ONNX does not have; with it in ``left`` from
            the start, it is not.
    """
    parts = [_Part([node]) for node in graph.nodes]
    for name in left:
        group = {number for number, part in enumerate(parts) if any(node.name == name for node in part.nodes)}
        if group:  # else it is computed while loading, or nobody needs it
            group = _closed(graph, parts, group)
            whole = _Part([node for number in sorted(group) for node in parts[number].nodes], outside=True)
            parts = _sorted([part for number, part in enumerate(parts) if number not in group] + [whole])
    _check(parts)
    outside: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for part in parts:
        if not part.outside:
            nodes += part.nodes
            continue
        reasons = _merged(left[node.name] for node in part.nodes if node.name in left)
        outside.update((node.name, _text(left[node.name]) if node.name in left else _BETWEEN) for node in part.nodes)
        nodes.append(_carried(graph, part.nodes, reasons))
    if not outside:
        return {}
    graph.nodes = nodes
    used = {name for node in nodes for name in (*node.input, *node.output)}
    graph.types = {name: type_ for name, type_ in graph.types.items() if name in used}
    return outside


def _text(reasons: Reasons) -> str:
    return "; ".join(why if who == FRONT_END else f"{who}: {why}" for who, why in reasons.items())


def _check(parts: Sequence[_Part]) -> None:
    outside = (node for part in parts if part.outside for node in part.nodes)
    rewritten = {node.name: _BETWEEN for node in outside if node.domain == TORCH_DOMAIN}
    if rewritten:
        name, reason = next(iter(rewritten.items()))
        raise UnsupportedNodeError(name, "onnx-form", reason, rewritten)


def _merged(each: Iterable[Reasons]) -> dict[str, str]:
    found: dict[str, str] = {}
    for reasons in each:
        for who, why in reasons.items():
            known = found.setdefault(who, why)
            if why not in known:
                found[who] = f"{known}; {why}"
    return found


# ---- which nodes go together


def _read(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """What nodes take from outside, in order of first use."""
    made = {name for node in nodes for name in node.output}
    names = (name for node in nodes for name in (*node.input, *sorted(captures(node))))
    return [name for name in dict.fromkeys(names) if name and name not in made]


def _crosses(type_: TensorType | None) -> bool:
    return type_ is not None and type_.static is not None and type_.element in _CROSSING


class _Edges:
    """Who makes and who reads the values of some parts."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.made = [[name for node in part.nodes for name in node.output if name] for part in parts]
        self.read = [_read(part.nodes) for part in parts]
        self.maker = {name: number for number, names in enumerate(self.made) for name in names}
        self.before = [{self.maker[name] for name in names if name in self.maker} for names in self.read]
        self.after: list[set[int]] = [set() for _ in parts]
        self.readers: dict[str, set[int]] = {}
        for number, names in enumerate(self.read):
            for name in names:
                self.readers.setdefault(name, set()).add(number)
                if name in self.maker:
                    self.after[self.maker[name]].add(number)

    def reach(self, group: set[int], steps: Sequence[set[int]]) -> set[int]:
        """What can be reached from a group in at least one step."""
        found: set[int] = set()
        stack = [number for start in group for number in steps[start]]
        while stack:
            number = stack.pop()
            if number not in found:
                found.add(number)
                stack += steps[number]
        return found


def _closed(graph: OnnxGraph, parts: Sequence[_Part], group: set[int]) -> set[int]:
    """A group with all that cannot be apart from it."""
    edges = _Edges(parts)
    while True:
        wider = group | (edges.reach(group, edges.after) & edges.reach(group, edges.before))
        for number in group:
            for name in (*edges.made[number], *edges.read[number]):
                if name in edges.maker and not _crosses(graph.type(name)):
                    wider |= {edges.maker[name], *edges.readers.get(name, ())}
        if wider == group:
            return group
        group = wider


def _sorted(parts: Sequence[_Part]) -> list[_Part]:
    """The parts so that each follows what feeds it; they are convex."""
    edges = _Edges(parts)
    waits = [set(before) for before in edges.before]
    ready = [number for number, before in enumerate(waits) if not before]
    order: list[_Part] = []
    while ready:
        number = heapq.heappop(ready)
        order.append(parts[number])
        for user in edges.after[number]:
            waits[user].discard(number)
            if not waits[user]:
                heapq.heappush(ready, user)
    assert len(order) == len(parts), "a part is not convex"
    return order


# ---- what they become


def _carried(graph: OnnxGraph, nodes: Sequence[onnx.NodeProto], reasons: Reasons) -> onnx.NodeProto:
    """The node that carries others."""
    read = _read(nodes)
    inside = {name for name in read if name in graph.constants and _stays_inside(graph, name)}
    taken = [name for name in read if name not in inside]
    wanted = _wanted(graph, nodes)
    given = [name for node in nodes for name in node.output if name in wanted]
    model = _model(graph, nodes, inside, taken, given)
    names = list(dict.fromkeys(node.name for node in nodes))
    node = helper.make_node(
        CARRIED, taken, given, names[0], domain=TORCH_DOMAIN, nodes=names, reasons=json.dumps(reasons),
        operators=[node.op_type for node in nodes], model=base64.b64encode(model.SerializeToString(deterministic=True)),
    )  # fmt: skip
    graph.declared.update((name, type_) for name in given if (type_ := graph.type(name)) is not None)
    return node


def _stays_inside(graph: OnnxGraph, name: str) -> bool:
    """Small constants may be what an operator has to know beforehand; the others are weights, which lie elsewhere."""
    return graph.is_small(name) or not _crosses(graph.type(name))


def _wanted(graph: OnnxGraph, nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """What others than these nodes read."""
    numbers = {id(node) for node in nodes}
    wanted = {output.value for output in graph.outputs}
    for node in graph.nodes:
        if id(node) not in numbers:
            wanted |= {*node.input, *captures(node)}
    return wanted - {""}


def _model(
    graph: OnnxGraph, nodes: Sequence[onnx.NodeProto], inside: set[str], taken: Sequence[str], given: Sequence[str]
) -> onnx.ModelProto:
    opsets = {domain: version for domain, version in graph.opsets.items() if domain != TORCH_DOMAIN}
    small = OnnxGraph(", ".join(dict.fromkeys(node.name for node in nodes))[:200], opsets)
    small.nodes = list(nodes)
    small.constants = {name: graph.constants[name] for name in _read(nodes) if name in inside}
    for name in taken:
        type_ = graph.type(name)
        if type_ is not None:  # else the import says that it cannot cross
            small.inputs[name] = type_
    small.outputs = [Output(name, name, _proto(graph.type(name))) for name in given]
    return small.to_proto(lifted=())


def _proto(type_: TensorType | None) -> onnx.TypeProto:
    if type_ is None:
        return onnx.TypeProto()
    dims = None if type_.dims is None else [dim if dim != "" else None for dim in type_.dims]
    return helper.make_tensor_type_proto(type_.element, dims)
