"""A function of the torch dialect in the form that is handed over: ``main``, static types, weights as arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from fusilli_ground.torch_scalars import settle_scalar
from fusilli_ground.torch_types import value_tensor_type
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.imported import Constant, TensorInfo
from hipdnn_backend.offload.mlir import ir

__all__ = [
    "ENTRY",
    "drop_devices",
    "info_of",
    "lift_literals",
    "location_name",
    "make_entry",
    "order_arguments",
    "settle_empty",
    "settle_scalars",
]

ENTRY = "main"

_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?:\(#?[^)]*\))?\)$')
_DTYPES: dict[str, Any] = {
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "i1": np.bool_,
    "si8": np.int8, "ui8": np.uint8, "si16": np.int16, "ui16": np.uint16, "si32": np.int32, "ui32": np.uint32,
    "si64": np.int64, "ui64": np.uint64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
"""Element type in torch's text → numpy dtype."""

_LITERAL = "torch.vtensor.literal"
_TABLE = 64


def settle_scalars(function: Any) -> None:
    """Operations with numbers, in regions too, as the passes to come can fold them."""
    for region in function.regions:
        for block in region.blocks:
            for view in list(block.operations):
                settle_scalar(view.operation, ir)
                settle_scalars(view.operation)


def info_of(type_: Any, name: str) -> TensorInfo:
    """What a ``!torch.vtensor`` type says.

    Raises:
        ModelError: it is another type, has unknown dims, or an element type that no buffer can have.
    """
    kind = value_tensor_type(str(type_))
    if kind is None:
        raise ModelError(name, "tensor-type", f"{type_} is no tensor with value semantics and a rank")
    dims = tuple(dim for dim in kind.dims if dim is not None)
    if len(dims) < len(kind.dims):
        raise ModelError(name, "static-dims", f"{type_} has dims that only a run knows; export with static shapes")
    if kind.element not in _DTYPES:
        raise ModelError(name, "tensor-type", f"{type_} has an element type that no buffer can have")
    return TensorInfo(name, dims, np.dtype(_DTYPES[kind.element]))


def location_name(location: Any) -> str:
    """The name that a location is, "" if it is none."""
    found = _NAME.match(str(location))
    return found[1] if found else ""


def make_entry(function: Any) -> None:
    """Name a function ``main``."""
    function.attributes["sym_name"] = ir.StringAttr.get(ENTRY, context=function.context)


def drop_devices(function: Any) -> None:
    """Replace the devices that operations name by none: where a model runs is decided when it is loaded."""
    for view in list(function.regions[0].blocks[0].operations):
        op = view.operation
        if op.name == "torch.constant.device":
            with ir.InsertionPoint(op), op.location:
                type_ = ir.Type.parse("!torch.none", context=op.context)
                none = ir.Operation.create("torch.constant.none", results=[type_]).result
            op.results[0].replace_all_uses_with(none)
            op.erase()


def settle_empty(function: Any) -> None:
    """Let literals take the place of tensors without elements, which have no other value and which no engine makes."""
    block = function.regions[0].blocks[0]
    made = [(value, op) for op in block.operations if op.operation.name != _LITERAL for value in op.operation.results]
    first = block.operations[0]
    for value, op in [*((argument, first) for argument in block.arguments), *made]:
        kind = value_tensor_type(str(value.type))
        if kind is None or 0 not in kind.dims or not kind.is_static:
            continue
        shape = "x".join([*map(str, kind.dims), kind.element])
        with function.context, ir.InsertionPoint(op), op.location:
            empty = ir.Attribute.parse(f"dense<> : tensor<{shape}>")
            literal = ir.Operation.create(_LITERAL, results=[value.type], attributes={"value": empty})
        value.replace_all_uses_with(literal.result)


def order_arguments(function: Any, order: Sequence[tuple[int, str]]) -> None:
    """Let the function take its arguments, as (index, name), in this order; others, which are unused, go."""
    block = function.regions[0].blocks[0]
    count = len(block.arguments)
    for i, name in order:
        old = block.arguments[i]
        new = block.add_argument(old.type, ir.Location.name(name, context=function.context))
        old.replace_all_uses_with(new)
    for i in reversed(range(count)):
        block.erase_argument(i)
    _update_type(function)


def _update_type(function: Any) -> None:
    block = function.regions[0].blocks[0]
    results = list(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)
    type_ = ir.FunctionType.get([argument.type for argument in block.arguments], results, context=function.context)
    function.attributes["function_type"] = ir.TypeAttr.get(type_, context=function.context)
    if "arg_attrs" in function.attributes:
        del function.attributes["arg_attrs"]


def lift_literals(function: Any) -> list[Constant]:
    """Make arguments of the weights that are written into the function's body; they follow the others."""
    block = function.regions[0].blocks[0]
    constants: list[Constant] = []
    for view in list(block.operations):
        op = view.operation
        if op.name != _LITERAL:
            continue
        name = location_name(op.location) or f"constant{len(constants)}"
        info = info_of(op.results[0].type, name)
        value = _elements(op.attributes["value"], info)
        if value is None:
            continue
        argument = block.add_argument(op.results[0].type, ir.Location.name(name, context=function.context))
        op.results[0].replace_all_uses_with(argument)
        op.erase()
        constants.append(Constant(_unique(name, constants), value))
    _update_type(function)
    return constants


def _unique(name: str, constants: Sequence[Constant]) -> str:
    taken, number, base = {constant.name for constant in constants}, 1, name
    while name in taken:
        name, number = f"{base}_{number}", number + 1
    return name


def _elements(attribute: Any, info: TensorInfo) -> np.ndarray | None:
    """The elements of a literal that is a weight; None if it is small or not readable."""
    size = int(np.prod(info.dims))
    if size <= (_TABLE if info.dtype.kind in "iub" else 1):
        return None
    try:
        dense = ir.DenseElementsAttr(attribute)
    except ValueError:  # a resource, which the bindings do not read
        return None
    if dense.is_splat or info.dtype.kind not in "fiu":
        return None
    return np.array(dense).astype(info.dtype).reshape(info.dims)
