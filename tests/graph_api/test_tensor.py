from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError, PointwiseMode, TensorAttr
from graph_api.tensor import int_tuple


def tensor(**arguments: Any) -> TensorAttr:
    return TensorAttr(**{"name": "t", "dims": (2, 3), "strides": (3, 1), "data_type": DataType.FLOAT} | arguments)


def test_what_a_tensor_knows() -> None:
    t = tensor(uid=7, strides=(8, 2))
    assert (t.name, t.uid, t.dims, t.strides, t.data_type) == ("t", 7, (2, 3), (8, 2), DataType.FLOAT)
    assert (t.rank, t.volume, t.nbytes) == (2, 6, 4 * (1 + 8 + 4))
    assert repr(t) == "<TensorAttr 't' 2x3 FLOAT>"


def test_what_is_not_known_yet_is_an_error_that_says_how_to_know_it() -> None:
    t = TensorAttr(name="t")
    for attribute in ("uid", "dims", "strides", "data_type", "rank", "volume", "nbytes"):
        with pytest.raises(GraphError, match=r"tensor 't' has no .* yet; set it, or call Graph.validate\(\)"):
            getattr(t, attribute)
    assert repr(t) == "<TensorAttr 't' ? ?>"


def test_setters_chain() -> None:
    t = (
        TensorAttr()
        .set_name("a")
        .set_uid(3)
        .set_dim([2])
        .set_stride(np.array([1]).tolist())
        .set_data_type(DataType.HALF)
    )
    assert (t.name, t.uid, t.dims, t.strides, t.data_type) == ("a", 3, (2,), (1,), DataType.HALF)
    assert t.set_output(True).is_virtual is False
    assert t.set_output(False).is_virtual is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "a tensor name must be a non-empty string, got ''"),
        ({"name": 5}, "a tensor name must be a non-empty string, got 5"),
        ({"name": "\ud800"}, r"a tensor name must be text, got '\\ud800', which holds half of a surrogate pair"),
        ({"uid": -1}, "tensor 't': uid -1 is outside 0 .. 2^63-1"),
        ({"uid": 2**63}, "tensor 't': uid 9223372036854775808 is outside"),
        ({"uid": 1.0}, "uid of tensor 't' must hold integers, got [1.0]"),
        ({"dims": (2, 0)}, "tensor 't': dims (2, 0) must be at least 1 each"),
        ({"dims": (2, -1)}, "tensor 't': dims (2, -1) must be at least 1 each"),
        ({"dims": (2**32, 2**32)}, "must be at least 1 each and hold fewer than 2^63 elements"),
        ({"dims": (2, 10**5000)}, "dims of tensor 't' must be far smaller; one has 16610 bits"),
        ({"dims": (1,) * 33}, "tensor 't': 33 dims, there may be 32 at most"),
        ({"dims": 5}, "dims of tensor 't' must be a sequence of integers, got 5"),
        ({"dims": "23"}, "dims of tensor 't' must be a sequence of integers, got '23'"),
        ({"dims": (2.0, 3)}, "dims of tensor 't' must hold integers, got (2.0, 3)"),
        ({"strides": (-3, 1)}, "tensor 't': strides (-3, 1) must be 0 or positive"),
        ({"strides": (2**63, 1)}, "must be 0 or positive"),
        ({"data_type": "FLOAT"}, "tensor 't': data type must be a DataType, got 'FLOAT'"),
        ({"data_type": np.float32}, "data type must be a DataType"),
        ({"value": "1"}, "tensor 't': a scalar value must be a number or bool, got '1'"),
        ({"value": 1j}, "a scalar value must be a number or bool, got 1j"),
        ({"value": [1]}, "a scalar value must be a number or bool, got [1]"),
    ],
)
def test_bad_values(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message if "ud800" in message else re.escape(message)):
        tensor(**arguments)


@pytest.mark.parametrize(
    ("arguments", "written", "message"),
    [
        ({"strides": (1,)}, False, "tensor 't': 1 strides (1,) for 2 dims (2, 3); give one stride per dim"),
        ({"strides": (1, 1)}, False, "tensor 't': strides (1, 1) make rows of dims (2, 3) overlap or interleave"),
        ({"strides": (2, 1)}, False, "overlap"),
        # rows 0 2 4, 3 5 7, 6 8 10: distinct, but no row of a larger array holds them
        ({"dims": (3, 3), "strides": (3, 2)}, False, "overlap or interleave"),
        ({"strides": (2**62, 1)}, False, "span 2^63 bytes or more"),
        ({"strides": (0, 1)}, True, "tensor 't' is written by a node: stride 0 in (0, 1) is for inputs only"),
        ({"value": 1.0}, False, "tensor 't': a scalar value needs 1 element, dims are (2, 3)"),
    ],
)
def test_what_does_not_fit_together(arguments: dict[str, Any], written: bool, message: str) -> None:
    with pytest.raises(GraphError, match=re.escape(message)):
        tensor(**arguments).check(written=written)


