"""Changes of the element type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from hipdnn_backend.offload.frontend.graph import TensorType
from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.small_types import is_small_type
from hipdnn_backend.offload.frontend.torch_ops import Emitter, emits

__all__ = ["reinterpreted"]

operator("Cast", keeps_dims=True)

_TORCH: Mapping[int, int] = {
    TensorProto.UINT8: 0, TensorProto.INT8: 1, TensorProto.INT16: 2, TensorProto.INT32: 3, TensorProto.INT64: 4,
    TensorProto.FLOAT16: 5, TensorProto.FLOAT: 6, TensorProto.DOUBLE: 7, TensorProto.BOOL: 11,
    TensorProto.BFLOAT16: 15, TensorProto.UINT32: 28,
}  # fmt: skip
"""Element type → torch's number of it; torch-mlir's compiler does not survive those of uint16 and uint64."""
_UNKNOWN_TO_CAST = {TensorProto.INT16, TensorProto.UINT32}
"""Types to which torch-mlir does not convert a Cast, though torch has them."""


@rewrites("Cast")
def _cast(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    type_ = b.type(node.input[0])
    if type_ is None or b.given["to"] not in _UNKNOWN_TO_CAST or is_small_type(type_):
        return None
    x, like = node.input[0], TensorType(b.given["to"], type_.dims)
    if like.element == TensorProto.UINT32 and type_.dtype.kind not in "iub":  # compiled as if it had a sign
        x = b.op("Cast", x, to=TensorProto.INT64)
    return [b.torch("to_dtype", x, like=like, dtype=_TORCH[like.element])]


@emits("to_dtype")
def _emit_to_dtype(e: Emitter, x: Any) -> list[Any]:
    operands = [x, e.int(e.integer("dtype")), e.bool(False), e.bool(False), e.none()]
    return [e.create("torch.aten.to.dtype", e.op.results[0].type, operands)]


@rewrites("CastLike")
def _cast_like(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    type_ = b.type(node.input[1])
    return None if type_ is None else [b.op("Cast", node.input[0], to=type_.element, **b.given)]


@rewrites("BitCast")
def _bit_cast(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    before, after = b.type(node.input[0]), b.type(node.output[0])
    if before is None or after is None:
        return None
    if before.element != after.element and (is_small_type(before) or is_small_type(after)):
        return None
    if before == after:
        return [node.input[0]]
    if after.element == TensorProto.BOOL or before.element == TensorProto.BOOL:  # a byte of 0 or 1
        return [b.op("Cast", node.input[0], to=after.element)]
    if after.element not in _TORCH:
        raise b.unsupported("bit-cast", f"{before.dtype} as {after.dtype}")
    return [reinterpreted(b, node.input[0], before, after.element)]


def reinterpreted(b: Builder, x: str, before: TensorType, element: int) -> str:
    """The same bits as elements of another type of their size, which torch has.

    Args:
        b: where nodes go.
        x: of the type ``before``.
        before: its dims are known.
        element: of the result.
    """
    after = TensorType(element, before.dims)
    if before.dims:
        return b.torch("view_dtype", x, like=after, dtype=_TORCH[element])
    row = b.op("Reshape", x, b.constant([1]))
    y = b.torch("view_dtype", row, like=TensorType(element, (1,)), dtype=_TORCH[element])
    return b.op("Reshape", y, b.constant(np.zeros(0)))


@emits("view_dtype")
def _emit_view_dtype(e: Emitter, x: Any) -> list[Any]:
    return [e.create("torch.aten.view.dtype", e.op.results[0].type, [x, e.int(e.integer("dtype"))])]
