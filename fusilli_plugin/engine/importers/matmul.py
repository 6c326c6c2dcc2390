"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Elsewhere, Scope, exporter, importer
from graph_api import TensorAttr
from graph_api.ops.matmul import MatmulNode
from hipdnn_backend import wire
from hipdnn_backend.wire import MatmulAttributes, WireNode

__all__: list[str] = []


@importer(MatmulAttributes)
def import_matmul(scope: Scope, node: WireNode, table: MatmulAttributes) -> None:
    """Adds a MatmulNode."""
    inputs = {"a": table.a_tensor_uid, "b": table.b_tensor_uid}
    scope.add(node, MatmulNode, inputs, {"c": table.c_tensor_uid})


@exporter(MatmulNode, elsewhere=Elsewhere.ALONE | Elsewhere.WITH_EPILOGUE)
def export_matmul(node: MatmulNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a MatmulNode."""
    return MatmulAttributes(
        a_tensor_uid=uid(node.inputs["a"]), b_tensor_uid=uid(node.inputs["b"]), c_tensor_uid=uid(node.outputs["c"])
    )
