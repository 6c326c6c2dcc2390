"""Operations of custom texts that the compiler lowers to something else than what PyTorch computes: put right.

Numbers that are not NaN stay as they are but for ``softshrink``, which the compiler gets wrong below its bound.
"""

from __future__ import annotations

import re
from typing import Any, Final

from iree_bridge._mlir import ir
from iree_bridge.positions import aten, integer, operations

__all__ = ["correct"]

_FLOATS: Final = re.compile(r"!torch\.vtensor<\[[\d,]*\],(?:b?f\d+|f8E\w+)>", re.ASCII)

_PASS_NAN: Final = {
    **dict.fromkeys(("maximum", "minimum", "max.other", "min.other"), 1),  # the second operand's stays as it is
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6", "threshold", "hardshrink"), 1),
    "clamp_min.Tensor": 1,
    "clamp.Tensor": 3,
}
"""Operation → how many of its first operands, where one is NaN, make NaN of the result; the lowering forgets it."""


def correct(function: Any) -> None:
    """Make the operations of a function what PyTorch's documentation says of them."""
    for op in list(operations(function)):
        name = op.name.removeprefix("torch.aten.")
        if name in _PASS_NAN and _FLOATS.fullmatch(str(op.results[0].type)):
            _pass_nan(op, list(op.operands)[: _PASS_NAN[name]])
        elif name == "softshrink":
            _soft_shrink(op)


def _pass_nan(op: Any, operands: list[Any]) -> None:
    type_ = op.results[0].type
    made = op.clone(ip=ir.InsertionPoint(op)).operation.results[0]
    for operand in operands:
        if _FLOATS.fullmatch(str(operand.type)):
            truth = ir.Type.parse(str(operand.type).rpartition(",")[0] + ",i1>")
            made = aten(op, "where.self", type_, aten(op, "ne.Tensor", truth, operand, operand), operand, made)
    _replace(op, made)


def _soft_shrink(op: Any) -> None:
    """relu(x - bound) - relu(-x - bound)."""
    (x, bound), type_, one = op.operands, op.results[0].type, integer(op, 1)
    above = aten(op, "sub.Scalar", type_, x, bound, one)
    below = aten(op, "sub.Scalar", type_, aten(op, "neg", type_, x), bound, one)
    _replace(op, aten(op, "sub.Tensor", type_, *(aten(op, "relu", type_, part) for part in (above, below)), one))


def _replace(op: Any, value: Any) -> None:
    op.results[0].replace_all_uses_with(value)
    op.erase()
