"""Arrays in a device's memory for as long as something is measured there."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from graph_api import ExecutionError
from iree_bridge.devices import cuda
from iree_bridge.devices.buffers import aligned_block
from iree_bridge.devices.device import Device

__all__ = ["placed"]

Array = np.ndarray[Any, Any]


@contextmanager
def placed(device: Device, arrays: Sequence[Array]) -> Iterator[list[int]]:
    """Addresses of copies of arrays on the device, with their strides.

    Raises:
        ExecutionError: the device has no memory left.
    """
    images = [_image(array) for array in arrays]
    if device.kind == "cuda":
        with cuda.memory(device.index, images) as addresses:
            yield addresses
    elif device.kind == "hip":
        from iree_bridge.runtime.recorded.launching import DeviceMemory

        try:
            kept = [DeviceMemory(device.index, len(image), image) for image in images]
        except RuntimeError as error:
            raise ExecutionError(str(error)) from error
        yield [memory.address for memory in kept]
        del kept
    else:
        blocks = [aligned_block(len(image)) for image in images]
        for (address, block), image in zip(blocks, images, strict=True):
            start = address - block.ctypes.data
            block[start : start + len(image)] = np.frombuffer(image, np.uint8)
        yield [address for address, _ in blocks]


def _image(array: Array) -> bytes:
    """The memory of an array, gaps included; a byte for an array without elements."""
    if not array.size:
        return b"\0"
    extent = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return ctypes.string_at(array.__array_interface__["data"][0], extent)
