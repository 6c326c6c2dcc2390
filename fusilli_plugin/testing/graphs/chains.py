"""Chains: one to five connected nodes of any kinds that meet, small dims, any data types and layouts.

A value's magnitude is tracked while a graph grows, so that nothing leaves the range of the types it passes through:
what an overflow becomes is no promise of a target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fusilli_plugin.testing.graphs.draw import Draw
from graph_api import (
    ConvolutionMode,
    DataType,
    Graph,
    NormFwdPhase,
    PaddingMode,
    PointwiseMode,
    ReductionMode,
    ResampleMode,
    TensorAttr,
)
from graph_api.layout import strides_in_order

__all__ = ["MAX_NODES", "chain"]

D, M, R = DataType, PointwiseMode, ReductionMode
Dims = tuple[int, ...]
_Attributes = dict[str, Any]
T = TypeVar("T")

MAX_NODES = 5
_INPUT_BOUND = 8.0  # of normal floats and of the integers that random_inputs makes
_EPSILON = 1e-3
_REAL = (D.FLOAT, D.HALF, D.BFLOAT16, D.DOUBLE)
_INTEGER = (D.INT32, D.INT8, D.UINT8, D.INT64)
_LIMITS = {D.HALF: 2e4, D.INT32: 1e9}
_ANY_UNARY = (M.IDENTITY, M.RELU_FWD, M.ABS, M.NEG)
_REAL_UNARY = (M.TANH_FWD, M.SIGMOID_FWD, M.GELU_FWD, M.GELU_APPROX_TANH_FWD, M.SWISH_FWD, M.ELU_FWD, M.SOFTPLUS_FWD,
               M.FLOOR, M.CEIL, M.ERF, M.SIN)  # fmt: skip
_ANY_BINARY = (M.ADD, M.SUB, M.MUL, M.MAX, M.MIN, M.CMP_GT, M.CMP_EQ)
_REAL_BINARY = (M.ADD_SQUARE, M.RELU_BWD, M.TANH_BWD, M.SIGMOID_BWD, M.SWISH_BWD, M.GELU_APPROX_TANH_BWD)
_BINARY_BOUNDS: dict[PointwiseMode, Callable[[float, float], float]] = {
    M.MUL: lambda a, b: a * b,
    M.MAX: max,
    M.MIN: max,
    M.CMP_GT: lambda a, b: 1.0,
    M.CMP_EQ: lambda a, b: 1.0,
    M.ADD_SQUARE: lambda a, b: a + b * b,
    M.RELU_BWD: lambda a, b: a,
}
_ANY_REDUCTION = (R.ADD, R.MAX, R.MIN, R.AMAX, R.NORM1)
_REAL_REDUCTION = (R.AVG, R.NORM2, R.MUL)


@dataclass(frozen=True)
class _Value:
    """A tensor of the graph with dims known before validation, and a bound of its magnitude."""

    tensor: TensorAttr
    dims: Dims
    bound: float


class _Draft:
    """A graph under construction and what was drawn for all of it."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.real = not self.one_in(6)
        self.io = self.pick(_REAL if self.real else _INTEGER[:1])
        between = self.pick((None, None, self.io, *_REAL)) if self.real else None
        compute = self.pick((None, None, *_REAL)) if self.real else None
        self.graph = Graph("random", io_data_type=self.io, intermediate_data_type=between, compute_data_type=compute)
        self.limit = min(_LIMITS.get(dtype, 1e30) for dtype in (self.io, between) if dtype is not None)
        self.values: list[_Value] = []

    def pick(self, choices: Sequence[T]) -> T:
        """One of ``choices``."""
        return self._draw.pick(choices)

    def number(self, low: int, high: int) -> int:
        """An integer."""
        return self._draw.number(low, max(low, high))

    def one_in(self, chances: int) -> bool:
        """True once in so many times."""
        return self._draw.one_in(chances)

    def order(self, rank: int) -> list[int]:
        """A permutation of the axes."""
        return self._draw.order(rank)

    def dims(self, rank: int, high: int = 6) -> Dims:
        """Dims of a tensor."""
        return tuple(self.number(1, high) for _ in range(rank))

    def fits(self, bound: float) -> bool:
        """Whether a result of this magnitude may be made."""
        return bound <= self.limit

    def input(self, name: str, dims: Dims, dtype: DataType | None = None) -> _Value:
        """A new input in any layout; of the graph's type, or sometimes of another."""
        if dtype is None and (not self.real or self.one_in(5)):
            dtype = self.pick((*_REAL, D.INT8, D.INT32) if self.real else _INTEGER)
        self.limit = min(self.limit, _LIMITS[D.HALF] if dtype is D.HALF else math.inf)
        name = f"{name}_{len(self.graph.tensors)}"
        tensor = self.graph.tensor(name, dim=dims, stride=self.strides(dims, repeat=True), data_type=dtype)
        return _Value(tensor, dims, _INPUT_BOUND)

    def strides(self, dims: Dims, *, repeat: bool) -> Dims | None:
        """Strides that are packed in some order, with gaps, or, with ``repeat``, 0 along one dim."""
        kind = self.pick(("packed", "packed", "last", "permuted", "gaps", *(("repeat",) if repeat else ())))
        if kind == "packed":
            return None
        if kind == "last":
            return strides_in_order(dims, [0, *range(2, len(dims)), 1][: len(dims)])
        order = self.order(len(dims))
        if kind == "gaps":
            stored, step = [dim + self.number(0, 2) for dim in dims], self.number(1, 2)
            return tuple(step * stride for stride in strides_in_order(stored, order))
        axis = self.number(0, len(dims) - 1) if kind == "repeat" else -1
        stored = [1 if i == axis else dim for i, dim in enumerate(dims)]
        return tuple(0 if i == axis else s for i, s in enumerate(strides_in_order(stored, order)))

    def operand(self, value: _Value) -> _Value:
        """A second operand that broadcasts with ``value``: an earlier value, an input or a number."""
        same = [other for other in self.values if other.dims == value.dims]
        kind = self.number(0, 3)
        if kind == 0:
            return self.pick(same[::-1])
        if kind == 1:
            dtype = D.FLOAT if self.real else D.INT32
            return _Value(self.graph.scalar(self.number(-3, 3), data_type=dtype), (1,), 3.0)
        dims = tuple(1 if self.one_in(3) else dim for dim in value.dims)
        return self.input("operand", dims[self.number(0, len(dims) - 1) if kind == 3 else 0 :])


