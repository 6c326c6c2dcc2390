"""Elementwise operators on integers that torch-mlir computes in floating point, or as if they had a sign."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("Abs", keeps_dims=True)
operator("Clip", static=(1, 2, 3), keeps_dims=True)
operator("Pow", broadcasts=True)

_BITS = 6
"""Of an exponent; any larger power of what is not -1, 0 or 1 does not fit 64 bits."""


@rewrites("Abs")
def _magnitude(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Of unsigned integers they themselves."""
    return [node.input[0]] if _kind(b, node.input[0]) == "u" else None


@rewrites("Clip")
def _between(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Of unsigned integers by Max and Min, which are right for them."""
    if _kind(b, node.input[0]) != "u":
        return None
    x = node.input[0]
    for op_type, bound in (("Max", b.input(1)), ("Min", b.input(2))):
        x = b.op(op_type, x, bound) if bound else x
    return [x]


@rewrites("Pow")
def _power(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Of integers by squares of squares: exact, and with the last bits where it does not fit, as integers have them."""
    x, exponent = node.input
    kinds, dtype = (_kind(b, x), _kind(b, exponent)), b.dtype(x)
    if kinds[0] != "i" or dtype is None or not kinds[1]:
        return None
    if kinds[1] == "f":
        raise b.unsupported("power", "of integers, with exponents that are none, which only ONNX Runtime rounds")
    known = b.value(exponent)
    if known is not None and known.size == 1:
        only = int(known.reshape(-1)[0])
        if only == 0:
            return [b.op("Add", b.op("Mul", x, b.like(x, 0)), b.constant(np.ones(known.shape), dtype))]
        if 0 < only <= 1 << _BITS:  # one number, which has a better form
            return None
    one = b.like(x, 1)
    wide = b.op("Cast", exponent, to=onnx.TensorProto.INT64)
    size = b.op("Abs", wide)
    left = b.op("Min", size, b.op("Add", b.constant(2**_BITS - 2), b.op("Mod", size, b.constant(2))))
    made, square = one, x
    for bit in range(_BITS):
        is_odd = b.op("Equal", b.op("Mod", left, b.constant(2)), b.constant(1))
        made = b.op("Where", is_odd, b.op("Mul", made, square), made)
        if bit < _BITS - 1:
            square, left = b.op("Mul", square, square), b.op("Div", left, b.constant(2))
    is_unit = b.op("Equal", b.op("Abs", x), one)
    inverse = b.op("Where", is_unit, made, b.like(x, 0))
    return [b.op("Where", b.op("Less", wide, b.constant(0)), inverse, made)]


def _kind(b: Builder, name: str) -> str:
    """numpy's letter for the kind of a tensor's elements, "" if they are not known."""
    dtype = b.dtype(name)
    return dtype.kind if dtype is not None else ""
