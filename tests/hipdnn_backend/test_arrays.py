"""Variant packs of arrays, buffers and addresses against the graph's tensors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hipdnn_backend.device.memory import Buffer, HostMemory
from hipdnn_backend.engine import Override
from hipdnn_backend.errors import PackError
from hipdnn_backend.host.arrays import DTYPES, Operands, addresses, extent, operands_of
from hipdnn_backend.wire import (
    DataType,
    PointwiseAttributes,
    PointwiseMode,
    TensorValue,
    TensorValueType,
    UnknownAttributes,
    WireGraph,
    WireNode,
    WireTensor,
    decode_graph,
)
from tests.hipdnn_backend.toys import CONV

MEMORY = HostMemory()


class Device(HostMemory):
    """Memory that Python must not read."""

    is_host = False  # type: ignore[assignment]
    name = "a device"  # type: ignore[assignment]


def tensor(uid: int, dims: tuple[int, ...] = (2, 3), strides: tuple[int, ...] = (3, 1), **more: Any) -> WireTensor:
    values: dict[str, Any] = {"name": f"t{uid}", "data_type": DataType.FLOAT, **more}
    return WireTensor(uid=uid, dims=dims, strides=strides, **values)


def graph(*tensors: WireTensor) -> WireGraph:
    """Adds 1 and 2 into 3; more tensors may stand beside."""
    mine = {t.uid: t for t in (tensor(1), tensor(2), tensor(3))} | {t.uid: t for t in tensors}
    attributes = PointwiseAttributes(
        operation=PointwiseMode.ADD, in_0_tensor_uid=1, in_1_tensor_uid=2, out_0_tensor_uid=3
    )
    types = dict.fromkeys(("compute_data_type", "intermediate_data_type", "io_data_type"), DataType.FLOAT)
    return WireGraph(
        name="g", tensors=tuple(mine.values()), nodes=(WireNode(name="n", attributes=attributes),), **types
    )


def operands(*tensors: WireTensor) -> Operands:
    return operands_of(graph(*tensors))


def pack(**entries: Any) -> dict[int, Any]:
    arrays: dict[int, Any] = {uid: np.zeros((2, 3), np.float32) for uid in (1, 2, 3)}
    return arrays | {int(name[1:]): value for name, value in entries.items()}


def test_operands_of_a_graph() -> None:
    found = operands_of(decode_graph(CONV))
    assert {t.name for t in found.inputs} == {"x", "w", "b"}
    assert [t.name for t in found.outputs] == ["y"]  # what is virtual has no buffer
    one = TensorValue(type=TensorValueType.Float32Value, value=1.0)
    found = operands(tensor(2, (1,), (1,), value=one), tensor(9))
    assert [t.uid for t in found.inputs] == [1]  # 2 has a value, 9 is not used
    assert found.baked == {2}
    found = operands(tensor(2, (1,), (1,), is_runtime_pass_by_value=True))
    assert [t.uid for t in found.scalars] == [2]
    found = operands(tensor(1, ragged_offset_tensor_uid=9), tensor(9))
    assert [t.uid for t in found.inputs] == [1, 2, 9]


def test_unknown_operations_have_no_operands() -> None:
    source = graph()
    odd = source.replace(nodes=(WireNode(name="odd", attributes=UnknownAttributes(tag=200)),))
    with pytest.raises(PackError, match="node 'odd' of graph 'g' is an operation that is not known here"):
        operands_of(odd)


def test_addresses_are_those_of_the_arrays() -> None:
    arrays = pack()
    assert addresses(operands(), arrays, MEMORY) == {uid: array.ctypes.data for uid, array in arrays.items()}
    with MEMORY.allocate(24) as buffer:
        assert addresses(operands(), pack(_1=buffer, _2=4096), MEMORY)[1] == buffer.address
        assert addresses(operands(), pack(_1=buffer, _2=4096), MEMORY)[2] == 4096


def test_scalars_with_a_value_may_be_in_the_pack() -> None:
    one = TensorValue(type=TensorValueType.Float32Value, value=1.0)
    assert set(addresses(operands(tensor(2, (1,), (1,), value=one)), pack(), MEMORY)) == {1, 3}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (np.zeros((2, 3), np.float64), "tensor 1 't1' is float32, the array is float64"),
        (np.zeros((2, 3), np.int32), "is float32, the array is int32"),
        (np.zeros((3, 2), np.float32), r"has dims \[2, 3\], the array has shape \[3, 2\]"),
        (np.zeros(6, np.float32), r"has dims \[2, 3\], the array has shape \[6\]"),
        (np.zeros((3, 2), np.float32).T, r"has strides \[3, 1\] \(in elements\), the array has \[1, 2\]"),
        (np.zeros((2, 6), np.float32)[:, ::2], r"the array has \[6, 2\]"),
        (np.zeros((2, 3), np.dtype({"names": ["a"], "formats": ["f4"], "itemsize": 6}))["a"], r"\[4.5, 1.5\]"),
        (7.0, "a float is neither array, buffer nor address"),
        ([1], "a list is neither array, buffer nor address"),
        (None, "None is neither array"),
        (True, "True is neither array"),
        (-1, "-1 is no address"),
        (1 << 64, "is no address"),
        (0, "the address is 0"),
        (4097, "address 0x1001 is not a multiple of 16, its alignment"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, complaint: str) -> None:
    with pytest.raises(PackError, match=complaint) as caught:
        addresses(operands(), pack(_1=value), MEMORY)
    assert caught.value.uid == 1


def test_uids_must_be_those_of_the_graph() -> None:
    with pytest.raises(PackError, match=r"lacks tensor 1 't1', tensor 2 't2'; it has \[3\]"):
        addresses(operands(), {3: pack()[3]}, MEMORY)
    with pytest.raises(PackError, match=r"\[7\] are no inputs or outputs of the graph; those are \[1, 2, 3\]"):
        addresses(operands(), pack(_7=0), MEMORY)


def test_outputs_must_be_writable() -> None:
    array = np.zeros((2, 3), np.float32)
    array.flags.writeable = False
    addresses(operands(), pack(_1=array), MEMORY)
    with pytest.raises(PackError, match="the array is read-only, and the graph writes it"):
        addresses(operands(), pack(_3=array), MEMORY)


def test_strides_of_single_elements_do_not_matter() -> None:
    array = np.zeros((1, 3), np.float32)[:, :]
    odd = np.lib.stride_tricks.as_strided(array, (1, 3), (4444, 4))
    found = operands(tensor(1, (1, 3), (3, 1)))
    assert addresses(found, pack(_1=odd), MEMORY)[1] == odd.ctypes.data


def test_other_layouts_and_types() -> None:
    nhwc = tensor(1, (1, 2, 4, 4), (32, 1, 8, 2), data_type=DataType.BFLOAT16)
    array = np.zeros((1, 4, 4, 2), ml_dtypes.bfloat16).transpose(0, 3, 1, 2)
    assert addresses(operands(nhwc), pack(_1=array), MEMORY)[1] == array.ctypes.data
    # numpy stores and hands out what it does not know as raw items
    raw = array.view(np.dtype("V2"))
    assert addresses(operands(nhwc), pack(_1=raw), MEMORY)[1] == array.ctypes.data
    with pytest.raises(PackError, match="is bfloat16, the array is float16"):
        addresses(operands(nhwc), pack(_1=array.view(np.float16)), MEMORY)


@pytest.mark.parametrize(
    ("data_type", "dtype", "size"),
    [
        (DataType.FP4_E2M1, ml_dtypes.float4_e2m1fn, 8),
        (DataType.FP6_E2M3, ml_dtypes.float6_e2m3fn, 12),
        (DataType.FP6_E3M2, ml_dtypes.float6_e3m2fn, 12),
    ],
)
def test_floats_below_a_byte_come_as_buffers_bytes_or_values(data_type: DataType, dtype: Any, size: int) -> None:
    small = tensor(1, (3, 5), (5, 1), data_type=data_type)
    assert extent(small) == size
    with pytest.raises(PackError, match=f"is {data_type.name}, the array is int8; give its bytes as uint8"):
        addresses(operands(small), pack(_1=np.zeros((3, 5), np.int8)), MEMORY)
    with MEMORY.allocate(size) as buffer:
        assert addresses(operands(small), pack(_1=buffer), MEMORY)[1] == buffer.address
    bits = 4 * size // 8
    codes = (np.arange(15) * 7 % 2**bits).astype(np.uint8)
    row = sum(int(code) << bits * place for place, code in enumerate(codes))
    found = addresses(operands(small), pack(_1=codes.view(dtype).reshape(3, 5)), MEMORY)
    assert bytes(bytes_at(found[1], size)) == row.to_bytes(size, "little")


def int4(dims: tuple[int, ...] = (3, 3), strides: tuple[int, ...] = (3, 1)) -> WireTensor:
    return tensor(1, dims, strides, data_type=DataType.INT4)


def bytes_at(address: int, count: int) -> list[int]:
    return list(MEMORY.read(address, count))


def test_int4_comes_as_its_bytes() -> None:
    assert extent(int4()) == 5
    raw = np.arange(5, dtype=np.uint8)
    found = addresses(operands(int4()), pack(_1=raw), MEMORY)
    assert (found[1], found.kept) == (raw.ctypes.data, [])
    with MEMORY.allocate(5) as buffer:
        assert addresses(operands(int4()), pack(_1=buffer), MEMORY)[1] == buffer.address
    wider = {1: Override((3, 4), (4, 1))}
    assert addresses(operands(int4()), pack(_1=np.zeros(6, np.uint8)), MEMORY, wider)[1]


def test_values_of_int4_are_packed_the_even_element_in_the_lower_half() -> None:
    values = np.array([[-8, 7, -1], [0, 3, -5], [6, 1, -2]], ml_dtypes.int4)
    found = addresses(operands(int4()), pack(_1=values), MEMORY)
    assert bytes_at(found[1], 5) == [0x78, 0x0F, 0xB3, 0x16, 0x0E]
    assert found[1] == found.kept[0].ctypes.data
    assert found[1] % 64 == 0
    transposed = addresses(operands(int4((3, 3), (1, 3))), pack(_1=values), MEMORY)
    assert bytes_at(transposed[1], 5) == [0x08, 0x76, 0x13, 0xBF, 0x0E]
    apart = addresses(operands(int4((3, 3), (6, 2))), pack(_1=values), MEMORY)
    assert bytes_at(apart[1], 9) == [0x08, 0x07, 0x0F, 0x00, 0x03, 0x0B, 0x06, 0x01, 0x0E]
    wider = {1: Override((1, 3), (3, 1))}
    assert bytes_at(addresses(operands(int4()), pack(_1=values[:1]), MEMORY, wider)[1], 2) == [0x78, 0x0F]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((3, 3), np.int8), "is INT4, the array is int8; give its bytes as uint8, elements of 4 bits in a row"),
        (np.zeros((3, 3), np.uint8), r"has dims \[5\], the array has shape \[3, 3\]"),
        (np.zeros(4, np.uint8), r"has dims \[5\], the array has shape \[4\]"),
        (np.zeros(10, np.uint8)[::2], r"has strides \[1\] \(in elements\), the array has \[2\]"),
        (np.zeros((3, 2), ml_dtypes.int4), r"has dims \[3, 3\], the array has shape \[3, 2\]"),
    ],
)
def test_arrays_that_are_no_int4_tensor(value: np.ndarray, message: str) -> None:
    with pytest.raises(PackError, match=message):
        addresses(operands(int4()), pack(_1=value), MEMORY)


def test_int4_values_that_have_no_place_of_their_own() -> None:
    row = np.array([[1, 2, 3]] * 3, ml_dtypes.int4)
    assert bytes_at(addresses(operands(int4((3, 3), (0, 1))), pack(_1=row), MEMORY)[1], 2) == [0x21, 0x03]
    row[2, 2] = 4
    with pytest.raises(PackError, match=r"strides \[0, 1\] give several elements one place, and their values differ"):
        addresses(operands(int4((3, 3), (0, 1))), pack(_1=row), MEMORY)


def test_values_of_int4_do_not_reach_outputs_and_devices() -> None:
    out = operands(tensor(3, (3, 3), (3, 1), data_type=DataType.INT4))
    with pytest.raises(PackError, match="tensor 3 't3' is INT4, the array is int4; give"):
        addresses(out, pack(_3=np.zeros((3, 3), ml_dtypes.int4)), MEMORY)
    with pytest.raises(PackError, match="a numpy array is host memory, the graph runs on a device"):
        addresses(operands(int4()), pack(_1=np.zeros((3, 3), ml_dtypes.int4)), Device())


def test_buffers_must_be_large_enough_and_open() -> None:
    with MEMORY.allocate(23) as small, pytest.raises(PackError, match="takes 24 bytes, the buffer has 23"):
        addresses(operands(), pack(_1=small), MEMORY)
    buffer = MEMORY.allocate(24)
    buffer.close()
    with pytest.raises(PackError, match="the buffer is closed"):
        addresses(operands(), pack(_1=buffer), MEMORY)


def test_extents() -> None:
    assert extent(tensor(1, (2, 3), (10, 2))) == (10 + 4 + 1) * 4
    assert extent(tensor(1, (2, 0), (3, 1))) == 0
    assert extent(tensor(1, (), ())) == 4
    assert extent(tensor(1, (5,), (0,))) == 4
    assert extent(tensor(1), Override((4, 3), (3, 1))) == 48
    with pytest.raises(PackError, match=r"dims \[2, -3\]"):
        extent(tensor(1, (2, -3)))
    assert all(extent(tensor(1, (2, 3), data_type=dtype)) for dtype in DTYPES)


def test_overrides_change_what_fits() -> None:
    override = {1: Override((4, 3), (3, 1))}
    array = np.zeros((4, 3), np.float32)
    assert addresses(operands(), pack(_1=array), MEMORY, override)[1] == array.ctypes.data
    with pytest.raises(PackError, match=r"has dims \[4, 3\], the array has shape \[2, 3\]"):
        addresses(operands(), pack(), MEMORY, override)


# ---- devices


class OnDevice:
    def __init__(self, **interface: Any) -> None:
        usual = {"data": (4096, False), "typestr": "<f4", "shape": (2, 3), "strides": None, "version": 3}
        self.__cuda_array_interface__ = usual | interface


def on_device(**entries: Any) -> dict[int, Any]:
    return pack(_1=OnDevice(), _2=OnDevice(), _3=OnDevice()) | {int(name[1:]): v for name, v in entries.items()}


def test_device_arrays() -> None:
    assert addresses(operands(), on_device(), Device()) == {1: 4096, 2: 4096, 3: 4096}
    assert addresses(operands(), on_device(_1=OnDevice(strides=(12, 4))), Device())[1] == 4096


@pytest.mark.parametrize(
    ("interface", "complaint"),
    [
        ({"typestr": "<f8"}, "is float32, the array is float64"),
        ({"shape": (3, 2)}, r"the array has shape \[3, 2\]"),
        ({"strides": (4, 8)}, r"the array has \[1, 2\]"),
        ({"data": 7}, "__cuda_array_interface__ is damaged"),
        ({"typestr": "?!"}, "__cuda_array_interface__ is damaged"),
        ({"data": (0, False)}, "the address is 0"),
    ],
)
def test_device_arrays_that_do_not_fit(interface: dict[str, Any], complaint: str) -> None:
    with pytest.raises(PackError, match=complaint):
        addresses(operands(), on_device(_1=OnDevice(**interface)), Device())


def test_read_only_outputs_on_the_device() -> None:
    with pytest.raises(PackError, match="the array is read-only"):
        addresses(operands(), on_device(_3=OnDevice(data=(4096, True))), Device())


def test_host_and_device_are_not_mixed() -> None:
    with pytest.raises(PackError, match="a numpy array is host memory, the graph runs on a device; copy it"):
        addresses(operands(), on_device(_1=pack()[1]), Device())
    with pytest.raises(PackError, match="the array is on a device, host memory is needed"):
        addresses(operands(), pack(_1=OnDevice()), MEMORY)
    with MEMORY.allocate(24) as buffer, pytest.raises(PackError, match="the buffer is host memory, a device is needed"):
        addresses(operands(), on_device(_1=buffer), Device())
    there = Buffer(Device(), 4096, 24)
    with pytest.raises(PackError, match="the buffer is a device, host memory is needed"):
        addresses(operands(), pack(_1=there), MEMORY)
    there._is_open = False  # nothing was allocated


def test_runtime_scalars_are_on_the_host() -> None:
    found = operands(tensor(2, (1,), (1,), is_runtime_pass_by_value=True))
    scalar = np.ones(1, np.float32)
    assert addresses(found, on_device(_2=scalar), Device())[2] == scalar.ctypes.data
    # 16 bytes of alignment are asked of device pointers only
    assert addresses(found, on_device(_2=4100), Device())[2] == 4100
    with pytest.raises(PackError, match="the array is on a device, host memory is needed"):
        addresses(found, on_device(), Device())
