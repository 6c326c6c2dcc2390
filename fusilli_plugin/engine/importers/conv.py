"""Convolutions: fprop, dgrad, wgrad."""

from __future__ import annotations

from collections.abc import Callable

from fusilli_plugin.engine.importers.registry import Elsewhere, Scope, exporter, importer
from graph_api import ConvAttributes, ConvolutionMode, NotSupportedError, TensorAttr
from graph_api.ops.conv import ConvDgradNode, ConvFpropNode, ConvWgradNode
from hipdnn_backend import wire
from hipdnn_backend.wire import ConvolutionBwdAttributes, ConvolutionFwdAttributes, ConvolutionWrwAttributes, WireNode

__all__: list[str] = []

_Table = ConvolutionFwdAttributes | ConvolutionBwdAttributes | ConvolutionWrwAttributes
# Every provider and hipDNN's own reference read a mode that was not set as a cross-correlation.
_MODES = {
    wire.ConvMode.UNSET: ConvolutionMode.CROSS_CORRELATION,
    wire.ConvMode.CROSS_CORRELATION: ConvolutionMode.CROSS_CORRELATION,
    wire.ConvMode.CONVOLUTION: ConvolutionMode.CONVOLUTION,
}


def _attributes(node: WireNode, table: _Table) -> ConvAttributes:
    mode = _MODES.get(table.conv_mode)
    if mode is None:
        raise NotSupportedError(node.name, "conv-mode", f"conv_mode {int(table.conv_mode)} is not known")
    return ConvAttributes(
        pre_padding=table.pre_padding,
        post_padding=table.post_padding,
        stride=table.stride,
        dilation=table.dilation,
        convolution_mode=mode,
    )


@importer(ConvolutionFwdAttributes)
def import_fprop(scope: Scope, node: WireNode, table: ConvolutionFwdAttributes) -> None:
    """Adds a ConvFpropNode."""
    inputs = {"x": table.x_tensor_uid, "w": table.w_tensor_uid}
    scope.add(node, ConvFpropNode, inputs, {"y": table.y_tensor_uid}, _attributes(node, table))


@importer(ConvolutionBwdAttributes)
def import_dgrad(scope: Scope, node: WireNode, table: ConvolutionBwdAttributes) -> None:
    """Adds a ConvDgradNode."""
    inputs = {"dy": table.dy_tensor_uid, "w": table.w_tensor_uid}
    scope.add(node, ConvDgradNode, inputs, {"dx": table.dx_tensor_uid}, _attributes(node, table))


@importer(ConvolutionWrwAttributes)
def import_wgrad(scope: Scope, node: WireNode, table: ConvolutionWrwAttributes) -> None:
    """Adds a ConvWgradNode."""
    inputs = {"dy": table.dy_tensor_uid, "x": table.x_tensor_uid}
    scope.add(node, ConvWgradNode, inputs, {"dw": table.dw_tensor_uid}, _attributes(node, table))


def _mode(attributes: ConvAttributes) -> wire.ConvMode:
    return wire.ConvMode[attributes.convolution_mode.name]


@exporter(ConvFpropNode, elsewhere=Elsewhere.ALONE | Elsewhere.WITH_EPILOGUE)
def export_fprop(node: ConvFpropNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a ConvFpropNode."""
    a = node.attributes
    return ConvolutionFwdAttributes(
        x_tensor_uid=uid(node.inputs["x"]),
        w_tensor_uid=uid(node.inputs["w"]),
        y_tensor_uid=uid(node.outputs["y"]),
        pre_padding=a.pre_padding,
        post_padding=a.post_padding,
        stride=a.stride,
        dilation=a.dilation,
        conv_mode=_mode(a),
    )


@exporter(ConvDgradNode, elsewhere=Elsewhere.ALONE | Elsewhere.WITH_EPILOGUE)
def export_dgrad(node: ConvDgradNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a ConvDgradNode."""
    a = node.attributes
    return ConvolutionBwdAttributes(
        dy_tensor_uid=uid(node.inputs["dy"]),
        w_tensor_uid=uid(node.inputs["w"]),
        dx_tensor_uid=uid(node.outputs["dx"]),
        pre_padding=a.pre_padding,
        post_padding=a.post_padding,
        stride=a.stride,
        dilation=a.dilation,
        conv_mode=_mode(a),
    )


@exporter(ConvWgradNode, elsewhere=Elsewhere.ALONE | Elsewhere.WITH_EPILOGUE)
def export_wgrad(node: ConvWgradNode, uid: Callable[[TensorAttr], int]) -> wire.Attributes:
    """The table of a ConvWgradNode."""
    a = node.attributes
    return ConvolutionWrwAttributes(
        x_tensor_uid=uid(node.inputs["x"]),
        dy_tensor_uid=uid(node.inputs["dy"]),
        dw_tensor_uid=uid(node.outputs["dw"]),
        pre_padding=a.pre_padding,
        post_padding=a.post_padding,
        stride=a.stride,
        dilation=a.dilation,
        conv_mode=_mode(a),
    )
