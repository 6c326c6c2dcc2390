"""Emission of custom operations: the user's function joins the module and is called."""

from __future__ import annotations

from functools import partial

from graph_api import CompileError, NotSupportedError
from graph_api.ops.custom_op import CustomOpNode
from iree_bridge.emit.custom.products import use_own_products
from iree_bridge.emit.custom.template import CustomTextError, checked_text
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.mlir import ir
from iree_bridge.targets.types import value_tensor

__all__ = ["custom_op"]


@rule("custom_op")
def custom_op(e: Emitter, node: CustomOpNode) -> None:
    """Operands and results have their tensors' data types; the text is checked again, on this side of the pipe."""
    try:
        text = checked_text(node, "custom")
    except CustomTextError as error:
        raise NotSupportedError(node.name, error.rule, str(error)) from error
    e.updates_in_place = True
    operands = [e.read(tensor, tensor.data_type).ssa for tensor in node.inputs.values()]
    results = [e.type(value_tensor(tensor.dims, tensor.data_type)) for tensor in node.outputs.values()]
    try:
        made = e.call_function(text, operands, results, partial(use_own_products, e))
    except ir.MLIRError as error:
        identity = node.attributes.custom_op_id
        raise CompileError(f"custom_op '{node.name}': the text of '{identity}' is not valid MLIR: {error}") from error
    for (port, tensor), result in zip(node.outputs.items(), made, strict=True):
        e.write(node, port, Value(result, tensor.dims, tensor.data_type))
