"""Arrays of other libraries, through DLPack, in the places of `device.memory`."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final, NamedTuple

import numpy as np

from fusilli_ground import dlpack

__all__ = ["Shared", "share"]

# DLDeviceType → how `Memory.name` begins.
_DEVICES: Final = {"cuda": "CUDA", "hip": "HIP"}


class Shared(NamedTuple):
    """Memory as its owner describes it.

    Attributes:
        address: of the first element.
        dims: extents.
        strides: in elements.
        dtype: of the elements.
        place: "" for host memory, else as `Memory.name` has it, e.g. ``HIP device 0``.
        writable: False if the owner forbids writes.
        owner: keep it as long as the address is used.
    """

    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    place: str
    writable: bool
    owner: object

    @property
    def is_dense(self) -> bool:
        """Whether it is row-major without gaps."""
        return 0 in self.dims or all(
            dim == 1 or stride == want
            for dim, stride, want in zip(self.dims, self.strides, _row_major(self.dims), strict=True)
        )

    def array(self) -> np.ndarray[Any, Any]:
        """Host memory as an array, which keeps the owner."""
        if 0 in self.dims:
            return np.empty(self.dims, self.dtype)
        item = self.dtype.itemsize
        spans = [(dim - 1) * stride * item for dim, stride in zip(self.dims, self.strides, strict=True)]
        before = -sum(span for span in spans if span < 0)
        size = before + sum(span for span in spans if span > 0) + item
        memory: Any = (ctypes.c_char * size).from_address(self.address - before)
        memory.owner = self.owner
        steps = tuple(stride * item for stride in self.strides)
        made = np.ndarray(self.dims, self.dtype, memory, before, steps)
        made.flags.writeable = self.writable
        return made


def share(value: Any, stream: int) -> Shared:
    """The memory behind an object that speaks DLPack.

    Args:
        value: `fusilli_ground.dlpack.is_shareable`.
        stream: of a GPU, on which the memory will be used; the object's producer is waited for there.

    Raises:
        ValueError: the object refuses to share its memory, or has what is not known here.
    """
    # CUDA's default stream is 1 in DLPack's numbering, HIP's is 0.
    found = dlpack.examine(value, lambda kind: stream or (0 if dlpack.GPU_KINDS.get(kind) == "hip" else 1))
    return Shared(
        found.address, found.dims, found.strides, found.dtype, _place(found.kind, found.number), found.writable,
        found.owner,
    )  # fmt: skip


def _place(kind: int, index: int) -> str:
    if kind in dlpack.HOST_KINDS:
        return ""
    name = _DEVICES.get(dlpack.GPU_KINDS.get(kind, ""), f"DLPack device type {kind},")
    return f"{name} device {index}"


def _row_major(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(dims[axis + 1 :]) for axis in range(len(dims)))
