"""A graph as the C host's own reference reads it; see ``host/reference.h``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum

from graph_api import DataType, Graph, Node, TensorAttr

__all__ = ["reference_text"]

# Of 1 + the largest magnitude in the tensor: the provider's own tolerance for f32, a rounding or two for the others.
_ALLOWED = {DataType.FLOAT: 1e-5, DataType.DOUBLE: 1e-12, DataType.HALF: 2e-3, DataType.BFLOAT16: 1.5e-2}


def reference_text(graph: Graph, allowed: float | None = None) -> str:
    """Tensors, scalar values and nodes, in an order in which they can be computed.

    Args:
        graph: validated.
        allowed: error that an element may have, in units of 1 + the largest magnitude; default: by data type.
    """
    lines = [_tensor(tensor, allowed) for tensor in graph.tensors]
    lines += [f"value {tensor.uid} {float(tensor.value)!r}" for tensor in graph.tensors if tensor.value is not None]
    for node in graph.nodes:
        lines += _node(node)
    return "\n".join(lines) + "\n"


def _tensor(tensor: TensorAttr, allowed: float | None) -> str:
    numbers = (*tensor.dims, *tensor.strides)
    limit = _ALLOWED.get(tensor.data_type, 1e-9) if allowed is None else allowed
    return f"tensor {tensor.uid} {tensor.data_type.name} {limit} {len(tensor.dims)} {' '.join(map(str, numbers))}"


def _node(node: Node) -> Iterator[str]:
    yield f"op {node.op}"
    for port, tensor in (node.inputs | node.outputs).items():
        yield f"port {port} {tensor.uid}"
    for name in (field.name for field in fields(node.attributes)) if node.attributes else ():
        value = getattr(node.attributes, name)
        if isinstance(value, Enum):
            yield f"word {name} {value.name}"
        elif isinstance(value, int | float):  # bool included
            yield f"numbers {name} 1 {float(value)!r}"
        elif isinstance(value, tuple) and all(isinstance(each, int) for each in value):
            yield f"numbers {name} {len(value)} {' '.join(map(str, value))}"
    yield "run"
