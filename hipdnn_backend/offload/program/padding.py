"""Arguments that are padded to the dims that code was compiled for, and results that are cut back.

What is added are copies of the last row: code may divide by what it reads, or look something up with it, and then does
nothing that it does not do for the caller's own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusilli_ground.strides import row_major
from hipdnn_backend.device.memory import Memory
from hipdnn_backend.offload.program.copying import bind_copy
from hipdnn_backend.offload.program.program import View

__all__ = ["bind_cut", "bind_pad"]

Call = Callable[[], None]


def bind_pad(
    memory: Memory, stream: int, target: int, padded: Sequence[int], source: int, dims: Sequence[int], dtype: str
) -> list[Call]:
    """What fills a dense tensor with a smaller one and copies of its last rows; none of its extents is 0.

    Args:
        memory: where both are.
        stream: where the copies are enqueued.
        target: address of the dense tensor that is written.
        padded: its dims.
        source: address of the dense tensor that is read.
        dims: its dims, none above those of the target.
        dtype: of both.
    """
    wide, narrow = row_major(padded), row_major(dims)
    item = _view(dims, narrow, dtype).itemsize
    calls = [bind_copy(memory, stream, target, _view(dims, wide, dtype), source, _view(dims, narrow, dtype))]
    region = list(dims)
    for axis, (extent, whole) in enumerate(zip(dims, padded, strict=True)):
        if extent == whole:
            continue
        region[axis] = whole - extent
        repeated = [0 if other == axis else stride for other, stride in enumerate(wide)]
        to, last = (target + number * wide[axis] * item for number in (extent, extent - 1))
        calls.append(bind_copy(memory, stream, to, _view(region, wide, dtype), last, _view(region, repeated, dtype)))
        region[axis] = whole
    return calls


def bind_cut(
    memory: Memory, stream: int, target: int, dims: Sequence[int], source: int, padded: Sequence[int], dtype: str
) -> Call:
    """What copies the first rows of a dense tensor to a smaller one; the arguments are those of `bind_pad`."""
    return bind_copy(
        memory, stream, target, _view(dims, row_major(dims), dtype), source, _view(dims, row_major(padded), dtype)
    )


def _view(dims: Sequence[int], strides: Sequence[int], dtype: str) -> View:
    return View(0, 0, tuple(dims), tuple(strides), dtype)
