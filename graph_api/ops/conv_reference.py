"""The convolutions in numpy, float64: one matrix product per filter position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from fusilli_ground.late_numpy import np
from graph_api.node import Array

if TYPE_CHECKING:
    from graph_api.ops.conv import ConvAttributes

__all__ = ["Formula", "convolve", "data_gradient", "weight_gradient"]

Dims = tuple[int, ...]
Formula = Callable[["ConvAttributes", Array, Array, Dims], Array]
"""A convolution: attributes, the two operands, dims of the result."""


def convolve(attributes: ConvAttributes, x: Array, w: Array, y_dims: Dims) -> Array:
    """The forward convolution."""
    w = mirrored(attributes, w)
    n, c = x.shape[:2]
    k, per_group = w.shape[:2]
    groups, out = c // per_group, y_dims[2:]
    padded = pad(attributes, x)
    y = np.zeros((n, groups, k // groups, math.prod(out)))
    for position, window in taps(attributes, w.shape[2:], out):
        columns = padded[(slice(None), slice(None), *window)].reshape(n, groups, per_group, -1)
        y += w[(slice(None), slice(None), *position)].reshape(groups, k // groups, per_group) @ columns
    return y.reshape(y_dims)


def data_gradient(attributes: ConvAttributes, dy: Array, w: Array, dx_dims: Dims) -> Array:
    """The gradient of the forward convolution by x."""
    w = mirrored(attributes, w)
    n, k, *out = dy.shape
    per_group = w.shape[1]
    groups = dx_dims[1] // per_group
    padded = pad(attributes, np.zeros(dx_dims))
    rows = dy.reshape(n, groups, k // groups, -1)
    for position, window in taps(attributes, w.shape[2:], out):
        tap = w[(slice(None), slice(None), *position)].reshape(groups, k // groups, per_group)
        padded[(slice(None), slice(None), *window)] += (tap.swapaxes(1, 2) @ rows).reshape(n, dx_dims[1], *out)
    inside = (slice(pre, pre + size) for pre, size in zip(attributes.pre_padding, dx_dims[2:], strict=True))
    return padded[(slice(None), slice(None), *inside)]


def weight_gradient(attributes: ConvAttributes, dy: Array, x: Array, dw_dims: Dims) -> Array:
    """The gradient of the forward convolution by w."""
    n, k, *out = dy.shape
    per_group = dw_dims[1]
    groups = x.shape[1] // per_group
    padded = pad(attributes, x)
    rows = dy.reshape(n, groups, k // groups, -1)
    dw = np.zeros(dw_dims)
    for position, window in taps(attributes, dw_dims[2:], out):
        columns = padded[(slice(None), slice(None), *window)].reshape(n, groups, per_group, -1)
        dw[(slice(None), slice(None), *position)] = (rows @ columns.swapaxes(2, 3)).sum(axis=0).reshape(k, per_group)
    return mirrored(attributes, dw)


def mirrored(attributes: ConvAttributes, w: Array) -> Array:
    """The filter as a cross-correlation uses it, and back."""
    if not attributes.is_mirrored:
        return w
    return w[(..., *[slice(None, None, -1)] * len(attributes.stride))]


def taps(
    attributes: ConvAttributes, window: Sequence[int], out: Sequence[int]
) -> Iterator[tuple[Dims, tuple[slice, ...]]]:
    """Each filter position with the slices of padded x that it meets, one per spatial dim."""
    for position in product(*(range(size) for size in window)):
        starts = [f * d for f, d in zip(position, attributes.dilation, strict=True)]
        yield (
            position,
            tuple(
                slice(start, start + stride * (size - 1) + 1, stride)
                for start, stride, size in zip(starts, attributes.stride, out, strict=True)
            ),
        )


def pad(attributes: ConvAttributes, x: Array) -> Array:
    """x with its padding."""
    return np.pad(x, [(0, 0), (0, 0), *zip(attributes.pre_padding, attributes.post_padding, strict=True)])
