"""Convolutions and their gradients: groups, points, few channels, small types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fusilli_plugin.testing.graphs.draw import (
    ACTIVATIONS,
    CHANNELS,
    FP8,
    IMAGES,
    TYPES,
    Draw,
    epilogue,
    new_graph,
    result,
    tensor,
    window,
)
from graph_api import DataType, Graph, PointwiseMode, ResampleMode, TensorAttr

D, M = DataType, PointwiseMode

__all__ = ["convolution", "groups", "narrow", "points", "shared_image", "small_convolution"]


def convolution(d: Draw) -> Graph | None:
    """A convolution or a gradient of one, with an epilogue, mostly without groups."""
    return _any_convolution(d, groups=d.pick((1, 1, 1, 1, 2, 3, 4)), points=False)


def points(d: Draw) -> Graph | None:
    """Filters of one position: products, which the compiler treats otherwise."""
    return _any_convolution(d, groups=d.pick((1, 2, 3)), points=True)


def groups(d: Draw) -> Graph | None:
    """In groups."""
    return _any_convolution(d, groups=d.pick((2, 3, 4)), points=d.chance(0.2))


def narrow(d: Draw) -> Graph | None:
    """Few channels on one side or both, often in one dim: the compiler has other tiles for them."""
    few = CHANNELS[:5]
    sizes = d.pick(((few, CHANNELS), (CHANNELS, few), (few, few)))
    return _any_convolution(d, groups=1, points=False, ranks=(1, 1, 2, 3), sizes=sizes)


def _any_convolution(
    d: Draw,
    *,
    groups: int,
    points: bool,
    ranks: Sequence[int] = (2, 2, 2, 2, 2, 1, 3),
    sizes: tuple[Sequence[int], Sequence[int]] = (CHANNELS, CHANNELS),
) -> Graph | None:
    io = d.pick(TYPES)
    rank = d.pick(ranks)
    if groups > 1 and d.chance(0.3):
        sizes = ((1, 2), (1, 2))
    channels, filters = (d.pick(each) for each in sizes)
    if d.chance(0.06):  # depthwise
        groups, channels, filters = channels, 1, d.pick((1, 2))
    batch = d.pick((1, 1, 2, 3, 5, 8))
    image = [d.pick(IMAGES if rank < 3 else IMAGES[:9]) for _ in range(rank)]
    if d.chance(0.4) and rank > 1:
        image = [image[0]] * rank
    square = d.chance(0.6)
    first = window(d, image[0], dilated=True, point=points)
    windows = [first if square and size == image[0] else window(d, size, dilated=True, point=points) for size in image]
    if any(window is None for window in windows):
        return None
    w, stride, before, after, dilation, out = (list(part) for part in zip(*(x for x in windows if x), strict=True))
    x_dims = (batch, groups * channels, *image)
    w_dims = (groups * filters, channels, *w)
    y_dims = (batch, groups * filters, *out)
    work = batch * groups * filters * channels * math.prod(w) * math.prod(out)
    if work > 4_000_000 or math.prod(x_dims) > 60_000 or math.prod(y_dims) > 60_000:
        return None
    direction = d.pick(("fprop", "fprop", "dgrad", "wgrad"))
    if groups > 1 and io is D.DOUBLE:
        return None
    g = new_graph(io)
    layouts = d.pick((("packed",), ("packed",), ("last",), ("last",), ("packed", "last"), ("any",)))
    attributes: dict[str, Any] = {
        "pre_padding": tuple(before), "post_padding": tuple(after),
        "stride": tuple(stride), "dilation": tuple(dilation),
    }  # fmt: skip
    if direction == "fprop":
        x, weights = tensor(d, g, "x", x_dims, layouts=layouts), tensor(d, g, "w", w_dims, layouts=layouts)
        result(d, epilogue(d, g, g.conv_fprop(x, weights, **attributes), y_dims, 1, layouts), y_dims, layouts)
    elif direction == "dgrad":
        dy, weights = tensor(d, g, "dy", y_dims, layouts=layouts), tensor(d, g, "w", w_dims, layouts=layouts)
        result(d, g.conv_dgrad(dy, weights, **attributes), x_dims, layouts)
    else:
        dy, x = tensor(d, g, "dy", y_dims, layouts=layouts), tensor(d, g, "x", x_dims, layouts=layouts)
        result(d, g.conv_wgrad(dy, x, **attributes), w_dims, layouts)
    return g


def small_convolution(d: Draw) -> Graph | None:
    """Images and filters of 8-bit floats, often such as the chips' own instructions divide."""
    kind = d.pick(FP8)
    g = Graph("g", io_data_type=D.FLOAT, compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)
    whole, layout = d.chance(0.7), d.pick(("NCHW", "NHWC"))
    channels, filters = (d.pick((32, 128)), d.pick((16, 32))) if whole else (d.pick(CHANNELS), d.pick(CHANNELS))
    image = (d.pick((4, 8)), d.pick((4, 8))) if whole else (d.pick(IMAGES), d.pick(IMAGES))
    windows = [window(d, size, dilated=True, point=d.chance(0.3)) for size in image]
    if any(window is None for window in windows):
        return None
    size, stride, before, after, dilation, out = zip(*(window for window in windows if window), strict=True)
    batch = d.pick((1, 2))
    if math.prod((batch, channels, *image)) > 20_000 or math.prod((batch, filters, channels, *size, *out)) > 3_000_000:
        return None
    x = g.tensor("x", dim=(batch, channels, *image), layout=layout, data_type=kind)
    w = g.tensor("w", dim=(filters, channels, *size), layout=layout, data_type=kind if d.chance(0.8) else d.pick(FP8))
    y = g.conv_fprop(x, w, pre_padding=before, post_padding=after, stride=stride, dilation=dilation)
    y = epilogue(d, g, y, (batch, filters, *out), 1)
    y.set_output(True).set_data_type(d.pick((kind, D.FLOAT, D.HALF)))
    return g