_Results = list[_Value] | None
"""New values, or None if the operation does not suit the value; nothing is added to the graph then."""


def _unary(d: _Draft, x: _Value) -> _Results:
    mode = d.pick((*_ANY_UNARY, *_REAL_UNARY) if d.real else _ANY_UNARY)
    bounded = mode in (M.TANH_FWD, M.SIGMOID_FWD, M.ERF, M.SIN)
    return [_Value(d.graph.pointwise(mode, x.tensor), x.dims, 1.0 if bounded else x.bound + 1)]


def _binary(d: _Draft, x: _Value) -> _Results:
    mode = d.pick((*_ANY_BINARY, *_REAL_BINARY) if d.real else _ANY_BINARY)
    y = d.operand(x)
    a, b = (y, x) if d.one_in(3) else (x, y)
    bound = _BINARY_BOUNDS.get(mode, lambda a, b: (a + 1) * (b + 1) if mode in _REAL_BINARY else a + b)(
        a.bound, b.bound
    )
    if not d.fits(bound):
        mode, bound = M.MAX, max(a.bound, b.bound)
    return [_Value(d.graph.pointwise(mode, a.tensor, b.tensor), x.dims, bound)]


def _select(d: _Draft, x: _Value) -> _Results:
    y, predicate = d.operand(x), d.input("predicate", x.dims, D.BOOLEAN)
    result = d.graph.pointwise(M.BINARY_SELECT, x.tensor, y.tensor, predicate.tensor)
    return [_Value(result, x.dims, max(x.bound, y.bound))]


