"""Whole models: loaded from ONNX, run, saved, and run where neither torch-mlir nor the compiler is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from fusilli_ground.errors import FusilliError
from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload import Model, compile_model, compile_shapes, load, load_shapes
from hipdnn_backend.offload.errors import ModelError, OffloadError
from hipdnn_backend.offload.program.package import Package, PackageError, save_package
from hipdnn_backend.offload.program.runner import InputError
from iree_bridge import Options
from iree_bridge.compile.options import CompileMode
from tests.support import onnx_models

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]

ROOT = Path(__file__).resolve().parents[3]
PROTO = onnx_models.mlp()
FEEDS = onnx_models.feeds(PROTO)


def reference(feeds: dict[str, Any]) -> Any:
    session = onnxruntime.InferenceSession(PROTO.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with load(PROTO, device="cpu", engines=[FusilliEngine("cpu")]) as model:
        yield model


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Path:
    path = tmp_path / "mlp.fusilli"
    model.save(path)
    return path


def test_a_model_computes_what_onnxruntime_computes(model: Model) -> None:
    for factor in (1, -2):
        feeds = {name: array * np.float32(factor) for name, array in FEEDS.items()}
        for got, expected in zip(model.run(feeds).values(), reference(feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_it_says_what_it_is(model: Model) -> None:
    (given,), (result,) = model.inputs, model.outputs
    assert (given.dims, given.dtype) == ((4, 64), np.float32)
    assert result.dims == (4, 10)
    assert set(model.about["seconds"]) == {"import", "passes", "plan"}
    assert {graph["engine"] for graph in model.about["graphs"].values()} == {"FUSILLI_ENGINE"}
    assert model.program.arena <= model.program.naive
    with pytest.raises(InputError, match="expected dims"):
        model.run({given.name: np.zeros((5, 64), np.float32)})


def test_a_model_is_not_saved_over_what_it_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, weights = tmp_path / "m.onnx", tmp_path / "weights.bin"
    onnx.save(onnx_models.mlp(), path, save_as_external_data=True, location=weights.name, size_threshold=0)
    before = path.read_bytes(), weights.read_bytes()
    monkeypatch.chdir(tmp_path)
    with load("m.onnx", device="cpu", engines=[FusilliEngine("cpu")]) as model:
        monkeypatch.chdir("/")
        for read in (path, weights):
            with pytest.raises(ModelError, match=f"{read.name} is a file that the model was loaded from"):
                model.save(read)
        assert (path.read_bytes(), weights.read_bytes()) == before
        model.save(tmp_path / "m.fusilli")
    with load(tmp_path / "m.fusilli", device="cpu", engines=[FusilliEngine("cpu")]) as restored:
        restored.save(tmp_path / "m.fusilli")  # nothing is lost by that


def test_a_saved_plan_that_does_not_bind_is_named_with_its_file(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    manifest["variants"][0]["plans"].reverse()
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(saved, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    plan = manifest["variants"][0]["plans"][0][1]
    with load(saved, device="cpu", engines=[FusilliEngine("cpu")]) as damaged:
        for _ in range(2):
            with pytest.raises(EngineError, match=f"{saved}: plan 0 in blobs/{plan}: graph 'hipdnn_graph_0': bind: "):
                damaged.run(FEEDS)


def test_a_saved_model_gives_the_same_bits(model: Model, saved: Path) -> None:
    never = FusilliEngine("cpu", options=replace(Options.from_env(), compile=CompileMode.NEVER))
    with load(saved, device="cpu", engines=[never]) as restored:
        got, expected = restored.run(FEEDS), model.run(FEEDS)
        assert list(got) == list(expected)
        assert all(np.array_equal(got[name], expected[name]) for name in got)
        assert restored.about["graphs"] == model.about["graphs"]


_BLOCKED = """
import sys
import zipfile

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch_mlir", "torch", "onnx", "onnxruntime") or name.startswith("iree.compiler"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
import numpy as np
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.fallback.ort_engine import OnnxRuntimeEngine
from hipdnn_backend.offload import load
with load(sys.argv[1], device="cpu", engines=[FusilliEngine("cpu")]) as model:
    feeds = {each.name: np.ones(each.dims, each.dtype) for each in model.inputs}
    for name, array in model.run(feeds).items():
        np.save(sys.argv[2], array)
