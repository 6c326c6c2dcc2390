"""External data inside the model's folder, sparse and packed tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.tensors import Folder, dense, to_array
from tests.support.onnx_models import mlp


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """An MLP whose weights are in ``weights.bin`` beside it."""
    model = mlp()
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def _moved(path: Path, **changes: str) -> onnx.ModelProto:
    """The model with entries of the first weight's external data changed."""
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        entry.value = changes.get(entry.key, entry.value)
    path.write_bytes(model.SerializeToString())
    return model


def test_weights_beside_the_model(model_path: Path) -> None:
    imported = load(model_path)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in mlp().graph.initializer}
    biases = {constant.name: constant.value for constant in imported.constants if constant.name in weights}
    assert biases.keys() == {"fc0.bias", "fc1.bias"}
    assert all(np.array_equal(value, weights[name]) for name, value in biases.items())
    turned = [constant.value for constant in imported.constants if constant.value.ndim == 2]
    assert np.array_equal(turned[0], weights["fc0.weight"].T)


def test_bytes_have_no_folder(model_path: Path) -> None:
    with pytest.raises(ModelError, match="load it by its path") as caught:
        load(model_path.read_bytes())
    assert caught.value.node == "fc0.weight"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"location": "../weights.bin"}, "not a path inside the model's folder"),
        ({"location": "/etc/hostname"}, "not a path inside the model's folder"),
        ({"location": "sub/../../weights.bin"}, "not a path inside the model's folder"),
        ({"location": ""}, "not a path inside the model's folder"),
        ({"location": "other.bin"}, "not a file in the model's folder"),
        ({"location": "."}, "not a file in the model's folder"),
        ({"offset": "-8"}, "no number of bytes"),
        ({"offset": "99999999"}, "is the file truncated"),
        ({"length": "3"}, "need 32768 bytes"),
        ({"length": "1e3"}, "no number of bytes"),
    ],
)
def test_entries_that_lead_astray(model_path: Path, changes: dict[str, str], reason: str) -> None:
    (model_path.parent.parent / "weights.bin").write_bytes(bytes(1 << 16))
    _moved(model_path, **changes)
    with pytest.raises(ModelError, match=reason) as caught:
        load(model_path)
    assert (caught.value.node, caught.value.rule) == ("fc0.weight", "external-data")


def test_a_link_out_of_the_folder(model_path: Path) -> None:
    inside, outside = model_path.parent / "weights.bin", model_path.parent.parent / "elsewhere.bin"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(ModelError, match="through a link"):
        load(model_path)


def test_a_truncated_file(model_path: Path) -> None:
    data = model_path.parent / "weights.bin"
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(ModelError, match="is the file truncated"):
        load(model_path)


def test_external_data_in_an_attribute(tmp_path: Path) -> None:
    value = np.arange(600, dtype=np.float32).reshape(2, 300)
    tensor = numpy_helper.from_array(value, "inner")
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], "constant", value=tensor), helper.make_node("Add", ["x", "c"], ["y"])],
        "attribute", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 300])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 300])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    convert_model_to_external_data(model, location="w.bin", size_threshold=0, convert_attribute=True)
    onnx.save(model, tmp_path / "m.onnx")
    (constant,) = load(tmp_path / "m.onnx").constants
    assert np.array_equal(constant.value, value)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"w\.bin"):
        load(tmp_path / "m.onnx")


@pytest.mark.parametrize("linear", [True, False])
def test_sparse_tensors(linear: bool) -> None:
    values = numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "s")
    indices = np.array([1, 5]) if linear else np.array([[0, 1], [1, 2]])
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices, "i"), [2, 3])
    assert np.array_equal(dense(sparse, None), np.array([[0, 1.5, 0], [0, 0, -2]], np.float32))
    sparse.indices.CopyFrom(numpy_helper.from_array(indices + 7, "i"))
    with pytest.raises(ModelError, match="indices do not fit"):
        dense(sparse, None)
    with pytest.raises(ModelError, match="larger than 5"):
        dense(sparse, None, limit=5)


@pytest.mark.parametrize(
    ("kind", "raw", "values"),
    [
        (TensorProto.INT4, [0xE1, 0x07], [1, -2, 7]),
        (TensorProto.UINT2, [0b11_10_01_00, 0b01], [0, 1, 2, 3, 1]),
        (TensorProto.INT2, [0b10_11_01], [1, -1, -2]),
        (TensorProto.FLOAT4E2M1, [0xF1], [0.5, -6]),
        (TensorProto.FLOAT6E2M3, [0b01_001000, 0b1111_0010, 0], [1, 1.125, 1.875]),
        (TensorProto.FLOAT8E8M0, [126, 128], [0.5, 2]),
    ],
)
def test_packed_types(tmp_path: Path, kind: int, raw: list[int], values: list[float]) -> None:
    """In the file and beside it, the lowest bits first."""
    tensor = TensorProto(name="t", data_type=kind, dims=[len(values)], raw_data=bytes(raw))
    assert to_array(tensor, None).astype(float).tolist() == values
    (tmp_path / "t.bin").write_bytes(bytes(raw))
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="t.bin")
    assert to_array(tensor, Folder(tmp_path)).astype(float).tolist() == values


def test_many_tensors_of_one_file(tmp_path: Path) -> None:
    """A model of 30 KB and a file of 1 MB would take a gigabyte; weights that are shared are read."""
    (tmp_path / "w.bin").write_bytes(bytes(1 << 20))

    def shared(count: int) -> Path:
        tensors = [TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[1 << 18]) for i in range(count)]
        for each in tensors:
            each.data_location = TensorProto.EXTERNAL
            each.external_data.add(key="location", value="w.bin")
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1 << 18]) for name in "xy")
        node = helper.make_node("Sum", ["x", *(each.name for each in tensors)], ["y"])
        graph = helper.make_graph([node], "shared", [x], [y], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        return tmp_path / "model.onnx"

    assert len(prepare(shared(30)).constants) == 30
    with pytest.raises(ModelError, match="read more than 4 times what their files have") as caught:
        prepare(shared(1000))
    assert caught.value.rule == "external-data"


def test_a_sparse_tensor_of_a_few_bytes_is_not_large() -> None:
    """1 GiB of zeros in a hundred bytes."""
    values = numpy_helper.from_array(np.asarray([1.5], np.float32), "s")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.asarray([5]), "i"), [1 << 28])
    with pytest.raises(ModelError, match="is larger than 16777216 elements"):
        dense(sparse, None)
