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


_UNSIGNED: Final = re.compile(r",ui(\d+)>", re.ASCII)


def correct(function: Any) -> None:
    """Make the operations of a function what PyTorch's documentation says of them."""
    for op in list(operations(function)):
        name = op.name.removeprefix("torch.aten.")
        if name in _PASS_NAN and _FLOATS.fullmatch(str(op.results[0].type)):
            _pass_nan(op, list(op.operands)[: _PASS_NAN[name]])
        elif name == "softshrink":
            _soft_shrink(op)
        elif name == "scatter_reduce.two":
            _scatter_unsigned(op)


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


def _scatter_unsigned(op: Any) -> None:
    """The greatest and least of unsigned integers, which the compiler compares as signed: moved by half their range."""
    type_ = op.results[0].type
    element = _UNSIGNED.search(str(type_))
    how = getattr(op.operands[4].owner, "operation", op.operands[4].owner)
    if element is None or ir.StringAttr(how.attributes["value"]).value not in ("amax", "amin"):
        return
    bits = int(element[1])
    for index in (0, 3):
        signed = _UNSIGNED.sub(r",si\1>", str(op.operands[index].type))
        op.operands[index] = _moved(op, _reinterpreted(op, op.operands[index], ir.Type.parse(signed)), bits)
    made = aten(op, "scatter_reduce.two", op.operands[0].type, *op.operands)
    _replace(op, _reinterpreted(op, _moved(op, made, bits), type_))


def _moved(op: Any, value: Any, bits: int) -> Any:
    return aten(op, "add.Scalar", value.type, value, integer(op, -(2 ** (bits - 1))), integer(op, 1))


def _reinterpreted(op: Any, value: Any, type_: Any) -> Any:
    """The same bits as another integer type of the same size."""
    dims, _, element = str(type_).removeprefix("!torch.vtensor<[").removesuffix(">").partition("],")
    shape = "x".join([*filter(None, dims.split(",")), element.lstrip("su")])
    with ir.InsertionPoint(op), op.location:
        plain = ir.Operation.create(
            "torch_c.to_builtin_tensor", results=[ir.Type.parse(f"tensor<{shape}>")], operands=[value]
        )
        return ir.Operation.create("torch_c.from_builtin_tensor", results=[type_], operands=[plain.result]).result


def _replace(op: Any, value: Any) -> None:
    op.results[0].replace_all_uses_with(value)
    op.erase()
