"""Convolutions: forward, transposed (the data gradient), and the gradients of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hipdnn_backend.offload.to_wire.builder import Builder, fields_of
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import Result, Role, rule
from hipdnn_backend.offload.to_wire.types import FLOATS, compute_type
from hipdnn_backend.offload.to_wire.values import Padded, Value
from hipdnn_backend.offload.to_wire.views import Dims
from hipdnn_backend.wire import (
    ConvMode,
    ConvolutionBwdAttributes,
    ConvolutionFwdAttributes,
    ConvolutionWrwAttributes,
    PointwiseMode,
    ReductionMode,
)

__all__: list[str] = []


class _Window(NamedTuple):
    """What the tables of all directions share, one entry per spatial dim."""

    pre_padding: Dims
    post_padding: Dims
    stride: Dims
    dilation: Dims

    def fields(self) -> dict[str, Any]:
        """Fields of a convolution's table."""
        return {**self._asdict(), "conv_mode": ConvMode.CROSS_CORRELATION}


def unpadded(op: Op, x: Value, rank: int, constant: float, what: str) -> tuple[Value, Dims, Dims]:
    """A tensor without its frame, and the frame per spatial dim."""
    none = (0,) * rank
    if not isinstance(x, Padded):
        return x, none, none
    if x.value != constant or any((*x.before[:-rank], *x.after[:-rank])):
        raise op.refuse(f"{what} is padded with {x.value} by {x.before} and {x.after}; it needs {constant} in space")
    return x.inner, x.before[-rank:], x.after[-rank:]


def _sums(first: Sequence[int], second: Sequence[int]) -> Dims:
    return tuple(map(sum, zip(first, second, strict=True)))


def _forward(b: Builder, op: Op, x: Value, w: Value, window: _Window, dims: Dims, groups: int) -> Value:
    x, before, after = unpadded(op, x, len(window.stride), 0.0, "x")
    window = window._replace(
        pre_padding=_sums(window.pre_padding, before), post_padding=_sums(window.post_padding, after)
    )
    if groups * w.dims[1] != x.dims[1]:
        raise op.refuse(f"{groups} groups do not fit x {x.dims} and w {w.dims}")
    dtype = op.result().dtype
    tensors = {"x": b.plain(op, x, "x"), "w": b.plain(op, w, "w"), "y": b.tensor(op, dims, dtype)}
    table = ConvolutionFwdAttributes(**fields_of(tensors), **window.fields())
    b.node(op, table, compute_type(x.dtype, w.dtype, dtype))
    return b.made(tensors["y"])


def _transposed(b: Builder, op: Op, x: Value, w: Value, window: _Window, dims: Dims, extra: Dims) -> Value:
    """The result is the dx of a convolution whose dy is x; rows that no dy reaches are 0."""
    post = tuple(
        pad if more < step else pad - more
        for pad, more, step in zip(window.post_padding, extra, window.stride, strict=True)
    )
    if min(post) < 0:
        raise op.refuse(f"output_padding {extra} exceeds stride {window.stride} and padding {window.post_padding}")
    dtype = op.result().dtype
    tensors = {"dy": b.plain(op, x, "x"), "w": b.plain(op, w, "w"), "dx": b.tensor(op, dims, dtype)}
    table = ConvolutionBwdAttributes(**fields_of(tensors), **window._replace(post_padding=post).fields())
    b.node(op, table, compute_type(x.dtype, w.dtype, dtype))
    return b.made(tensors["dx"])


def _plus_bias(b: Builder, op: Op, y: Value, index: int) -> Value:
    if op.is_none(index):
        return y
    bias = b.value(op, index)
    bias = b.reshaped(op, bias, (1, *bias.dims, *(1 for _ in y.dims[2:])), "the bias")
    return b.pointwise(op, PointwiseMode.ADD, [y, bias], y.dtype, suffix="::bias")


def _check_float(op: Op, x: Value) -> None:
    if x.dtype not in FLOATS:
        raise op.refuse(f"a convolution of {x.dtype.name} is left to the compiler")


@rule("aten.convolution", "aten._convolution", role=Role.ANCHOR)
def convolution(b: Builder, op: Op) -> Value:
    """x, w, bias, stride, padding, dilation, transposed, output_padding, groups."""
    x, w, dims = b.value(op, 0), b.value(op, 1), op.result().dims
    rank = len(w.dims) - 2
    _check_float(op, x)
    padding = op.per_axis(4, rank)
    window = _Window(padding, padding, op.per_axis(3, rank), op.per_axis(5, rank))
    if op.flag(6):
        y = _transposed(b, op, x, w, window, dims, op.per_axis(7, rank, 0))
    else:
        y = _forward(b, op, x, w, window, dims, op.int(8))
    return _plus_bias(b, op, y, 2)


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d", role=Role.ANCHOR)
def conv(b: Builder, op: Op) -> Value:
    """x, w, bias, stride, padding, dilation, groups."""
    return _conv(b, op, padding=op.per_axis(4, len(op_weight(b, op).dims) - 2))


