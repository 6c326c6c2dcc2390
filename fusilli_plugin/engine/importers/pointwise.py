"""Pointwise operations."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Scope, exporter, importer
from graph_api import NotSupportedError, PointwiseAttributes, PointwiseMode, TensorAttr
from graph_api.ops.pointwise import MODES, PointwiseNode
from hipdnn_backend import wire
from hipdnn_backend.wire import WireNode

__all__: list[str] = []

# The schema avoids the names of two macros.
_TO_WIRE = {
    mode: wire.PointwiseMode[{"MAX": "MAX_OP", "MIN": "MIN_OP"}.get(mode.name, mode.name)] for mode in PointwiseMode
}
_FROM_WIRE = {number: mode for mode, number in _TO_WIRE.items()}
_PARAMETERS = {
    "relu_lower_clip": "relu_lower_clip",
    "relu_upper_clip": "relu_upper_clip",
    "relu_lower_clip_slope": "relu_lower_clip_slope",
    "swish_beta": "swish_beta",
    "elu_alpha": "elu_alpha",
    "softplus_beta": "softplus_beta",
    "axis": "axis_tensor_uid",  # an axis number despite its name
}
"""Parameter of the graph API → field of the schema."""


@importer(wire.PointwiseAttributes)
def import_pointwise(scope: Scope, node: WireNode, table: wire.PointwiseAttributes) -> None:
    """Adds a PointwiseNode; parameters that belong to another mode are ignored, as hipDNN does."""
    mode = _FROM_WIRE.get(table.operation)
    if mode is None:
        raise NotSupportedError(node.name, "mode", f"pointwise operation {table.operation.name} is not known")
    known = {name: getattr(table, field) for name, field in _PARAMETERS.items() if name in MODES[mode].parameters}
    attributes = PointwiseAttributes(mode=mode, **{name: value for name, value in known.items() if value is not None})
    operands = [table.in_0_tensor_uid, table.in_1_tensor_uid, table.in_2_tensor_uid]
    if scope.reading.backward_x_first and mode.name.endswith("_BWD"):
        operands[0], operands[1] = operands[1], operands[0]
    if scope.reading.select_predicate_first and mode is PointwiseMode.BINARY_SELECT:
        operands = [*operands[1:], operands[0]]
    inputs = {f"in_{position}": uid for position, uid in enumerate(operands)}
    scope.add(node, PointwiseNode, inputs, {"out_0": table.out_0_tensor_uid}, attributes)


@exporter(PointwiseNode)
def export_pointwise(node: PointwiseNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a PointwiseNode."""
    uids = {f"{port}_tensor_uid": uid(tensor) for port, tensor in (node.inputs | node.outputs).items()}
    parameters = {field: getattr(node.attributes, name) for name, field in _PARAMETERS.items()}
    return wire.PointwiseAttributes(operation=_TO_WIRE[node.attributes.mode], **uids, **parameters)
