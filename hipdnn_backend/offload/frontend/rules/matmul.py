"""Matrix products and determinants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("Gemm", weights=(1, 2))
operator("MatMul", weights=(0, 1), broadcasts=True)


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
    if (alpha != 1.0 and not scale) or (beta != 1.0 and b.input(2) and not shift):
        return _scaled(b, node, alpha, beta)
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


def _scaled(b: Builder, node: onnx.NodeProto, alpha: float, beta: float) -> Sequence[str] | None:
    """``alpha * a @ w + beta * c`` outright: torch-mlir drops alpha where there is no c."""
    dtype = b.dtype(node.input[0])
    if dtype is None:
        return None
    if dtype.kind in "iu" and not (float(alpha).is_integer() and float(beta).is_integer()):
        raise b.unsupported("factors", f"alpha {alpha} and beta {beta} of {dtype}")
    like = node.input[0]
    given = {name: b.given.get(name, 0) for name in ("transA", "transB")}
    y = b.op("Gemm", *node.input[:2], **given)
    y = b.op("Mul", y, b.like(like, alpha)) if alpha != 1.0 else y
    if not b.input(2):
        return [y]
    return [b.op("Add", y, b.op("Mul", b.input(2), b.like(like, beta)) if beta != 1.0 else b.input(2))]


@rewrites("Det")
def _determinant(b: Builder, node: onnx.NodeProto) -> Sequence[str]:
    """Written out up to 3 x 3; torch-mlir eliminates without exchanging rows, in code that does not compile."""
    x, dims, dtype = node.input[0], b.dims(node.input[0]), b.dtype(node.input[0])
    size = dims[-1] if dims else -1
    if dims is None or dtype is None or size > 3:
        shown = "matrices of unknown size" if dims is None else f"{size} x {size} matrices"
        raise b.unsupported("determinant", f"of {shown}; up to 3 x 3 is written out")
    if size == 0:
        return [b.constant(np.ones(dims[:-2]), dtype)]
    wide = b.op("Cast", x, to=onnx.TensorProto.FLOAT) if dtype == np.float16 else x
    entry = [[_entry(b, wide, dims, i, j) for j in range(size)] for i in range(size)]
    made = _expanded(b, entry, list(range(size)))
    return [b.op("Cast", made, to=onnx.TensorProto.FLOAT16) if dtype == np.float16 else made]


def _entry(b: Builder, x: str, dims: Sequence[int], i: int, j: int) -> str:
    cut = b.op("Slice", x, b.constant([i, j]), b.constant([i + 1, j + 1]), b.constant([-2, -1]))
    return b.op("Reshape", cut, b.constant(dims[:-2]))


def _expanded(b: Builder, entry: Sequence[Sequence[str]], columns: Sequence[int]) -> str:
    """The determinant of the last rows and of some columns, along the first of these rows."""
    row = entry[len(entry) - len(columns)]
    if len(columns) == 1:
        return row[columns[0]]
    made = ""
    for position, column in enumerate(columns):
        rest = [other for other in columns if other != column]
        term = b.op("Mul", row[column], _expanded(b, entry, rest))
        made = b.op("Sub" if position % 2 else "Add", made, term) if made else term
    return made
