"""Scan, written out step by step: torch-mlir's conversion of its body ends the process."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__ = ["NODES", "stacked"]

NODES = 4096
"""Nodes that may be made of a Scan or a Loop."""


@rewrites("Scan")
def _scan(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Written out step by step, since the number of steps is known; ``NODES`` bounds what that may become."""
    body, count = b.given["body"], b.given["num_scan_inputs"]
    carried = len(node.input) - count
    made = len(node.output) - carried
    shapes = [b.dims(name) for name in node.input[carried:]]
    if any(dims is None for dims in shapes) or body.sparse_initializer:
        return None
    known = [dims or () for dims in shapes]
    axes = [axis % len(dims) for axis, dims in zip(_given(b, "scan_input_axes", count), known, strict=True)]
    backward, turned = _given(b, "scan_input_directions", count), _given(b, "scan_output_directions", made)
    steps = {dims[axis] for axis, dims in zip(axes, known, strict=True)}
    if len(steps) != 1:
        raise b.fail("scan", f"its sequences have {sorted(steps)} steps")
    (length,) = steps
    if not length or length * len(body.node) > NODES:
        raise b.unsupported("scan", f"{length} steps of {len(body.node)} nodes, more than {NODES} in all")
    state, stacks = list(node.input[:carried]), [[] for _ in range(made)]
    for step in range(length):
        parts = [
            _part(b, name, axis, length - 1 - step if reverse else step)
            for name, axis, reverse in zip(node.input[carried:], axes, backward, strict=True)
        ]
        results = b.inline(body, [*state, *parts])
        state = results[:carried]
        for stack, value in zip(stacks, results[carried:], strict=True):
            stack.append(value)
    outer = _given(b, "scan_output_axes", made)
    return [
        *state,
        *(
            stacked(b, stack[::-1] if reverse else stack, axis)
            for stack, axis, reverse in zip(stacks, outer, turned, strict=True)
        ),
    ]


def _given(b: Builder, name: str, count: int) -> list[int]:
    return b.given.get(name) or [0] * count


def _part(b: Builder, x: str, axis: int, step: int) -> str:
    """One step of a sequence, whose dim goes."""
    return b.op("Squeeze", b.op("Slice", x, *(b.constant([n]) for n in (step, step + 1, axis))), b.constant([axis]))


def stacked(b: Builder, parts: Sequence[str], axis: int) -> str:
    """The parts along a new axis."""
    whole = [b.op("Unsqueeze", part, b.constant([axis])) for part in parts]
    return b.op("Concat", *whole, axis=axis)
