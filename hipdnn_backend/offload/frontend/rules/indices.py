"""Operators that take positions: no value of theirs may reach outside a tensor.

ONNX Runtime raises where an index is out of range. Compiled code does not look: it would read, or write, whatever lies
there. So constants are checked at load, and positions that only a run knows are kept within the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []


@rewrites("Gather", "GatherElements", "ScatterElements")
def _along_an_axis(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    dims = b.dims(node.input[0])
    return None if not dims else _bounded(b, node, np.asarray(dims[b.given.get("axis", 0)], np.int64))


@rewrites("GatherND", "ScatterND")
def _tuples(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    dims, positions = b.dims(node.input[0]), b.dims(node.input[1])
    if dims is None or not positions:
        return None
    first = b.given.get("batch_dims", 0)
    return _bounded(b, node, np.asarray(dims[first : first + positions[-1]], np.int64))


def _bounded(b: Builder, node: onnx.NodeProto, sizes: np.ndarray) -> Sequence[str] | None:
    """The node on positions from -sizes to sizes - 1; ``sizes`` is a scalar or one for each element of a tuple."""
    indices = node.input[1]
    known, dims = b.value(indices), b.dims(indices)
    if known is not None:
        outside = (known < -sizes) | (known >= sizes)
        if outside.any():
            shown = sizes.tolist() if sizes.ndim else int(sizes)
            reason = f"index {known[outside].reshape(-1)[0]} of {indices!r} is outside a dim of size {shown}"
            raise b.fail("indices", reason)
        return None
    if dims is None or 0 in dims or not sizes.size or not sizes.all() or _is_bounded(b, indices, sizes):
        return None
    raised = b.op("Max", indices, b.like(indices, -sizes))
    safe = b.op("Min", raised, b.like(indices, sizes - 1))
    given = dict(b.given)
    return [b.op(node.op_type, node.input[0], safe, *node.input[2:], **given)]


def _is_bounded(b: Builder, indices: str, sizes: np.ndarray) -> bool:
    """Whether a Max and a Min with constants, ours or the model's own, make the positions."""
    upper = b.producer(indices)
    if upper is None or upper.op_type != "Min" or len(upper.input) != 2:
        return False
    lower, high = b.producer(upper.input[0]), b.value(upper.input[1])
    if lower is None or lower.op_type != "Max" or len(lower.input) != 2 or high is None:
        return False
    low = b.value(lower.input[1])
    if low is None:
        return False
    return bool(all(((-sizes <= bound) & (bound < sizes)).all() for bound in (low, high)))
