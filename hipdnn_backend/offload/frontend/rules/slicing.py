"""Slices, what is made of them, and pads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("Pad", static=(0, 1, 2, 3))
operator("Slice", static=(1, 2, 3, 4))
operator("Split", static=(1,))

_WHOLE = (-1, -(2**31))
"""Start and end of a dim that is turned round."""


@rewrites("Slice")
def _axis_by_axis(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """A slice of several axes becomes one per axis that it cuts: torch-mlir leaves the dims in between unknown."""
    dims = b.dims(node.input[0])
    given = [b.value(b.input(i)) if b.input(i) else None for i in range(1, 5)]
    if dims is None or any(b.input(i) and value is None for i, value in enumerate(given, 1)):
        return None
    starts, ends, axes, steps = given
    if starts is None or ends is None:
        return None
    axes = np.arange(starts.size) if axes is None else axes
    steps = np.ones(starts.size, np.int64) if steps is None else steps
    cuts = []
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
        if step == 0 or not -len(dims) <= axis < len(dims):
            raise b.fail("slice", f"axis {axis} or step {step} does not fit {list(dims)}")
        picks = range(dims[axis])[start:end:step]
        if step < 0 and len(picks) > 1:  # IREE compiles no other backward one than that of a whole dim
            if (ordered := picks[::-1]) != range(dims[axis]):
                cuts.append((ordered[0], ordered[-1] + 1, axis, -step))
            cuts.append((*_WHOLE, axis, -1))
        elif picks != range(dims[axis]):
            cuts.append((start, end, axis, step))
    if starts.size == 1 and cuts == [(*starts.tolist(), *ends.tolist(), *axes.tolist(), *steps.tolist())]:
        return None
    x = node.input[0]
    for cut in cuts:
        x = b.op("Slice", x, *(b.constant([number]) for number in cut))
    return [x]


@rewrites("Split")
def _split(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """A slice per part: torch-mlir leaves the dims of unequal parts unknown."""
    dims = b.dims(node.input[0])
    parts = [b.dims(name) for name in node.output]
    if dims is None or any(part is None for part in parts):
        return None
    axis = b.given.get("axis", 0) % len(dims)
    results, start = [], 0
    for part in parts:
        stop = start + (part[axis] if part else 0)
        results.append(b.op("Slice", node.input[0], *(b.constant([number]) for number in (start, stop, axis))))
        start = stop
    return results


@rewrites("Pad")
def _pad(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Negative amounts are slices; reflected and wrapped elements are gathered: what torch-mlir has there is wrong."""
    x, dims, amounts = node.input[0], b.dims(node.input[0]), b.value(node.input[1])
    axes = b.value(b.input(3)) if b.input(3) else np.arange(len(dims or ()))
    mode = b.given.get("mode", "constant")
    if dims is None or amounts is None or axes is None or amounts.size != 2 * axes.size:
        return None
    if (amounts >= 0).all() and mode not in ("reflect", "wrap"):
        return None
    more = np.zeros((2, len(dims)), np.int64)
    for axis, before, after in zip(axes.tolist(), *amounts.reshape(2, -1).tolist(), strict=True):
        more[:, axis] = before, after
    for axis, (before, after) in enumerate(more.T.tolist()):
        kept = np.arange(dims[axis])[max(-before, 0) : dims[axis] - max(-after, 0)]
        if not kept.size:
            raise b.unsupported("pads", f"{before} and {after} leave nothing of dim {axis} of {list(dims)}")
        if kept.size < dims[axis]:
            x = b.op("Slice", x, b.constant([kept[0]]), b.constant([kept[-1] + 1]), b.constant([axis]))
        if mode in ("reflect", "wrap") and max(before, after) > 0:
            wanted = np.pad(np.arange(kept.size), (max(before, 0), max(after, 0)), mode)
            x = b.op("Gather", x, b.constant(wanted), axis=axis)
    more = np.maximum(more, 0)
    if mode in ("reflect", "wrap") or not more.any():
        return [x]
    return [b.op("Pad", x, b.constant(more.reshape(-1)), b.input(2), mode=mode)]