def _window(d: _Draft, sizes: Dims, *, dilated: bool) -> tuple[Dims, _Attributes] | None:
    """A filter that fits ``sizes``, and its attributes."""
    rank = len(sizes)
    window = d.dims(rank, 3)
    pads: _Attributes = {
        key: tuple(d.number(0, size - 1) for size in window) for key in ("pre_padding", "post_padding")
    }
    more = {"stride": d.dims(rank, 3)} | ({"dilation": d.dims(rank, 2)} if dilated else {})
    outs = _sizes(sizes, window, pads | more)
    return (window, pads | more) if min(outs) >= 1 else None


def _sizes(sizes: Dims, window: Dims, a: _Attributes) -> Dims:
    dilation = a.get("dilation", (1,) * len(sizes))
    return tuple(
        (size + before + after - step * (span - 1) - 1) // stride + 1
        for size, before, after, step, span, stride in zip(
            sizes, a["pre_padding"], a["post_padding"], dilation, window, a["stride"], strict=True
        )
    )


def _conv(d: _Draft, x: _Value) -> _Results:
    if (found := _window(d, x.dims[2:], dilated=True)) is None:
        return None
    window, attributes = found
    groups = d.pick([g for g in range(1, x.dims[1] + 1) if x.dims[1] % g == 0])
    w_dims = (groups * d.number(1, 4), x.dims[1] // groups, *window)
    bound = x.bound * _INPUT_BOUND * math.prod(w_dims[1:])
    if not d.fits(bound):
        return None
    mode = ConvolutionMode.CONVOLUTION if d.one_in(6) else ConvolutionMode.CROSS_CORRELATION
    w = d.input("w", w_dims)
    y = d.graph.conv_fprop(x.tensor, w.tensor, convolution_mode=mode, **attributes)
    return [_Value(y, (x.dims[0], w_dims[0], *_sizes(x.dims[2:], window, attributes)), bound)]


def _dgrad(d: _Draft, dy: _Value) -> _Results:
    """The value is dy; the image is the smallest one or a remainder larger."""
    rank, k = len(dy.dims) - 2, dy.dims[1]
    window, stride = d.dims(rank, 3), d.dims(rank, 3)
    groups = d.pick([g for g in range(1, k + 1) if k % g == 0])
    image = tuple(
        s * (out - 1) + span + d.number(0, s - 1) for s, out, span in zip(stride, dy.dims[2:], window, strict=True)
    )
    w_dims = (k, d.number(1, 4), *window)
    bound = dy.bound * _INPUT_BOUND * math.prod((k // groups, *window))
    if not d.fits(bound):
        return None
    dx = d.graph.conv_dgrad(dy.tensor, d.input("w", w_dims).tensor, stride=stride)
    dims = (dy.dims[0], w_dims[1] * groups, *image)
    return [_Value(dx.set_dim(dims), dims, bound)]


def _wgrad(d: _Draft, x: _Value) -> _Results:
    """The value is x; dy is a new input."""
    if (found := _window(d, x.dims[2:], dilated=True)) is None:
        return None
    window, attributes = found
    groups = d.pick([g for g in range(1, x.dims[1] + 1) if x.dims[1] % g == 0])
    dw_dims = (groups * d.number(1, 3), x.dims[1] // groups, *window)
    dy_dims = (x.dims[0], dw_dims[0], *_sizes(x.dims[2:], window, attributes))
    bound = x.bound * _INPUT_BOUND * math.prod((dy_dims[0], *dy_dims[2:]))
    if not d.fits(bound):
        return None
    dw = d.graph.conv_wgrad(d.input("dy", dy_dims).tensor, x.tensor, **attributes)
    return [_Value(dw.set_dim(dw_dims), dw_dims, bound)]


def _matmul(d: _Draft, x: _Value) -> _Results:
    """The value is one operand; batch dims of the other are equal, 1, or a multiple."""
    left = d.number(0, 1) == 0
    terms = x.dims[-1 if left else -2]
    bound = x.bound * _INPUT_BOUND * terms
    if not d.fits(bound):
        return None
    batch = tuple(d.pick((dim, 1, 2 * dim)) for dim in x.dims[:-2])
    free = d.number(1, 9)
    y = d.input("b" if left else "a", (*batch, *((terms, free) if left else (free, terms))))
    a, b = (x, y) if left else (y, x)
    dims = (*(max(pair) for pair in zip(batch, x.dims[:-2], strict=True)), a.dims[-2], b.dims[-1])
    return [_Value(d.graph.matmul(a.tensor, b.tensor), dims, bound)]


def _reduction(d: _Draft, x: _Value) -> _Results:
    mode = d.pick((*_ANY_REDUCTION, *_REAL_REDUCTION) if d.real else _ANY_REDUCTION)
    last = d.number(0, len(x.dims) - 1)
    dims = tuple(1 if axis == last or d.one_in(2) else dim for axis, dim in enumerate(x.dims))
    terms = math.prod(x.dims) // math.prod(dims)
    bound = x.bound * (terms if mode in (R.ADD, R.NORM1, R.NORM2) else 1)
    if mode is R.MUL:
        bound = max(1.0, x.bound) ** terms if terms < 50 else math.inf
    if not d.fits(bound):
        return None
    return [_Value(d.graph.reduction(x.tensor, mode=mode).set_dim(dims), dims, bound)]


def _trailing_norm(d: _Draft, x: _Value) -> _Results:
    count = d.number(1, len(x.dims) - 1)
    affine = (1,) * (len(x.dims) - count) + x.dims[len(x.dims) - count :]
    phase = d.pick((NormFwdPhase.INFERENCE, NormFwdPhase.TRAINING))
    scale, bias = d.input("scale", affine), d.input("bias", affine)
    if d.one_in(2):
        made = d.graph.rmsnorm(x.tensor, scale.tensor, epsilon=_EPSILON, forward_phase=phase,
                               bias=bias.tensor)  # fmt: skip
    else:
        made = d.graph.layernorm(x.tensor, scale.tensor, bias.tensor, epsilon=_EPSILON, forward_phase=phase,
                                 normalized_dim_count=count)  # fmt: skip
    stats = tuple(1 if axis >= len(x.dims) - count else dim for axis, dim in enumerate(x.dims))
    return _normed(x, made[0], [*made[1:]], stats)


def _batchnorm(d: _Draft, x: _Value) -> _Results:
    channel = (1, x.dims[1], *(1 for _ in x.dims[2:]))
    kind = d.number(0, 2)
    if kind < 2 and not d.fits(2 * x.bound * _INPUT_BOUND**2 / math.sqrt(_EPSILON)):
        return None
    names = {0: ("mean", "inverse", "scale", "bias"), 1: ("mean", "variance", "scale", "bias"), 2: ("scale", "bias")}
    operands = [d.input(name, channel).tensor for name in names[kind]]
    if kind == 2:
        made = d.graph.batchnorm(x.tensor, *operands, epsilon=_EPSILON)
        return _normed(x, made[0], [*made[1:]], channel)
    if kind == 1:
        y = d.graph.batchnorm_inference_variance_ext(x.tensor, *operands, epsilon=_EPSILON)
    else:
        y = d.graph.batchnorm_inference(x.tensor, *operands)
    return [_Value(y, x.dims, 2 * x.bound * _INPUT_BOUND**2 / (math.sqrt(_EPSILON) if kind == 1 else 1.0))]


def _normed(x: _Value, y: TensorAttr, stats: Sequence[TensorAttr | None], dims: Dims) -> list[_Value]:
    bound = _INPUT_BOUND * (1 + math.sqrt(math.prod(x.dims)))
    largest = max(x.bound, 1 / math.sqrt(_EPSILON))
    return [_Value(y, x.dims, bound), *(_Value(s, dims, largest) for s in stats if s is not None)]


def _pool(d: _Draft, x: _Value) -> _Results:
    if (found := _window(d, x.dims[2:], dilated=False)) is None:
        return None
    window, attributes = found
    mode = d.pick(tuple(ResampleMode) if d.real else (ResampleMode.MAXPOOL,))
    index = mode is ResampleMode.MAXPOOL and d.one_in(3)
    padding = d.pick((PaddingMode.NEG_INF_PAD, PaddingMode.ZERO_PAD))
    y, where = d.graph.resample_fwd(x.tensor, mode=mode, window=window, padding_mode=padding, generate_index=index,
                                    **attributes)  # fmt: skip
    dims = (*x.dims[:2], *_sizes(x.dims[2:], window, attributes))
    return [_Value(y, dims, x.bound), *([_Value(where, dims, 1e3)] if where is not None else [])]


@dataclass(frozen=True)
class _Operation:
    """How to add an operation, and to values of which ranks; ``real``: not to integers."""

    add: Callable[[_Draft, _Value], _Results]
    low: int = 1
    high: int = 5
    real: bool = False


_OPERATIONS = (
    _Operation(_unary),
    _Operation(_binary),
    _Operation(_conv, 3),
    _Operation(_matmul, 2, 4),
    _Operation(_reduction),
    _Operation(_pool, 3),
    _Operation(_trailing_norm, 2, real=True),
    _Operation(_batchnorm, 2, real=True),
    _Operation(_dgrad, 3),
    _Operation(_wgrad, 3),
    _Operation(_select),
)
_RANKS = (4, 4, 3, 3, 2, 2, 5, 1)


def chain(draw: Draw, max_nodes: int = MAX_NODES) -> Graph:
    """A graph of 1 to ``max_nodes`` nodes, each of which uses a result of an earlier one, or an input."""
    d = _Draft(draw)
    rank = d.pick(_RANKS)
    dims = (*d.dims(min(rank, 2)), *d.dims(max(rank - 2, 0), 6 if rank == 5 else 9))
    d.values.append(d.input("x", dims))
    for count in range(max_nodes):
        if count and d.number(0, 3) == 0:  # asked before each node, so that shrinking can take single nodes out
            break
        x = d.pick(d.values[:-3:-1])
        suiting = [op for op in _OPERATIONS if op.low <= len(x.dims) <= op.high and d.real >= op.real]
        tries = (d.pick(suiting).add(d, x) for _ in range(3))
        d.values.extend(next((made for made in tries if made), None) or _unary(d, x) or [])
    _mark_outputs(d)
    return d.graph


def _mark_outputs(d: _Draft) -> None:
    """Makes outputs of the results that nothing reads, and of some others: any layout, mostly the graph's type."""
    read = {tensor for node in d.graph.nodes for tensor in node.inputs.values()}
    for value in d.values[1:]:
        tensor = value.tensor
        if tensor in read and not d.one_in(4):
            continue
        tensor.set_output(True)
        if (strides := d.strides(value.dims, repeat=False)) is not None:
            tensor.set_stride(strides)
        if tensor.name or tensor.has_data_type:
            continue  # an index has a type of its own
        wide = value.bound > _LIMITS[D.HALF]
        if d.real and (wide or d.one_in(5)):
            choices = (D.FLOAT, D.DOUBLE, *(() if wide else (D.HALF, D.BFLOAT16)))
            tensor.set_data_type(d.pick((*choices, *((D.INT32, D.INT8) if value.bound < 100 else ()))))
