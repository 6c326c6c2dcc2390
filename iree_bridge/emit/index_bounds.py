"""Positions in operations of custom texts: kept inside the tensor that they are taken from.

PyTorch raises where an index is out of range. Compiled code does not look: it would read, or write, what lies there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from iree_bridge.emit.mlir import ir

__all__ = ["aten", "integer", "keep_inside", "operations"]

_ELEMENT: Final = re.compile(r",s?i\d+>$")

_ALONG_A_DIM: Final = ("gather", "index_select", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_fill")
"""``(tensor, dim, positions, ...)``."""
_LISTED: Final = ("index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put")
"""``(tensor, [positions or None for each dim], ...)``."""


def keep_inside(function: Any) -> None:
    """Clamp what every ``torch.aten`` operation of a function takes as positions in a tensor.

    Where PyTorch takes negative ones, they count from the end before that. Valid positions, so results too, stay as
    they are.
    """
    for op in list(operations(function)):
        name = op.name.removeprefix("torch.aten.").split(".")[0]
        if name in _ALONG_A_DIM:
            op.operands[2] = _clamped(op, op.operands[2], op.operands[0], op.operands[1])
        elif name == "embedding":
            op.operands[1] = _clamped(op, op.operands[1], op.operands[0], integer(op, 0))
        elif name in _LISTED:
            _clamp_list(op)


def operations(op: Any) -> Iterator[Any]:
    """All that is in an operation's regions, however deep."""
    for region in op.regions:
        for block in region.blocks:
            for view in block.operations:
                yield view.operation
                yield from operations(view.operation)


def _clamp_list(op: Any) -> None:
    made = getattr(op.operands[1].owner, "operation", op.operands[1].owner)
    if getattr(made, "name", "") != "torch.prim.ListConstruct":
        return
    listed = list(made.operands)
    for dim, positions in enumerate(listed):
        source = getattr(positions.owner, "operation", positions.owner)
        if getattr(source, "name", "") == "torch.derefine":  # an optional tensor
            positions = source.operands[0]
        if str(positions.type).endswith(("si64>", "si32>")):
            from_end = _from_end(op, positions, op.operands[0], integer(op, dim))
            listed[dim] = _clamped(op, from_end, op.operands[0], integer(op, dim))
    type_ = made.results[0].type
    with ir.InsertionPoint(op), op.location:
        element = str(type_).removeprefix("!torch.list<").removesuffix(">")
        if element.startswith("optional"):
            optional = ir.Type.parse(f"!torch.{element}")
            listed = [
                each if each.type == optional
                else ir.Operation.create("torch.derefine", results=[optional], operands=[each]).result
                for each in listed
            ]  # fmt: skip
        op.operands[1] = ir.Operation.create("torch.prim.ListConstruct", results=[type_], operands=listed).result


def _from_end(op: Any, positions: Any, tensor: Any, dim: Any) -> Any:
    """The positions, negative ones counted from the end of a dim."""
    truth = ir.Type.parse(_ELEMENT.sub(",i1>", str(positions.type)))
    is_negative = aten(op, "lt.Scalar", truth, positions, integer(op, 0))
    counted = aten(op, "add.Scalar", positions.type, positions, _size(op, tensor, dim), integer(op, 1))
    return aten(op, "where.self", positions.type, is_negative, counted, positions)


def _clamped(op: Any, positions: Any, tensor: Any, dim: Any) -> Any:
    """The positions from 0 to the size of a dim less one."""
    last = aten(op, "sub.int", ir.Type.parse("!torch.int"), _size(op, tensor, dim), integer(op, 1))
    return aten(op, "clamp", positions.type, positions, integer(op, 0), last)


def _size(op: Any, tensor: Any, dim: Any) -> Any:
    return aten(op, "size.int", ir.Type.parse("!torch.int"), tensor, dim)


def aten(op: Any, name: str, type_: Any, *operands: Any) -> Any:
    """The result of a new operation before another."""
    with ir.InsertionPoint(op), op.location:
        return ir.Operation.create(f"torch.aten.{name}", results=[type_], operands=list(operands)).result


def integer(op: Any, value: int) -> Any:
    """A new constant before an operation."""
    attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    with ir.InsertionPoint(op), op.location:
        return ir.Operation.create(
            "torch.constant.int", results=[ir.Type.parse("!torch.int")], attributes={"value": attribute}
        ).result
