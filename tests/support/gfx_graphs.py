"""Random graphs for sweeps over the code for AMD chips, each made from a number: the same number, the same graph.

Sizes are small, so that an emulator runs them, and ragged: what vectors, tiles and matrix instructions do not divide is
where compilers go wrong. `FAMILIES` says how often each kind comes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import numpy as np

from graph_api import (
    DataType,
    Graph,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    PaddingMode,
    PointwiseMode,
    ReductionMode,
    ResampleAttributes,
    ResampleMode,
    TensorAttr,
)
from graph_api.layout import strides_in_order
from tests.cases import sdpa_backward

__all__ = ["FAMILIES", "graph", "inputs"]

T = TypeVar("T")
D, M = DataType, PointwiseMode
_HALVES: Final = (D.HALF, D.BFLOAT16)
_TYPES: Final = (D.HALF, D.HALF, D.BFLOAT16, D.FLOAT, D.FLOAT)
_SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 12, 14, 15, 16, 17, 24, 31, 32, 33, 48, 56, 64, 65, 70, 96)
_CHANNELS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 13, 16, 24, 31, 32, 33, 48, 64, 70, 96)
_IMAGES: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 28)
_ACTIVATIONS: Final = (M.RELU_FWD, M.TANH_FWD, M.GELU_FWD, M.SIGMOID_FWD, M.SWISH_FWD, M.ABS, M.NEG)


@dataclass
class _Draw:
    """A source of choices."""

    source: random.Random

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.source.randrange(len(choices))]

    def number(self, low: int, high: int) -> int:
        return self.source.randint(low, high)

    def chance(self, of: float) -> bool:
        return self.source.random() < of


def graph(seed: int, family: str | None = None) -> Graph:
    """A validated graph.

    Args:
        seed: decides everything.
        family: a key of `FAMILIES`; by default one that the seed chooses.
    """
    for attempt in range(100):
        d = _Draw(random.Random(seed * 1000 + attempt))
        name = family or d.source.choices(list(FAMILIES), [weight for _, weight in FAMILIES.values()])[0]
        made = FAMILIES[name][0](d)
        if made is not None:
            made.name = f"{name}_{seed}"
            return made.validate()
    raise AssertionError(f"no graph for {seed}")


def inputs(made: Graph, seed: int) -> dict[TensorAttr, np.ndarray[Any, Any]]:
    """Inputs of `graph` (``seed``); of two seeds in five all numbers have one sign, as extremes seldom meet it."""
    if any(node.op == "sdpa_backward" for node in made.nodes):
        return sdpa_backward.inputs()(made)  # results and statistics belong to their operands
    pack = made.random_inputs(seed=0)
    sign = {1: 1, 3: -1}.get(seed % 5)
    if sign is None:
        return pack
    return {tensor: (sign * np.abs(value)).astype(value.dtype) for tensor, value in pack.items()}


def _graph(io: DataType) -> Graph:
    return Graph("g", io_data_type=io, compute_data_type=D.DOUBLE if io is D.DOUBLE else D.FLOAT)


def _tensor(d: _Draw, g: Graph, name: str, dims: Sequence[int], *, layouts: Sequence[str] = ("packed",)) -> TensorAttr:
    """An input, packed in some order of its dims, sometimes with gaps."""
    kind = d.pick(layouts)
    rank = len(dims)
    order = list(range(rank))
    if kind == "last":  # channels last
        order = [0, *range(2, rank), 1]
    elif kind == "transposed":
        order[-1], order[-2] = order[-2], order[-1]
    elif kind == "any":
        d.source.shuffle(order)
    strides = strides_in_order(tuple(dims), tuple(order))
    return g.tensor(name, dim=tuple(dims), stride=strides)


def _result(d: _Draw, y: TensorAttr, dims: Sequence[int], layouts: Sequence[str]) -> None:
    """Makes ``y`` a result, where its inputs may lie in any order in an order of its own."""
    y.set_output(True).set_dim(tuple(dims))
    if "any" in layouts and d.chance(0.5):
        order = list(range(len(dims)))
        d.source.shuffle(order)
        y.set_stride(strides_in_order(tuple(dims), tuple(order)))


def _epilogue(
    d: _Draw, g: Graph, y: TensorAttr, dims: Sequence[int], channel: int, layouts: Sequence[str] = ("packed",)
) -> TensorAttr:
    if d.chance(0.5):
        added = g.tensor("added", dim=tuple(dim if axis == channel else 1 for axis, dim in enumerate(dims)))
        y = g.pointwise(M.ADD, y, added)
    if d.chance(0.15):
        y = g.pointwise(M.ADD, y, _tensor(d, g, "residual", dims, layouts=layouts))
    if d.chance(0.5):
        y = g.pointwise(d.pick(_ACTIVATIONS), y)
    return y


def _product(d: _Draw) -> Graph | None:
    io = d.pick((*_TYPES, D.DOUBLE)) if d.chance(0.2) else d.pick(_TYPES)
    m, n, k = (d.pick(_SIZES) if d.chance(0.8) else d.number(1, 130) for _ in range(3))
    if d.chance(0.15):  # as decoding has them
        m, n, k = d.number(1, 9), 16 * d.number(1, 8), 16 * d.number(1, 16)
    batch = d.pick(((), (), (1,), (2,), (3,), (2, 2)))
    g = _graph(io)
    shared = d.pick(("none", "none", "none", "a", "b")) if batch else "none"
    ones = tuple(1 for _ in batch)
    a = _tensor(
        d, g, "a", (*(ones if shared == "a" else batch), m, k), layouts=("packed", "packed", "transposed", "any")
    )
    b = _tensor(
        d, g, "b", (*(ones if shared == "b" else batch), k, n), layouts=("packed", "packed", "transposed", "any")
    )
    y = _epilogue(d, g, g.matmul(a, b), (*batch, m, n), len(batch) + 1)
    y.set_output(True)
    return g


def _window(d: _Draw, size: int, *, dilated: bool, point: bool = False) -> tuple[int, int, int, int, int, int] | None:
    """Filter, stride, padding before and after, dilation, size of the result."""
    filter_size = 1 if point else d.pick((1, 1, 2, 3, 3, 3, 4, 5, 7))
    stride = d.pick((1, 1, 1, 2, 2, 3))
    dilation = d.pick((1, 1, 1, 2)) if dilated else 1
    extent = dilation * (filter_size - 1) + 1
    before = d.pick((0, 0, extent // 2))
    after = before if d.chance(0.8) else d.number(0, extent - 1)
    result = (size + before + after - extent) // stride + 1
    if size + before + after < extent or result < 1:
        return None
    return filter_size, stride, before, after, dilation, result


def _convolution(d: _Draw) -> Graph | None:
    return _any_convolution(d, groups=d.pick((1, 1, 1, 1, 2, 3, 4)), points=False)


def _points(d: _Draw) -> Graph | None:
    """Filters of one position: products, which the compiler treats otherwise."""
    return _any_convolution(d, groups=d.pick((1, 2, 3)), points=True)


def _groups(d: _Draw) -> Graph | None:
    return _any_convolution(d, groups=d.pick((2, 3, 4)), points=d.chance(0.2))


def _narrow(d: _Draw) -> Graph | None:
    """Few channels on one side or both, often in one dim: the compiler has other tiles for them."""
    few = _CHANNELS[:5]
    sizes = d.pick(((few, _CHANNELS), (_CHANNELS, few), (few, few)))
    return _any_convolution(d, groups=1, points=False, ranks=(1, 1, 2, 3), sizes=sizes)


def _any_convolution(
    d: _Draw,
    *,
    groups: int,
    points: bool,
    ranks: Sequence[int] = (2, 2, 2, 2, 2, 1, 3),
    sizes: tuple[Sequence[int], Sequence[int]] = (_CHANNELS, _CHANNELS),
) -> Graph | None:
    io = d.pick(_TYPES)
    rank = d.pick(ranks)
    if groups > 1 and d.chance(0.3):
        sizes = ((1, 2), (1, 2))
    channels, filters = (d.pick(each) for each in sizes)
    if d.chance(0.06):  # depthwise
        groups, channels, filters = channels, 1, d.pick((1, 2))
    batch = d.pick((1, 1, 2, 3, 5, 8))
    image = [d.pick(_IMAGES if rank < 3 else _IMAGES[:9]) for _ in range(rank)]
    if d.chance(0.4) and rank > 1:
        image = [image[0]] * rank
    square = d.chance(0.6)
    first = _window(d, image[0], dilated=True, point=points)
    windows = [first if square and size == image[0] else _window(d, size, dilated=True, point=points) for size in image]
    if any(window is None for window in windows):
        return None
    w, stride, before, after, dilation, result = (list(part) for part in zip(*(x for x in windows if x), strict=True))
    x_dims = (batch, groups * channels, *image)
    w_dims = (groups * filters, channels, *w)
    y_dims = (batch, groups * filters, *result)
    work = batch * groups * filters * channels * _volume(w) * _volume(result)
    if work > 4_000_000 or _volume(x_dims) > 60_000 or _volume(y_dims) > 60_000:
        return None
    direction = d.pick(("fprop", "fprop", "dgrad", "wgrad"))
    if groups > 1 and io is D.DOUBLE:
        return None
    g = _graph(io)
    layouts = d.pick((("packed",), ("packed",), ("last",), ("last",), ("packed", "last"), ("any",)))
    attributes: dict[str, Any] = {
        "pre_padding": tuple(before), "post_padding": tuple(after),
        "stride": tuple(stride), "dilation": tuple(dilation),
    }  # fmt: skip
    if direction == "fprop":
        x, weights = _tensor(d, g, "x", x_dims, layouts=layouts), _tensor(d, g, "w", w_dims, layouts=layouts)
        _result(d, _epilogue(d, g, g.conv_fprop(x, weights, **attributes), y_dims, 1, layouts), y_dims, layouts)
    elif direction == "dgrad":
        dy, weights = _tensor(d, g, "dy", y_dims, layouts=layouts), _tensor(d, g, "w", w_dims, layouts=layouts)
        _result(d, g.conv_dgrad(dy, weights, **attributes), x_dims, layouts)
    else:
        dy, x = _tensor(d, g, "dy", y_dims, layouts=layouts), _tensor(d, g, "x", x_dims, layouts=layouts)
        _result(d, g.conv_wgrad(dy, x, **attributes), w_dims, layouts)
    return g


def _volume(dims: Sequence[int]) -> int:
    size = 1
    for dim in dims:
        size *= dim
    return size


def _attention(d: _Draw) -> Graph | None:
    io = d.pick((*_HALVES, D.FLOAT))
    width, queries = d.pick((8, 16, 16, 32, 64)), d.pick((1, 2, 5, 8, 16, 17, 33, 48, 64, 65))
    keys = queries if d.chance(0.6) else d.pick((1, 3, 8, 16, 17, 31, 64, 65))
    heads, shared = d.pick(((1, 1), (2, 1), (2, 2), (4, 2)))
    batch = d.pick((1, 1, 2))
    g = _graph(io)
    q = g.tensor("q", dim=(batch, heads, queries, width))
    k, v = (g.tensor(name, dim=(batch, shared, keys, width)) for name in ("k", "v"))
    options: dict[str, Any] = {}
    if d.chance(0.4) and keys >= queries:
        options["causal_mask"] = True
    elif d.chance(0.3):
        options["bias"] = g.tensor("bias", dim=(1, heads, queries, keys))
    made = g.sdpa(q, k, v, attn_scale=width**-0.5, generate_stats=d.chance(0.25), **options)
    made.o.set_output(True)
    if made.stats is not None:
        made.stats.set_output(True)
    return g


def _attention_gradients(d: _Draw) -> Graph | None:
    io = d.pick((*_HALVES, D.FLOAT))
    width, queries, keys = d.pick((8, 16, 16, 32)), d.pick((1, 2, 5, 16, 17, 33, 48)), d.pick((1, 3, 8, 16, 17, 31, 64))
    heads, shared = d.pick(((1, 1), (2, 1), (2, 2), (4, 2)))
    options: dict[str, Any] = {}
    if d.chance(0.4):
        options["causal_mask"] = True
    elif d.chance(0.4):
        options |= {"bias": d.pick(((1, heads, queries, keys), (queries, keys), (1, heads, 1, keys))), "dbias": True}
    sizes = (d.pick((1, 1, 2)), heads, shared, shared, queries, keys, width, d.pick((width, 8)))
    return sdpa_backward.graph(sizes, io, layout=d.pick(("BHSD", "BHSD", "BSHD", "PADDED")), **options)


def _pool(d: _Draw) -> Graph | None:
    io = d.pick(_TYPES)
    rank = d.pick((2, 2, 2, 1, 3))
    image = [d.pick(_IMAGES[: 15 if rank < 3 else 8]) for _ in range(rank)]
    windows = [_window(d, size, dilated=False) for size in image]
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
    g = _graph(io)
    x = _tensor(d, g, "x", (d.pick((1, 2, 3)), d.pick(_CHANNELS[:12]), *image), layouts=("packed", "last", "any"))
    y, index = g.resample_fwd(
        x, mode=mode, window=tuple(w), stride=tuple(stride), pre_padding=tuple(before), post_padding=tuple(after),
        padding_mode=padding, generate_index=mode is ResampleMode.MAXPOOL and d.chance(0.4),
    )  # fmt: skip
    y.set_output(True)
    if index is not None:
        index.set_output(True)
    return g


def _pool_gradient(d: _Draw) -> Graph | None:
    """By an index that is mostly none of its window, or of an average."""
    forward = _pool(d)
    if forward is None:
        return None
    node = forward.validate().nodes[0]
    a, y = cast("ResampleAttributes", node.attributes), node.outputs["y"].dims
    g = _graph(node.inputs["x"].data_type)
    dy = _tensor(d, g, "dy", y, layouts=("packed", "last", "any"))
    index = g.tensor("index", dim=y, data_type=D.INT32) if a.is_max else None
    dx = g.resample_bwd(
        dy, mode=a.mode, window=a.window, stride=a.stride, pre_padding=a.pre_padding, post_padding=a.post_padding,
        index=index,
    )  # fmt: skip
    dx.set_dim(node.inputs["x"].dims).set_output(True)
    return g


def _norm_gradient(d: _Draw) -> Graph | None:
    g = _graph(d.pick(_TYPES))
    kind = d.pick(("batchnorm", "layernorm", "rmsnorm"))
    saved, layouts = kind != "rmsnorm" and d.chance(0.6), ("packed",)
    if kind == "batchnorm":
        dims = (d.pick((2, 3, 5)), d.pick(_CHANNELS), d.pick(_IMAGES), d.pick(_IMAGES))
        layouts = ("packed", "last", "any")
        affine = stats = (1, dims[1], 1, 1)
    else:
        dims = (2, d.pick(_SIZES), d.pick((3, 7, 16, 33, 64, 100, 128, 257, 300, 512, 700)))
        affine, stats = (1, 1, dims[2]), (*dims[:2], 1)
    if _volume(dims) > 50_000:
        return None
    dy, x = (_tensor(d, g, name, dims, layouts=layouts) for name in ("dy", "x"))
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


def _experts(d: _Draw) -> Graph | None:
    """Routed by whatever numbers come."""
    g = _graph(d.pick(_TYPES))
    mode = d.pick(tuple(MoeGroupedMatmulMode))
    experts, rows, k, n = d.pick((1, 2, 3, 4, 8)), d.pick(_SIZES), d.pick(_SIZES), d.pick(_SIZES)
    if rows * k * n > 100_000:
        return None
    offsets = g.tensor("offsets", dim=(experts * d.pick((1, 1, 2)), 1, 1), data_type=D.INT32)
    if d.chance(0.3):
        doutput, token = g.tensor("doutput", dim=(1, rows, n)), g.tensor("token", dim=(1, rows, k))
        g.moe_grouped_matmul_bwd(doutput, token, offsets).set_dim((experts, k, n)).set_output(True)
        return g
    tokens = d.pick(_SIZES) if mode is MoeGroupedMatmulMode.GATHER else rows
    token = g.tensor("token", dim=(1, tokens, k))
    weight = _tensor(d, g, "weight", (experts, k, n), layouts=("packed", "transposed", "any"))
    names = {MoeGroupedMatmulMode.GATHER: ("index",), MoeGroupedMatmulMode.SCATTER: ("index", "ks")}.get(mode, ())
    routing = [g.tensor(name, dim=(1, rows, 1), data_type=D.INT32) for name in names]
    top_k = d.pick((1, 2, 3)) if mode is MoeGroupedMatmulMode.SCATTER else 0
    y = g.moe_grouped_matmul(token, weight, offsets, *routing, mode=mode, top_k=top_k)
    _epilogue(d, g, y, (1, rows, n), 2).set_output(True)
    return g


def _reduction(d: _Draw) -> Graph | None:
    io = d.pick(_TYPES)
    dims = tuple(d.pick(_SIZES) for _ in range(d.number(1, 4)))
    if _volume(dims) > 50_000:
        return None
    last = d.number(0, len(dims) - 1)
    result = tuple(1 if axis == last or d.chance(0.4) else dim for axis, dim in enumerate(dims))
    mode = d.pick([mode for mode in ReductionMode if mode.name not in ("MUL", "MUL_NO_ZEROS")])
    g = _graph(io)
    x = _tensor(d, g, "x", dims)
    if d.chance(0.3):
        x = g.pointwise(d.pick(_ACTIVATIONS), x)
    g.reduction(x, mode=mode).set_dim(result).set_output(True)
    return g


def _norm(d: _Draw) -> Graph | None:
    io = d.pick(_TYPES)
    g = _graph(io)
    kind = d.pick(("layernorm", "rmsnorm", "batchnorm", "inference", "softmax"))
    if kind in ("batchnorm", "inference"):
        dims = (d.pick((2, 3, 5)), d.pick(_CHANNELS), d.pick(_IMAGES), d.pick(_IMAGES))
        if _volume(dims) > 50_000:
            return None
        x = _tensor(d, g, "x", dims, layouts=("packed", "last", "any"))
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
            _epilogue(d, g, g.batchnorm_inference(x, *tensors), dims, 1).set_output(True)
        return g
    rows, width = d.pick(_SIZES), d.pick((3, 7, 16, 33, 64, 100, 128, 257, 300, 512, 700))
    x = _tensor(d, g, "x", (2, rows, width))
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
        y = g.pointwise(d.pick(_ACTIVATIONS), y)
    y.set_output(True)
    return g


def _pointwise(d: _Draw) -> Graph | None:
    io = d.pick((*_TYPES, D.DOUBLE))
    g = _graph(io)
    dims = tuple(d.pick(_SIZES[:16]) for _ in range(d.number(1, 4)))
    if _volume(dims) > 30_000:
        return None
    y = _tensor(d, g, "x", dims, layouts=("packed", "transposed") if len(dims) > 1 else ("packed",))
    for _ in range(d.number(1, 4)):
        if d.chance(0.5):
            other = g.tensor(f"t{len(g.nodes)}", dim=tuple(dim if d.chance(0.7) else 1 for dim in dims))
            y = g.pointwise(d.pick((M.ADD, M.SUB, M.MUL, M.MAX, M.MIN)), y, other)
        else:
            y = g.pointwise(d.pick(_ACTIVATIONS), y)
    y.set_output(True)
    return g


_FP8: Final = (D.FP8_E4M3, D.FP8_E5M2, D.FP8_E4M3_FNUZ, D.FP8_E5M2_FNUZ)
_SMALL: Final = (*_FP8, *_FP8, D.FP6_E2M3, D.FP6_E3M2, D.FP4_E2M1, D.INT4, D.UINT4)
_SMALL_FLOATS: Final = (*_FP8, D.FP6_E2M3, D.FP6_E3M2, D.FP4_E2M1)
_SCALES: Final = (D.FP8_E8M0, D.FP8_E8M0, D.FP8_E4M3, D.FLOAT, D.HALF, D.BFLOAT16)
_BLOCKS: Final = (1, 4, 8, 16, 16, 32, 32)


def _small_product(d: _Draw) -> Graph:
    """A product of types of 8 bits and less, or of one with a float; a bias, an activation, a small result."""
    first = d.pick(_SMALL)
    second = first if d.chance(0.5) else d.pick((*_SMALL, D.HALF, D.BFLOAT16, D.FLOAT))
    g = Graph("g", io_data_type=D.FLOAT, compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)
    whole = d.chance(0.4)
    m, n = (d.pick((16, 32, 48) if whole else _SIZES) for _ in range(2))
    k = d.pick((32, 64, 128, 256) if whole else _SIZES)
    batch = (d.pick((2, 3)),) if d.chance(0.25) else ()
    a = _tensor(d, g, "a", (*batch, m, k), layouts=("packed", "any")).set_data_type(first)
    b = _tensor(d, g, "b", (*batch, k, n), layouts=("packed", "any")).set_data_type(second)
    y = _epilogue(d, g, g.matmul(a, b), (*batch, m, n), len(batch) + 1)
    y.set_output(True).set_data_type(d.pick((*_SMALL, D.FLOAT, D.HALF)))
    return g


def _scaled_product(d: _Draw) -> Graph:
    """Operands in scaled blocks along K, multiplied, and perhaps a quantised result."""
    kind, scale, block = d.pick(_SMALL_FLOATS), d.pick(_SCALES), d.pick(_BLOCKS)
    g = Graph("g", io_data_type=D.FLOAT, compute_data_type=D.FLOAT, intermediate_data_type=d.pick((D.FLOAT, D.HALF)))
    whole = d.chance(0.5)
    m, n = (d.pick((16, 32, 64) if whole else _SIZES) for _ in range(2))
    k = block * d.number(1, 4) if whole else d.pick(_SIZES)
    operands = []
    for name, dims, sizes in (("a", (m, k), (1, block)), ("b", (k, n), (block, 1))):
        x = _tensor(d, g, name, dims, layouts=("packed", "any")).set_data_type(kind)
        of_blocks = tuple(-(-dim // size) for dim, size in zip(dims, sizes, strict=True))
        factors = _tensor(d, g, f"scale_{name}", of_blocks, layouts=("packed", "any")).set_data_type(scale)
        operands.append(g.block_scale_dequantize(x, factors, block_size=sizes))
    y = _epilogue(d, g, g.matmul(*operands), (m, n), 1)
    if d.chance(0.4):
        y, factors = g.block_scale_quantize(y, block_size=d.pick(_BLOCKS), axis=d.number(0, 1))
        factors.set_output(True).set_data_type(scale)
        y.set_data_type(kind)
    y.set_output(True)
    return g


def _quantized(d: _Draw) -> Graph:
    """A quantisation along any axis, behind an activation or not."""
    io = d.pick(_TYPES)
    g = _graph(io)
    dims = tuple(d.pick(_SIZES) for _ in range(d.number(1, 3)))
    x = _tensor(d, g, "x", dims, layouts=("packed", "any") if len(dims) > 1 else ("packed",))
    x = g.pointwise(d.pick(_ACTIVATIONS), x) if d.chance(0.5) else x
    axis = d.number(0, len(dims) - 1)
    y, scale = g.block_scale_quantize(x, block_size=d.pick(_BLOCKS), axis=axis, transpose=d.chance(0.3))
    y.set_output(True).set_data_type(d.pick(_SMALL_FLOATS))
    scale.set_output(True).set_data_type(d.pick(_SCALES))
    return g


def _small_convolution(d: _Draw) -> Graph | None:
    """Images and filters of 8-bit floats, often such as the chips' own instructions divide."""
    kind = d.pick(_FP8)
    g = Graph("g", io_data_type=D.FLOAT, compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)
    whole, layout = d.chance(0.7), d.pick(("NCHW", "NHWC"))
    channels, filters = (d.pick((32, 128)), d.pick((16, 32))) if whole else (d.pick(_CHANNELS), d.pick(_CHANNELS))
    image = (d.pick((4, 8)), d.pick((4, 8))) if whole else (d.pick(_IMAGES), d.pick(_IMAGES))
    windows = [_window(d, size, dilated=True, point=d.chance(0.3)) for size in image]
    if any(window is None for window in windows):
        return None
    size, stride, before, after, dilation, out = zip(*(window for window in windows if window), strict=True)
    batch = d.pick((1, 2))
    if _volume((batch, channels, *image)) > 20_000 or _volume((batch, filters, channels, *size, *out)) > 3_000_000:
        return None
    x = g.tensor("x", dim=(batch, channels, *image), layout=layout, data_type=kind)
    w = g.tensor("w", dim=(filters, channels, *size), layout=layout, data_type=kind if d.chance(0.8) else d.pick(_FP8))
    y = g.conv_fprop(x, w, pre_padding=before, post_padding=after, stride=stride, dilation=dilation)
    y = _epilogue(d, g, y, (batch, filters, *out), 1)
    y.set_output(True).set_data_type(d.pick((kind, D.FLOAT, D.HALF)))
    return g


