"""Emission of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graph_api import DataType
from graph_api.ops.conv import ConvAttributes, ConvFpropNode, ConvolutionMode
from iree_bridge.emit import _conv_cpu
from iree_bridge.emitter import Emitter, Value, rule

__all__ = ["conv_fprop", "convolution", "operand_type"]


@rule("conv_fprop")
def conv_fprop(e: Emitter, node: ConvFpropNode) -> None:
    """torch.aten.convolution on logical operands; the result has the compute type, in which it accumulates."""
    dtype = operand_type(node.inputs["x"].data_type, node.inputs["w"].data_type)
    x, w = (_conv_cpu.as_computed(e, e.read(node.inputs[port], dtype)) for port in ("x", "w"))
    if node.attributes.convolution_mode is ConvolutionMode.CONVOLUTION:
        w = e.op("aten.flip", w.dims, w.dtype, w, list(range(2, len(w.dims))))
    last = _conv_cpu.wanted(e, node.inputs["x"], x.dtype, node.groups, w.dims[0])
    y = convolution(e, node.attributes, x, w, node.groups, node.compute, channels_last=last)
    e.write(node, "y", y)


def operand_type(x: DataType, w: DataType) -> DataType:
    """The one type in which both operands are multiplied: the wider; 8-bit integers become 32-bit.

    An 8-bit integer convolution crashes the compiler (torch-mlir makes a null type of it), a 32-bit one does not.
    """
    if x is w and x.is_float:
        return x
    if x.is_float or w.is_float:
        floats = [dtype for dtype in (x, w) if dtype.is_float]
        return floats[0] if len(floats) == 1 else (DataType.DOUBLE if DataType.DOUBLE in floats else DataType.FLOAT)
    return DataType.INT64 if DataType.INT64 in (x, w) else DataType.INT32


def convolution(
    e: Emitter, attributes: ConvAttributes, x: Value, w: Value, groups: int, compute: DataType, *, channels_last: bool = False
) -> Value:
    """The forward convolution of logical x and w; the filter is used as it is.

    ``channels_last`` asks for the form of ``_conv_cpu``, which its ``wanted`` must have allowed.
    """
    attributes, x = _without_strided_points(e, attributes, x, w)
    if channels_last:
        return _conv_cpu.channels_last(e, attributes, x, w, groups)
    if attributes.pre_padding != attributes.post_padding:
        x = e.pad(x, list(zip(attributes.pre_padding, attributes.post_padding, strict=True)))
        zeros = (0,) * len(attributes.stride)
        attributes = replace(attributes, pre_padding=zeros, post_padding=zeros)
    out = [attributes.output_size(i, size, w.dims[i + 2]) for i, size in enumerate(x.dims[2:])]
    dtype = compute if compute.is_float == x.dtype.is_float else x.dtype
    if len(out) == 1:
        y = _convolution_op(e, _as_2d(attributes), _unsqueeze(e, x), _unsqueeze(e, w), groups, [1, *out], dtype)
        return e.reshape(y, (x.dims[0], w.dims[0], *out))
    return _convolution_op(e, attributes, x, w, groups, out, dtype)


def _convolution_op(
    e: Emitter, attributes: ConvAttributes, x: Value, w: Value, groups: int, out: Sequence[int], dtype: DataType
) -> Value:
    return e.op(
        "aten.convolution", (x.dims[0], w.dims[0], *out), dtype,
        x, w, None, list(attributes.stride), list(attributes.pre_padding), list(attributes.dilation),
        False, [], groups,
    )  # fmt: skip


def _without_strided_points(
    e: Emitter, attributes: ConvAttributes, x: Value, w: Value
) -> tuple[ConvAttributes, Value]:
    """Gives dims of output size 1 the stride 1: the compiler fails on them ("inferred input/output operand").

    The window is met once, so the end of padded x is cut to the filter's span.
    """
    stride, post = list(attributes.stride), list(attributes.post_padding)
    for axis, size in enumerate(x.dims[2:]):
        if stride[axis] == 1 or attributes.output_size(axis, size, w.dims[axis + 2]) != 1:
            continue
        span = attributes.dilation[axis] * (w.dims[axis + 2] - 1) + 1
        stride[axis] = 1
        post[axis] = span - size - attributes.pre_padding[axis]
        if post[axis] < 0:
            x = e.slice(x, axis + 2, 0, size + post[axis])
            post[axis] = 0
    return replace(attributes, stride=tuple(stride), post_padding=tuple(post)), x


def _as_2d(attributes: ConvAttributes) -> ConvAttributes:
    return replace(
        attributes,
        pre_padding=(0, *attributes.pre_padding),
        post_padding=(0, *attributes.post_padding),
        stride=(1, *attributes.stride),
        dilation=(1, *attributes.dilation),
    )


def _unsqueeze(e: Emitter, value: Value) -> Value:
    return e.reshape(value, (*value.dims[:2], 1, *value.dims[2:]))
