"""Torch operations that have no ONNX form torch-mlir converts: nodes of `TORCH_DOMAIN` become them after the import.

They stay whole, so that engines can claim them: a norm as a norm, attention as attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fusilli_ground.torch_types import value_tensor_type
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.onnx_op import OPERATOR

__all__ = ["EMITS", "Emitter", "emits", "insert_torch_ops"]

_PREFIX = "torch.onnx."


class Emitter:
    """Creates torch operations in front of the one that they replace, whose attributes it reads."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self._at = ir.InsertionPoint(op)

    @staticmethod
    def dims(value: Any) -> list[int]:
        """Static dims of a ``!torch.vtensor``."""
        kind = value_tensor_type(str(value.type))
        assert kind is not None, f"{value.type} is no tensor"
        return [dim for dim in kind.dims if dim is not None]

    def number(self, name: str) -> float:
        return ir.FloatAttr(self.op.attributes[_PREFIX + name]).value

    def integer(self, name: str) -> int:
        return ir.IntegerAttr(self.op.attributes[_PREFIX + name]).value

    def integers(self, name: str) -> list[int]:
        return [ir.IntegerAttr(item).value for item in ir.ArrayAttr(self.op.attributes[_PREFIX + name])]

    def create(self, name: str, type_: Any, operands: Sequence[Any] = (), **attributes: Any) -> Any:
        return self.create_all(name, [type_], operands, **attributes)[0]

    def create_all(self, name: str, types: Sequence[Any], operands: Sequence[Any] = (), **attributes: Any) -> list[Any]:
        op = ir.Operation.create(
            name, results=list(types), operands=list(operands), attributes=attributes, loc=self.op.location, ip=self._at
        )
        return list(op.results)

    def type(self, text: str) -> Any:
        return ir.Type.parse(text, context=self.op.context)

    def int(self, value: int) -> Any:
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, self.op.context), value)
        return self.create("torch.constant.int", self.type("!torch.int"), value=attribute)

    def float(self, value: float) -> Any:
        attribute = ir.FloatAttr.get_f64(value, context=self.op.context)
        return self.create("torch.constant.float", self.type("!torch.float"), value=attribute)

    def bool(self, value: bool) -> Any:
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(1, self.op.context), int(value))
        return self.create("torch.constant.bool", self.type("!torch.bool"), value=attribute)

    def text(self, name: str) -> Any:
        return self.create("torch.constant.str", self.type("!torch.str"), value=self.op.attributes[_PREFIX + name])

    def none(self) -> Any:
        return self.create("torch.constant.none", self.type("!torch.none"))

    def ints(self, values: Sequence[int]) -> Any:
        items = [self.int(value) for value in values]
        return self.create("torch.prim.ListConstruct", self.type("!torch.list<int>"), items)


Emit = Callable[..., list[Any]]
"""Of an `Emitter` and the operands, the results."""
EMITS: dict[str, Emit] = {}
"""Operator of `TORCH_DOMAIN` → what emits the torch operation."""
EmitT = TypeVar("EmitT", bound=Emit)


def emits(op_type: str) -> Callable[[EmitT], EmitT]:
    """Decorator: registers what emits the torch operation for an operator of `TORCH_DOMAIN`, see `Builder.torch`."""

    def register(function: EmitT) -> EmitT:
        if op_type in EMITS:
            raise ValueError(f"{op_type} is emitted by {EMITS[op_type].__module__} and {function.__module__}")
        EMITS[op_type] = function
        return function

    return register


@emits("onnx_model")
def _onnx_model(e: Emitter, *operands: Any) -> list[Any]:
    """``torch.operator "hipdnn.onnx"``: nodes that stay ONNX, see `outside`."""
    given, context = e.op.attributes, e.op.context
    names = [ir.StringAttr(name).value for name in ir.ArrayAttr(given[_PREFIX + "nodes"])]
    places = [ir.Location.name(name, context=context) for name in names]
    op = ir.Operation.create(
        "torch.operator",
        results=[result.type for result in e.op.results],
        operands=operands,
        attributes={
            "name": ir.StringAttr.get(OPERATOR, context),
            **{f"hipdnn.{name}": given[_PREFIX + name] for name in ("model", "operators", "reasons")},
        },
        loc=places[0] if len(places) == 1 else ir.Location.fused(places, context=context),
        ip=ir.InsertionPoint(e.op),
    )
    return list(op.results)


def insert_torch_ops(module: Any) -> None:
    """Replace the ``torch.operator "onnx.<name>"`` of each torch operation by the operation."""
    for function in module.body.operations:
        for view in list(function.operation.regions[0].blocks[0].operations):
            op = view.operation
            if op.name != "torch.operator":
                continue
            emit = EMITS.get(str(op.attributes["name"].value).removeprefix("onnx."))
            if emit is not None:
                for old, new in zip(list(op.results), emit(Emitter(op), *op.operands), strict=True):
                    old.replace_all_uses_with(new)
                op.erase()