@pytest.mark.parametrize("strides", [(3, 1), (1, 2), (0, 1), (0, 0), (8, 2), (1, 5)])
def test_strides_that_are_fine_to_read(strides: tuple[int, int]) -> None:
    tensor(strides=strides).check(written=False)


def test_the_stride_of_a_size_1_dim_may_be_anything() -> None:
    for stride in (0, 1, 999):
        tensor(dims=(1, 3), strides=(stride, 1)).check(written=True)


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (300, DataType.INT8), (8, DataType.INT4), (-9, DataType.INT4),
        (-1, DataType.UINT8), (2**31, DataType.INT32), (2**63, DataType.INT64),
        (1.5, DataType.INT32), (float("nan"), DataType.INT32), (float("inf"), DataType.INT64), (2, DataType.BOOLEAN),
        (10**400, DataType.FLOAT), (10**400, DataType.INT64), (0.5, DataType.BOOLEAN),
    ],
)  # fmt: skip
def test_values_that_the_data_type_lacks(value: float, data_type: DataType) -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.ADD, g.tensor("x", dim=(2,)), g.scalar(value, data_type=data_type, name="s")).set_output()
    with pytest.raises(GraphError, match=rf"tensor 's': .{{1,60}} is no value of {data_type.name}"):
        g.validate()


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (-128, DataType.INT8, -128), (-8, DataType.INT4, -8), (7, DataType.INT4, 7),
        (255, DataType.UINT8, 255), (2.0, DataType.INT32, 2), (True, DataType.BOOLEAN, 1),
        (0, DataType.BOOLEAN, 0), (True, DataType.INT32, 1), (0.1, DataType.HALF, float(np.float16(0.1))),
        (1e9, DataType.HALF, np.inf), (float("-inf"), DataType.FLOAT, -np.inf),
        (np.float32(0.25), DataType.FLOAT, 0.25),
    ],
)  # fmt: skip
def test_values_are_rounded_to_the_data_type(value: float, data_type: DataType, expected: float) -> None:
    g = Graph("g", io_data_type=DataType.DOUBLE)
    y = g.pointwise(PointwiseMode.ADD, g.tensor("x", dim=(2,)), g.scalar(value, data_type=data_type)).set_output()
    np.testing.assert_array_equal(g.validate().reference({"x": np.zeros(2)})[y], expected)


def test_empty_has_the_strides_and_is_aligned() -> None:
    for dims, strides in (((2, 3), (8, 2)), ((2, 3, 4, 5), (60, 1, 15, 3)), ((), ()), ((4, 3), (0, 1))):
        t = tensor(dims=dims, strides=strides, data_type=DataType.HALF)
        array = t.empty()
        assert (array.shape, array.dtype, array.ctypes.data % 64) == (dims, np.float16, 0)
        assert array.strides == tuple(2 * stride for stride in strides)
        assert array.flags.writeable
        assert not array.any()


# dims, strides, offset of each element in row-major order, worked out by hand
_PLACES = [
    ((2, 3), (3, 1), [0, 1, 2, 3, 4, 5]),
    ((3, 3), (3, 1), [0, 1, 2, 3, 4, 5, 6, 7, 8]),  # rows begin in the middle of a byte; half of the last is unused
    ((2, 3), (1, 2), [0, 2, 4, 1, 3, 5]),
    ((2, 2), (7, 3), [0, 3, 7, 10]),
    ((1,), (1,), [0]),
    ((), (), [0]),
]


