"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []


@rewrites("MatMul")
def _vector(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Operands of rank 1 become matrices of one row or column."""
    a, w = node.input
    left, right = b.dims(a), b.dims(w)
    if left is None or right is None or 1 not in (len(left), len(right)) or (len(left), len(right)) == (1, 1):
        return None
    if len(left) == 1:
        y = b.op("MatMul", b.op("Reshape", a, b.constant([1, left[0]])), w)
        return [b.op("Squeeze", y, b.constant([len(right) - 2]))]
    y = b.op("MatMul", a, b.op("Reshape", w, b.constant([right[0], 1])))
    return [b.op("Squeeze", y, b.constant([len(left) - 1]))]


@rewrites("Gemm")
def _constant_factors(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Transposes and factors of weights are applied once, here; so every run reads the weight as it is."""
    weight, bias = b.value(node.input[1]), b.value(b.input(2)) if b.input(2) else None
    alpha, beta = b.given.get("alpha", 1.0), b.given.get("beta", 1.0)
    floating = weight is not None and weight.dtype.kind == "f"
    turn, scale = bool(b.given.get("transB", 0)), alpha != 1.0 and floating
    shift = beta != 1.0 and bias is not None and floating
    if weight is None or not (turn or scale or shift):
        return None
    made = weight.astype(np.float64) * alpha if scale else weight
    made = np.ascontiguousarray(made.T if turn else made, weight.dtype)
    operands = [node.input[0], b.constant(made, None)]
    if b.input(2):
        scaled = (bias.astype(np.float64) * beta).astype(weight.dtype) if shift and bias is not None else None
        operands.append(b.input(2) if scaled is None else b.constant(scaled, None))
    given = {"alpha": 1.0 if scale else alpha, "beta": 1.0 if shift else beta, "transA": b.given.get("transA", 0)}
    return [b.op("Gemm", *operands, transB=0, **given)]
