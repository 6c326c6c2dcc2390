"""``hipdnn-finalize-memrefs``: results become arguments that the caller provides."""

from __future__ import annotations

from typing import Any

from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.passes.graph import functions
from hipdnn_backend.offload.passes.reshapes import reshape

__all__ = ["finalize_memrefs"]

Operation = Any
Value = Any

_VIEWS = ("memref.expand_shape", "memref.collapse_shape")


def finalize_memrefs(module: Any) -> None:
    """Make every result of a function an argument behind the others, into which the function writes.

    A result that is a buffer allocated here, or such a buffer in other dims, becomes the argument itself. Any other, be
    it an argument, a constant, or a buffer that is returned twice, is copied into its argument at the end.

    Requires: bufferized IR.  Ensures: functions return nothing.

        func.func @main(%a: memref<4xf32>) -> memref<4xf32> {
          %alloc = memref.alloc() : memref<4xf32>
          hipdnn.execute graph("hipdnn_graph_0") ins(%a : memref<4xf32>) outs(%alloc : memref<4xf32>)
          return %alloc : memref<4xf32>
        }
      becomes
        func.func @main(%a: memref<4xf32>, %out: memref<4xf32>) {
          hipdnn.execute graph("hipdnn_graph_0") ins(%a : memref<4xf32>) outs(%out : memref<4xf32>)
          func.return
        }
    """
    for function in functions(module):
        _finalize(function)


def _finalize(function: Operation) -> None:
    block = function.regions[0].blocks[0]
    ret = list(block.operations)[-1].operation
    arguments = [block.add_argument(_plain(value.type), ret.location) for value in ret.operands]
    waiting = list(range(len(arguments)))
    # Buffers before views of them: where both are returned, the view is what is copied.
    for promote in (_promote_buffer, _promote_view, _copy):
        # operands are read anew each time: promoting one result may replace a later one
        waiting = [index for index in waiting if not promote(ret, index, arguments[index])]
    ir.Operation.create("func.return", operands=[], loc=ret.location, ip=ir.InsertionPoint(ret))
    ret.erase()
    for view in reversed(list(block.operations)):
        op = view.operation
        if op.name in _VIEWS and next(iter(op.results[0].uses), None) is None:
            op.erase()
    _retype(function, [argument.type for argument in block.arguments])


def _promote_buffer(ret: Operation, index: int, argument: Value) -> bool:
    """Puts the argument in the place of a returned ``memref.alloc``."""
    value = ret.operands[index]
    owner = _owner(value)
    if owner is None or owner.name != "memref.alloc" or value.type != argument.type:
        return False
    value.replace_all_uses_with(argument)
    owner.erase()
    return True


def _promote_view(ret: Operation, index: int, argument: Value) -> bool:
    """Puts a view of the argument in the place of a ``memref.alloc`` of which a reshape is returned."""
    owner = _owner(ret.operands[index])
    while owner is not None and owner.name in _VIEWS:
        owner = _owner(owner.operands[0])
    if owner is None or owner.name != "memref.alloc" or owner.results[0].type != _plain(owner.results[0].type):
        return False
    owner.results[0].replace_all_uses_with(reshape("memref", argument, owner.results[0].type, owner))
    owner.erase()
    return True


def _copy(ret: Operation, index: int, argument: Value) -> bool:
    operands = [ret.operands[index], argument]
    ir.Operation.create("memref.copy", operands=operands, loc=ret.location, ip=ir.InsertionPoint(ret))
    return True


def _owner(value: Value) -> Operation | None:
    """The operation that makes a value, None for an argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def _plain(kind: Any) -> Any:
    """The type with row-major layout: what a caller can provide."""
    memref = ir.MemRefType(kind)
    return ir.MemRefType.get(memref.shape, memref.element_type, memory_space=memref.memory_space)


def _retype(function: Operation, inputs: list[Any]) -> None:
    kind = ir.FunctionType.get(inputs, [], context=function.context)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    if "res_attrs" in function.attributes:
        del function.attributes["res_attrs"]
    if "arg_attrs" in function.attributes:
        given = list(ir.ArrayAttr(function.attributes["arg_attrs"]))
        empty = ir.DictAttr.get({}, context=function.context)
        given += [empty] * (len(inputs) - len(given))
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(given, context=function.context)
