"""Reductions."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Scope, exporter, importer
from graph_api import NotSupportedError, TensorAttr
from graph_api.ops.reduction import ReductionAttributes, ReductionMode, ReductionNode
from hipdnn_backend import wire
from hipdnn_backend.wire import WireNode

__all__: list[str] = []

# The schema avoids the names of two macros.
_TO_WIRE = {
    mode: wire.ReductionMode[{"MAX": "MAX_OP", "MIN": "MIN_OP"}.get(mode.name, mode.name)] for mode in ReductionMode
}
_FROM_WIRE = {number: mode for mode, number in _TO_WIRE.items()}


@importer(wire.ReductionAttributes)
def import_reduction(scope: Scope, node: WireNode, table: wire.ReductionAttributes) -> None:
    """Adds a ReductionNode; the axes follow from the dims of its result."""
    mode = _FROM_WIRE.get(table.mode)
    if mode is None:
        raise NotSupportedError(node.name, "mode", f"reduction mode {table.mode.name} is not known")
    attributes = ReductionAttributes(mode=mode, is_deterministic=table.is_deterministic)
    scope.add(node, ReductionNode, {"x": table.in_tensor_uid}, {"y": table.out_tensor_uid}, attributes)


@exporter(ReductionNode)
def export_reduction(node: ReductionNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a ReductionNode."""
    return wire.ReductionAttributes(
        mode=_TO_WIRE[node.attributes.mode],
        in_tensor_uid=uid(node.inputs["x"]),
        out_tensor_uid=uid(node.outputs["y"]),
        is_deterministic=node.attributes.is_deterministic,
    )