@pytest.mark.parametrize(("dims", "strides", "places"), _PLACES)
def test_int4_elements_share_bytes_the_even_one_in_the_lower_half(
    dims: tuple[int, ...], strides: tuple[int, ...], places: list[int]
) -> None:
    t = tensor(dims=dims, strides=strides, data_type=DataType.INT4)
    values = [-8, 7, -1, 0, 3, -5, 6, 1, -2][: len(places)]
    expected = [0] * (max(places) // 2 + 1)
    for value, place in zip(values, places, strict=True):
        expected[place // 2] += value % 16 * (16 if place % 2 else 1)
    packed = t.pack(np.array(values).reshape(dims))
    assert (packed.tolist(), packed.dtype, packed.ctypes.data % 64) == (expected, np.uint8, 0)
    assert t.nbytes == len(expected)
    unpacked = t.unpack(packed)
    assert unpacked.astype(int).reshape(-1).tolist() == values
    assert (unpacked.dtype, unpacked.strides) == (DataType.INT4.numpy, strides)
    if len(places) % 2:
        packed[-1] |= 0xF0  # belongs to no element
        assert t.unpack(packed).astype(int).reshape(-1).tolist() == values


def test_memory_of_whole_bytes_is_that_of_the_array() -> None:
    for data_type in (DataType.HALF, DataType.INT8, DataType.BOOLEAN, DataType.FP8_E4M3):
        t = tensor(strides=(1, 2), data_type=data_type)
        values = np.array([[1, 0, 1], [0, 1, 1]], data_type.numpy)
        assert t.pack(values).tobytes() == values.tobytes(order="F")
        np.testing.assert_array_equal(t.unpack(t.pack(values)), values)
    repeated = tensor(strides=(0, 1), data_type=DataType.INT4)
    assert repeated.pack(np.array([[1, 2, 3], [1, 2, 3]])).tolist() == [0x21, 0x03]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((3, 2)), r"tensor 't' has dims \(2, 3\), the array has shape \(3, 2\)"),
        (np.full((2, 3), 8), "tensor 't' is INT4: its values are integers from -8 to 7, equal along dims of stride 0"),
        (np.full((2, 3), 0.5), "its values are integers from -8 to 7"),
        (np.full((2, 3), np.nan), "its values are integers from -8 to 7"),
        (np.array([[1, 2, 3], [1, 2, 4]]), "equal along dims of stride 0"),
    ],
)
def test_what_cannot_be_packed(values: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        tensor(strides=(0, 1), data_type=DataType.INT4).pack(values)


@pytest.mark.parametrize("memory", [np.zeros(2, np.uint8), np.zeros((3, 1), np.uint8), np.zeros(3, np.int8)])
def test_what_cannot_be_unpacked(memory: np.ndarray[Any, Any]) -> None:
    with pytest.raises(GraphError, match=r"the memory of tensor 't' is uint8 \[3\], got"):
        tensor(data_type=DataType.INT4).unpack(memory)


def test_a_frozen_tensor_does_not_change() -> None:
    t = tensor()
    t.freeze()
    t.freeze()
    assert t.physical.shape == (2, 3)
    for change in (lambda: t.set_dim((1,)), lambda: t.set_name("b"), lambda: setattr(t, "is_virtual", True)):
        with pytest.raises(GraphError, match="tensor 't' belongs to a validated graph and cannot be changed any more"):
            change()


def test_what_was_inferred_can_be_forgotten() -> None:
    t = TensorAttr(dims=(2,))
    t.resolve(name="n", uid=1, dims=(9,), strides=(1,), data_type=DataType.HALF)
    assert (t.name, t.uid, t.dims, t.strides) == ("n", 1, (2,), (1,))
    t.forget()
    assert (t.has_uid, t.has_dims, t.has_strides, t.has_data_type, t.name) == (False, True, False, False, "")


def test_int_tuple_takes_numpy_integers() -> None:
    assert int_tuple(np.array([1, 2], np.int32), "dims") == (1, 2)
    assert int_tuple([np.int64(3)], "dims") == (3,)
    with pytest.raises(GraphError, match="dims must hold integers"):
        int_tuple(np.array([1.5]), "dims")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", [d for d in DataType if d.is_packed], ids=lambda dtype: dtype.name)
def test_memory_of_packed_types_is_a_number_of_that_many_bits(dtype: DataType, count: int) -> None:
    codes = [(7 * place + 5) % 2**dtype.bits for place in range(count)]
    row = sum(code << dtype.bits * place for place, code in enumerate(codes))
    tensor = TensorAttr(name="t", dims=(count,), strides=(1,), data_type=dtype)
    memory = np.frombuffer(row.to_bytes(tensor.nbytes, "little"), np.uint8)
    values = tensor.unpack(memory)
    assert (values.view(np.uint8) & 2**dtype.bits - 1).tolist() == codes
    assert tensor.pack(values).tolist() == memory.tolist()


def test_a_dim_of_one_element_may_have_any_stride() -> None:
    """Programs write what they like there; numpy holds fewer bytes than the strides of a graph may say."""
    tensor = Graph("g").tensor("x", dim=(1, 3, 2), stride=(2**62, 2, 1), data_type=DataType.DOUBLE)
    array = tensor.empty()
    array[...] = np.arange(6).reshape(1, 3, 2)
    np.testing.assert_array_equal(tensor.pack(array).view(np.float64), np.arange(6.0))
    assert array.strides[1:] == (16, 8)
