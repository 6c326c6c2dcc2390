"""What callers hand in - numpy arrays, DLPack objects, raw pointers - as memory, and memory as HAL buffers."""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

import numpy as np

from fusilli_ground import dlpack
from fusilli_ground.locks import fork_safe_lock
from graph_api.dtypes import DataType
from graph_api.errors import ExecutionError
from iree_bridge.devices.iree_runtime import BufferUsage, HalBuffer, HalDevice, HalElementType, MemoryType, reason

__all__ = ["ALIGNMENT", "ELEMENT_TYPES", "StridedMemory", "aligned_block", "examine", "import_pointer"]

ALIGNMENT: Final = 64
"""Compiled code assumes buffers that start at a multiple of this many bytes, unless its flags say less; one that
does not kills the process. IREE's drivers import no others."""

ELEMENT_TYPES: Final[dict[DataType, Any]] = {
    DataType.FLOAT: HalElementType.FLOAT_32,
    DataType.HALF: HalElementType.FLOAT_16,
    DataType.BFLOAT16: HalElementType.BFLOAT_16,
    DataType.DOUBLE: HalElementType.FLOAT_64,
    DataType.UINT8: HalElementType.UINT_8,
    DataType.INT8: HalElementType.SINT_8,
    DataType.INT32: HalElementType.SINT_32,
    DataType.INT64: HalElementType.SINT_64,
    DataType.BOOLEAN: HalElementType.BOOL_8,
}
"""How IREE names the element types that compiled functions take; small floats and packed integers come as bytes."""

_HOST_MEMORY: Final = int(MemoryType.DEVICE_LOCAL | MemoryType.HOST_VISIBLE)
_HOST_USAGE: Final = int(BufferUsage.DEFAULT | BufferUsage.MAPPING)


def aligned_block(nbytes: int) -> tuple[int, np.ndarray]:
    """Zeros in host memory that start at a multiple of `ALIGNMENT`: their address, and what keeps them."""
    block = np.zeros(nbytes + ALIGNMENT, np.uint8)
    address = block.ctypes.data
    return address + -address % ALIGNMENT, block


class StridedMemory(NamedTuple):
    """Memory as its owner describes it.

    Attributes:
        pointer: address of the first element.
        dims: logical dims.
        strides: in elements; None if they are not whole elements.
        dtype: element type.
        device: ``("cpu", 0)``, ``("hip", index)`` or ``("cuda", index)``.
        writable: False if the owner forbids writes.
        owner: keep it as long as the pointer is used.
    """

    pointer: int
    dims: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    device: tuple[str, int]
    writable: bool
    owner: object


def examine(name: str, value: object, *, stream: int | None = None) -> StridedMemory:
    """The memory behind a numpy array or an object with ``__dlpack__``.

    Args:
        name: the tensor that the object is for, for messages.
        value: the object.
        stream: for objects on a GPU: the stream (DLPack's numbering) that will read them, -1 if the caller has waited
            for the object's producer already.

    Raises:
        ExecutionError: the object is neither, or refuses to be shared.
    """
    if isinstance(value, np.ndarray):
        itemsize = value.dtype.itemsize or 1
        whole = all(stride % itemsize == 0 for stride in value.strides)
        strides = tuple(stride // itemsize for stride in value.strides) if whole else None
        return StridedMemory(
            value.ctypes.data, value.shape, strides, value.dtype, ("cpu", 0), value.flags.writeable, value
        )
    if not dlpack.is_shareable(value):
        raise ExecutionError(
            f"tensor '{name}': expected a numpy array or an object with __dlpack__, such as a torch tensor, got "
            f"{type(value).__name__}; scalars: np.full(dims, value, dtype)"
        )
    try:
        found = dlpack.examine(value, lambda _kind: stream)
    except ValueError as error:
        raise ExecutionError(f"tensor '{name}': {error}") from error
    device = _device(found.kind, found.number)
    return StridedMemory(found.address, found.dims, found.strides, found.dtype, device, found.writable, found.owner)


def _device(kind: int, index: int) -> tuple[str, int]:
    if kind in dlpack.HOST_KINDS:
        return ("cpu", 0)
    return (dlpack.GPU_KINDS.get(kind, f"DLPack device type {kind}"), index)


class _Importer:
    """Makes HAL buffers of raw pointers, through one DLPack struct that is refilled for each.

    IREE reads the struct's ``deleter`` when the last reference to an imported buffer goes, even at interpreter exit:
    the struct must never be freed, and the deleter must be NULL.
    """

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._shape = (ctypes.c_int64 * 1)()
        self._managed = dlpack.ManagedTensor()
        tensor = self._managed.tensor
        tensor.device_type, tensor.ndim, tensor.code, tensor.bits, tensor.lanes = 1, 1, 1, 8, 1
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        for immortal in (self._shape, self._managed):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(immortal))
        self._address = ctypes.addressof(self._managed)

    def __call__(self, device: HalDevice, pointer: int, nbytes: int) -> HalBuffer:
        with self._lock:
            self._managed.tensor.data = pointer
            self._shape[0] = nbytes
            return device.from_dlpack_capsule(dlpack.new_capsule(self._address)).get_buffer()


_importer: Final = _Importer()


def import_pointer(device: HalDevice, pointer: int, nbytes: int, *, on_gpu: bool) -> HalBuffer:
    """A HAL buffer over ``nbytes`` bytes at ``pointer``: aligned memory of ``device`` that outlives the buffer.

    Raises:
        ExecutionError: the device refuses the memory.
    """
    if pointer % ALIGNMENT or not pointer:
        raise ExecutionError(
            f"memory at {pointer:#x} cannot be used in place: it must start at a multiple of {ALIGNMENT}"
        )
    try:
        if not on_gpu:
            # The one way that grants all access; a copy into a DLPack buffer would be refused (DISCARD_WRITE).
            memory = (ctypes.c_char * nbytes).from_address(pointer)
            return device.allocator.import_host_allocation(memory, _HOST_MEMORY, _HOST_USAGE)
        return _importer(device, pointer, nbytes)
    except (RuntimeError, ValueError, IndexError) as error:
        raise ExecutionError(f"{nbytes} bytes at {pointer:#x} cannot be used by the device: {reason(error)}") from error
