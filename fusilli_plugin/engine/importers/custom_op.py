"""Custom operations: those whose id begins with ``fusilli.`` hold a template of ours."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Scope, exporter, importer
from graph_api import NotSupportedError, TensorAttr
from graph_api.ops.custom_op import MAX_PORTS, CustomOpAttributes, CustomOpNode
from hipdnn_backend import wire
from hipdnn_backend.wire import WireNode

__all__: list[str] = []


@importer(wire.CustomOpAttributes)
def import_custom_op(scope: Scope, node: WireNode, table: wire.CustomOpAttributes) -> None:
    """Adds a CustomOpNode."""
    ins, outs = table.input_tensor_uids, table.output_tensor_uids
    if len(ins) > MAX_PORTS or not 1 <= len(outs) <= MAX_PORTS:
        reason = f"{len(ins)} inputs and {len(outs)} outputs; up to {MAX_PORTS} are served, and one output is needed"
        raise NotSupportedError(node.name, "operands", reason)
    try:
        text = table.data.decode()
    except UnicodeDecodeError as error:
        raise NotSupportedError(
            node.name, "custom-op", f"the data of '{table.custom_op_id}' is no text, as ours is: {error}"
        ) from None
    attributes = CustomOpAttributes(custom_op_id=table.custom_op_id, data=text)
    inputs = {f"in_{position}": uid for position, uid in enumerate(ins)}
    scope.add(node, CustomOpNode, inputs, {f"out_{position}": uid for position, uid in enumerate(outs)}, attributes)


@exporter(CustomOpNode)
def export_custom_op(node: CustomOpNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a CustomOpNode."""
    return wire.CustomOpAttributes(
        custom_op_id=node.attributes.custom_op_id,
        input_tensor_uids=tuple(map(uid, node.inputs.values())),
        output_tensor_uids=tuple(map(uid, node.outputs.values())),
        data=node.attributes.data.encode(),
    )
