"""Torch operations that have no ONNX form torch-mlir converts: nodes of `TORCH_DOMAIN` become them after the import.

They stay whole, so that engines can claim them: a norm as a norm, attention as attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.onnx_op import OPERATOR

__all__ = ["TORCH_OPS", "insert_torch_ops"]

_PREFIX = "torch.onnx."


class _Emitter:
    """Creates torch operations in front of the one that they replace."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self._at = ir.InsertionPoint(op)

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

    def none(self) -> Any:
        return self.create("torch.constant.none", self.type("!torch.none"))

    def ints(self, values: Sequence[int]) -> Any:
        items = [self.int(value) for value in values]
        return self.create("torch.prim.ListConstruct", self.type("!torch.list<int>"), items)


def _rms_norm(e: _Emitter, x: Any, weight: Any) -> list[Any]:
    dims = _dims(weight)
    operands = [x, e.ints(dims), weight, e.float(e.number("epsilon"))]
    return [e.create("torch.aten.rms_norm", e.op.results[0].type, operands)]


def _attention(e: _Emitter, q: Any, k: Any, v: Any, *mask: Any) -> list[Any]:
    grouped = _dims(q)[1] != _dims(k)[1]
    operands = [
        *(q, k, v, mask[0] if mask else e.none(), e.float(0.0)),
        *(e.bool(bool(e.integer("is_causal"))), e.float(e.number("scale")), e.bool(grouped)),
    ]
    return [e.create("torch.aten.scaled_dot_product_attention", e.op.results[0].type, operands)]


def _silu(e: _Emitter, x: Any) -> list[Any]:
    return [e.create("torch.aten.silu", e.op.results[0].type, [x])]


def _group_norm(e: _Emitter, x: Any, weight: Any, bias: Any) -> list[Any]:
    operands = [x, e.int(e.integer("groups")), weight, bias, e.float(e.number("epsilon")), e.bool(False)]
    return [e.create("torch.aten.group_norm", e.op.results[0].type, operands)]


def _onnx_model(e: _Emitter, *operands: Any) -> list[Any]:
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


def _max_pool2d_with_indices(e: _Emitter, x: Any) -> list[Any]:
    lists = [e.ints(e.integers(name)) for name in ("kernel", "strides", "pads", "dilations")]
    operands = [x, *lists, e.bool(bool(e.integer("ceil")))]
    return e.create_all("torch.aten.max_pool2d_with_indices", [result.type for result in e.op.results], operands)


def _scatter_reduce(e: _Emitter, x: Any, positions: Any, values: Any) -> list[Any]:
    how = e.create("torch.constant.str", e.type("!torch.str"), value=e.op.attributes[_PREFIX + "reduce"])
    operands = [x, e.int(e.integer("dim")), positions, values, how, e.bool(True)]
    return [e.create("torch.aten.scatter_reduce.two", e.op.results[0].type, operands)]


def _to_dtype(e: _Emitter, x: Any) -> list[Any]:
    operands = [x, e.int(e.integer("dtype")), e.bool(False), e.bool(False), e.none()]
    return [e.create("torch.aten.to.dtype", e.op.results[0].type, operands)]


def _view_dtype(e: _Emitter, x: Any) -> list[Any]:
    return [e.create("torch.aten.view.dtype", e.op.results[0].type, [x, e.int(e.integer("dtype"))])]


TORCH_OPS: dict[str, Callable[..., list[Any]]] = {
    "group_norm": _group_norm,
    "max_pool2d_with_indices": _max_pool2d_with_indices,
    "onnx_model": _onnx_model,
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
    "scatter_reduce": _scatter_reduce,
    "silu": _silu,
    "to_dtype": _to_dtype,
    "view_dtype": _view_dtype,
}
"""Operator of `TORCH_DOMAIN` → what emits the torch operation."""


def _dims(value: Any) -> list[int]:
    """Static dims of a ``!torch.vtensor``."""
    inside = str(value.type).partition("<[")[2].partition("]")[0]
    return [int(dim) for dim in inside.split(",") if dim]


def insert_torch_ops(module: Any) -> None:
    """Replace the ``torch.operator "onnx.<name>"`` of each torch operation by the operation."""
    for function in module.body.operations:
        for view in list(function.operation.regions[0].blocks[0].operations):
            op = view.operation
            if op.name != "torch.operator":
                continue
            emit = TORCH_OPS.get(str(op.attributes["name"].value).removeprefix("onnx."))
            if emit is not None:
                for old, new in zip(list(op.results), emit(_Emitter(op), *op.operands), strict=True):
                    old.replace_all_uses_with(new)
                op.erase()
