"""Loop, written out step by step where the number of its steps is known.

Torch-MLIR's conversion runs all trips whatever the body says about going on, so only loops that count get there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import attributes
from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.scan import NODES, stacked
from hipdnn_backend.offload.frontend.tensors import to_array

__all__: list[str] = []

operator("Loop", static=(0, 1))


@rewrites("Loop")
def _loop(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    body = b.given["body"]
    trips, states = _trips(b, body), list(node.input[2:])
    if len(body.input) != len(states) + 2 or len(body.output) != len(node.output) + 1:
        raise b.fail("loop", f"its body takes {len(body.input)} and gives {len(body.output)} values")
    if trips * len(body.node) > NODES or body.sparse_initializer:
        if len(node.output) > len(states):
            raise b.unsupported("loop", f"{trips} steps of {len(body.node)} nodes, more than {NODES} in all")
        return None
    made = len(node.output) - len(states)
    stacks: list[list[str]] = [[] for _ in range(made)]
    for step in range(trips):
        results = b.inline(body, [b.constant(step), b.constant(True, np.bool_), *states])[1:]
        states = results[: len(states)]
        for stack, value in zip(stacks, results[len(states) :], strict=True):
            stack.append(value)
    outputs = zip(stacks, node.output[len(states) :], strict=True)
    return [*states, *(stacked(b, stack, 0) if stack else _nothing(b, name) for stack, name in outputs)]


def _trips(b: Builder, body: onnx.GraphProto) -> int:
    """How many steps the loop makes.

    Raises:
        UnsupportedNodeError: only a run knows.
    """
    first = b.value(b.input(1)) if b.input(1) else np.array(True)
    if first is not None and not first.reshape(-1)[0]:
        return 0
    if not _goes_on(b, body):
        raise b.unsupported("loop", "its body computes whether it goes on, which only a run knows")
    count = b.value(b.input(0))
    for index, value in ((0, count), (1, first)):
        if value is None:
            name = b.input(index)
            advice = f"; bind it: --input {name}=VALUE" if name in b.graph.inputs else ""
            what = f"operand {name!r}, which only a run knows," if name else "no number of trips"
            raise b.unsupported("loop", f"{what} decides how many steps it makes{advice}")
    assert count is not None
    return max(int(count.reshape(-1)[0]), 0)


def _goes_on(b: Builder, body: onnx.GraphProto) -> bool:
    """Whether the body's condition is that which it was given, or always true."""
    name = body.output[0].name
    makers = {made: node for node in body.node for made in node.output}
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    known = next((to_array(each) for each in body.initializer if each.name == name), None)
    if name in makers and makers[name].op_type == "Constant":
        value = attributes(makers[name]).get("value")
        known = None if value is None else to_array(value)
    elif name not in makers and known is None:
        known = b.value(name)
    return known is not None and bool(known.reshape(-1)[0])


def _nothing(b: Builder, name: str) -> str:
    """What is collected in no steps."""
    type_ = b.type(name)
    if type_ is None or type_.dims is None or not all(isinstance(dim, int) for dim in type_.dims[1:]):
        raise b.unsupported("loop", f"it makes no step, and the dims of {name!r} are not known")
    return b.constant(np.zeros((0, *(int(dim) for dim in type_.dims[1:]))), type_.dtype)
