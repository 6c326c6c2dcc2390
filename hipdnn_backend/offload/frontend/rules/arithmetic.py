"""Remainders and sums of products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []


@rewrites("Mod")
def _remainder(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """With the dividend's sign: that of the magnitudes, which is exact. Torch's ``x - trunc(x / y) * y`` is not."""
    x, y = node.input
    dtype = b.dtype(x)
    if dtype is None or dtype.kind in "iub":
        return None
    if dtype == np.float64:
        raise b.unsupported("remainder", "of float64, for which compiled code has no exact one")
    if not b.given.get("fmod", 0):
        return None
    rest = b.op("Mod", b.op("Abs", x), b.op("Abs", y))
    return [b.op("Where", b.op("Less", x, b.like(x, 0)), b.op("Neg", rest), rest)]


@rewrites("Einsum")
def _sums(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """The letters of the result are said; one operand without repeated letters becomes a sum and a transpose."""
    left, arrow, right = b.given["equation"].replace(" ", "").partition("->")
    letters = left.replace(".", "").replace(",", "")
    if not arrow:
        right = "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
        right = f"...{right}" if "." in left else right
    if len(node.input) != 1 or "." in left or len(set(left)) != len(left):
        return None if arrow else [b.op("Einsum", *node.input, equation=f"{left}->{right}")]
    kept = [letter for letter in left if letter in right]
    if sorted(kept) != sorted(right):
        raise b.fail("einsum", f"equation {b.given['equation']!r}")
    y = node.input[0]
    if len(kept) < len(left):
        axes = [axis for axis, letter in enumerate(left) if letter not in right]
        y = b.op("ReduceSum", y, b.constant(axes), keepdims=0)
    return [b.op("Transpose", y, perm=[kept.index(letter) for letter in right]) if right else y]
