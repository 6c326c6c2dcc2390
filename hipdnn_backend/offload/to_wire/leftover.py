"""Torch operations → one custom operation that carries them as MLIR, for what hipDNN has no operation for.

By Fusilli's convention: an id that begins with ``fusilli.``, and as data the text of one
``func.func private @{FUNC_NAME}`` on static torch types. Integers that the wire has no type for cross its border as a
type of their size and are seen as what they are inside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fusilli_ground.strides import row_major
from fusilli_ground.torch_types import value_tensor_type
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.to_wire.errors import NotTranslated
from hipdnn_backend.offload.to_wire.onnx_model import translate_onnx
from hipdnn_backend.offload.to_wire.operation import location_name
from hipdnn_backend.offload.to_wire.translation import Translation, boundary_types, operations, value_name
from hipdnn_backend.offload.to_wire.types import CARRIERS, TensorType, carried, wire_type
from hipdnn_backend.onnx_op import OPERATOR
from hipdnn_backend.wire import CustomOpAttributes, DataType, WireGraph, WireNode, WireTensor

__all__ = ["CUSTOM_OP_ID", "translate_leftover"]

CUSTOM_OP_ID: Final = "fusilli.torch"
_MAX_PORTS: Final = 32
_NAME: Final = "HIPDNN_LEFTOVER"
_BOOLEAN_CODE: Final = 11  # torch.dtype numbers
_BYTE_CODE: Final = 0
_INT32_CODE: Final = 3
_CONVERT: Final = "torch.prims.convert_element_type"
_CASTS: Final = (_CONVERT, "torch.aten.to.dtype", "torch.aten.to.dtype_layout", "torch.aten._to_copy")
_UNSIGNED: Final = {
    **dict.fromkeys(("torch.aten.div.Tensor", "torch.aten.div.Tensor_mode", "torch.aten.floor_divide"), "arith.divui"),
    **dict.fromkeys(("torch.aten.remainder.Tensor", "torch.aten.fmod.Tensor"), "arith.remui"),
    **dict.fromkeys(("torch.aten.bitwise_right_shift.Tensor", "torch.aten.__rshift__.Tensor"), "arith.shrui"),
}
"""Operations that Torch-MLIR lowers as signed whatever the type says → what they are on unsigned integers."""


def translate_leftover(ops: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], name: str) -> Translation:
    """The graph of one custom operation that does what ``ops`` do.

    Constants that the operations use are cloned into the text, wherever they are defined; nested regions are kept. A
    ``hipdnn.onnx`` is no MLIR: it stays the ONNX model that it carries.

    Args:
        ops: `ir.Operation`s in program order.
        inputs: `ir.Value`s that come in, tensors.
        outputs: `ir.Value`s that go out.
        name: of the graph.

    Raises:
        NotTranslated: a tensor on the border has no wire form, there are more than 32 on a side, or an operation uses
            what is neither input nor constant.
    """
    working = operations(ops)
    if any(op.name == OPERATOR for op in working):
        (op,) = (op for op in working if not op.is_constant)  # `runs` leaves it alone
        return translate_onnx(op, inputs, outputs, name)
    used = [value for value in inputs if _is_used(value, working, outputs)]
    for side, values in (("inputs", used), ("outputs", outputs)):
        if len(values) > _MAX_PORTS or (side == "outputs" and not values):
            raise NotTranslated(
                "graph", name, f"it has {len(values)} {side}; a custom operation has up to {_MAX_PORTS}"
            )
    types = boundary_types(used, "input", name, carried), boundary_types(outputs, "output", name, carried)
    text = _function(working, used, outputs, *types, name)
    names = tuple(dict.fromkeys(op.where for op in working if not op.is_constant))
    ins = [_tensor(uid, value_name(value, f"{name}::in{uid - 1}"), kind)
           for uid, (value, kind) in enumerate(zip(used, types[0], strict=True), start=1)]  # fmt: skip
    outs = [_tensor(uid, f"{name}::out{uid - len(ins) - 1}", kind)
            for uid, kind in enumerate(types[1], start=len(ins) + 1)]  # fmt: skip
    table = CustomOpAttributes(
        custom_op_id=CUSTOM_OP_ID,
        input_tensor_uids=tuple(tensor.uid for tensor in ins),
        output_tensor_uids=tuple(tensor.uid for tensor in outs),
        data=text.encode(),
    )
    graph = WireGraph(
        name=name,
        compute_data_type=DataType.FLOAT,
        intermediate_data_type=DataType.FLOAT,
        io_data_type=DataType.FLOAT,
        tensors=(*ins, *outs),
        nodes=(WireNode(name=", ".join(names)[:200] or name, compute_data_type=DataType.FLOAT, attributes=table),),
    )
    by_value = dict(zip(used, (tensor.uid for tensor in ins), strict=True))
    return Translation(graph, tuple(map(by_value.get, inputs)), tuple(tensor.uid for tensor in outs), names)


def _tensor(uid: int, name: str, kind: TensorType) -> WireTensor:
    return WireTensor(uid=uid, name=name, data_type=wire_type(kind.dtype), strides=row_major(kind.dims), dims=kind.dims)


def _is_used(value: Any, ops: Sequence[Any], outputs: Sequence[Any]) -> bool:
    return value in outputs or any(value in inner.operands for op in ops for inner in _nested(op.operation))


def _is_float_to_byte(operation: Any) -> bool:
    source, result = (value_tensor_type(str(value.type)) for value in (operation.operands[0], operation.results[0]))
    return source is not None and source.is_float and result is not None and result.element == "ui8"


def _nested(operation: Any) -> list[Any]:
    """The operation and all in its regions."""
    found = [operation]
    for region in operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                found += _nested(inner.operation)
    return found


class _Cloner:
    """Copies operations into a function and keeps track of what became of their results."""

    def __init__(self, block: Any, graph: str) -> None:
        self._block = block
        self._graph = graph
        self._mapped: dict[Any, Any] = {}

    def define(self, old: Any, new: Any) -> None:
        self._mapped[old] = new

    def value(self, old: Any) -> Any:
        """What became of a value; a constant from outside is cloned."""
        if old not in self._mapped:
            owner = old.owner
            if isinstance(owner, ir.Block):
                raise NotTranslated("graph", self._graph, f"a value of type {old.type} comes in that is no input")
            self._clone_constant(owner.operation)
        return self._mapped[old]

    def clone(self, operation: Any) -> None:
        """Copies one operation with its regions."""
        inner = _nested(operation)
        own = {result for op in inner[1:] for result in op.results}
        own |= {argument for op in inner for region in op.regions for block in region.blocks
                for argument in block.arguments}  # fmt: skip
        needed = {old: self.value(old) for op in inner for old in op.operands if old not in own}
        if operation.name in _CASTS and _is_float_to_byte(operation):
            # IREE converts floats to signed bytes, whatever the type says: 128 to 254 would become 127.
            source = operation.operands[0]
            wide = _with_element(source.type, "si32")
            needed[source] = _converted(self._block, needed[source], _INT32_CODE, wide)
        if operation.name in _UNSIGNED and _is_unsigned(operation.results[0].type):
            self.define(operation.results[0], self._unsigned(operation, needed))
            return
        copy = operation.clone(ip=ir.InsertionPoint(self._block)).operation
        for op in _nested(copy):
            for index, old in enumerate(op.operands):
                if old in needed:
                    op.operands[index] = needed[old]
        for old, new in zip(operation.results, copy.results, strict=True):
            self.define(old, new)

    def _unsigned(self, operation: Any, mapped: Mapping[Any, Any]) -> Any:
        """The result of a division or shift of unsigned integers, element by element."""
        kind = operation.results[0].type
        sides = [_broadcast(self._block, mapped[old], kind) for old in operation.operands[:2]]
        if any(side.type != kind for side in sides):
            raise NotTranslated(
                str(operation.name),
                location_name(operation.location),
                f"{sides[0].type} and {sides[1].type} are unsigned and not both {kind}; convert them before",
            )
        point, plain = ir.InsertionPoint(self._block), _builtin(kind)
        left, right = (_to_builtin(self._block, side) for side in sides)
        name = _UNSIGNED[operation.name]
        made = ir.Operation.create(name, results=[plain], operands=[left, right], ip=point).result
        return ir.Operation.create("torch_c.from_builtin_tensor", results=[kind], operands=[made], ip=point).result

    def _clone_constant(self, operation: Any) -> None:
        tensors = [value for value in operation.operands if str(value.type).startswith("!torch.vtensor")]
        if tensors or operation.regions:
            where = location_name(operation.location)
            raise NotTranslated(str(operation.name), where, "its result comes in from outside but is no input")
        self.clone(operation)


def _function(
    ops: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    in_types: Sequence[TensorType],
    out_types: Sequence[TensorType],
    name: str,
) -> str:
    """The text of the function; booleans cross its border as bytes of 0 and 1."""
    context = (ops[0].operation if ops else inputs[0]).context
    with context, ir.Location.unknown():
        module = ir.Module.create()
        ins = [_border_type(value.type, kind) for value, kind in zip(inputs, in_types, strict=True)]
        outs = [_border_type(value.type, kind) for value, kind in zip(outputs, out_types, strict=True)]
        function = ir.Operation.create(
            "func.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(_NAME),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(ins, outs)),
                "sym_visibility": ir.StringAttr.get("private"),
            },
            ip=ir.InsertionPoint(module.body),
        )
        block = function.regions[0].blocks.append(*ins, arg_locs=[ir.Location.unknown()] * len(ins))
        cloner = _Cloner(block, name)
        for old, new, kind in zip(inputs, block.arguments, in_types, strict=True):
            cloner.define(old, _across(block, new, old.type, kind, _BOOLEAN_CODE))
        for op in ops:
            cloner.clone(op.operation)
        results = [
            _across(block, cloner.value(old), type_, kind, _BYTE_CODE)
            for old, kind, type_ in zip(outputs, out_types, outs, strict=True)
        ]
        ir.Operation.create("func.return", operands=results, ip=ir.InsertionPoint(block))
        if not module.operation.verify():
            raise NotTranslated("graph", name, "the operations do not verify as a function of their own")
        text = function.get_asm(use_local_scope=True, enable_debug_info=False)
    return str(text).replace(f"@{_NAME}", "@{FUNC_NAME}")


def _border_type(kind: Any, known: TensorType) -> Any:
    if known.dtype is DataType.BOOLEAN:
        return _with_element(kind, "ui8")
    carrier = CARRIERS.get(_element(kind))
    return kind if carrier is None else _with_element(kind, carrier)


def _is_unsigned(type_: Any) -> bool:
    kind = value_tensor_type(str(type_))
    return kind is not None and kind.is_static and kind.is_unsigned


def _with_element(type_: Any, element: str) -> Any:
    kind = value_tensor_type(str(type_))
    assert kind is not None, f"{type_} is no tensor"
    return ir.Type.parse(kind.of(element))


def _element(kind: Any) -> str:
    found = value_tensor_type(str(kind))
    return "" if found is None else found.element


def _across(block: Any, value: Any, kind: Any, known: TensorType, code: int) -> Any:
    """A value that comes in or goes out, as the type that it has on the other side of the border."""
    if value.type == kind:
        return value
    if known.dtype is DataType.BOOLEAN:
        return _converted(block, value, code, kind)
    return _reinterpreted(block, value, kind)


def _broadcast(block: Any, value: Any, kind: Any) -> Any:
    """The value with the dims of ``kind`` if it has its element type."""
    if value.type == kind or _element(value.type) != _element(kind):
        return value
    point, whole = ir.InsertionPoint(block), ir.Type.parse("!torch.int")
    dims = [
        ir.Operation.create(
            "torch.constant.int",
            results=[whole],
            attributes={"value": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(dim))},
            ip=point,
        ).result
        for dim in re.findall(r"\d+", str(kind).partition("]")[0])
    ]
    listed = ir.Operation.create(
        "torch.prim.ListConstruct", results=[ir.Type.parse("!torch.list<int>")], operands=dims, ip=point
    ).result
    return ir.Operation.create("torch.aten.broadcast_to", results=[kind], operands=[value, listed], ip=point).result


def _builtin(kind: Any) -> Any:
    """The builtin tensor that a torch tensor becomes; integers lose their sign."""
    shape = "".join(f"{dim}x" for dim in re.findall(r"\d+", str(kind).partition("]")[0]))
    return ir.Type.parse(f"tensor<{shape}{_element(kind).removeprefix('u').removeprefix('s')}>")


def _to_builtin(block: Any, value: Any) -> Any:
    point = ir.InsertionPoint(block)
    return ir.Operation.create(
        "torch_c.to_builtin_tensor", results=[_builtin(value.type)], operands=[value], ip=point
    ).result


def _reinterpreted(block: Any, value: Any, kind: Any) -> Any:
    """The same bits as another type of the same size."""
    point, bits = ir.InsertionPoint(block), _to_builtin(block, value)
    if bits.type != _builtin(kind):
        bits = ir.Operation.create("tensor.bitcast", results=[_builtin(kind)], operands=[bits], ip=point).result
    return ir.Operation.create("torch_c.from_builtin_tensor", results=[kind], operands=[bits], ip=point).result


def _converted(block: Any, value: Any, code: int, kind: Any) -> Any:
    point = ir.InsertionPoint(block)
    number = ir.Operation.create(
        "torch.constant.int",
        results=[ir.Type.parse("!torch.int")],
        attributes={"value": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), code)},
        ip=point,
    )
    made = ir.Operation.create(_CONVERT, results=[kind], operands=[value, number.result], ip=point)
    return made.result
