"""Which operators PyTorch takes apart while it traces: those that the front end does not know, and no others.

What engines take as one operation stays whole. Random operators stay whatever the front end knows: PyTorch draws.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast
from unittest import mock

import torch
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions
from torch._decomp import decompositions as torch_decompositions

from hipdnn_backend.offload.torch_compile import grouped
from hipdnn_backend.offload.torch_compile.known import is_known, is_random

__all__ = ["decompositions", "tracing"]

_ATEN: Final = torch.ops.aten
_WANTED: Final = (
    *(_ATEN.upsample_bilinear2d, _ATEN.upsample_bicubic2d, _ATEN.upsample_trilinear3d, _ATEN.upsample_linear1d),
    *(_ATEN.upsample_nearest1d_backward, _ATEN.upsample_nearest2d_backward, _ATEN.upsample_nearest3d_backward),
    *(_ATEN.grid_sampler_2d, _ATEN.im2col, _ATEN.col2im, _ATEN.native_dropout_backward),
    *(_ATEN.embedding_dense_backward, _ATEN._weight_norm_interface),
)
"""Known to torch-mlir by name, but not compiled."""
_STEPS: Final = 256
"""Steps up to which recurrences are written out where PyTorch has another way."""
_CHOICE: Final = torch_decompositions.select_one_layer_lstm_function


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Operator → what it is made of, as AOTAutograd takes it."""
    return {**_of_pytorch(), **grouped.decompositions()}


@functools.cache
def _of_pytorch() -> dict[Any, Callable[..., Any]]:
    offered = {**_core_aten_decompositions_post_autograd(), **get_decompositions(list(_WANTED))}
    wanted = {overload for packet in _WANTED for overload in (getattr(packet, name) for name in packet.overloads())}
    table = {
        target: made
        for target, made in offered.items()
        if isinstance(target, torch._ops.OpOverload)
        and not is_random(target)
        and (target in wanted or not is_known(target))
    }
    table[_ATEN._native_batch_norm_legit_functional.default] = _batch_norm
    table[_ATEN._native_batch_norm_legit.no_stats] = _batch_norm_without_running_statistics
    table[_ATEN._native_batch_norm_legit_no_training.default] = _batch_norm_without_training
    table[_ATEN._batch_norm_with_update_functional.default] = _batch_norm_with_reserve
    table[_ATEN.native_group_norm_backward.default] = _group_norm_backward
    table[_ATEN.convolution.default] = _convolution
    table[_ATEN.convolution_backward.default] = _convolution_backward
    table[_ATEN.soft_margin_loss_backward.default] = _soft_margin_loss_backward
    table[_ATEN._weight_norm_interface_backward.default] = _weight_norm_backward
    table[_ATEN.select_backward.default] = _select_backward
    table[_ATEN.slice_backward.default] = _slice_backward
    table[_ATEN.constant_pad_nd.default] = _pad
    table |= _LISTS
    return table


@contextmanager
def tracing() -> Iterator[None]:
    """While PyTorch traces a graph: recurrences are written out, a step behind the other.

    PyTorch 2.13 takes a kernel of oneDNN's for an LSTM on the CPU whose input needs no gradient, and cannot do the
    backward graph of that: neither Inductor nor its eager backends compile such a training step.
    """
    with mock.patch.object(torch_decompositions, "select_one_layer_lstm_function", _lstm_layer):
        yield


def _lstm_layer(input: Any, hx: Any, params: Any) -> Callable[..., Any]:
    needs_gradient = any(each.requires_grad for layer in params for each in layer)
    if input.shape[0] <= _STEPS or (torch.is_grad_enabled() and needs_gradient):
        return torch_decompositions.one_layer_lstm
    return _CHOICE(input, hx, params)


def _select_backward(dy: Any, sizes: Sequence[int], dim: int, index: int) -> Any:
    """Zeros around the gradient."""
    dim, index = dim % len(sizes), index % sizes[dim]
    return _framed(dy.unsqueeze(dim), dim, index, sizes[dim] - index - 1)


