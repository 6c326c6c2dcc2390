"""Operators that take positions: constant ones that reach outside a tensor are refused at load.

ONNX Runtime raises where an index is out of range. Compiled code does not look: its compiler has to keep inside the
tensor what only a run knows, as it does for PyTorch's operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.torch_ops import Emitter, emits

__all__: list[str] = []


@rewrites("Gather", "GatherElements", "ScatterElements")
def _along_an_axis(b: Builder, node: onnx.NodeProto) -> None:
    if dims := b.dims(node.input[0]):
        _check(b, node, np.asarray(dims[b.given.get("axis", 0)], np.int64))


@rewrites("GatherND", "ScatterND")
def _tuples(b: Builder, node: onnx.NodeProto) -> None:
    dims, positions = b.dims(node.input[0]), b.dims(node.input[1])
    if dims is not None and positions:
        first = b.given.get("batch_dims", 0)
        _check(b, node, np.asarray(dims[first : first + positions[-1]], np.int64))


def _check(b: Builder, node: onnx.NodeProto, sizes: np.ndarray) -> None:
    """Constant positions are from -sizes to sizes - 1; ``sizes`` is a scalar or one for each element of a tuple."""
    known = b.value(node.input[1])
    if known is None:
        return
    outside = (known < -sizes) | (known >= sizes)
    if outside.any():
        shown = sizes.tolist() if sizes.ndim else int(sizes)
        reason = f"index {known[outside].reshape(-1)[0]} of {node.input[1]!r} is outside a dim of size {shown}"
        raise b.fail("indices", reason)


@rewrites("ScatterElements", "ScatterND")
def _nothing_to_put(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """The compiler divides by the number of positions."""
    return [node.input[0]] if 0 in (b.dims(node.input[2]) or ()) else None


@rewrites("ScatterElements")
def _greatest_or_least(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``aten.scatter_reduce``, which torch-mlir's conversion has for sums and products only."""
    how = {"max": "amax", "min": "amin"}.get(b.given.get("reduction", "none"))
    x, positions, dims = node.input[0], node.input[1], b.dims(node.input[0])
    type_ = b.type(x)
    if how is None or dims is None or type_ is None:
        return None
    axis = b.given.get("axis", 0) % len(dims)
    wide = b.op("Cast", positions, to=onnx.TensorProto.INT64)
    from_end = b.op("Where", b.op("Less", wide, b.constant(0)), b.op("Add", wide, b.constant(dims[axis])), wide)
    return [b.torch("scatter_reduce", x, from_end, node.input[2], like=type_, dim=axis, reduce=how)]


@emits("scatter_reduce")
def _emit_scatter(e: Emitter, x: Any, positions: Any, values: Any) -> list[Any]:
    operands = [x, e.int(e.integer("dim")), positions, values, e.text("reduce"), e.bool(True)]
    return [e.create("torch.aten.scatter_reduce.two", e.op.results[0].type, operands)]
