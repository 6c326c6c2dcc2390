"""DLPack: memory of other libraries - torch's, cupy's, jax's - as they describe it, and its structures for our own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from fusilli_ground.strides import row_major

__all__ = ["GPU_KINDS", "HOST_KINDS", "Exported", "ManagedTensor", "examine", "is_shareable", "new_capsule"]

# DLDeviceType. Host memory that a GPU driver pinned or manages is host memory all the same.
HOST_KINDS: Final = frozenset({1, 3, 11})
GPU_KINDS: Final = {2: "cuda", 13: "cuda", 10: "hip"}
# (DLDataTypeCode, bits) → numpy dtype, or the name of one in ml_dtypes
_DTYPES: Final[dict[tuple[int, int], str]] = {
    **{(0, bits): f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"f{bits // 8}" for bits in (16, 32, 64)},
    **{(5, bits): f"c{bits // 8}" for bits in (64, 128)},
    (6, 8): "?",
}
_NARROW: Final[dict[tuple[int, int], str]] = {
    (4, 16): "bfloat16",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
_READ_ONLY: Final = 1


class _Tensor(ctypes.Structure):
    """``DLTensor``."""

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


class ManagedTensor(ctypes.Structure):
    """``DLManagedTensor``, of before DLPack 1.0."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _VersionedTensor(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


class Exported(NamedTuple):
    """Memory as its owner describes it.

    Attributes:
        address: of the first element.
        dims: extents.
        strides: in elements.
        dtype: of the elements.
        kind: DLDeviceType, one of `HOST_KINDS`, of `GPU_KINDS`, or another.
        number: of the device among its kind.
        writable: False if the owner forbids writes.
        owner: keep it as long as the address is used.
    """

    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: int
    number: int
    writable: bool
    owner: object

    @property
    def is_dense(self) -> bool:
        """Whether it is row-major without gaps."""
        return 0 in self.dims or all(
            dim == 1 or stride == want
            for dim, stride, want in zip(self.dims, self.strides, row_major(self.dims), strict=True)
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


def examine(value: Any, stream_of: Callable[[int], int | None]) -> Exported:
    """The memory behind an object that speaks DLPack.

    Args:
        value: `is_shareable`.
        stream_of: of a device kind the stream, in DLPack's numbering, that will use the memory and on which the
            object's producer is waited for; None: it is not told. Host memory has none.

    Raises:
        ValueError: the object refuses to share its memory, or has what is not known here.
    """
    try:
        kind, index = map(int, value.__dlpack_device__())
        capsule = _export(value, None if kind in HOST_KINDS else stream_of(kind))
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{type(value).__name__} refuses to share its memory ({error}); "
            "pass .detach() of a tensor that requires a gradient, a plain strided tensor otherwise"
        ) from error
    tensor, flags = _read(capsule)
    dtype = _dtype(tensor.code, tensor.bits)
    if dtype is None or tensor.lanes != 1:
        raise ValueError(f"DLPack type {tensor.code} of {tensor.bits} bits, {tensor.lanes} lanes is unknown")
    dims = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim)) if tensor.strides else row_major(dims)
    address = (tensor.data or 0) + tensor.byte_offset
    return Exported(address, dims, strides, dtype, kind, index, not flags & _READ_ONLY, (value, capsule))


def _dtype(code: int, bits: int) -> np.dtype[Any] | None:
    if (code, bits) in _NARROW:
        import ml_dtypes  # few tensors need it, and it is slow to load

        return np.dtype(getattr(ml_dtypes, _NARROW[code, bits]))
    name = _DTYPES.get((code, bits))
    return None if name is None else np.dtype(name)


def _export(value: Any, stream: int | None) -> object:
    """A capsule of the newest kind that the object can make; the capsule keeps the memory alive."""
    arguments = {} if stream is None else {"stream": stream}
    try:
        return value.__dlpack__(max_version=(1, 1), **arguments)
    except TypeError:  # made before DLPack 1.0
        return value.__dlpack__(**arguments)


def _read(capsule: object) -> tuple[_Tensor, int]:
    """The tensor and the flags in a capsule that stays unconsumed."""
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        versioned = _VersionedTensor.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if versioned.major != 1:
            raise ValueError(f"DLPack version {versioned.major} is unknown; 0 and 1 are served")
        return versioned.tensor, versioned.flags
    if _capsule_is_valid(capsule, b"dltensor"):
        return ManagedTensor.from_address(_capsule_pointer(capsule, b"dltensor")).tensor, 0
    raise ValueError(f"__dlpack__ must return a fresh capsule, got {type(capsule).__name__}")


def _capsule_function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.PyDLL(None), name)  # our own handle: the types in ctypes.pythonapi are shared
    function.restype, function.argtypes = result, list(arguments)
    return function


_capsule_new = _capsule_function("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_capsule_is_valid = _capsule_function("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)


def new_capsule(address: int) -> object:
    """A capsule of the `ManagedTensor` at ``address``, which stays the caller's."""
    return _capsule_new(address, b"dltensor", None)
