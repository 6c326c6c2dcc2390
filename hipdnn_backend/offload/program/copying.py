"""Copies between strided views, as calls that are bound once."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import ml_dtypes  # noqa: F401 - numpy knows its types by name from here on
import numpy as np

from hipdnn_backend.device.memory import Memory
from hipdnn_backend.offload.program.program import View

__all__ = ["Block", "bind_copy", "blocks", "host_array"]


@dataclass(frozen=True, slots=True)
class Block:
    """A copy of rows of bytes.

    Attributes:
        target: bytes from the target's first element to the first row.
        source: bytes from the source's first element to the first row.
        width: bytes of a row.
        rows: how many.
        target_pitch: bytes from row to row, not below ``width`` if there are two.
        source_pitch: the same of the source.
    """

    target: int
    source: int
    width: int
    rows: int = 1
    target_pitch: int = 0
    source_pitch: int = 0


def bind_copy(
    memory: Memory, stream: int, target: int, target_view: View, source: int, source_view: View
) -> Callable[[], None]:
    """What enqueues a copy between two views of the same dims and type.

    Args:
        memory: where both are.
        stream: where it is enqueued.
        target: address of the first element that is written.
        target_view: dims and strides there.
        source: address of the first element that is read.
        source_view: dims and strides there.

    Returns:
        A call without arguments. It raises DeviceError if the copy cannot be enqueued.
    """
    if memory.is_host:
        return partial(np.copyto, host_array(target, target_view), host_array(source, source_view))
    calls = [
        partial(
            memory.copy_rows, target + block.target, block.target_pitch or block.width,
            source + block.source, block.source_pitch or block.width, block.width, block.rows, stream,
        )
        for block in blocks(target_view, source_view)
    ]  # fmt: skip
    return calls[0] if len(calls) == 1 else partial(_all, calls)


def _all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def blocks(target: View, source: View) -> list[Block]:
    """The two-dimensional copies that make up a copy between two views of the same dims and type; as few as possible.

    Offsets are counted from the first elements of the views.
    """
    if not target.count:
        return []
    dims = _merged(target.dims, target.strides, source.strides)
    item = target.itemsize
    width = item
    if dims and dims[-1][1:] == (1, 1):
        width = dims.pop()[0] * item
    rows = [
        index for index, (_, to, of) in enumerate(dims) if min(to, of) * item >= width
    ]  # a row must not reach into the next
    if not rows:
        return [Block(to * item, of * item, width) for to, of in _starts(dims)]
    count, to_pitch, of_pitch = dims.pop(max(rows, key=lambda index: dims[index][0]))
    return [
        Block(to * item, of * item, width, count, to_pitch * item, of_pitch * item) for to, of in _starts(dims)
    ]  # fmt: skip


def _merged(dims: Sequence[int], one: Sequence[int], other: Sequence[int]) -> list[tuple[int, int, int]]:
    """Extent and strides of each dim, without those of extent 1, neighbours merged where both views allow it."""
    merged: list[tuple[int, int, int]] = []
    for dim, a, b in zip(dims, one, other, strict=True):
        if dim == 1:
            continue
        if merged and merged[-1][1:] == (a * dim, b * dim):
            merged[-1] = (merged[-1][0] * dim, a, b)
        else:
            merged.append((dim, a, b))
    return merged


def _starts(dims: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Where the rest begins for each position in ``dims``, in elements of the target and of the source."""
    steps = [[(n * to, n * of) for n in range(dim)] for dim, to, of in dims]
    return [(sum(to for to, _ in each), sum(of for _, of in each)) for each in itertools.product(*steps)]


def host_array(address: int, view: View) -> np.ndarray:
    """The elements of a view in host memory, as a numpy array that shares it.

    Args:
        address: of the view's first element. The memory is the caller's, and must outlive the array.
        view: dims, strides and type.
    """
    nbytes = (view.end - view.offset) * view.itemsize
    if not nbytes:
        return np.empty(view.dims, view.dtype)
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    strides = tuple(stride * view.itemsize for stride in view.strides)
    # as_strided would not do: it refuses float8_e5m2
    array = np.ndarray(view.dims, view.dtype, buffer=raw, strides=strides)
    assert math.prod(array.shape) == view.count
    return array