@rule("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding", role=Role.ANCHOR)
def conv_padding(b: Builder, op: Op) -> Value:
    """The same with padding "valid" or "same": as much as keeps the size, the odd one at the end."""
    w = op_weight(b, op)
    rank = len(w.dims) - 2
    kind = op.text(4)
    if kind == "valid":
        return _conv(b, op, padding=(0,) * rank)
    if kind != "same":
        raise op.refuse(f"padding {kind!r} is neither 'same' nor 'valid'")
    total = [step * (size - 1) for step, size in zip(op.per_axis(5, rank), w.dims[2:], strict=True)]
    return _conv(b, op, padding=tuple(t // 2 for t in total), after=tuple(t - t // 2 for t in total))


def op_weight(b: Builder, op: Op) -> Value:
    """The filter operand."""
    return b.value(op, 1)


def _conv(b: Builder, op: Op, *, padding: Dims, after: Dims | None = None) -> Value:
    x, w = b.value(op, 0), b.value(op, 1)
    rank, dims = len(w.dims) - 2, op.result().dims
    _check_float(op, x)
    window = _Window(padding, after or padding, op.per_axis(3, rank), op.per_axis(5, rank))
    if len(x.dims) == rank + 1:  # no batch
        x, dims = b.reshaped(op, x, (1, *x.dims), "x"), (1, *dims)
    made = _plus_bias(b, op, _forward(b, op, x, w, window, dims, op.int(6)), 2)
    return b.reshaped(op, made, op.result().dims)


@rule("aten.conv_transpose1d", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input", role=Role.ANCHOR)
def conv_transpose(b: Builder, op: Op) -> Value:
    """x, w, bias, stride, padding, output_padding, groups, dilation."""
    x, w, dims = b.value(op, 0), b.value(op, 1), op.result().dims
    rank = len(w.dims) - 2
    _check_float(op, x)
    padding = op.per_axis(4, rank)
    window = _Window(padding, padding, op.per_axis(3, rank), op.per_axis(7, rank))
    if len(x.dims) == rank + 1:
        x, dims = b.reshaped(op, x, (1, *x.dims), "x"), (1, *dims)
    made = _plus_bias(b, op, _transposed(b, op, x, w, window, dims, op.per_axis(5, rank, 0)), 2)
    return b.reshaped(op, made, op.result().dims)


@rule("aten.convolution_backward", role=Role.ANCHOR)
def convolution_backward(b: Builder, op: Op) -> Result:
    """dx, dw and db of dy, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask."""
    dy, x, w = (b.value(op, index) for index in range(3))
    rank = len(w.dims) - 2
    if op.flag(7):
        raise op.refuse("gradients of a transposed convolution are left to the compiler")
    padding = op.per_axis(5, rank)
    window = _Window(padding, padding, op.per_axis(4, rank), op.per_axis(6, rank))
    wanted = op.constant(10)
    makers = (_data_gradient, _weight_gradient, _bias_gradient)
    return [maker(b, op, dy, x, w, window) if want else None for maker, want in zip(makers, wanted, strict=True)]


def _data_gradient(b: Builder, op: Op, dy: Value, x: Value, w: Value, window: _Window) -> Value:
    tensors = {"dy": b.plain(op, dy, "dy"), "w": b.plain(op, w, "w"), "dx": b.tensor(op, x.dims, x.dtype, "::dx")}
    table = ConvolutionBwdAttributes(**fields_of(tensors), **window.fields())
    b.node(op, table, compute_type(dy.dtype, w.dtype), "::dx")
    return b.made(tensors["dx"])


def _weight_gradient(b: Builder, op: Op, dy: Value, x: Value, w: Value, window: _Window) -> Value:
    tensors = {"x": b.plain(op, x, "x"), "dy": b.plain(op, dy, "dy"), "dw": b.tensor(op, w.dims, w.dtype, "::dw")}
    table = ConvolutionWrwAttributes(**fields_of(tensors), **window.fields())
    b.node(op, table, compute_type(dy.dtype, x.dtype), "::dw")
    return b.made(tensors["dw"])


def _bias_gradient(b: Builder, op: Op, dy: Value, x: Value, w: Value, window: _Window) -> Value:
    axes = (0, *range(2, len(dy.dims)))
    made = b.reduction(op, ReductionMode.ADD, dy, axes, dy.dtype, suffix="::db")
    return b.reshaped(op, made, (dy.dims[1],))
