"""One opset for everything that follows: local functions inlined, old operators converted by onnx itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.building import build
from hipdnn_backend.offload.frontend.graph import OnnxGraph, attributes, captures, subgraphs
from hipdnn_backend.offload.frontend.nesting import check_calls
from hipdnn_backend.offload.node_outcomes import Absorbed, Became
from hipdnn_backend.offload.onnx_process import client
from hipdnn_backend.offload.onnx_process.client import OnnxError

__all__ = ["COMMON_OPSET", "convert", "inline_functions"]

COMMON_OPSET = 22
"""Models of older opsets are converted to it, so that rewrites meet one form of each operator. Before it, onnx inferred
other shapes for pools that round up than its operators have."""
_HARDMAX_OF_ONE_AXIS = 13
"""Opset from which Hardmax is along one axis."""
_RESIZE_WITH_COORDINATES = 11
"""Opset whose Resize says where its elements lie."""


def inline_functions(graph: OnnxGraph, functions: Sequence[onnx.FunctionProto]) -> OnnxGraph:
    """The graph without calls of the model's own functions.

    Raises:
        ModelError: functions call each other in a circle, or are damaged.
    """
    if not functions:
        return graph
    _check_acyclic(functions)
    check_calls(graph.nodes, {(function.domain, function.name): function for function in functions})
    for function in functions:
        for opset in function.opset_import:
            graph.opsets.setdefault("" if opset.domain == "ai.onnx" else opset.domain, opset.version)
    try:
        model = client.inline_functions(graph.to_proto(functions=functions))
    except OnnxError as error:
        raise ModelError(graph.name, "functions", f"the model's functions cannot be inlined: {error}") from error
    result = _rebuilt(graph, model)
    called = {(function.domain, function.name) for function in functions}
    _note_calls([node for node in graph.nodes if (node.domain, node.op_type) in called], graph, result)
    return result


def _note_calls(calls: Sequence[onnx.NodeProto], before: OnnxGraph, after: OnnxGraph) -> None:
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


def convert(graph: OnnxGraph) -> OnnxGraph:
    """The graph at `COMMON_OPSET` or later.

    Raises:
        ModelError: an operator has no conversion.
    """
    if graph.opset >= COMMON_OPSET:
        return graph
    if graph.opset < _HARDMAX_OF_ONE_AXIS:
        graph.nodes = _flat_hardmax(graph.nodes, graph)
    try:
        model = client.convert_version(graph.to_proto(), COMMON_OPSET)
    except OnnxError as error:
        reason = f"opset {graph.opset} cannot be converted to {COMMON_OPSET}: {' '.join(str(error).split())}"
        raise ModelError(graph.name, "opset", reason) from error
    _keep_names(graph.nodes, model.graph.node)
    if graph.opset < _RESIZE_WITH_COORDINATES:
        _keep_coordinates(model.graph.node, _resized(graph.nodes))
    result = _rebuilt(graph, model)
    changed = [name for name, type_ in graph.inputs.items() if result.inputs.get(name) != type_]
    if changed:  # onnx drops the batch of a Scan of opset 8, and with it that dim of what the caller feeds
        reason = (
            f"opset {graph.opset} cannot be converted to {COMMON_OPSET}: the dims of {', '.join(changed)} would change"
        )
        raise ModelError(graph.name, "opset", reason)
    return result


def _keep_names(before: Iterable[onnx.NodeProto], after: Iterable[onnx.NodeProto]) -> None:
    """A node that onnx puts in the place of another gets its name; the results kept theirs."""
    names = {value: node.name for node in before for value in node.output if value}
    for node in after:
        node.name = next((names[value] for value in node.output if value in names), node.name)


def _flat_hardmax(nodes: Iterable[onnx.NodeProto], graph: OnnxGraph) -> list[onnx.NodeProto]:
    """Hardmax of all dims from its axis on, as it once was, as that of rows; onnx's conversion leaves it as it is."""
    result: list[onnx.NodeProto] = []
    for node in nodes:
        for body in subgraphs(node):
            inner = _flat_hardmax(body.node, graph)
            del body.node[:]
            body.node.extend(inner)
        if node.op_type != "Hardmax" or node.domain:
            result.append(node)
            continue
        dims, rows, marked = (graph.fresh(f"{node.name}/{part}") for part in ("dims", "rows", "marked"))
        axis = attributes(node).get("axis", 1)
        result += [
            onnx.helper.make_node("Shape", [node.input[0]], [dims], node.name),
            onnx.helper.make_node("Flatten", [node.input[0]], [rows], node.name, axis=axis),
            onnx.helper.make_node("Hardmax", [rows], [marked], node.name, axis=1),
            onnx.helper.make_node("Reshape", [marked, dims], node.output, node.name),
        ]
    return result


def _resized(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Results of Resize and Upsample, in bodies too."""
    found: set[str] = set()
    for node in nodes:
        if node.op_type in ("Resize", "Upsample") and not node.domain:
            found.update(node.output)
        for body in subgraphs(node):
            found |= _resized(body.node)
    return found


def _keep_coordinates(nodes: Iterable[onnx.NodeProto], results: set[str]) -> None:
    """Say what Resize and Upsample meant before they had attributes for it, which onnx's conversion leaves out.

    The nearest mode of that time has no name: ONNX Runtime knows it as "".
    """
    for node in nodes:
        if node.op_type == "Resize" and not node.domain and not results.isdisjoint(node.output):
            given = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": ""}
            node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in given.items())
        for body in subgraphs(node):
            _keep_coordinates(body.node, results)


def _rebuilt(graph: OnnxGraph, model: onnx.ModelProto) -> OnnxGraph:
    """A graph from what one of onnx's tools made of it; the large constants, which it did not see, stay as they are."""
    outside = {name: array for name, array in graph.constants.items() if not graph.is_small(name)}
    result = build(model, None, outside)
    result.constants.update(outside)
    result.sources, result.absorbed, result.hints = graph.sources, graph.absorbed, graph.hints
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
