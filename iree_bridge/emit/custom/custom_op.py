"""Emission of custom operations: the user's function joins the module and is called."""

from __future__ import annotations

from typing import Any, Final

from graph_api import CompileError, NotSupportedError
from graph_api.ops.custom_op import CustomOpNode
from iree_bridge.emit.custom.products import use_own_products
from iree_bridge.emit.custom.template import CustomTextError, checked_text
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.index_bounds import operations
from iree_bridge.emit.mlir import ir
from iree_bridge.targets.types import value_tensor

__all__ = ["custom_op"]

_NEW: Final = frozenset((
    "func.return", "torch.aten.add.Scalar", "torch.aten.add.Tensor", "torch.aten.addmm", "torch.aten.bmm",
    "torch.aten.cat", "torch.aten.constant_pad_nd", "torch.aten.div.Tensor", "torch.aten.exp", "torch.aten.matmul",
    "torch.aten.mm", "torch.aten.mul.Scalar", "torch.aten.mul.Tensor", "torch.aten.neg", "torch.aten.permute",
    "torch.aten.relu", "torch.aten.rsub.Scalar", "torch.aten.select.int", "torch.aten.sigmoid",
    "torch.aten.sigmoid_backward", "torch.aten.slice.Tensor", "torch.aten.squeeze.dim", "torch.aten.stack",
    "torch.aten.sub.Scalar", "torch.aten.sub.Tensor", "torch.aten.sum.dim_IntList", "torch.aten.t", "torch.aten.tanh",
    "torch.aten.tanh_backward", "torch.aten.transpose.int", "torch.aten.unsqueeze", "torch.aten.view",
    "torch.constant.bool", "torch.constant.float", "torch.constant.int", "torch.constant.none",
    "torch.prim.ListConstruct", "torch.vtensor.literal",
))  # fmt: skip
"""What never becomes an update of an operand; a piece of a recurrence has some dozens, and as many results."""


@rule("custom_op")
def custom_op(e: Emitter, node: CustomOpNode) -> None:
    """Operands and results have their tensors' data types; the text is checked again, on this side of the pipe."""
    try:
        text = checked_text(node, "custom")
    except CustomTextError as error:
        raise NotSupportedError(node.name, error.rule, str(error)) from error

    def finish(function: Any) -> None:
        # Names of operations of other dialects are not asked for: that loads their Python.
        e.updates_in_place |= "torch." not in text or any(op.name not in _NEW for op in operations(function))
        use_own_products(e, function)

    operands = [e.read(tensor, tensor.data_type).ssa for tensor in node.inputs.values()]
    results = [e.type(value_tensor(tensor.dims, tensor.data_type)) for tensor in node.outputs.values()]
    try:
        made = e.call_function(text, operands, results, finish)
    except ir.MLIRError as error:
        identity = node.attributes.custom_op_id
        raise CompileError(f"custom_op '{node.name}': the text of '{identity}' is not valid MLIR: {error}") from error
    for (port, tensor), result in zip(node.outputs.items(), made, strict=True):
        e.write(node, port, Value(result, tensor.dims, tensor.data_type))
