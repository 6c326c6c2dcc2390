"""Reductions whose axes are an input."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []


@rewrites(
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
def _explicit_axes(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """No axes mean all of them, or none at all; both are said outright."""
    dims, axes = b.dims(node.input[0]), b.value(b.input(1)) if b.input(1) else None
    if dims is None or (b.input(1) and axes is None) or (axes is not None and axes.size):
        return None
    if b.given.get("noop_with_empty_axes", 0):
        return (
            [node.input[0]]
            if node.op_type in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
            else None
        )
    if not dims:
        return None
    return [b.op(node.op_type, node.input[0], b.constant(range(len(dims))), keepdims=b.given.get("keepdims", 1))]
