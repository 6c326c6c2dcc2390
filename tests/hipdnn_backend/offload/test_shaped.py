"""Models with open dims, compiled for several sizes, padded, saved and restored."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fusilli_ground.errors import OptionError
from hipdnn_backend.offload import load, load_shapes
from hipdnn_backend.offload.buckets import check_sizes, parse_sizes
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.program.package import PackageError
from hipdnn_backend.offload.program.runner import InputError
from hipdnn_backend.offload.shaped import ShapedModel

pytestmark = pytest.mark.iree_cpu

F32 = np.float32
Array = np.ndarray[Any, Any]
W = np.random.default_rng(0).standard_normal((4, 3)).astype(F32)
B = np.random.default_rng(1).standard_normal((3,)).astype(F32)


def proto(axis: int = 2) -> onnx.ModelProto:
    """softmax(x · w + b) of x [batch, rows, 4], along an axis, and the sum of x over its last dim."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "b"], ["s"], name="sum"),
        helper.make_node("Softmax", ["s"], ["y"], name="softmax", axis=axis),
        helper.make_node("ReduceSum", ["x", "last"], ["z"], name="total", keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "rows", 4])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "z")]
    constants = [
        numpy_helper.from_array(W, "w"),
        numpy_helper.from_array(B, "b"),
        numpy_helper.from_array(np.array([-1]), "last"),
    ]
    graph = helper.make_graph(nodes, "net", [x], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def right(x: Array, axis: int = 2) -> dict[str, Array]:
    s = x.astype(np.float64) @ W + B
    e = np.exp(s - s.max(axis, keepdims=True))
    return {"y": e / e.sum(axis, keepdims=True), "z": x.astype(np.float64).sum(-1)}


def x_of(*dims: int) -> Array:
    return np.random.default_rng(sum(dims)).standard_normal((*dims, 4)).astype(F32)


def check(model: ShapedModel, *dims: int, axis: int = 2) -> None:
    x = x_of(*dims)
    got = model.run({"x": x})
    for name, want in right(x, axis).items():
        assert got[name].shape == want.shape
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def model() -> Iterator[ShapedModel]:
    with load_shapes(proto(), "batch=1,3 rows=2..4:2") as made:
        yield made


def test_all_sizes_within_those_that_are_served_are_right(model: ShapedModel) -> None:
    assert [each.refusal for each in model.opened] == ["", ""]
    assert [each.dims for each in (*model.inputs, *model.outputs)] == [
        ("batch", "rows", 4), ("batch", "rows", 3), ("batch", "rows")
    ]  # fmt: skip
    assert list(model.models) == [(1, 2), (1, 4), (3, 2), (3, 4)]
    for batch in (1, 2, 3):
        for rows in (1, 2, 3, 4):
            check(model, batch, rows)


@pytest.mark.thorough
def test_rows_that_a_softmax_reads_are_not_padded() -> None:
    with load_shapes(proto(1), {"batch": [2], "rows": [2, 4]}) as made:
        assert [each.refusal for each in made.opened] == [
            "",
            "Softmax 'softmax': it adds up along dim 1, in which the rows are",
        ]
        for dims in ((1, 2), (2, 4)):
            check(made, *dims, axis=1)
        with pytest.raises(
            InputError, match=r"'x', dim 1 \('rows'\) is 3; .*for 2, 4, and it is not padded: Softmax 'softmax'"
        ):
            made.run({"x": x_of(1, 3)})


def test_what_no_size_serves_is_refused(model: ShapedModel) -> None:
    for dims, says in (
        ((4, 2), r"input 'x', dim 0 \('batch'\) is 4; there is code for 1, 3, and for none as large"),
        ((1, 0), r"dim 1 \('rows'\) is 0"),
    ):
        with pytest.raises(InputError, match=says):
            model.run({"x": x_of(*dims)})
    with pytest.raises(InputError, match=r"'x' has dims \[1, 2, 5\]; .* open are dim 0 \('batch'\), dim 1 \('rows'\)"):
        model.run({"x": np.zeros((1, 2, 5), F32)})
    with pytest.raises(InputError, match="no array for 'x'"):
        model.run({})
    with pytest.raises(InputError, match="'other' is no input"):
        model.run({"x": x_of(2, 2), "other": x_of(2, 2)})


def test_results_of_a_padded_run_are_written_where_the_caller_wants(model: ShapedModel) -> None:
    x, y = x_of(2, 3), np.empty((2, 3, 3), F32)
    assert model.run({"x": x}, {"y": y})["y"] is y
    np.testing.assert_allclose(y, right(x)["y"], rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"output 'y'.*dims \[2, 3, 3\]"):
        model.run({"x": x}, {"y": np.empty((3, 4, 3), F32)})


def test_a_tensor_of_another_library_is_padded(model: ShapedModel) -> None:
    torch = pytest.importorskip("torch")
    x = x_of(2, 3)
    np.testing.assert_allclose(model.run({"x": torch.from_numpy(x)})["y"], right(x)["y"], rtol=1e-5, atol=1e-5)


def test_a_saved_model_has_all_sizes(model: ShapedModel, tmp_path: Path) -> None:
    path = tmp_path / "net.fusilli"
    model.save(path)
    with load_shapes(path) as made:
        assert made.opened == model.opened
        for dims in ((1, 2), (2, 3), (3, 4)):
            check(made, *dims)
    with pytest.raises(PackageError, match=r"compiled for several sizes of batch rows; load it with .*load_shapes"):
        load(path)
    with pytest.raises(PackageError, match="has its shapes"):
        load_shapes(path, "batch=1")


def test_a_saved_model_of_one_shape_is_not_taken_for_one_of_several(tmp_path: Path) -> None:
    path = tmp_path / "net.fusilli"
    with load(proto(), dims={"batch": 1, "rows": 2}) as made:
        made.save(path)
    with pytest.raises(PackageError, match="has no open dims; load it with hipdnn_backend.offload.load"):
        load_shapes(path)


def _altered(path: Path, change: Callable[[Any], None]) -> Path:
    """A saved model whose manifest says something else."""
    other = path.with_name("other.fusilli")
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(other, "w") as after:
        for info in before.infolist():
            data = before.read(info)
            if info.filename == "manifest.json":
                document = json.loads(data)
                change(document)
                data = json.dumps(document).encode()
            after.writestr(info, data)
    return other


def _axis(document: Any) -> None:
    document["variants"][0]["opened"][0]["inputs"][0][1] = 7


def _per(document: Any) -> None:
    document["variants"][0]["opened"][0]["inputs"][0][2] = 2


def _output(document: Any) -> None:
    document["variants"][1]["opened"][0]["outputs"][0][0] = 9


def _size(document: Any) -> None:
    document["variants"][0]["sizes"]["batch"] = 2


def _missing(document: Any) -> None:
    del document["variants"][1]


def _zero(document: Any) -> None:
    document["variants"][0]["opened"][0]["sizes"][0] = 0


def _order(document: Any) -> None:
    document["variants"][0]["opened"][0]["sizes"].reverse()


def _text(document: Any) -> None:
    document["variants"][0]["opened"][0]["refusal"] = 5


@pytest.mark.parametrize("change", [_axis, _per, _output, _size, _missing, _zero, _order, _text])
def test_a_manifest_that_lies_about_sizes_is_refused(
    model: ShapedModel, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    model.save(tmp_path / "net.fusilli")
    with pytest.raises(PackageError, match="damaged"):
        load_shapes(_altered(tmp_path / "net.fusilli", change))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ("bach=1 rows=2", r"shapes: bach=1: no input has an open dim .*did you mean batch"),
        ("x.2=4 batch=1 rows=1", "x.2=4: dim 2 of input 'x' is 4 in the model"),
        ("batch=9..1", "the range 9..1 is empty"),
        ({"batch": [0]}, "0 is no size"),
        ({"batch": []}, "'batch' has no sizes"),
        ({"batch": ["2"]}, "'2' is no size"),
    ],
)
def test_bad_sizes_are_refused(shapes: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        load_shapes(proto(), shapes)


@pytest.mark.thorough
def test_a_dim_without_any_size_is_refused() -> None:
    with pytest.raises(ModelError, match=r"x: dim 1 \('rows'\) of the input .* is not fixed; give dims="):
        load_shapes(proto(), "batch=1")
    with load_shapes(proto(), "batch=2", dims={"rows": 2}) as made:
        check(made, 1, 2)


def test_only_onnx_models_have_open_dims(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="shapes are for ONNX models"):
        load_shapes(object(), "batch=1")
    (tmp_path / "net.mlir").write_text("module {}")
    with pytest.raises(ModelError, match="static dims"):
        load_shapes(tmp_path / "net.mlir", "batch=1")
    with pytest.raises(ModelError, match="there are no shapes to compile for"):
        load_shapes(proto())


def test_sizes_as_text_and_as_numbers_are_the_same() -> None:
    assert parse_sizes("a=8,1..3 b.0=64..200:64") == {"a": (1, 2, 3, 8), "b.0": (64, 128, 192)}
    assert check_sizes({"a": [8, 2, 2]}) == {"a": (2, 8)}
