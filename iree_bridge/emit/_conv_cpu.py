"""Convolution on the CPU target as a channels-last linalg operation.

The torch form becomes a channels-first convolution. Around a channels-last tensor the compiler folds its transposes
into a generic loop nest that it does not vectorise (40 times slower), and half-precision operands stay half-precision
in the inner loop. So here the operands become f32, the filter is transposed on its own (a barrier keeps it apart), and
the convolution is named ``conv_2d_nhwc_hwcf`` or ``depthwise_conv_2d_nhwc_hwc``; ``docs/performance.md`` has numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType, TensorAttr
from graph_api.layout import stride_order
from graph_api.ops.conv import ConvAttributes
from iree_bridge.emitter import Emitter, Value
from iree_bridge.types import builtin_tensor

__all__ = ["as_computed", "channels_last", "wanted"]

_HALF = (DataType.HALF, DataType.BFLOAT16)


def wanted(e: Emitter, x: TensorAttr, operand: DataType, groups: int, filters: int) -> bool:
    """Whether this form is faster than the torch form: 2-D, f32, dense or depthwise, channels last."""
    if e.target.backend != "llvm-cpu" or x.rank != 4 or operand is not DataType.FLOAT:
        return False
    depthwise = groups == x.dims[1] and filters == groups
    last = stride_order(x.dims, x.strides)[-1] == 1 and x.dims[1] > 1
    return (groups == 1 or depthwise) and last


def channels_last(e: Emitter, attributes: ConvAttributes, x: Value, w: Value, groups: int) -> Value:
    """The convolution of f32 x [N, C, H, W] and w [K, C/g, R, S], logical; f32 of logical dims [N, K, OH, OW]."""
    image = e.permute(x, (0, 2, 3, 1))
    padding = list(zip(attributes.pre_padding, attributes.post_padding, strict=True))
    out = [attributes.output_size(i, size, w.dims[i + 2]) for i, size in enumerate(x.dims[2:])]
    image = e.pad(image, [*padding, (0, 0)])
    depthwise = groups > 1
    kernel = e.permute(w, (2, 3, 1, 0))
    if depthwise:
        kernel = e.reshape(kernel, (*w.dims[2:], w.dims[0]))
    kernel = e.barrier(kernel)
    dims = (x.dims[0], *out, w.dims[0])
    text = _function(
        "depthwise_conv_2d_nhwc_hwc" if depthwise else "conv_2d_nhwc_hwcf", attributes, image, kernel, dims
    )
    return e.permute(e.call(text, [image, kernel], dims, DataType.FLOAT), (0, 3, 1, 2))


def as_computed(e: Emitter, value: Value) -> Value:
    """f16 and bf16 operands as f32 on the CPU.

    A kernel of their own makes them, so that the inner loop of the convolution has one element type.
    """
    if e.target.backend != "llvm-cpu" or value.dtype not in _HALF:
        return value
    return e.barrier(e.cast(value, DataType.FLOAT))


def _function(name: str, attributes: ConvAttributes, x: Value, w: Value, dims: Sequence[int]) -> str:
    image, kernel, out = (builtin_tensor(d, DataType.FLOAT) for d in (x.dims, w.dims, dims))
    strides, dilations = (
        f"dense<[{', '.join(map(str, values))}]> : tensor<2xi64>" for values in (attributes.stride, attributes.dilation)
    )
    return f"""
    func.func private @conv(%x: {image}, %w: {kernel}) -> {out} {{
      %zero = arith.constant 0.0 : f32
      %empty = tensor.empty() : {out}
      %init = linalg.fill ins(%zero : f32) outs(%empty : {out}) -> {out}
      %y = linalg.{name} {{strides = {strides}, dilations = {dilations}}}
          ins(%x, %w : {image}, {kernel}) outs(%init : {out}) -> {out}
      return %y : {out}
    }}"""
