"""Angles."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Scope, exporter, importer
from graph_api import TensorAttr
from graph_api.ops.angle import ToRadiansNode
from hipdnn_backend.wire import ToRadiansAttributes, WireNode


@importer(ToRadiansAttributes)
def import_to_radians(scope: Scope, node: WireNode, table: ToRadiansAttributes) -> None:
    """Adds a ToRadiansNode."""
    scope.add(node, ToRadiansNode, {"x": table.x_tensor_uid}, {"y": table.y_tensor_uid})


@exporter(ToRadiansNode)
def export_to_radians(node: ToRadiansNode, uid: Callable[[TensorAttr], int]) -> ToRadiansAttributes:
    """The table of a ToRadiansNode."""
    return ToRadiansAttributes(x_tensor_uid=uid(node.inputs["x"]), y_tensor_uid=uid(node.outputs["y"]))