assert not [name for name in sys.modules if name.partition(".")[0] in ("torch_mlir", "torch", "onnx")]
"""


def test_a_saved_model_needs_no_compiler_and_no_torch_mlir(saved: Path, tmp_path: Path) -> None:
    """A fresh process without them and without a cache."""
    variables = {"PATH": os.defpath, "FUSILLI_CACHE_DIR": str(tmp_path / "empty")}
    (tmp_path / "empty").mkdir(mode=0o700)
    command = [sys.executable, "-c", _BLOCKED, str(saved), str(tmp_path / "out.npy")]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (expected,) = reference({name: np.ones_like(array) for name, array in FEEDS.items()})
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-5, atol=1e-5)


def _small(outputs: dict[str, tuple[int, ...]], *nodes: onnx.NodeProto) -> onnx.ModelProto:
    """x [2, 3] and the weight w [2, 3] through some nodes."""

    def info(name: str, dims: tuple[int, ...]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)

    weight = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    results = [info(name, dims) for name, dims in outputs.items()]
    graph = helper.make_graph(nodes, "small", [info("x", (2, 3))], results, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


RELU = helper.make_node("Relu", ["x"], ["r"], name="relu")
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
R = np.maximum(X, 0)


@pytest.mark.parametrize(
    ("model", "expected", "graphs"),
    [
        (_small({"y": (2, 3)}, helper.make_node("Identity", ["x"], ["y"])), {"y": X}, 0),
        (_small({"r": (2, 3), "x": (2, 3)}, RELU), {"r": R, "x": X}, 1),
        (_small({"r": (2, 3), "w": (2, 3)}, RELU), {"r": R, "w": np.arange(6).reshape(2, 3)}, 1),
        (
            _small({"y": (2, 3), "z": (2, 3)}, RELU, *(helper.make_node("Identity", ["r"], [name]) for name in "yz")),
            {"y": R, "z": R},
            1,
        ),
        (
            _small({"f": (1, 6), "r": (2, 3)}, RELU, helper.make_node("Flatten", ["r"], ["f"], axis=0)),
            {"f": R.reshape(1, 6), "r": R},
            1,
        ),
    ],
    ids=["argument", "argument and result", "weight", "twice", "view"],
)
def test_results_that_no_graph_writes(model: onnx.ModelProto, expected: dict[str, Any], graphs: int) -> None:
    with load(model, device="cpu", engines=[FusilliEngine("cpu")]) as loaded:
        results = loaded.run({"x": X})
        assert len(loaded.program.graphs) == graphs
    assert list(results) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array)


@pytest.mark.parametrize("operator", ["Gather", "ScatterND"])
def test_no_position_reaches_outside_of_a_tensor(operator: str) -> None:
    names = ["x", "i"] if operator == "Gather" else ["x", "i", "u"]
    model = _small({"y": (1, 3) if operator == "Gather" else (2, 3)}, helper.make_node(operator, names, ["y"], "take"))
    dims = (1,) if operator == "Gather" else (1, 1)
    model.graph.input.append(helper.make_tensor_value_info("i", onnx.TensorProto.INT64, dims))
    feeds: dict[str, Any] = {"x": X}
    if operator == "ScatterND":
        model.graph.input.append(helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, (1, 3)))
        feeds["u"] = np.full((1, 3), 7, np.float32)
    with load(model, device="cpu", engines=[FusilliEngine("cpu")]) as loaded:
        for position, row in ((10**11, 1), (2, 1), (1, 1), (-1, 1), (-2, 0), (-(10**11), 0)):
            expected = X[[row]] if operator == "Gather" else np.where(np.arange(2)[:, None] == row, feeds["u"], X)
            results = loaded.run(feeds | {"i": np.full(dims, position, np.int64)})
            np.testing.assert_array_equal(results["y"], expected)


@pytest.mark.thorough
def test_no_sample_is_taken_outside_of_an_image() -> None:
    """GridSample allows such positions, with the value 0 there; far from the image that is all there is."""
    model = _small({"y": (1, 1, 1, 2)}, helper.make_node("GridSample", ["image", "g"], ["y"], "grid"))
    model.opset_import[0].version = 20
    for name, dims in (("image", (1, 1, 2, 3)), ("g", (1, 1, 2, 2))):
        model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    feeds = {"x": X, "image": X.reshape(1, 1, 2, 3)}
    with load(model, device="cpu", engines=[FusilliEngine("cpu")]) as loaded:
        for far in (0.0, 2.5, -9.0, 1e6):
            grid = np.full((1, 1, 2, 2), far, np.float32)
            # 0 is the middle of the image: between its rows, in its middle column
            expected = (X[0, 1] + X[1, 1]) / 2 if far == 0 else 0
            np.testing.assert_allclose(loaded.run(feeds | {"g": grid})["y"], np.full((1, 1, 1, 2), expected), rtol=1e-6)


def test_a_constant_that_no_memory_holds() -> None:
    node = helper.make_node("ConstantOfShape", ["n"], ["y"], name="huge")
    model = _small({"y": (1 << 46,)}, node)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 46]), "n"))
    with pytest.raises(OffloadError, match=f"no memory for a constant of {1 << 48} bytes"):
        load(model, device="cpu", engines=[FusilliEngine("cpu")])


def test_one_file_for_several_targets(tmp_path: Path) -> None:
    """No GPU is needed; the variant for this machine runs, the others are named."""
    engine = FusilliEngine("cpu")
    targets = {name: [engine.for_target(name)] for name in ("gfx942", "cpu")}
    name, variants = compile_model(PROTO, targets)
    save_package(tmp_path / "m.fusilli", name, variants)
    package = Package.open(tmp_path / "m.fusilli")
    assert package.targets == ("gfx942", "cpu")
    assert package.variant("gfx942").program.alignment == 256
    weights = sum(constant.nbytes for constant in variants[0].constants.values())
    assert (tmp_path / "m.fusilli").stat().st_size > weights
    with load(tmp_path / "m.fusilli", device="cpu", engines=[engine]) as model:
        (got,) = model.run(FEEDS).values()
        np.testing.assert_allclose(got, reference(FEEDS)[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(PackageError, match="not compiled for gfx90a, .* it has code for gfx942, cpu"):
        load(tmp_path / "m.fusilli", device="cpu", engines=[engine.for_target("gfx90a")])


# ---- anything at all

ODD: list[Any] = [
    None, "x", b"x", 1, -1, 1.5, 2**70, True, [], ["x"], [None], (1, 2, 3), {}, {"x": 1}, {1: 2}, {"x": None}, object(),
    np.zeros(3), "\ud800", "a\0b",
]  # fmt: skip
SMALL = onnx.helper.make_model(
    helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "small", [helper.make_tensor_value_info("x", 1, ["n", 4])],
        [helper.make_tensor_value_info("y", 1, ["n", 4])],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
    ir_version=8,
)  # fmt: skip
ARGUMENTS = ("device", "dims", "inputs", "engines", "options")
ASKED: dict[str, Any] = {
    "load": lambda odd: load(odd, device="cpu"),
    "load_shapes": lambda odd: load_shapes(odd, "n=1", device="cpu"),
    "compile_model": lambda odd: compile_model(odd, {"cpu": ()}),
    "compile_model, targets": lambda odd: compile_model(SMALL, odd, dims={"m": 1}),
    "compile_shapes, shapes": lambda odd: compile_shapes(SMALL, {"cpu": ()}, odd),
    "load_shapes, sizes": lambda odd: load_shapes(SMALL, {"m": odd}),
    # Each is refused before anything is compiled: "m" is no dim of the model.
    **{f"load, {name}": lambda odd, name=name: load(SMALL, **{"dims": {"m": 2}, name: odd}) for name in ARGUMENTS},
    **{f"load_shapes, {name}": lambda odd, name=name: load_shapes(SMALL, "m=2", **{name: odd}) for name in ARGUMENTS},
}


@pytest.mark.parametrize("asked", ASKED)
def test_whatever_is_given_is_refused_with_an_error_of_ours(asked: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for odd in ODD:
        with pytest.raises((FusilliError, FileNotFoundError)):
            ASKED[asked](odd)


@pytest.mark.parametrize("odd", [1, 1.5, None, [], "a\0b", "\ud800"])
def test_a_model_is_saved_to_a_path(model: Model, odd: Any) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FusilliError, match="path of a file"):
        model.save(odd)
    assert os.listdir("/proc/self/fd") == before  # 1 would be the file that is open there
