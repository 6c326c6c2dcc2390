"""Emission of the gradients of a convolution: each as one forward convolution of rearranged operands.

So all that holds of forward convolutions (matrix instructions, groups, dilation, fused epilogues) holds of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graph_api.ops.conv import ConvAttributes, ConvDgradNode, ConvWgradNode
from iree_bridge.emit.conv import convolution, cropped, operands
from iree_bridge.emitter import Emitter, Value, rule

__all__ = ["conv_dgrad", "conv_wgrad"]


@dataclass(frozen=True)
class _Axis:
    """How the data gradient works along one spatial dim.

    Row p of padded dx belongs to phase p mod s. It meets the filter positions of its phase only, so each phase is a
    stride-1 convolution of dy with ``taps`` of them; the phases are extra output channels of one convolution, and are
    interleaved afterwards. Nothing is multiplied with the zeros that a dilated dy would hold.

    Attributes:
        stride, dilation: of the forward convolution.
        window: size of the filter; with the zeros of its dilation where ``stride`` > 1.
        phases: phases that meet the filter at all; the other rows of dx are zero.
        taps: filter positions of a phase.
        first, last: first and last row of a phase that dx needs, in steps of ``stride``.
        offset: rows of the interleaved result before dx begins.
    """

    stride: int
    dilation: int
    window: int
    phases: int
    taps: int
    first: int
    last: int
    offset: int


def _axis(attributes: ConvAttributes, axis: int, window: int, size: int) -> _Axis:
    stride, dilation, pre = (values[axis] for values in (attributes.stride, attributes.dilation, attributes.pre_padding))
    if stride > 1:
        window = dilation * (window - 1) + 1
    return _Axis(
        stride=stride,
        dilation=dilation,
        window=window,
        phases=min(stride, window),
        taps=-(-window // stride),
        first=pre // stride,
        last=(pre + size - 1) // stride,
        offset=pre % stride,
    )


@rule("conv_dgrad")
def conv_dgrad(e: Emitter, node: ConvDgradNode) -> None:
    """A stride-1 convolution of dy with the transposed, mirrored filter; under a stride, one per phase of dx."""
    dy, w = operands(e, node, "dy", "w")
    dx = node.outputs["dx"]
    a = node.attributes
    axes = [_axis(a, i, window, size) for i, (window, size) in enumerate(zip(w.dims[2:], dx.dims[2:], strict=True))]
    kernel = _phase_filters(e, axes, w, node.groups, mirrored=a.is_mirrored)
    reach = [axis.dilation * (axis.taps - 1) if axis.stride == 1 else axis.taps - 1 for axis in axes]
    around = [
        (r - axis.first, axis.last - size + 1) for r, axis, size in zip(reach, axes, dy.dims[2:], strict=True)
    ]
    dy, padding = cropped(e, dy, around)
    forward = replace(
        a,
        pre_padding=tuple(before for before, _ in padding),
        post_padding=tuple(after for _, after in padding),
        stride=(1,) * len(axes),
        dilation=tuple(axis.dilation if axis.stride == 1 else 1 for axis in axes),
    )
    phases = convolution(e, forward, dy, kernel, node.groups, node.compute)
    e.write(node, "dx", _interleaved(e, axes, phases, dx.dims))


def _phase_filters(e: Emitter, axes: Sequence[_Axis], w: Value, groups: int, *, mirrored: bool) -> Value:
    """w [K, C/g, F...] as the filter of the phases [C * phases, K/g, taps...], for use on dy."""
    k, per_group = w.dims[:2]
    strided = [i for i, axis in enumerate(axes) if axis.stride > 1]
    if mirrored:
        w = _flip(e, w, [i + 2 for i in strided])
    for i in strided:
        w = _dilated(e, w, i + 2, axes[i].dilation)
    w = e.pad(w, [(0, axis.taps * axis.phases - axis.window) for axis in axes])
    split = [part for axis in axes for part in (axis.taps, axis.phases)]
    w = e.reshape(w, (groups, k // groups, per_group, *split))
    taps, phases = range(3, 3 + 2 * len(axes), 2), range(4, 4 + 2 * len(axes), 2)
    w = e.permute(w, (0, 2, *phases, 1, *taps))
    channels = groups * per_group * math.prod(axis.phases for axis in axes)
    w = e.reshape(w, (channels, k // groups, *(axis.taps for axis in axes)))
    return _flip(e, w, [i + 2 for i in range(len(axes)) if i in strided or not mirrored])


def _interleaved(e: Emitter, axes: Sequence[_Axis], value: Value, dims: Sequence[int]) -> Value:
    """The phases [N, C * phases, rows...] as dx."""
    rank = len(axes)
    n, c = dims[:2]
    if any(axis.stride > 1 for axis in axes):
        value = e.reshape(value, (n, c, *(axis.phases for axis in axes), *value.dims[2:]))
        value = e.permute(value, (0, 1, *(part for i in range(rank) for part in (2 + rank + i, 2 + i))))
        room = [pair for axis in axes for pair in ((0, 0), (0, axis.stride - axis.phases))]
        value = e.pad(value, room)
        value = e.reshape(value, (n, c, *(value.dims[2 + 2 * i] * axis.stride for i, axis in enumerate(axes))))
    for i, axis in enumerate(axes):
        value = e.slice(value, i + 2, axis.offset, axis.offset + dims[i + 2])
    return value


@rule("conv_wgrad")
def conv_wgrad(e: Emitter, node: ConvWgradNode) -> None:
    """A convolution of x with dy as its filter, batch and channels exchanged, stride and dilation exchanged."""
    dy, x = operands(e, node, "dy", "x")
    dw, a, groups = node.outputs["dw"], node.attributes, node.groups
    spatial = range(len(a.stride))
    ends = [
        a.stride[i] * (dy.dims[i + 2] - 1) + 1 + a.dilation[i] * (dw.dims[i + 2] - 1) - x.dims[i + 2] - a.pre_padding[i]
        for i in spatial
    ]
    x, padding = cropped(e, x, list(zip(a.pre_padding, ends, strict=True)))
    n, c, *size = x.dims
    axes = range(3, 3 + len(size))
    image = e.permute(e.reshape(x, (n, groups, c // groups, *size)), (2, 1, 0, *axes))
    image = e.reshape(image, (c // groups, groups * n, *size))
    kernel = e.permute(dy, (1, 0, *(i + 2 for i in spatial)))
    forward = replace(
        a,
        pre_padding=tuple(before for before, _ in padding),
        post_padding=tuple(after for _, after in padding),
        stride=a.dilation,
        dilation=a.stride,
    )
    result = convolution(e, forward, image, kernel, groups, node.compute)
    result = e.permute(result, (1, 0, *(i + 2 for i in spatial)))
    e.write(node, "dw", _flip(e, result, [i + 2 for i in spatial] if a.is_mirrored else []))


def _flip(e: Emitter, value: Value, axes: Sequence[int]) -> Value:
    axes = [axis for axis in axes if value.dims[axis] > 1]
    return e.op("aten.flip", value.dims, value.dtype, value, axes) if axes else value


def _dilated(e: Emitter, value: Value, axis: int, dilation: int) -> Value:
    """``value`` with ``dilation - 1`` zeros between its elements along ``axis``."""
    size, rest = value.dims[axis], value.dims[axis + 1 :]
    if dilation == 1 or size == 1:
        return value
    value = e.reshape(value, (*value.dims[: axis + 1], 1, *rest))
    value = e.pad(value, [(0, dilation - 1), *[(0, 0)] * len(rest)])
    value = e.reshape(value, (*value.dims[:axis], size * dilation, *rest))
    return e.slice(value, axis, 0, dilation * (size - 1) + 1)
