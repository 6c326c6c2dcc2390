"""Dims and strides: packed strides, named layouts, stride order, and the physical form of a tensor.

All strides are in elements. The contract is hipDNN's: dims are logical (N, C, spatial...), strides alone decide
where an element lies.
"""

# Users may pass anything.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from fusilli_ground.spelling import did_you_mean
from graph_api.errors import GraphError

__all__ = [
    "PhysicalLayout",
    "broadcast_dims",
    "extent",
    "layout_strides",
    "nested_extents",
    "packed_strides",
    "physical",
    "stride_order",
    "strides_in_order",
]

Dims = tuple[int, ...]

_LAYOUTS: dict[str, str] = {
    "NCW": "NCW", "NWC": "NWC",
    "NCHW": "NCHW", "NHWC": "NHWC",
    "NCDHW": "NCDHW", "NDHWC": "NDHWC",
}  # fmt: skip


def packed_strides(dims: Sequence[int]) -> Dims:
    """Row-major strides of ``dims``: the last dim is contiguous."""
    return strides_in_order(dims, range(len(dims)))


def strides_in_order(dims: Sequence[int], order: Sequence[int]) -> Dims:
    """Packed strides whose slowest dim is ``order[0]`` and whose fastest is ``order[-1]``."""
    strides = [1] * len(dims)
    running = 1
    for axis in reversed(order):
        strides[axis] = running
        running *= max(dims[axis], 1)
    return tuple(strides)


def layout_strides(layout: str, dims: Sequence[int]) -> Dims:
    """Strides of ``dims`` (logical order N, C, spatial...) for a named layout such as ``"NHWC"``.

    Raises:
        GraphError: the name is unknown or has another rank than ``dims``.
    """
    name = layout.upper() if isinstance(layout, str) else ""
    if name not in _LAYOUTS:
        near = did_you_mean(layout, _LAYOUTS)
        raise GraphError(f"layout {layout!r} is unknown{near}; known are {', '.join(_LAYOUTS)}; or give stride=")
    if len(name) != len(dims):
        raise GraphError(f"layout {name} has {len(name)} dims, dim={tuple(dims)} has {len(dims)}")
    logical = "NC" + "".join(letter for letter in name if letter not in "NC")
    return strides_in_order(dims, [logical.index(letter) for letter in name])


def stride_order(dims: Sequence[int], strides: Sequence[int]) -> Dims:
    """Axes from slowest to fastest. Size-1 dims say nothing: they keep their place beside the axis before them."""
    order: list[int] = [axis for axis in range(len(dims)) if dims[axis] != 1 and strides[axis] != 0]
    order.sort(key=lambda axis: -strides[axis])
    for axis in range(len(dims)):
        if axis not in order:
            order.insert(order.index(axis - 1) + 1 if axis else 0, axis)
    return tuple(order)


def extent(dims: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to one past the last element; 0 for an empty tensor."""
    if 0 in dims:
        return 0
    return 1 + sum((dim - 1) * stride for dim, stride in zip(dims, strides, strict=True))


def broadcast_dims(shapes: Sequence[Sequence[int]]) -> Dims | None:
    """Right-aligned common shape of ``shapes``, or None if they do not broadcast."""
    rank = max(len(shape) for shape in shapes)
    out = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, start=rank - len(shape)):
            if dim != 1 and out[axis] not in (1, dim):
                return None
            out[axis] = dim if out[axis] == 1 else out[axis]
    return tuple(out)


class PhysicalLayout(NamedTuple):
    """How a tensor lies in memory, as the compiled function sees it.

    Attributes:
        shape: row-major dims of the function argument. Dense tensors: the logical dims in ``order``, stride-0 dims
            being 1. Padded tensors: ``(extent,)``, a flat view.
        order: logical axes from slowest to fastest.
        extent: elements behind the pointer, from the first to one past the last.
        dense: False if there are gaps between the elements (``shape`` is flat then).
    """

    shape: Dims
    order: Dims
    extent: int
    dense: bool


def physical(dims: Sequence[int], strides: Sequence[int]) -> PhysicalLayout:
    """The physical form of a tensor of logical ``dims`` and element ``strides``."""
    order = stride_order(dims, strides)
    stored = [1 if strides[axis] == 0 else dims[axis] for axis in range(len(dims))]
    length = extent(dims, strides)
    shape = tuple(stored[axis] for axis in order)
    packed = strides_in_order(stored, order)
    dense = length == prod(shape) and all(
        stored[axis] == 1 or strides[axis] == packed[axis] for axis in range(len(dims))
    )
    return PhysicalLayout(shape if dense else (length,), order, length, dense)


def nested_extents(dims: Sequence[int], strides: Sequence[int]) -> Dims | None:
    """The padded row-major dims that hold a tensor with gaps, or None if its strides do not nest.

    Of the dims larger than 1, slowest first with strides s0 >= s1 >= ..., the tensor is the leading corner of a packed
    tensor of dims ``(d0, s0/s1, s1/s2, ..., s_last)``; its last dim holds the gaps between neighbours.
    """
    axes = [axis for axis in stride_order(dims, strides) if dims[axis] > 1 and strides[axis] > 0]
    steps = [strides[axis] for axis in axes]
    if any(slow % fast for slow, fast in itertools.pairwise(steps)):
        return None
    return (dims[axes[0]], *(slow // fast for slow, fast in itertools.pairwise(steps)), steps[-1]) if axes else (1,)
