"""Products of matrices in custom texts: on a CPU in the form that those of graphs have, several times as fast."""

from __future__ import annotations

from typing import Any, Final

from fusilli_ground.torch_types import value_tensor_type
from graph_api import DataType
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.index_bounds import operations
from iree_bridge.emit.mlir import ir
from iree_bridge.emit.products_cpu import has_tiles, product

__all__ = ["use_own_products"]

_PRODUCTS: Final = ("torch.aten.mm", "torch.aten.bmm", "torch.aten.matmul")
_TRANSPOSES: Final = ("torch.aten.transpose.int", "torch.aten.t", "torch.aten.permute")


def use_own_products(e: Emitter, function: Any) -> None:
    """Replaces the products of f32 matrices, or of equally many in a batch, of a function."""
    if not has_tiles(e):
        return
    with e.inside(function.regions[0].blocks[0]):
        for op in list(operations(function)):
            if op.name in _PRODUCTS:
                _replace(e, op)


def _replace(e: Emitter, op: Any) -> None:
    a, b = (_value(operand) for operand in op.operands)
    if a is None or b is None or min(len(a.dims), len(b.dims)) < 2 or 0 in (*a.dims, *b.dims):
        return
    if a.dims[:-2] != b.dims[:-2]:
        return
    owner = getattr(b.ssa.owner, "operation", b.ssa.owner)
    across = getattr(owner, "name", "") in _TRANSPOSES
    with ir.InsertionPoint(op):
        made = product(e, a, b, across=across)
    if made is not None:
        op.results[0].replace_all_uses_with(made.ssa)
        op.erase()


def _value(ssa: Any) -> Value | None:
    """An operand of static dims and type f32."""
    known = value_tensor_type(str(ssa.type))
    if known is None or known.element != "f32" or not known.is_static:
        return None
    return Value(ssa, tuple(dim or 0 for dim in known.dims), DataType.FLOAT)
