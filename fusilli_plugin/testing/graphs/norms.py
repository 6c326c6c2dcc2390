"""Norms, sums, pooling, and their gradients."""

from __future__ import annotations

import math
from typing import Any, cast

from fusilli_plugin.testing.graphs.draw import (
    ACTIVATIONS,
    CHANNELS,
    IMAGES,
    SIZES,
    TYPES,
    Draw,
    epilogue,
    new_graph,
    tensor,
    window,
)
from graph_api import (
    DataType,
    Graph,
    NormFwdPhase,
    PaddingMode,
    PointwiseMode,
    ReductionMode,
    ResampleAttributes,
    ResampleMode,
)

D, M = DataType, PointwiseMode

__all__ = ["norm", "norm_gradient", "pool", "pool_gradient", "reduction"]


def pool(d: Draw) -> Graph | None:
    """Pooling, with an index or without."""
    io = d.pick(TYPES)
    rank = d.pick((2, 2, 2, 1, 3))
    image = [d.pick(IMAGES[: 15 if rank < 3 else 8]) for _ in range(rank)]
    windows = [window(d, size, dilated=False) for size in image]
    if any(window is None for window in windows):
        return None
    w, stride, before, after, _, _ = (list(part) for part in zip(*(x for x in windows if x), strict=True))
    if any(pad >= size for size, *pads in zip(w, before, after, strict=True) for pad in pads):
        return None
    mode = d.pick(tuple(ResampleMode))
    padding = (
        d.pick((PaddingMode.NEG_INF_PAD, PaddingMode.ZERO_PAD))
        if mode is ResampleMode.MAXPOOL
        else PaddingMode.ZERO_PAD
    )
    g = new_graph(io)
    x = tensor(d, g, "x", (d.pick((1, 2, 3)), d.pick(CHANNELS[:12]), *image), layouts=("packed", "last", "any"))
    y, index = g.resample_fwd(
        x, mode=mode, window=tuple(w), stride=tuple(stride), pre_padding=tuple(before), post_padding=tuple(after),
        padding_mode=padding, generate_index=mode is ResampleMode.MAXPOOL and d.chance(0.4),
    )  # fmt: skip
    y.set_output(True)
    if index is not None:
        index.set_output(True)
    return g


def pool_gradient(d: Draw) -> Graph | None:
    """By an index that is mostly none of its window, or of an average."""
    forward = pool(d)
    if forward is None:
        return None
    node = forward.validate().nodes[0]
    a, y = cast("ResampleAttributes", node.attributes), node.outputs["y"].dims
    g = new_graph(node.inputs["x"].data_type)
    dy = tensor(d, g, "dy", y, layouts=("packed", "last", "any"))
    index = g.tensor("index", dim=y, data_type=D.INT32) if a.is_max else None
    dx = g.resample_bwd(
        dy, mode=a.mode, window=a.window, stride=a.stride, pre_padding=a.pre_padding, post_padding=a.post_padding,
        index=index,
    )  # fmt: skip
    dx.set_dim(node.inputs["x"].dims).set_output(True)
    return g