def _small_attention(d: _Draw) -> Graph:
    """Attention of 8-bit floats, some of its factors, and its amaxes."""
    g = Graph("g", io_data_type=D.FLOAT, compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)
    kind, heads, shared = d.pick(_FP8), d.pick((2, 4)), d.pick((1, 2))
    sq, skv, size = d.pick((1, 5, 16, 19, 32, 64)), d.pick((2, 7, 16, 33, 64)), d.pick((8, 16, 32, 64))
    dims = {"q": (2, heads, sq, size), "k": (2, shared, skv, size), "v": (2, shared, skv, d.pick((16, 32)))}
    operands = [_tensor(d, g, name, each, layouts=("packed", "any")).set_data_type(kind) for name, each in dims.items()]
    names = [n for n in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o") if d.chance(0.5)]
    options: dict[str, Any] = {name: g.tensor(name, dim=(1, 1, 1, 1), data_type=D.FLOAT) for name in names}
    for name in ("amax_s", "amax_o"):
        if d.chance(0.5):
            options[name] = g.tensor(name, dim=(1, 1, 1, 1), data_type=D.FLOAT).set_output(True)
    options["causal_mask"] = d.chance(0.3)
    g.sdpa(*operands, **options).o.set_output(True).set_data_type(d.pick((kind, D.HALF, D.FLOAT)))
    return g


def _shared(d: _Draw) -> Graph:
    """A value that is a result, is summed up, normalised, or converted: several of them at once."""
    g = Graph("g", io_data_type=d.pick(_TYPES), compute_data_type=D.FLOAT, intermediate_data_type=D.FLOAT)
    rows, width = d.pick(_SIZES), d.pick((3, 7, 16, 33, 64, 100, 128, 257, 512, 1024))
    x, other = (_tensor(d, g, name, (rows, width), layouts=("packed", "packed", "any")) for name in ("x", "other"))
    y = g.pointwise(d.pick((M.ADD, M.MUL, M.GELU_BWD, M.RELU_BWD)), x, other)
    y = g.pointwise(d.pick(_ACTIVATIONS), y) if d.chance(0.3) else y
    y.set_output(d.chance(0.6))
    uses = [use for use in ("norm", "sums", "most", "small", "plain") if d.chance(0.5)] or ["sums"]
    if "norm" in uses:
        scale = g.tensor("scale", dim=(1, width))
        norm = g.rmsnorm(y, scale, epsilon=1e-3, forward_phase=NormFwdPhase.INFERENCE)[0]
        norm.set_output(True)
    for use, mode in (("sums", ReductionMode.ADD), ("most", ReductionMode.AMAX)):
        if use in uses:
            made = g.reduction(y, mode=mode).set_dim(d.pick(((rows, 1), (1, width), (1, 1))))
            made.set_output(True).set_data_type(D.FLOAT)
    if "small" in uses:
        g.pointwise(M.MUL, y, 0.5).set_output(True).set_data_type(d.pick(_FP8))
    if "plain" in uses:
        g.pointwise(d.pick(_ACTIVATIONS), y).set_output(True)
    return g


FAMILIES: Final[dict[str, tuple[Callable[[_Draw], Graph | None], float]]] = {
    "product": (_product, 0.18),
    "convolution": (_convolution, 0.24),
    "points": (_points, 0.08),
    "groups": (_groups, 0.08),
    "narrow": (_narrow, 0.06),
    "attention": (_attention, 0.08),
    "attention gradients": (_attention_gradients, 0.04),
    "pool": (_pool, 0.09),
    "reduction": (_reduction, 0.07),
    "norm": (_norm, 0.08),
    "pointwise": (_pointwise, 0.04),
    "small product": (_small_product, 0.04),
    "scaled product": (_scaled_product, 0.04),
    "quantized": (_quantized, 0.03),
    "pool gradient": (_pool_gradient, 0.05),
    "norm gradient": (_norm_gradient, 0.05),
    "experts": (_experts, 0.04),
    "small convolution": (_small_convolution, 0.04),
    "small attention": (_small_attention, 0.03),
    "shared": (_shared, 0.05),
}
"""Family → how a graph of it is made, and how often it comes."""
