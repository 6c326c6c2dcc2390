"""Arrays of other libraries - torch's, cupy's, jax's - through DLPack: where they lie and what they look like.

`iree_bridge.devices.buffers` reads DLPack too; neither package may import the other.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

__all__ = ["Shared", "is_shareable", "share"]

# DLDeviceType → how `Memory.name` begins. Host memory that a GPU driver pinned or manages is host memory all the same.
_HOST: Final = frozenset({1, 3, 11})
_DEVICES: Final = {2: "CUDA", 13: "CUDA", 10: "HIP"}
# (DLDataTypeCode, bits) → numpy dtype
_DTYPES: Final[dict[tuple[int, int], np.dtype[Any]]] = {
    **{(0, bits): np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(1, bits): np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{(2, bits): np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
    **{(5, bits): np.dtype(f"c{bits // 8}") for bits in (64, 128)},
    (4, 16): np.dtype(ml_dtypes.bfloat16),
    (6, 8): np.dtype(np.bool_),
    (10, 8): np.dtype(ml_dtypes.float8_e4m3fn),
    (11, 8): np.dtype(ml_dtypes.float8_e4m3fnuz),
    (12, 8): np.dtype(ml_dtypes.float8_e5m2),
    (13, 8): np.dtype(ml_dtypes.float8_e5m2fnuz),
    (14, 8): np.dtype(ml_dtypes.float8_e8m0fnu),
}
_READ_ONLY: Final = 1


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


def is_shareable(value: object) -> bool:
    """Whether an object speaks DLPack."""
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def share(value: Any, stream: int) -> Shared:
    """The memory behind an object that speaks DLPack.

    Args:
        value: `is_shareable`.
        stream: of a GPU, on which the memory will be used; the object's producer is waited for there.

    Raises:
        ValueError: the object refuses to share its memory, or has what is not known here.
    """
    try:
        kind, index = map(int, value.__dlpack_device__())
        capsule = _export(value, kind, stream)
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{type(value).__name__} refuses to share its memory ({error}); "
            "pass .detach() of a tensor that requires a gradient, a plain strided tensor otherwise"
        ) from error
    tensor, flags = _read(capsule)
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise ValueError(f"DLPack type {tensor.code} of {tensor.bits} bits, {tensor.lanes} lanes is unknown")
    dims = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else _row_major(dims)
    place = "" if kind in _HOST else f"{_DEVICES.get(kind, f'DLPack device type {kind},')} device {index}"
    address = (tensor.data or 0) + tensor.byte_offset
    return Shared(address, dims, strides, dtype, place, not flags & _READ_ONLY, (value, capsule))


def _export(value: Any, kind: int, stream: int) -> object:
    """A capsule of the newest kind that the object can make; it keeps the memory alive."""
    # CUDA's default stream is 1 here, HIP's is 0.
    numbers = {} if kind in _HOST else {"stream": stream or (0 if _DEVICES.get(kind) == "HIP" else 1)}
    try:
        return value.__dlpack__(max_version=(1, 1), **numbers)
    except TypeError:  # made before DLPack 1.0
        return value.__dlpack__(**numbers)


def _read(capsule: object) -> tuple[_DLTensor, int]:
    """The tensor and the flags in a capsule that stays unconsumed."""
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        versioned = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise ValueError(f"DLPack version {versioned.major} is unknown; 0 and 1 are served")
        return versioned.tensor, versioned.flags
    if _capsule_is_valid(capsule, b"dltensor"):
        return _DLManagedTensor.from_address(_capsule_pointer(capsule, b"dltensor")).tensor, 0
    raise ValueError(f"__dlpack__ must return a fresh capsule, got {type(capsule).__name__}")


def _row_major(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(dims[axis + 1 :]) for axis in range(len(dims)))


def _capsule_function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.PyDLL(None), name)  # our own handle: the types in ctypes.pythonapi are shared
    function.restype, function.argtypes = result, list(arguments)
    return function


_capsule_is_valid = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