def shared_image(d: Draw) -> Graph | None:
    """An image that is made here and has several readers: pools, convolutions, a sum, whoever wants the graph's result.

    Their windows often hold one element, in strides: what they read is a part of the image then.
    """
    g = new_graph(d.pick((*TYPES, D.DOUBLE)))
    rank, channels = d.pick((1, 2, 2, 3)), d.pick(CHANNELS[:6])
    image = [d.pick(IMAGES[:9]) for _ in range(rank)]
    dims, layouts = (d.pick((1, 2)), channels, *image), d.pick((("packed",), ("last",), ("any",)))
    if math.prod(dims) > 8_000:
        return None
    y = tensor(d, g, "x", dims, layouts=layouts)
    made = [y := _changed(d, g, y, dims, layouts) for _ in range(d.number(1, 2))]
    made[0].set_output(d.chance(0.5))
    if made[0].is_virtual or d.chance(0.3):
        g.pointwise(M.ADD, made[0], tensor(d, g, "other", dims, layouts=layouts)).set_output(True)
    for number in range(d.number(1, 2)):
        windows = [window(d, size, dilated=False, point=d.chance(0.6)) for size in image]
        if any(window is None for window in windows):
            return None
        size, stride, before, after, _, out = (tuple(part) for part in zip(*(x for x in windows if x), strict=True))
        if any(pad >= each for each, *pads in zip(size, before, after, strict=True) for pad in pads):
            return None
        if d.chance(0.7):
            index = d.chance(0.2)
            mode = ResampleMode.MAXPOOL if index else d.pick(tuple(ResampleMode))
            read, places = g.resample_fwd(
                y, mode=mode, window=size, stride=stride, pre_padding=before, post_padding=after, generate_index=index
            )
            if places is not None:
                places.set_output(True)
        else:
            groups = d.pick((1, channels))
            filters = g.tensor(f"w{number}", dim=(groups * d.pick((1, 2)), channels // groups, *size))
            read = g.conv_fprop(y, filters, pre_padding=before, post_padding=after, stride=stride, dilation=(1,) * rank)
            read.set_dim((dims[0], filters.dims[0], *out))
        (g.pointwise(d.pick(ACTIVATIONS), read) if d.chance(0.3) else read).set_output(True)
    return g


def _changed(d: Draw, g: Graph, y: TensorAttr, dims: Sequence[int], layouts: Sequence[str]) -> TensorAttr:
    if d.chance(0.5):
        return g.pointwise(d.pick(ACTIVATIONS), y)
    other = tensor(d, g, f"by{len(g.nodes)}", d.pick((dims, (1, dims[1], *[1] * (len(dims) - 2)))), layouts=layouts)
    return g.pointwise(d.pick((M.ADD, M.MUL, M.MAX)), y, other)
