"""A tensor and a number in the torch dialect, of one kind, as Torch-MLIR can fold them."""

from __future__ import annotations

from typing import Any, Final

from fusilli_ground.torch_types import value_tensor_type

__all__ = ["settle_scalar"]

_COMPARISONS: Final = frozenset(f"torch.aten.{name}.Scalar" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
_SETTLED: Final = _COMPARISONS | {f"torch.aten.{name}.Scalar" for name in ("add", "sub", "rsub", "mul")}
_FLOAT32: Final = 6  # a torch.dtype number


def settle_scalar(op: Any, ir: Any) -> None:
    """Give a comparison, a sum or a product with a number one of the tensor's kind; other operations stay as they are.

    Of a constant tensor of floats and a whole number Torch-MLIR finds the opposite of what is asked, and takes a
    negative one for 2 ** 64 more; of integers that are compared with a float it ends the process. They are compared as
    FLOAT, as in PyTorch.

        %0 = torch.aten.lt.Scalar %x, %int0 : !torch.vtensor<[2],f32>, !torch.int -> !torch.vtensor<[2],i1>
      becomes
        %0 = torch.aten.lt.Scalar %x, %float0 : !torch.vtensor<[2],f32>, !torch.float -> !torch.vtensor<[2],i1>

    Args:
        op: an ``ir.Operation``.
        ir: the bindings that it is of.
    """
    if op.name not in _SETTLED:
        return
    kind = value_tensor_type(str(op.operands[0].type))
    number = getattr(op.operands[1].owner, "operation", None)
    if kind is None or number is None:
        return
    if kind.is_float and number.name == "torch.constant.int":
        op.operands[1] = _constant(op, ir, "float", float(ir.IntegerAttr(number.attributes["value"]).value))
    elif op.name in _COMPARISONS and not kind.is_float and number.name == "torch.constant.float":
        with ir.InsertionPoint(op), op.location:
            type_ = ir.Type.parse(kind.of("f32"), context=op.context)
            operands = [op.operands[0], _constant(op, ir, "int", _FLOAT32)]
            made = ir.Operation.create("torch.prims.convert_element_type", results=[type_], operands=operands)
        op.operands[0] = made.result


def _constant(op: Any, ir: Any, kind: str, value: float) -> Any:
    with ir.InsertionPoint(op), op.location:
        if kind == "float":
            attribute = ir.FloatAttr.get(ir.F64Type.get(op.context), value)
        else:
            attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, op.context), int(value))
        type_ = ir.Type.parse(f"!torch.{kind}", context=op.context)
        return ir.Operation.create(f"torch.constant.{kind}", results=[type_], attributes={"value": attribute}).result