def _slice_backward(dy: Any, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Any:
    """Zeros around the gradient, and between its places where some were left out."""
    dim, places = dim % len(sizes), dy.shape[dim % len(sizes)]
    first, _, _ = slice(start, end).indices(sizes[dim])
    if step != 1 and places:
        spread = _framed(dy.unsqueeze(dim + 1), dim + 1, 0, step - 1)
        spread = spread.reshape(*dy.shape[:dim], places * step, *dy.shape[dim + 1 :])
        dy = _ATEN.slice.Tensor(spread, dim, 0, (places - 1) * step + 1)
    return _framed(dy, dim, first, sizes[dim] - first - dy.shape[dim])


def _soft_margin_loss_backward(dy: Any, x: Any, target: Any, reduction: int) -> Any:
    """PyTorch's own takes 1 from a sigmoid that may be almost 1."""
    gradient = -target * dy * torch.sigmoid(-target * x)
    return gradient / x.numel() if reduction == 1 else gradient  # 1 is the mean


def _weight_norm_backward(dw: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    """Gradients of w = g * v / norms to v and g: the norms are of all dims of v but ``dim``."""
    others = [axis for axis in range(v.dim()) if axis != dim % v.dim()]
    normal = v / norms
    dg = (dw * normal).sum(others, keepdim=True)
    return (dw - normal * dg) * (g / norms), dg


def _pad(x: Any, pads: Sequence[int], value: float = 0) -> Any:
    """What is padded by less than nothing, as the gradient of a padding is, is cut off first."""
    if min(pads, default=0) >= 0:
        return NotImplemented
    for pair in range(len(pads) // 2):
        dim, before, after = x.dim() - 1 - pair, *(max(-pad, 0) for pad in pads[2 * pair : 2 * pair + 2])
        x = _ATEN.slice.Tensor(x, dim, before, x.shape[dim] - after)
    return _ATEN.constant_pad_nd.default(x, [max(pad, 0) for pad in pads], value) if max(pads) > 0 else x.clone()


def _framed(x: Any, dim: int, before: int, after: int) -> Any:
    pads = [0, 0] * (x.dim() - dim - 1) + [before, after]
    return _ATEN.constant_pad_nd.default(x, pads, 0.0)


def _group_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    inverse: Any,
    weight: Any,
    n: int,
    channels: int,
    places: int,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """Gradients of a group norm: dx is that of a norm over rows, which is one operation."""
    rows, width = n * groups, channels // groups * places
    dx = dweight = dbias = None
    flat = dy.reshape(n, channels, places)
    centre = (mean.reshape(rows, 1), inverse.reshape(rows, 1))
    if mask[0]:
        scaled = flat if weight is None else flat * weight.reshape(1, channels, 1)
        of_rows = (scaled.reshape(rows, width), x.reshape(rows, width))
        made = _ATEN.native_layer_norm_backward.default(*of_rows, [width], *centre, None, None, [True, False, False])
        dx = made[0].reshape(x.shape)
    if mask[1]:
        normal = ((x.reshape(rows, width) - centre[0]) * centre[1]).reshape(n, channels, places)
        dweight = (flat * normal).sum((0, 2))
    if mask[2]:
        dbias = flat.sum((0, 2))
    return dx, dweight, dbias


def _convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """A transposed convolution whose windows lie side by side is one product, whose rows are put beside each other.

    On a CPU, where that takes a fourth of the time; engines for GPUs have transposed convolutions.
    """
    window = list(weight.shape[2:])
    side_by_side = window == list(stride) and not any((*padding, *output_padding)) and groups == 1 and x.dim() > 3
    if not transposed or not side_by_side or x.device.type != "cpu" or x.numel() * weight.numel() == 0:
        return NotImplemented
    rank, channels = len(window), weight.shape[1]
    rows = weight.reshape(weight.shape[0], -1).t().expand(x.shape[0], -1, -1)
    made = _ATEN.bmm.default(rows, x.reshape(*x.shape[:2], -1)).reshape(x.shape[0], channels, *window, *x.shape[2:])
    places = (place for axis in range(rank) for place in (2 + rank + axis, 2 + axis))
    y = made.permute(0, 1, *places).reshape(
        x.shape[0], channels, *(a * b for a, b in zip(x.shape[2:], window, strict=True))
    )
    return y if bias is None else y + bias.reshape(1, -1, *[1] * rank)


def _convolution_backward(
    dy: Any,
    x: Any,
    weight: Any,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> Any:
    """Gradients of a transposed convolution, which are a convolution and the gradient of one to its filter."""
    if not transposed:
        return NotImplemented
    dx = dweight = dbias = None
    form = (stride, padding, dilation, False, [0] * len(stride), groups)
    if mask[0]:
        dx = _ATEN.convolution.default(dy, weight, None, *form)
    if mask[1]:
        dweight = _ATEN.convolution_backward.default(x, dy, weight, None, *form, [False, True, False])[1]
    if mask[2]:
        dbias = dy.sum((0, *range(2, dy.dim())))
    return dx, dweight, dbias


def _pieces(x: Any, sizes: Sequence[int], dim: int = 0) -> list[Any]:
    ends = list(itertools.accumulate(sizes))
    return [_ATEN.slice.Tensor(x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _split(x: Any, size: int, dim: int = 0) -> list[Any]:
    extent = x.shape[dim]
    return _pieces(x, [min(size, extent - start) for start in range(0, extent, size)] or [0], dim)


def _unbind(x: Any, dim: int = 0) -> list[Any]:
    return [_ATEN.select.int(x, dim, index) for index in range(x.shape[dim])]


_LISTS: Final[dict[Any, Callable[..., Any]]] = {
    **dict.fromkeys((_ATEN.split.Tensor, _ATEN.unsafe_split.Tensor), _split),
    **dict.fromkeys((_ATEN.split_with_sizes.default, _ATEN.unsafe_split_with_sizes.default), _pieces),
    _ATEN.unbind.int: _unbind,
}
"""What gives a list of tensors is a look at each: fusions see through these, and not through lists."""


def _batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """The norm, which is one operation, and the running statistics of the batch's."""
    if not training:
        made = _ATEN.native_batch_norm.default(x, weight, bias, running_mean, running_var, False, momentum, eps)
        return (*made, running_mean, running_var)
    y, mean, inverse = _ATEN.native_batch_norm.default(x, weight, bias, None, None, True, momentum, eps)
    # Of what the norm gives, so that nothing reads x again. Where the variance is far below eps it is off by a
    # rounding of eps, which is what the norm itself adds to it.
    count = x.numel() // x.shape[1]
    variance = torch.clamp_min(1.0 / (inverse * inverse) - eps, 0.0) * (count / max(count - 1, 1))
    mean_after = momentum * mean + (1.0 - momentum) * running_mean
    variance_after = momentum * variance + (1.0 - momentum) * running_var
    return y, mean, inverse, mean_after.to(running_mean.dtype), variance_after.to(running_var.dtype)


def _batch_norm_without_training(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    """The norm under the name that the front end knows."""
    form = (running_mean, running_var, False, momentum, eps)
    return cast("tuple[Any, ...]", _ATEN.native_batch_norm.default(x, weight, bias, *form))


def _batch_norm_without_running_statistics(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """Likewise."""
    form = (None, None, training, momentum, eps)
    return cast("tuple[Any, ...]", _ATEN.native_batch_norm.default(x, weight, bias, *form))


def _batch_norm_with_reserve(
    x: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    y, mean, inverse, mean_after, variance_after = _batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return y, mean, inverse, torch.empty(0, dtype=torch.uint8, device=x.device), mean_after, variance_after
