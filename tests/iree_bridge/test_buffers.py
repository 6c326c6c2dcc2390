"""Describing the memory of arrays and DLPack objects, and importing raw pointers."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fusilli_ground import dlpack
from graph_api.dtypes import DataType
from graph_api.errors import ExecutionError
from iree_bridge.devices.buffers import ALIGNMENT, ELEMENT_TYPES, examine, import_pointer
from iree_bridge.devices.device import Device

Array = np.ndarray[Any, Any]


def test_every_data_type_that_is_no_row_of_bytes_has_an_element_type_of_its_size() -> None:
    from iree_bridge.devices.iree_runtime import HalElementType

    assert set(ELEMENT_TYPES) == {dtype for dtype in DataType if not (dtype.is_small_float or dtype.is_packed)}
    assert len(set(map(int, ELEMENT_TYPES.values()))) == len(ELEMENT_TYPES)
    for data_type, element in ELEMENT_TYPES.items():
        assert HalElementType.dense_byte_count(element) == data_type.nbytes(1), data_type


def test_numpy_arrays_are_described_as_they_lie() -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4).transpose(2, 0, 1)[::2]
    memory = examine("x", array)
    assert (memory.pointer, memory.dims, memory.strides) == (array.ctypes.data, (2, 2, 3), (2, 12, 4))
    assert (memory.dtype, memory.device, memory.writable) == (np.dtype(np.int32), ("cpu", 0), True)
    assert memory.owner is array


def test_strides_that_split_elements_are_none() -> None:
    records = np.zeros(4, [("a", "u1"), ("b", "<f4")])
    assert examine("x", records["b"]).strides is None


class Capsule:
    """A DLPack object whose tensor is written field by field."""

    def __init__(self, device: tuple[int, int] = (1, 0), name: bytes = b"dltensor", **fields: Any) -> None:
        self.device, self.name = device, name
        self.shape = (ctypes.c_int64 * 2)(2, 3)
        self.strides = (ctypes.c_int64 * 2)(*fields.pop("strides", (3, 1)))
        self.data = np.arange(8, dtype=np.float32)
        versioned = name == b"dltensor_versioned"
        self.managed = dlpack._VersionedTensor() if versioned else dlpack.ManagedTensor()
        if versioned:
            self.managed.major = fields.pop("major", 1)
            self.managed.flags = fields.pop("flags", 0)
        tensor = self.managed.tensor
        tensor.data, tensor.ndim, tensor.code, tensor.bits, tensor.lanes = self.data.ctypes.data, 2, 2, 32, 1
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        for field, value in fields.items():
            setattr(tensor, field, value)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_: object) -> object:
        return dlpack._capsule_new(ctypes.addressof(self.managed), self.name, None)


@pytest.mark.parametrize("name", [b"dltensor", b"dltensor_versioned"])
def test_dlpack_fields(name: bytes) -> None:
    source = Capsule(name=name, byte_offset=8, strides=(1, 2))
    memory = examine("x", source)
    assert (memory.pointer, memory.dims, memory.strides) == (source.data.ctypes.data + 8, (2, 3), (1, 2))
    assert (memory.dtype, memory.device, memory.writable) == (np.dtype(np.float32), ("cpu", 0), True)


def test_dlpack_without_strides_is_row_major() -> None:
    source = Capsule()
    source.managed.tensor.strides = ctypes.POINTER(ctypes.c_int64)()
    assert examine("x", source).strides == (3, 1)


@pytest.mark.parametrize(
    ("code", "bits", "dtype"),
    [
        (0, 8, np.int8),
        (0, 64, np.int64),
        (1, 8, np.uint8),
        (2, 16, np.float16),
        (2, 64, np.float64),
        (4, 16, ml_dtypes.bfloat16),
        (6, 8, np.bool_),
        (10, 8, ml_dtypes.float8_e4m3fn),
        (12, 8, ml_dtypes.float8_e5m2),
    ],
)
def test_dlpack_types(code: int, bits: int, dtype: Any) -> None:
    assert examine("x", Capsule(code=code, bits=bits)).dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("kind", "device"),
    [(1, ("cpu", 0)), (3, ("cpu", 0)), (11, ("cpu", 0)), (2, ("cuda", 1)), (13, ("cuda", 1)), (10, ("hip", 1))],
)
def test_dlpack_devices(kind: int, device: tuple[str, int]) -> None:
    assert examine("x", Capsule(device=(kind, 1)), stream=3).device == device


def test_read_only_dlpack_objects() -> None:
    assert not examine("x", Capsule(name=b"dltensor_versioned", flags=1)).writable


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Capsule(lanes=4), "tensor 'x': DLPack type 2 of 32 bits, 4 lanes is unknown"),
        (Capsule(code=77), "DLPack type 77"),
        (Capsule(name=b"dltensor_versioned", major=2), "DLPack version 2 is unknown; 0 and 1 are served"),
        (Capsule(name=b"used_dltensor"), "__dlpack__ must return a fresh capsule, got PyCapsule"),
        ([1.0], "expected a numpy array or an object with __dlpack__, such as a torch tensor, got list; scalars"),
        (None, "got NoneType"),
        (np.float32(1), "got float32; scalars: np.full"),
    ],
)
def test_what_is_no_memory_is_refused(source: object, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        examine("x", source)


@pytest.mark.parametrize("error", [BufferError("no"), RuntimeError("no"), ValueError("no"), TypeError("no")])
def test_an_object_that_will_not_be_shared(error: Exception) -> None:
    class Refusing(Capsule):
        def __dlpack__(self, **_: object) -> object:
            raise error

    with pytest.raises(ExecutionError, match=r"tensor 'x': Refusing refuses to share its memory \(no\); pass .detach"):
        examine("x", Refusing())


def test_the_owner_keeps_an_exported_copy_alive() -> None:
    class Copying:
        """Exports a fresh copy each time: only the capsule owns it."""

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **arguments: Any) -> object:
            return np.full(1000, 7, np.float32).__dlpack__(**arguments)

    memory = examine("x", Copying())
    gc.collect()
    junk = [np.full(1000, 1, np.float32) for _ in range(50)]
    assert np.ctypeslib.as_array((ctypes.c_float * 1000).from_address(memory.pointer)).tolist() == [7.0] * 1000
    assert junk


def test_imported_memory_is_the_callers() -> None:
    raw = np.zeros(64 + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    buffer = import_pointer(Device.parse("cpu-sync").open(), raw.ctypes.data + start, 64, on_gpu=False)
    assert buffer.byte_length() == 64
    raw[start + 5] = 9
    assert buffer.map().asarray((64,), np.dtype(np.uint8))[5] == 9


@pytest.mark.parametrize("offset", [4, 16, 32])
def test_misaligned_and_null_pointers_are_not_imported(offset: int) -> None:
    hal = Device.parse("cpu-sync").open()
    raw = np.zeros(256, np.uint8)
    start = raw.ctypes.data + -raw.ctypes.data % ALIGNMENT
    for pointer in (start + offset, 0):
        with pytest.raises(ExecutionError, match=r"memory at 0x[0-9a-f]+ cannot be used in place: it must start at a"):
            import_pointer(hal, pointer, 64, on_gpu=False)
