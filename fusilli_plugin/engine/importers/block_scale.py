"""Block scaling."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Scope, exporter, importer
from graph_api import TensorAttr
from graph_api.ops.block_scale import (
    BlockScaleDequantizeAttributes,
    BlockScaleDequantizeNode,
    BlockScaleQuantizeAttributes,
    BlockScaleQuantizeNode,
)
from hipdnn_backend import wire
from hipdnn_backend.wire import WireNode

__all__: list[str] = []


@importer(wire.BlockScaleDequantizeAttributes)
def import_dequantize(scope: Scope, node: WireNode, table: wire.BlockScaleDequantizeAttributes) -> None:
    """Adds a BlockScaleDequantizeNode."""
    attributes = BlockScaleDequantizeAttributes(
        block_size=tuple(table.block_size), is_negative_scale=table.is_negative_scale
    )
    inputs = {"x": table.x_tensor_uid, "scale": table.scale_tensor_uid}
    scope.add(node, BlockScaleDequantizeNode, inputs, {"y": table.y_tensor_uid}, attributes)


@importer(wire.BlockScaleQuantizeAttributes)
def import_quantize(scope: Scope, node: WireNode, table: wire.BlockScaleQuantizeAttributes) -> None:
    """Adds a BlockScaleQuantizeNode."""
    attributes = BlockScaleQuantizeAttributes(block_size=table.block_size, axis=table.axis, transpose=table.transpose)
    outputs = {"y": table.y_tensor_uid, "scale": table.scale_tensor_uid}
    scope.add(node, BlockScaleQuantizeNode, {"x": table.x_tensor_uid}, outputs, attributes)


@exporter(BlockScaleDequantizeNode)
def export_dequantize(node: BlockScaleDequantizeNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a BlockScaleDequantizeNode."""
    return wire.BlockScaleDequantizeAttributes(
        x_tensor_uid=uid(node.inputs["x"]),
        scale_tensor_uid=uid(node.inputs["scale"]),
        y_tensor_uid=uid(node.outputs["y"]),
        block_size=node.attributes.block_size,
        is_negative_scale=node.attributes.is_negative_scale,
    )


@exporter(BlockScaleQuantizeNode)
def export_quantize(node: BlockScaleQuantizeNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a BlockScaleQuantizeNode."""
    return wire.BlockScaleQuantizeAttributes(
        x_tensor_uid=uid(node.inputs["x"]),
        y_tensor_uid=uid(node.outputs["y"]),
        scale_tensor_uid=uid(node.outputs["scale"]),
        block_size=node.attributes.block_size,
        axis=node.attributes.axis,
        transpose=node.attributes.transpose,
    )
