"""Models on the command line: run, compile, plan, dump, replay."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import Result

from fusilli_plugin.checks import model_check
from fusilli_plugin.cli.kinds import is_model
from fusilli_plugin.cli.models import bound_inputs, dims_of
from tests.support import onnx_models

pytestmark = [pytest.mark.mlir, pytest.mark.iree_cpu, pytest.mark.ort]

Fusilli = Callable[..., Result]
PROTO = onnx_models.mlp()
FEEDS = onnx_models.feeds(PROTO)
NAME = next(iter(FEEDS))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mlp.onnx"
    onnx.save(PROTO, path)
    return path


def reference() -> Any:
    session = onnxruntime.InferenceSession(PROTO.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, FEEDS)[0]


def save(path: Path, arrays: Mapping[str, Any]) -> Path:
    np.savez(path, **arrays)
    return path


def test_a_model_runs_on_given_arrays(fusilli: Fusilli, model: Path, tmp_path: Path) -> None:
    save(tmp_path / "in.npz", FEEDS)
    result = fusilli(
        "run", model, "--device", "cpu", "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz"
    )
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["output"], reference(), rtol=1e-5, atol=1e-5)
    assert "ms on cpu (first run)" in result.stdout


def test_a_report_shows_everything(fusilli: Fusilli, model: Path, tmp_path: Path, cold_cache: Path) -> None:
    result = fusilli("run", model, "--device", "cpu", "--report", "--check", "--trace", "t.json", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert document["checked"]
    assert {step["engine"] for step in document["steps"]} == {"FUSILLI_ENGINE"}
    assert all(step["seconds"] > 0 for step in document["steps"])
    assert document["memory"]["arena"] <= document["memory"]["naive"]
    assert document["html"] == str(cold_cache / "reports" / "mlp.report.html")
    assert not (tmp_path / "mlp.report.html").exists()
    page = Path(document["html"]).read_text()
    assert "mlp.onnx on cpu" in page
    assert "relu" in page
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event for event in events if event["name"] == "hipdnn-offload"]
    text = fusilli("run", model, "--device", "cpu", "--report", "p.html").stdout
    assert "without sharing; the page: p.html" in text
    assert "FUSILLI_ENGINE" in text


def test_a_report_does_not_take_the_model_for_its_page(fusilli: Fusilli, model: Path) -> None:
    before = model.read_bytes()
    for command, option, ending in (("run", "--report", ".html"), ("plan", "--svg", ".svg")):
        result = fusilli(command, option, model)
        assert result.exit_code == 2
        assert f"does not end in {ending}; to name no file, put {option} last" in result.stderr
    assert model.read_bytes() == before


def test_a_wrong_graph_is_named(fusilli: Fusilli, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference is changed from the second matrix product on: the first graph is right, the second is not."""
    original = model_check._reference

    def changed(proto: onnx.ModelProto, *arguments: object) -> object:
        found = original(proto, *arguments)  # pyright: ignore[reportArgumentType]
        arrays = {name: a if a.shape[-1:] == (128,) else a + 1 for name, a in found.arrays.items()}
        return model_check._Values(arrays, found.made_by, found.readers)

    monkeypatch.setattr(model_check, "_reference", changed)
    result = fusilli("run", model, "--device", "cpu", "--check")
    assert result.exit_code == 1
    assert "the first graph that is wrong: step 1 hipdnn_graph_1" in result.stderr


