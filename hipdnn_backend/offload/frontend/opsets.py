"""One opset for everything that follows: local functions inlined, old operators converted by onnx itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
from onnx import inliner, version_converter

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.fates import Absorbed, Became
from hipdnn_backend.offload.frontend.building import build
from hipdnn_backend.offload.frontend.graph import Graph, captures, subgraphs

__all__ = ["COMMON_OPSET", "convert", "inline_functions"]

COMMON_OPSET = 22
"""Models of older opsets are converted to it, so that rewrites meet one form of each operator. Before it, onnx inferred
other shapes for pools that round up than its operators have."""


def inline_functions(graph: Graph, functions: Sequence[onnx.FunctionProto]) -> Graph:
    """The graph without calls of the model's own functions.

    Raises:
        ModelError: functions call each other in a circle, or are damaged.
    """
    if not functions:
        return graph
    _check_acyclic(functions)
    for function in functions:
        for opset in function.opset_import:
            graph.opsets.setdefault("" if opset.domain == "ai.onnx" else opset.domain, opset.version)
    try:
        model = inliner.inline_local_functions(graph.to_proto(functions=functions), convert_version=True)
    except (RuntimeError, ValueError) as error:
        raise ModelError(graph.name, "functions", f"the model's functions cannot be inlined: {error}") from error
    result = _rebuilt(graph, model)
    called = {(function.domain, function.name) for function in functions}
    _note_calls([node for node in graph.nodes if (node.domain, node.op_type) in called], graph, result)
    return result


def _note_calls(calls: Sequence[onnx.NodeProto], before: Graph, after: Graph) -> None:
    """Note which nodes became of each call: those on the way to its results from values that were there before."""
    outer = {name for node in before.nodes for name in node.output} | before.inputs.keys() | before.constants.keys()
    owners = {name: call.name for call in calls for name in call.output if name}
    made: dict[str, list[str]] = {call.name: [] for call in calls}
    for node in reversed(after.nodes):
        owner = next((owners[name] for name in node.output if name in owners), None)
        if owner is not None:
            made[owner].insert(0, node.name)
            owners.update((name, owner) for name in {*node.input, *captures(node)} - outer)
    for call, nodes in made.items():
        # Of a node that has the call's own name nothing needs to be said: it is there.
        after.absorbed[call] = Absorbed(Became.INLINED, tuple(nodes))


def convert(graph: Graph) -> Graph:
    """The graph at `COMMON_OPSET` or later.

    Raises:
        ModelError: an operator has no conversion.
    """
    if graph.opset >= COMMON_OPSET:
        return graph
    try:
        model = version_converter.convert_version(graph.to_proto(), COMMON_OPSET)
    except (RuntimeError, ValueError, version_converter.ConvertError) as error:
        reason = f"opset {graph.opset} cannot be converted to {COMMON_OPSET}: {' '.join(str(error).split())}"
        raise ModelError(graph.name, "opset", reason) from error
    _keep_names(graph.nodes, model.graph.node)
    return _rebuilt(graph, model)


def _keep_names(before: Iterable[onnx.NodeProto], after: Iterable[onnx.NodeProto]) -> None:
    """A node that onnx puts in the place of another gets its name; the results kept theirs."""
    names = {value: node.name for node in before for value in node.output if value}
    for node in after:
        node.name = next((names[value] for value in node.output if value in names), node.name)


def _rebuilt(graph: Graph, model: onnx.ModelProto) -> Graph:
    """A graph from what one of onnx's tools made of it; the large constants, which it did not see, stay as they are."""
    outside = {name: array for name, array in graph.constants.items() if not graph.is_small(name)}
    result = build(model, None, outside)
    result.constants.update(outside)
    result.sources, result.absorbed = graph.sources, graph.absorbed
    for old, new in zip(graph.outputs, result.outputs, strict=True):
        new.name = old.name
    return result


def _check_acyclic(functions: Sequence[onnx.FunctionProto]) -> None:
    """The inliner does not survive recursion."""
    bodies = {(function.domain, function.name): function for function in functions}
    state: dict[tuple[str, str], bool] = {}
    for start in bodies:
        stack = [(start, iter(_calls(bodies, start)))]
        state.setdefault(start, False)
        if state[start]:
            continue
        while stack:
            at, rest = stack[-1]
            callee = next(rest, None)
            if callee is None:
                state[at] = True
                stack.pop()
            elif callee not in state:
                state[callee] = False
                stack.append((callee, iter(_calls(bodies, callee))))
            elif not state[callee]:
                raise ModelError(callee[1], "functions", "the model's function calls itself")


def _calls(bodies: dict[tuple[str, str], onnx.FunctionProto], caller: tuple[str, str]) -> list[tuple[str, str]]:
    return sorted(_called(bodies[caller].node) & bodies.keys())


def _called(nodes: Iterable[onnx.NodeProto]) -> set[tuple[str, str]]:
    """Operators of nodes and of the bodies in them."""
    result = set()
    for node in nodes:
        result.add((node.domain, node.op_type))
        for body in subgraphs(node):
            result |= _called(body.node)
    return result
