"""Remainders and sums of products."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("Mod", broadcasts=True)


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
    """All letters are said; one operand without repeated letters becomes a sum and a transpose."""
    left, arrow, right = b.given["equation"].replace(" ", "").partition("->")
    letters = left.replace(".", "").replace(",", "")
    if not arrow:
        right = "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
        right = f"...{right}" if "." in left else right
    if "." in left:
        return _with_letters(b, node, left.split(","), right)
    if len(node.input) != 1 or len(set(left)) != len(left):
        return None if arrow else [b.op("Einsum", *node.input, equation=f"{left}->{right}")]
    kept = [letter for letter in left if letter in right]
    if sorted(kept) != sorted(right):
        raise b.fail("einsum", f"equation {b.given['equation']!r}")
    y = node.input[0]
    if len(kept) < len(left):
        axes = [axis for axis, letter in enumerate(left) if letter not in right]
        y = b.op("ReduceSum", y, b.constant(axes), keepdims=0)
    return [b.op("Transpose", y, perm=[kept.index(letter) for letter in right]) if right else y]


def _with_letters(b: Builder, node: onnx.NodeProto, terms: Sequence[str], right: str) -> Sequence[str] | None:
    """Letters in place of "...": the last dims of the operands belong together, and 1 goes with any number."""
    shapes = [b.dims(name) for name in node.input]
    if any(dims is None for dims in shapes):
        return None
    known = [dims or () for dims in shapes]
    if len(terms) != len(known):
        raise b.fail("einsum", f"{b.given['equation']!r} has {len(terms)} terms, the node {len(known)} operands")
    counts = [
        len(dims) - len(term.replace(".", "")) if "." in term else 0 for term, dims in zip(terms, known, strict=True)
    ]
    if min(counts) < 0 or ("." not in right and max(counts)):
        raise b.fail("einsum", f"{b.given['equation']!r} of operands {[list(dims) for dims in known]}")
    used = {*"".join(terms), *right}
    extra = [letter for letter in string.ascii_letters if letter not in used][: max(counts)]
    whole = [
        term.replace("...", "".join(extra[len(extra) - count :])) for term, count in zip(terms, counts, strict=True)
    ]
    sizes: dict[str, int] = {}
    for term, dims in zip(whole, known, strict=True):
        for letter, size in zip(term, dims, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    operands = []
    for number, (term, dims) in enumerate(zip(whole, known, strict=True)):
        ones = [axis for axis, (c, size) in enumerate(zip(term, dims, strict=True)) if c in extra and size < sizes[c]]
        operands.append(b.op("Squeeze", node.input[number], b.constant(ones)) if ones else node.input[number])
        whole[number] = "".join(letter for axis, letter in enumerate(term) if axis not in ones)
    equation = f"{','.join(whole)}->{right.replace('...', ''.join(extra))}"
    return [b.op("Einsum", *operands, equation=equation)]
