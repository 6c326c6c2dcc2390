"""What callers hand in - numpy arrays, DLPack objects, raw pointers - as memory, and memory as HAL buffers."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Final, NamedTuple

import numpy as np

from graph_api.dtypes import DataType
from graph_api.errors import ExecutionError
from graph_api.layout import packed_strides
from iree_bridge.devices.iree_runtime import BufferUsage, HalBuffer, HalDevice, HalElementType, MemoryType, reason

__all__ = ["ALIGNMENT", "ELEMENT_TYPES", "Memory", "examine", "import_pointer"]

ALIGNMENT: Final = 64
"""Compiled code assumes buffers that start at a multiple of this many bytes; a misaligned one kills the process."""

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
    DataType.FP8_E4M3: HalElementType.FLOAT_8_E4M3_FN,
    DataType.FP8_E5M2: HalElementType.FLOAT_8_E5M2,
    DataType.FP8_E8M0: HalElementType.FLOAT_8_E8M0_FNU,
}
"""How IREE names the element types that compiled functions take; those of INT4 are passed as bytes."""

# DLDeviceType. Host memory that a GPU driver pinned or manages is host memory all the same.
_HOST_TYPES: Final = frozenset({1, 3, 11})
_GPU_TYPES: Final = {2: "cuda", 13: "cuda", 10: "hip"}
# (DLDataTypeCode, bits) -> numpy dtype
_DTYPES: Final[dict[tuple[int, int], np.dtype[Any]]] = {
    **{(0, bits): np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(1, bits): np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(2, bits): np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    **{(5, bits): np.dtype(f"c{bits // 8}") for bits in (64, 128)},
    (6, 8): np.dtype(np.bool_),
}
_NARROW: Final[dict[tuple[int, int], DataType]] = {
    (4, 16): DataType.BFLOAT16,
    (10, 8): DataType.FP8_E4M3,
    (12, 8): DataType.FP8_E5M2,
    (14, 8): DataType.FP8_E8M0,
}
_READ_ONLY: Final = 1
_HOST_MEMORY: Final = int(MemoryType.DEVICE_LOCAL | MemoryType.HOST_VISIBLE)
_HOST_USAGE: Final = int(BufferUsage.DEFAULT | BufferUsage.MAPPING)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


class Memory(NamedTuple):
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


def examine(name: str, value: object, *, stream: int | None = None) -> Memory:
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
        return Memory(value.ctypes.data, value.shape, strides, value.dtype, ("cpu", 0), value.flags.writeable, value)
    if not (hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")):
        raise ExecutionError(
            f"tensor '{name}': expected a numpy array or an object with __dlpack__, such as a torch tensor, got "
            f"{type(value).__name__}; scalars: np.full(dims, value, dtype)"
        )
    return _from_dlpack(name, value, stream)


def _from_dlpack(name: str, value: Any, stream: int | None) -> Memory:
    try:
        kind, index = value.__dlpack_device__()
        device = _device(int(kind), index)
        capsule = _export(value, None if device[0] == "cpu" else stream)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ExecutionError(
            f"tensor '{name}': {type(value).__name__} refuses to share its memory ({error}); "
            "pass .detach() of a tensor that requires a gradient, a plain strided tensor otherwise"
        ) from error
    tensor, flags = _read(name, capsule)
    element = tensor.code, tensor.bits
    dtype = _NARROW[element].numpy if element in _NARROW else _DTYPES.get(element)
    if dtype is None or tensor.lanes != 1:
        raise ExecutionError(
            f"tensor '{name}': DLPack type {tensor.code} of {tensor.bits} bits, {tensor.lanes} lanes is unknown"
        )
    dims = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else packed_strides(dims)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return Memory(pointer, dims, strides, dtype, device, not flags & _READ_ONLY, (value, capsule))


def _device(kind: int, index: int) -> tuple[str, int]:
    return ("cpu", 0) if kind in _HOST_TYPES else (_GPU_TYPES.get(kind, f"DLPack device type {kind}"), index)


def _export(value: Any, stream: int | None) -> object:
    """A capsule of the newest kind that the object can make; the capsule keeps the memory alive."""
    arguments = {} if stream is None else {"stream": stream}
    try:
        return value.__dlpack__(max_version=(1, 1), **arguments)
    except TypeError:  # made before DLPack 1.0
        return value.__dlpack__(**arguments)


def _read(name: str, capsule: object) -> tuple[_DLTensor, int]:
    """The tensor and the flags in a capsule that stays unconsumed."""
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        versioned = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise ExecutionError(f"tensor '{name}': DLPack version {versioned.major} is unknown; 0 and 1 are served")
        return versioned.tensor, versioned.flags
    if _capsule_is_valid(capsule, b"dltensor"):
        return _DLManagedTensor.from_address(_capsule_pointer(capsule, b"dltensor")).tensor, 0
    raise ExecutionError(f"tensor '{name}': __dlpack__ must return a fresh capsule, got {type(capsule).__name__}")


def _capsule_function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.PyDLL(None), name)  # our own handle: the types in ctypes.pythonapi are shared
    function.restype, function.argtypes = result, list(arguments)
    return function


_capsule_new = _capsule_function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_capsule_is_valid = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)


class _Importer:
    """Makes HAL buffers of raw pointers, through one DLPack struct that is refilled for each.

    IREE reads the struct's ``deleter`` when the last reference to an imported buffer goes, even at interpreter exit:
    the struct must never be freed, and the deleter must be NULL.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shape = (ctypes.c_int64 * 1)()
        self._managed = _DLManagedTensor()
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
            return device.from_dlpack_capsule(_capsule_new(self._address, b"dltensor", None)).get_buffer()

    def renew_lock(self) -> None:
        """Another thread may have held the lock when the process was forked."""
        self._lock = threading.Lock()


_importer: Final = _Importer()
os.register_at_fork(after_in_child=_importer.renew_lock)


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
