from __future__ import annotations

import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError, PointwiseMode
from iree_bridge.artifact.arrays import load_inputs, save_outputs

ONES = np.ones((2, 3), np.float32)


def identity(data_type: DataType, name: str = "x") -> Graph:
    g = Graph("identity", io_data_type=data_type)
    x = g.tensor(name, dim=(2, 3), stride=(1, 2))
    g.pointwise(PointwiseMode.IDENTITY, x).set_output(True).set_name("y")
    return g.validate()


def test_arrays_are_found_by_name(add_graph: Graph, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", b=2 * ONES, a=ONES)
    loaded = load_inputs(add_graph, tmp_path / "in.npz")
    assert {tensor.name: float(array[0, 0]) for tensor, array in loaded.items()} == {"a": 1.0, "b": 2.0}


def test_arrays_get_the_strides_of_their_tensor(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "in.npz", x=values)
    (array,) = load_inputs(identity(DataType.FLOAT), tmp_path / "in.npz").values()
    assert array.strides == (4, 8)
    np.testing.assert_array_equal(array, values)


@pytest.mark.parametrize("data_type", [DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE, DataType.INT8])
def test_what_is_saved_can_be_loaded(data_type: DataType, tmp_path: Path) -> None:
    g = identity(data_type)
    (x,) = g.arguments().inputs
    array = x.empty()
    array[...] = [[1, 2, 3], [4, 5, 6]]
    save_outputs({x: array}, tmp_path / "out.npz")
    (loaded,) = load_inputs(g, tmp_path / "out.npz").values()
    assert loaded.dtype == data_type.numpy
    np.testing.assert_array_equal(loaded.astype(float), array.astype(float))


@pytest.mark.parametrize("name", ["file", "layer-1/add", "0x", "a.b", "ä ö"])
def test_any_tensor_name_can_be_saved(name: str, tmp_path: Path) -> None:
    g = identity(DataType.FLOAT, name)
    (x,) = g.arguments().inputs
    save_outputs({x: x.empty()}, tmp_path / "out.npz")
    assert [tensor.name for tensor in load_inputs(g, tmp_path / "out.npz")] == [name]


def test_floats_are_converted_and_it_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    np.savez(tmp_path / "in.npz", x=np.full((2, 3), 1.00390625))
    (array,) = load_inputs(identity(DataType.BFLOAT16), tmp_path / "in.npz", said.append).values()
    assert array.dtype == ml_dtypes.bfloat16
    assert float(array[0, 0]) == 1.0  # halfway to the next bfloat16, 1.0078125: rounds to even
    assert said == ["note: 'x' is converted from float64 to bfloat16"]


def test_floats_that_are_too_large_become_infinite_without_a_warning(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.full((2, 3), 1e300))
    (array,) = load_inputs(identity(DataType.FLOAT), tmp_path / "in.npz").values()
    assert np.isposinf(array).all()


@pytest.mark.parametrize(("value", "fits"), [(127, True), (-128, True), (128, False), (300, False)])
def test_integers_are_converted_if_they_fit(value: int, fits: bool, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.full((2, 3), value))
    if fits:
        (array,) = load_inputs(identity(DataType.INT8), tmp_path / "in.npz").values()
        assert (array == value).all()
    else:
        with pytest.raises(GraphError, match="'x' has values that int8 cannot hold"):
            load_inputs(identity(DataType.INT8), tmp_path / "in.npz")


HUGE = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (9000000000000,)}".ljust(117)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a", b"text")], "'a' is no array"),
        ([("a.npy", HUGE + b"\n")], "not a readable .npz file"),
        ([("a.npy", b"\x93NUMPY\x01\x00v\x00" + b"((((".ljust(117) + b"\n")], "not a readable .npz file"),
    ],
)
def test_crafted_files_are_refused(
    members: list[tuple[str, bytes]], message: str, add_graph: Graph, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "in.npz", "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    with pytest.raises(GraphError, match=message):
        load_inputs(add_graph, tmp_path / "in.npz")


def test_an_array_that_is_in_the_file_twice_is_refused(add_graph: Graph, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=ONES, b=ONES)
    with zipfile.ZipFile(tmp_path / "in.npz", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a.npy", archive.read("b.npy"))
    with pytest.raises(GraphError, match="'a' is in it twice"):
        load_inputs(add_graph, tmp_path / "in.npz")


@pytest.mark.parametrize("name", ["a\0b", "x" * 70_000])
def test_a_name_that_no_file_can_hold_leaves_the_old_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "out.npz").write_text("old")
    (x,) = identity(DataType.FLOAT, name).arguments().inputs
    with pytest.raises(GraphError, match="cannot have an array of the name"):
        save_outputs({x: x.empty()}, tmp_path / "out.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]
    assert (tmp_path / "out.npz").read_text() == "old"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": ONES}, "no array for input 'b'"),
        ({"a": ONES, "b": ONES, "y": ONES}, "'y' is no input of 'add_relu'; inputs are 'a', 'b'"),
        ({"a": ONES, "b": ONES, "c": ONES}, "has no tensor 'c'"),
        ({"a": ONES, "b": ONES[:1]}, r"'b' has shape \(1, 3\), the tensor's dims are \(2, 3\)"),
        ({"a": ONES, "b": ONES.astype(complex)}, "'b' has dtype complex128"),
        ({"a": ONES, "b": ONES.astype("S4")}, "'b' has dtype"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    arrays: dict[str, np.ndarray], message: str, add_graph: Graph, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=message):
        load_inputs(add_graph, tmp_path / "in.npz")


def test_pickled_objects_are_refused(add_graph: Graph, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.array([{}], dtype=object), b=ONES)
    with pytest.raises(GraphError, match="without pickled objects"):
        load_inputs(add_graph, tmp_path / "in.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x93NUMPY", b"text"])
def test_other_files_are_refused(content: bytes, add_graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    with pytest.raises(GraphError, match="npz"):
        load_inputs(add_graph, path)


def test_a_damaged_archive_is_refused(add_graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez_compressed(path, a=ONES, b=np.arange(6, dtype=np.float32).reshape(2, 3))
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)
    path.write_bytes(data)
    with pytest.raises(GraphError, match="not a readable"):
        load_inputs(add_graph, path)


def test_a_npy_file_is_refused(add_graph: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", ONES)
    with pytest.raises(GraphError, match=r"a \.npz file is needed"):
        load_inputs(add_graph, tmp_path / "in.npy")


def int4_graph() -> Graph:
    g = Graph("int4", io_data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.IDENTITY, g.tensor("x", dim=(3, 3), data_type=DataType.INT4)).set_output(True)
    return g.validate()


INT4 = np.array([[-8, 7, -1], [0, 3, -5], [6, 1, -2]])


@pytest.mark.parametrize(
    "stored",
    [INT4.astype(np.int8), INT4, INT4.astype(ml_dtypes.int4), np.array([0x78, 0x0F, 0xB3, 0x16, 0x0E], np.uint8)],
    ids=["int8", "int64", "raw items", "bytes"],
)
def test_int4_is_stored_as_integers_or_as_its_bytes(stored: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=stored)
    (array,) = load_inputs(int4_graph(), tmp_path / "in.npz").values()
    assert array.dtype == ml_dtypes.int4
    np.testing.assert_array_equal(array, INT4)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (
            np.zeros((3, 3), np.uint8),
            r"its bytes, in which elements of 4 bits lie in a row: shape \(5,\) is needed, not \(3, 3\); store",
        ),
        (INT4 - 1, "'x' has values that int4 cannot hold"),
        (INT4.astype(np.float32), "'x' has dtype float32, the tensor's is int4; use astype"),
    ],
)
def test_int4_that_is_not_stored_right(stored: np.ndarray, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=stored)
    with pytest.raises(GraphError, match=message):
        load_inputs(int4_graph(), tmp_path / "in.npz")