def norm(d: Draw) -> Graph | None:
    """A norm, or a softmax of pointwise operations and sums."""
    io = d.pick(TYPES)
    g = new_graph(io)
    kind = d.pick(("layernorm", "rmsnorm", "batchnorm", "inference", "softmax"))
    if kind in ("batchnorm", "inference"):
        dims = (d.pick((2, 3, 5)), d.pick(CHANNELS), d.pick(IMAGES), d.pick(IMAGES))
        if math.prod(dims) > 50_000:
            return None
        x = tensor(d, g, "x", dims, layouts=("packed", "last", "any"))
        channel = (1, dims[1], 1, 1)
        if kind == "batchnorm":
            scale, bias = (g.tensor(name, dim=channel, data_type=D.FLOAT) for name in ("scale", "bias"))
            made = g.batchnorm(x, scale, bias, epsilon=1e-3)
            for each in made[:3]:
                if each is not None:
                    each.set_output(True)
            for each in made[1:3]:
                if each is not None:
                    each.set_data_type(D.FLOAT)
        else:
            names = ("mean", "inverse", "scale", "bias")
            tensors = [g.tensor(name, dim=channel, data_type=D.FLOAT) for name in names]
            epilogue(d, g, g.batchnorm_inference(x, *tensors), dims, 1).set_output(True)
        return g
    rows, width = d.pick(SIZES), d.pick((3, 7, 16, 33, 64, 100, 128, 257, 300, 512, 700))
    x = tensor(d, g, "x", (2, rows, width))
    if kind == "softmax":
        top = g.reduction(x, mode=ReductionMode.MAX).set_dim((2, rows, 1))
        shifted = g.pointwise(M.EXP, g.pointwise(M.SUB, x, top))
        total = g.reduction(shifted, mode=ReductionMode.ADD).set_dim((2, rows, 1))
        g.pointwise(M.DIV, shifted, total).set_output(True)
        return g
    scale = g.tensor("scale", dim=(1, 1, width))
    phase = NormFwdPhase.INFERENCE
    if kind == "rmsnorm":
        y = g.rmsnorm(x, scale, epsilon=1e-3, forward_phase=phase)[0]
    else:
        bias = g.tensor("bias", dim=(1, 1, width))
        y = g.layernorm(x, scale, bias, epsilon=1e-3, forward_phase=phase)[0]
    if d.chance(0.3):
        y = g.pointwise(d.pick(ACTIVATIONS), y)
    y.set_output(True)
    return g


def norm_gradient(d: Draw) -> Graph | None:
    """Gradients of a norm, with saved statistics or without."""
    g = new_graph(d.pick(TYPES))
    kind = d.pick(("batchnorm", "layernorm", "rmsnorm"))
    saved, layouts = kind != "rmsnorm" and d.chance(0.6), ("packed",)
    if kind == "batchnorm":
        dims = (d.pick((2, 3, 5)), d.pick(CHANNELS), d.pick(IMAGES), d.pick(IMAGES))
        layouts = ("packed", "last", "any")
        affine = stats = (1, dims[1], 1, 1)
    else:
        dims = (2, d.pick(SIZES), d.pick((3, 7, 16, 33, 64, 100, 128, 257, 300, 512, 700)))
        affine, stats = (1, 1, dims[2]), (*dims[:2], 1)
    if math.prod(dims) > 50_000:
        return None
    dy, x = (tensor(d, g, name, dims, layouts=layouts) for name in ("dy", "x"))
    scale = g.tensor("scale", dim=affine, data_type=D.FLOAT)
    names = ("mean", "inv_variance") if saved else ()
    given: dict[str, Any] = {name: g.tensor(name, dim=stats, data_type=D.FLOAT) for name in names}
    if d.chance(0.3):
        dy = g.pointwise(M.RELU_BWD, dy, g.tensor("y", dim=dims))
    if kind == "batchnorm":
        made = g.batchnorm_backward(dy, x, scale, **given)
    elif kind == "layernorm":
        made = g.layernorm_backward(dy, x, scale, epsilon=None if saved else 1e-3, **given)
    else:
        inverse = g.tensor("inverse", dim=stats, data_type=D.FLOAT)
        made = g.rmsnorm_backward(dy, x, scale, inverse, compute_dbias=d.chance(0.5))
    for each in made:
        if each is not None:
            each.set_output(True)
    return g


def reduction(d: Draw) -> Graph | None:
    """A reduction of any axes, perhaps behind an activation."""
    io = d.pick(TYPES)
    dims = tuple(d.pick(SIZES) for _ in range(d.number(1, 4)))
    if math.prod(dims) > 50_000:
        return None
    last = d.number(0, len(dims) - 1)
    result = tuple(1 if axis == last or d.chance(0.4) else dim for axis, dim in enumerate(dims))
    mode = d.pick([mode for mode in ReductionMode if mode.name not in ("MUL", "MUL_NO_ZEROS")])
    g = new_graph(io)
    x = tensor(d, g, "x", dims)
    if d.chance(0.3):
        x = g.pointwise(d.pick(ACTIVATIONS), x)
    g.reduction(x, mode=mode).set_dim(result).set_output(True)
    return g
