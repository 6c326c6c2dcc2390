"""Pooling."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Elsewhere, Scope, exporter, importer
from graph_api import NotSupportedError, TensorAttr
from graph_api.ops.resample import PaddingMode, ResampleAttributes, ResampleFwdNode, ResampleMode
from hipdnn_backend import wire
from hipdnn_backend.wire import ResampleBwdAttributes, ResampleFwdAttributes, WireNode

__all__ = ["modes_of"]

# Averages have no use for a padding mode, and hosts leave it unset there.
_PADDING = {
    wire.PaddingMode.PADDING_NOT_SET: PaddingMode.NEG_INF_PAD,
    wire.PaddingMode.NEG_INF_PAD: PaddingMode.NEG_INF_PAD,
    wire.PaddingMode.ZERO_PAD: PaddingMode.ZERO_PAD,
}


def modes_of(node: WireNode, table: ResampleFwdAttributes | ResampleBwdAttributes) -> tuple[ResampleMode, PaddingMode]:
    """The modes of a table, which a maximum has both of."""
    mode = ResampleMode.__members__.get(table.resample_mode.name)
    padding = _PADDING.get(table.padding_mode)
    if mode is None or padding is None:
        reason = f"resample mode {table.resample_mode.name} with padding mode {table.padding_mode.name} is not known"
        raise NotSupportedError(node.name, "mode", reason)
    if mode is ResampleMode.MAXPOOL and table.padding_mode == wire.PaddingMode.PADDING_NOT_SET:
        raise NotSupportedError(node.name, "mode", "MAXPOOL without a padding mode")
    return mode, padding


@importer(ResampleFwdAttributes)
def import_resample_fwd(scope: Scope, node: WireNode, table: ResampleFwdAttributes) -> None:
    """Adds a ResampleFwdNode."""
    mode, padding = modes_of(node, table)
    is_max = mode is ResampleMode.MAXPOOL
    attributes = ResampleAttributes(
        mode=mode,
        padding_mode=padding,
        pre_padding=table.pre_padding,
        post_padding=table.post_padding,
        stride=table.stride,
        window=table.window,
        # Front ends make an index for maxima alone, and leave the flag of an average unread.
        generate_index=table.index_tensor_uid is not None or (bool(table.generate_index) and is_max),
    )
    outputs = {"y": table.y_tensor_uid, "index": table.index_tensor_uid}
    scope.add(node, ResampleFwdNode, {"x": table.x_tensor_uid}, outputs, attributes)


@exporter(ResampleFwdNode, elsewhere=Elsewhere.ALONE)
def export_resample_fwd(node: ResampleFwdNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a ResampleFwdNode."""
    a = node.attributes
    index = node.outputs.get("index")
    return ResampleFwdAttributes(
        x_tensor_uid=uid(node.inputs["x"]),
        y_tensor_uid=uid(node.outputs["y"]),
        index_tensor_uid=None if index is None else uid(index),
        pre_padding=a.pre_padding,
        post_padding=a.post_padding,
        stride=a.stride,
        window=a.window,
        resample_mode=wire.ResampleMode[a.mode.name],
        padding_mode=wire.PaddingMode[a.padding_mode.name],
        generate_index=a.generate_index,
    )
