"""Which constants become arguments: real weights do, what an operator needs to know beforehand does not."""

from __future__ import annotations

import onnx

from hipdnn_backend.offload.frontend.graph import OnnxGraph, TensorType, captures
from hipdnn_backend.offload.frontend.operators import facts

__all__ = ["control_inputs", "lifted", "needs_constant", "static_operands"]

_OF_DIMS = {"Shape", "Size"}
"""Operators that read no elements."""

_TABLE = 64
"""Integer and boolean constants of more elements are data (token tables, masks), not parameters of operators."""


def static_operands(op_type: str) -> frozenset[int]:
    """Positions of the operands whose elements an operator's conversion reads: axes, shapes, scales, bounds."""
    return facts(op_type).static


def needs_constant(graph: OnnxGraph, node: onnx.NodeProto) -> str | None:
    """An operand whose elements the conversion of a node reads, but which a run would give; None if there is none."""
    fixed = static_operands(node.op_type)
    return next(
        (name for i, name in enumerate(node.input) if i in fixed and name and name not in graph.constants), None
    )


def control_inputs(model: onnx.ModelProto) -> frozenset[str]:
    """Names that the model's own nodes read where the conversion has to know the elements; see `bind_inputs`.

    An integer input without dims or with one counts too if such an operand is computed from it: a size, a shape.
    """
    graph = model.graph
    read = {
        name
        for node in graph.node
        for index, name in enumerate(node.input)
        if name and index in static_operands(node.op_type)
    }
    computed = set(read)
    for node in reversed(graph.node):
        if node.op_type not in _OF_DIMS and not computed.isdisjoint(node.output):
            computed.update(node.input, captures(node))
    return frozenset(read | {value.name for value in graph.input if value.name in computed and _is_size(value)})


def _is_size(value: onnx.ValueInfoProto) -> bool:
    type_ = TensorType.of(value.type, value.name)
    return type_ is not None and type_.dims is not None and len(type_.dims) <= 1 and type_.dtype.kind in "iu"


def lifted(graph: OnnxGraph) -> list[str]:
    """Names of the constants that become arguments, in order of first use."""
    static: set[str] = set()
    weights: set[str] = set()
    order: dict[str, None] = {}
    for node in graph.nodes:
        known = facts(node.op_type)
        for i, name in enumerate(node.input):
            if name in graph.constants:
                order[name] = None
                if i in known.static:
                    static.add(name)
                if i in known.weights:
                    weights.add(name)
        static.update(captures(node))
    order.update((output.value, None) for output in graph.outputs if output.value in graph.constants)
    return [name for name in order if name not in static and (name in weights or _is_data(graph, name))]


def _is_data(graph: OnnxGraph, name: str) -> bool:
    array = graph.constants[name]
    if array.dtype.hasobject:
        return False
    return array.size > (_TABLE if array.dtype.kind in "iub" else 1)