def test_a_compiled_model_runs(fusilli: Fusilli, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "mlp.fusilli"
    result = fusilli("compile", model, "--target", "cpu", "-o", out, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [each["target"] for each in document["targets"]] == ["cpu"]
    assert document["bytes"] == out.stat().st_size
    save(tmp_path / "in.npz", FEEDS)
    again = fusilli("run", out, "--device", "cpu", "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "o.npz")
    assert again.exit_code == 0, again.output
    with np.load(tmp_path / "o.npz") as arrays:
        np.testing.assert_allclose(arrays["output"], reference(), rtol=1e-5, atol=1e-5)
    plan = json.loads(fusilli("plan", out, "--json").stdout)
    assert plan["lower_bound"] <= plan["arena"] <= plan["naive"]
    assert "is a model, and this is for graphs" in fusilli("inspect", out, "--target", "cpu").stderr
    refused = fusilli("run", out, "--device", "cpu", "--check")
    assert refused.exit_code == 2
    assert "needs the ONNX model itself" in refused.stderr
    missing = fusilli("plan", out, "--target", "gfx942")
    assert missing.exit_code == 2
    assert "is not compiled for gfx942; it has code for cpu" in missing.stderr
    out.write_bytes(out.read_bytes()[:-100])
    damaged = fusilli("run", out, "--device", "cpu")
    assert damaged.exit_code == 2
    assert f"{out} is damaged: it begins as a saved model, but its end is missing" in damaged.stderr


def test_the_plan_is_printed_and_drawn(fusilli: Fusilli, model: Path, tmp_path: Path) -> None:
    result = fusilli("plan", model, "--svg")
    assert result.exit_code == 0, result.output
    picture = Path(result.stdout.rpartition("the picture: ")[2].strip())
    assert picture.name == "mlp.plan.svg"
    assert picture.parent != tmp_path
    ElementTree.fromstring(picture.read_text())
    document = json.loads(fusilli("plan", model, "--json", "--svg", tmp_path / "other.svg").stdout)
    assert (tmp_path / "other.svg").is_file()
    for piece in document["memory"]:
        assert piece["offset"] + piece["bytes"] <= document["arena"]
        assert piece["first_step"] <= piece["last_step"] < document["steps"]


def test_a_dumped_graph_runs_alone(fusilli: Fusilli, model: Path, tmp_path: Path) -> None:
    result = fusilli("run", model, "--device", "cpu", "--dump-graph", "1")
    assert result.exit_code == 0, result.output
    assert "fusilli replay mlp.graph1" in result.stdout
    replayed = fusilli("replay", "mlp.graph1", "--json")
    assert replayed.exit_code == 0, replayed.output
    document = json.loads(replayed.stdout)
    assert (document["ok"], document["same"]) == (True, True)
    assert document["about"]["graph"] == "hipdnn_graph_1"
    again = fusilli("run", model, "--device", "cpu", "--dump-graph", "1")
    assert again.exit_code == 2
    assert "mlp.graph1 is not empty" in again.stderr
    beyond = fusilli("run", model, "--device", "cpu", "--dump-graph", "7")
    assert beyond.exit_code == 2
    assert "steps with a graph are 0 to 1" in beyond.stderr
    (tmp_path / "mlp.graph1" / "graph.json").write_text("{}")
    assert fusilli("replay", "mlp.graph1").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dim", "n"), "'n' is not NAME=VALUE"),
        (("--dim", "n=0"), "n=0: the size of a dim is a positive number"),
        (("--dim", "n=1", "--dim", "n=2"), "a name is set twice"),
        (("--input", "sr=fast"), "sr=fast: no number or JSON array"),
        (("--input", 'sr={"a": 1}'), "a number or an array of numbers"),
        (("--input", "sr=[[1], [2, 3]]"), "sr="),
        (("--device", "abacus"), "'abacus'"),
    ],
)
def test_options_that_mean_nothing(fusilli: Fusilli, model: Path, arguments: tuple[str, ...], message: str) -> None:
    device = () if "--device" in arguments else ("--device", "cpu")
    result = fusilli("run", model, *device, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_values_of_options() -> None:
    assert dims_of(("batch=2", "a=b=3")) == {"batch": 2, "a=b": 3}
    found = bound_inputs(("sr=16000", "x=[1, 2.5]", "flag=true"))
    assert found["sr"] == 16000
    assert found["x"].tolist() == [1, 2.5]
    assert found["flag"] is True


def test_models_and_graphs_are_told_apart(fusilli: Fusilli, model: Path, add_file: Path, tmp_path: Path) -> None:
    (tmp_path / "no-ending").write_bytes(model.read_bytes())
    assert is_model(model)
    assert is_model(tmp_path / "no-ending")
    assert not is_model(add_file)
    (tmp_path / "bare").write_bytes(b"PK\x03\x04")
    assert "is damaged" in fusilli("run", tmp_path / "bare", "--device", "cpu").stderr
    for options in (("--report",), ("--dim", "n=1"), ("--dump-graph", "0")):
        result = fusilli("run", add_file, "--device", "cpu", *options)
        assert result.exit_code == 2
        assert "is a graph" in result.stderr
    assert fusilli("compile", add_file, "--target", "cpu", "-o", tmp_path / "x", "--dim", "n=1").exit_code == 2
    assert "this is a graph, no model" in fusilli("plan", add_file).stderr
    result = fusilli("inspect", model, "--target", "gfx942")
    assert result.exit_code == 2
    assert f"`fusilli explain {model}` tells which graphs it becomes, `fusilli run {model}` runs it" in result.stderr


def test_an_unknown_dim_is_told_with_those_there_are(fusilli: Fusilli, tmp_path: Path) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 3]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    for command in (("run", "--device", "cpu"), ("explain", "--target", "gfx942"), ("plan",)):
        result = fusilli(command[0], tmp_path / "m.onnx", *command[1:], "--dim", "batc=1")
        assert result.exit_code == 2
        assert "batc: no input has a dim of this name (did you mean batch?); symbolic dims are: batch" in result.stderr


def test_folders_are_looked_at_before_the_work(fusilli: Fusilli, model: Path, tmp_path: Path) -> None:
    """The model is none, so a command that reads it first would tell of that."""
    model.write_bytes(b"no model")
    gone = tmp_path / "gone" / "file"
    for command in (
        ("compile", model, "--target", "cpu", "-o", gone),
        ("compile", model, "--target", "cpu", "--ep-context", gone),
        ("run", model, "--outputs", gone),
        ("run", model, "--trace", gone),
        ("run", model, "--report", gone.with_suffix(".html")),
        ("plan", model, "--svg", gone.with_suffix(".svg")),
    ):
        result = fusilli(*command)
        assert result.exit_code == 2
        assert f": there is no folder {gone.parent}" in result.stderr, command


@pytest.mark.parametrize("data", [b"", b"\x08", b"\x08\x07\x12\x02", b"rubbish" * 100])
def test_damaged_models(fusilli: Fusilli, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    result = fusilli("run", tmp_path / "m.onnx", "--device", "cpu", "--outputs", tmp_path / "o.npz")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert not (tmp_path / "o.npz").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "no array for"),
        ({"more": np.zeros(1), NAME: FEEDS[NAME]}, "is no input"),
        ({NAME: np.zeros((1, 2), np.float32)}, "has shape (1, 2)"),
        ({NAME: np.zeros((4, 64), np.complex64)}, "use astype"),
    ],
)
def test_arrays_that_do_not_fit(
    fusilli: Fusilli, model: Path, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    save(tmp_path / "in.npz", arrays)
    result = fusilli("run", model, "--device", "cpu", "--inputs", tmp_path / "in.npz")
    assert result.exit_code == 2
    assert message in result.stderr


def test_channels_last_between_graphs(fusilli: Fusilli, tmp_path: Path) -> None:
    """Another order in memory: every graph is right, and the report says so."""
    onnx.save(onnx_models.small_cnn(), tmp_path / "cnn.onnx")
    html = tmp_path / "r.html"
    options = ("--device", "cpu", "--layout", "channels-last", "--check", "--json", "--report", html)
    result = fusilli("run", tmp_path / "cnn.onnx", *options)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert len(document["checked"]) > 8
    assert "channels-last for" in html.read_text()


def test_explain_tells_of_each_node_without_a_compile(fusilli: Fusilli, model: Path) -> None:
    result = fusilli("explain", model, "--target", "gfx942", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    told = {node for group in document["groups"] for node in group["nodes"]} | set(document["absorbed"])
    assert told == {node.name for node in PROTO.graph.node}
    assert {group["engine"] for group in document["groups"]} == {"FUSILLI_ENGINE"}
    assert document["target"] == "gfx942"
    table = fusilli("explain", model, "--device", "cpu")
    assert "hipDNN graph" in table.stdout
    both = fusilli("explain", model, "--device", "cpu", "--target", "gfx942")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr


def test_explain_of_a_node_that_hipdnn_lacks_says_why(fusilli: Fusilli, tmp_path: Path) -> None:
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"], name="running")
    axis = onnx.numpy_helper.from_array(np.array(1), "axis")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = onnx.helper.make_graph([node], "sums", [x], [y], [axis])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "sums.onnx")
    result = fusilli("explain", tmp_path / "sums.onnx", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    (missing,) = (each for each in document["unclaimed"] if each["node"] == "running")
    assert missing["reasons"]
    assert document["groups"][0]["as"] == "custom operation"


def test_explain_of_a_node_that_stays_onnx(fusilli: Fusilli, tmp_path: Path) -> None:
    corners = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    node = onnx.helper.make_node("Resize", ["x", "", "s"], ["y"], name="corners", **corners)
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 1, 0.6], np.float32), "s")
    dims = {"x": [1, 1, 4, 4], "y": [1, 1, 4, 2]}
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims[name]) for name in "xy")
    graph = onnx.helper.make_graph([node], "corners", [x], [y], [scales])
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]), tmp_path / "corners.onnx"
    )
    result = fusilli("explain", tmp_path / "corners.onnx", "--target", "gfx942", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    (group,) = document["groups"]
    assert (group["nodes"], group["engine"], group["as"]) == (["corners"], "ONNXRUNTIME_ENGINE", "ONNX nodes")
    (missing,) = document["unclaimed"]
    assert "Resize: align_corners with scale 0.6 of 4" in missing["reasons"]["front end"]
    table = fusilli("explain", tmp_path / "corners.onnx", "--device", "cpu").stdout
    assert "stays ONNX, run by ONNXRUNTIME_ENGINE" in " ".join(table.split())


def test_models_without_their_packages_are_told(fusilli: Fusilli, tmp_path: Path) -> None:
    """A traceback is what users saw after `make demo`, which installs what graphs need."""
    path = tmp_path / "m.onnx"
    path.write_bytes(PROTO.SerializeToString())
    code = (
        "import sys\n"
        "sys.modules['torch_mlir'] = None\n"
        "from fusilli_plugin.cli.main import main\n"
        f"sys.argv = ['fusilli', 'run', {str(path)!r}, '--device', 'cpu']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "torch_mlir is not installed, which models need" in done.stderr
    assert "Traceback" not in done.stderr
