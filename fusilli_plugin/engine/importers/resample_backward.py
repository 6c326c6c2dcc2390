"""The gradient of pooling."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Elsewhere, Scope, exporter, importer
from fusilli_plugin.engine.importers.resample import modes_of
from graph_api import TensorAttr
from graph_api.ops.resample import ResampleAttributes
from graph_api.ops.resample_backward import ResampleBwdNode
from hipdnn_backend import wire
from hipdnn_backend.wire import ResampleBwdAttributes, WireNode

__all__: list[str] = []


@importer(ResampleBwdAttributes)
def import_resample_bwd(scope: Scope, node: WireNode, table: ResampleBwdAttributes) -> None:
    """Adds a ResampleBwdNode."""
    mode, padding = modes_of(node, table)
    attributes = ResampleAttributes(
        mode=mode,
        padding_mode=padding,
        pre_padding=table.pre_padding,
        post_padding=table.post_padding,
        stride=table.stride,
        window=table.window,
    )
    inputs = {"dy": table.dy_tensor_uid, "index": table.index_tensor_uid}
    scope.add(node, ResampleBwdNode, inputs, {"dx": table.dx_tensor_uid}, attributes)


@exporter(ResampleBwdNode, elsewhere=Elsewhere.ALONE)
def export_resample_bwd(node: ResampleBwdNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a ResampleBwdNode."""
    a = node.attributes
    index = node.inputs.get("index")
    return ResampleBwdAttributes(
        dy_tensor_uid=uid(node.inputs["dy"]),
        dx_tensor_uid=uid(node.outputs["dx"]),
        index_tensor_uid=None if index is None else uid(index),
        pre_padding=a.pre_padding,
        post_padding=a.post_padding,
        stride=a.stride,
        window=a.window,
        resample_mode=wire.ResampleMode[a.mode.name],
        padding_mode=wire.PaddingMode[a.padding_mode.name],
    )
