"""Models on the command line: run, compile, plan, dump, replay."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
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
from fusilli_plugin.cli.models import bound_inputs, dims_of
from fusilli_plugin.formats.kinds import is_model
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


def small_model(path: Path, nodes: list[onnx.NodeProto], outputs: str, **constants: Any) -> Path:
    """A model of float32 tensors x and its outputs, all [2, 3]."""
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in ("x", *outputs)]
    initializers = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = onnx.helper.make_graph(nodes, "small", values[:1], values[1:], initializers)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), path)
    return path


def test_nodes_that_become_several_are_checked(fusilli: Fusilli, tmp_path: Path) -> None:
    """What they become has their name, and ONNX Runtime takes no two nodes of one name."""
    make = onnx.helper.make_node
    nodes = [
        make("QuickGelu", ["x"], ["g"], "gelu", domain="com.microsoft"),
        make("LpNormalization", ["g"], ["y"], "norm"),
    ]
    result = fusilli("run", small_model(tmp_path / "m.onnx", nodes, "y"), "--device", "cpu", "--check", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["ok"] is True
    assert {finding["value"] for finding in document["checked"]} >= {"y"}


def test_explain_counts_what_needs_no_graph_and_names_it_if_asked(fusilli: Fusilli, tmp_path: Path) -> None:
    make = onnx.helper.make_node
    constants = [make("Constant", [], [f"c{i}"], f"constant_{i}", value_float=float(i)) for i in range(9)]
    sums = [make("Add", [f"c{i}", f"c{i + 1}"], [f"s{i}"], f"sum_{i}") for i in range(8)]
    path = small_model(tmp_path / "m.onnx", [*constants, *sums, make("Mul", ["x", "s3"], ["y"], "product")], "y")
    text = fusilli("explain", path, "--device", "cpu").stdout
    assert "computed before any run" in text
    assert "constant_3" not in text
    assert re.search(r"\b\d Constant, \d Add|\b\d Add, \d Constant", text), text
    assert "--all names them" in text
    everything = fusilli("explain", path, "--device", "cpu", "--all").stdout
    assert all(each in everything for each in ("constant_3", "constant_4", "sum_3"))
    document = json.loads(fusilli("explain", path, "--device", "cpu", "--json").stdout)
    assert {"constant_3", "sum_3"} <= {node["node"] for node in document["nodes"]}


RANDOM = {
    "noise": ([("RandomNormal", "", "r", {"shape": [2, 3]}), ("Add", "a r", "b", {})], {}),
    "noise_like": ([("RandomUniformLike", "a", "r", {}), ("Add", "a r", "b", {})], {}),
    "coin": ([("Bernoulli", "chances", "b", {})], {"chances": np.full((2, 3), 0.5, np.float32)}),
    "drop": ([("Dropout", "a ratio train", "b", {})], {"ratio": np.float32(0.5), "train": np.array(True)}),
}


@pytest.mark.a_few("noise_like", "drop")
@pytest.mark.parametrize("name", RANDOM)
def test_what_depends_on_random_nodes_is_not_compared(fusilli: Fusilli, tmp_path: Path, name: str) -> None:
    parts, constants = RANDOM[name]
    make = onnx.helper.make_node
    random = [make(op, i.split(), [o], name if not n else f"{name}_{n}", **g) for n, (op, i, o, g) in enumerate(parts)]
    # z has the dims of the random values, and is compared all the same
    nodes = [make("Relu", ["x"], ["a"], "relu"), *random, make("Tanh", ["b"], ["y"], "tanh"), make("Exp", ["a"], ["z"])]
    path = small_model(tmp_path / "m.onnx", nodes, "yz", **constants)
    result = fusilli("run", path, "--device", "cpu", "--check", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["random"] == {name: parts[0][0]}
    assert document["ok"] is True
    assert {each["value"] for each in document["checked"]} >= {"z"}
    assert not {each["value"] for each in document["checked"]} & {"y", "b", "r"}
    table = fusilli("run", path, "--device", "cpu", "--check").stdout
    assert f"not compared is what depends on random nodes: {name} ({parts[0][0]})" in table


def test_a_model_that_is_random_as_a_whole_is_not_called_right(fusilli: Fusilli, tmp_path: Path) -> None:
    node = onnx.helper.make_node("RandomNormalLike", ["x"], ["y"], "noise")
    result = fusilli("run", small_model(tmp_path / "m.onnx", [node], "y"), "--device", "cpu", "--check")
    assert result.exit_code == 2
    assert "nothing can be compared: every result depends on random nodes: noise (RandomNormalLike)" in result.stderr


def test_a_model_of_an_execution_provider_is_told(fusilli: Fusilli, tmp_path: Path) -> None:
    node = onnx.helper.make_node("EPContext", ["x"], ["y"], "code", domain="com.microsoft", source="AcmeProvider")
    path = small_model(tmp_path / "m.onnx", [node], "y")
    for command in (("run", "--device", "cpu"), ("explain", "--target", "gfx942"), ("plan",)):
        result = fusilli(command[0], path, *command[1:])
        assert result.exit_code == 2
        assert "code: EPContext: the model holds code that AcmeProvider compiled for ONNX Runtime" in result.stderr
        assert "give the model that it was made from" in result.stderr


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


def test_what_cannot_be_done_is_told_before_the_work(
    fusilli: Fusilli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: object) -> str:
        result = fusilli("run", *args, "--device", "cpu")
        assert result.exit_code == 2
        return result.stderr

    with monkeypatch.context() as patch:
        patch.setattr("fusilli_plugin.cli.run_model._load", lambda *_: pytest.fail("loaded"))
        for name in ("saved.fusilli", "text.mlir"):
            with zipfile.ZipFile(tmp_path / name, "w") as archive:
                archive.writestr("a", "a")
            assert "needs the ONNX model itself" in refused(tmp_path / name, "--check")
        (tmp_path / "mlp.graph1").mkdir()
        (tmp_path / "mlp.graph1" / "mine").write_text("")
        assert "mlp.graph1 is not empty" in refused(model, "--dump-graph", 1)
        patch.setitem(sys.modules, "onnxruntime", None)
        patch.delitem(sys.modules, "fusilli_plugin.checks.model_check")
        assert "--check needs onnxruntime" in refused(model, "--check")
    monkeypatch.setattr("hipdnn_backend.offload.Model.run", lambda *_: pytest.fail("ran"))
    assert "--dump-graph 99: steps with a graph are 0 to 1" in refused(model, "--dump-graph", 99)


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


def test_nothing_that_is_read_is_written_over(fusilli: Fusilli, tmp_path: Path) -> None:
    """The model does not load without a size of its dim, so a command that loads it first would tell of that."""
    path, weights, feeds = tmp_path / "m.onnx", tmp_path / "weights.html", tmp_path / "in.npz"
    proto = onnx_models.mlp()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(proto, path, save_as_external_data=True, location=weights.name, size_threshold=0)
    save(feeds, FEEDS)
    link, twin = tmp_path / "link.svg", tmp_path / "twin"
    link.symlink_to(path)
    twin.hardlink_to(weights)
    before = {each: each.read_bytes() for each in (path, weights, feeds)}
    for read, command in (
        (path, ("compile", path, "--target", "cpu", "-o", path)),
        (path, ("compile", path, "--target", "cpu", "-o", link)),
        (link, ("compile", link, "--target", "cpu", "--ep-context", path)),
        (weights, ("compile", path, "--target", "cpu", "-o", twin)),
        (path, ("run", path, "--outputs", path)),
        (feeds, ("run", path, "--inputs", feeds, "--outputs", feeds)),
        (feeds, ("run", path, "--inputs", feeds, "--trace", feeds)),
        (weights, ("run", path, "--report", weights)),
        (path, ("plan", path, "--svg", link)),
    ):
        result = fusilli(*command)
        assert result.exit_code == 2, command
        assert f"{command[-1]} is a file that this command reads ({read}); name another" in result.stderr, command
    assert {each: each.read_bytes() for each in before} == before
    assert link.is_symlink()
    one = (tmp_path / "new", tmp_path / ".." / tmp_path.name / "new")
    twice = fusilli("run", path, "--outputs", one[0], "--trace", one[1])
    assert twice.exit_code == 2
    assert f"{one[1]} and {one[0]} are one file, and two are to be written" in twice.stderr


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


def test_all_that_is_wrong_with_the_arguments_is_told_before_the_work(
    fusilli: Fusilli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the model was imported")

    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    inputs = [value("x", 1, ["batch", 3]), value("m", 1, ["batch", "n"]), value("i", 7, [2]), value("s", 1, [])]
    graph = onnx.helper.make_graph([make("Relu", ["x"], ["y"])], "g", inputs, [value("y", 1, ["batch", 3])])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx")
    arrays = {"x": np.zeros((2, 4), np.float32), "m": np.zeros((2, 2), np.float32), "i": np.zeros(2), "v": np.zeros(1)}
    save(tmp_path / "in.npz", arrays)
    monkeypatch.setattr("hipdnn_backend.offload.frontend.loading.build", never)
    run = ("run", tmp_path / "m.onnx", "--device", "cpu", "--dim", "bach=2", "--input", "q=1")
    result = fusilli(*run, "--inputs", tmp_path / "in.npz")
    assert result.exit_code == 2
    problems = [
        "q: the model has no such input to bind; its inputs are x, m, i, s",
        "bach: no input has a dim of this name (did you mean batch?); symbolic dims are: batch, n",
        "x: dim 0 ('batch') of the input [batch, 3] is not fixed",
        "m: dim 1 ('n') of the input [batch, n] is not fixed",
        "no array for ['s']; the inputs of 'm.onnx' are ['x', 'm', 'i', 's']",
        "['v'] is no input",
        "'x' has shape (2, 4), the input's dims are (batch, 3)",
        "'i' has dtype float64, the input's is int64; use astype",
    ]
    assert [problem for problem in problems if problem not in result.stderr] == []
    assert result.stderr.count("'batch'") == 2  # told once of x, and of what --dim would be, not again of m
    alone = fusilli(*run)
    assert alone.exit_code == 2
    assert [problem for problem in problems[:4] if problem not in alone.stderr] == []
    assert "array" not in alone.stderr


@pytest.mark.thorough
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
    assert [each["node"] for each in document["nodes"]] == [node.name for node in PROTO.graph.node]
    for each in document["nodes"]:
        assert each["became"] == "graph"
        (number,) = each["graphs"]
        assert each["node"] in document["groups"][number]["nodes"]
    assert {group["engine"] for group in document["groups"]} == {"FUSILLI_ENGINE"}
    assert document["target"] == "gfx942"
    table = fusilli("explain", model, "--device", "cpu")
    assert "hipDNN graph" in table.stdout
    both = fusilli("explain", model, "--device", "cpu", "--target", "gfx942")
    assert both.exit_code == 2
    assert "exclude each other" in both.stderr


def strange_model() -> onnx.ModelProto:
    """A model with a node for each thing that can become of one."""
    make, tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
    float_, opset = onnx.TensorProto.FLOAT, [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    twice = onnx.helper.make_function(
        "own", "Twice", ["a"], ["c"], [make("Tanh", ["a"], ["b"], "first"), make("Neg", ["b"], ["c"], "second")], opset
    )
    inner = onnx.helper.make_tensor_value_info("i", float_, None)
    then = onnx.helper.make_graph([make("Exp", ["m"], ["i"], "in_then")], "then", [], [inner])
    other = onnx.helper.make_graph([make("Abs", ["m"], ["i"], "in_else")], "else", [], [inner])
    nodes = [
        make("Conv", ["x", "w"], ["c"], "conv"),
        make("BatchNormalization", ["c", "one", "one", "one", "one"], ["n"], "norm"),
        make("Twice", ["n"], ["t"], "call", domain="own"),
        make("Identity", ["t"], ["m"], "same"),
        make("If", ["yes"], ["f"], "choice", then_branch=then, else_branch=other),
        make("Shape", ["f"], ["s"], "shape"),
        make("Sigmoid", ["x"], ["u"], "unused"),
        make("Relu", ["f"], ["r1"], "relu"),
        make("Relu", ["f"], ["r2"], "relu_again"),
        make("Mul", ["r1", "r2"], ["p"], "product"),
        make("Reshape", ["p", "s"], ["y"], "reshape"),
        make("Reshape", ["x", "flat"], ["z"], "flatten"),
    ]
    one = np.ones(4, np.float32)
    constants = {"w": np.ones((4, 3, 1, 1), np.float32), "one": one, "yes": np.array(True), "flat": np.array([24, 2])}
    x, y = (onnx.helper.make_tensor_value_info(n, float_, d) for n, d in (("x", [2, 3, 2, 4]), ("y", [2, 4, 2, 4])))
    z = onnx.helper.make_tensor_value_info("z", float_, [24, 2])
    graph = onnx.helper.make_graph(nodes, "strange", [x], [y, z], [tensor(a, n) for n, a in constants.items()])
    return onnx.helper.make_model(graph, opset_imports=opset, functions=[twice])


def test_every_node_of_a_model_is_told_of(fusilli: Fusilli, tmp_path: Path) -> None:
    onnx.save(strange_model(), tmp_path / "m.onnx")
    result = fusilli("explain", tmp_path / "m.onnx", "--target", "cpu", "--json")
    assert result.exit_code == 0, result.output
    told = {each["node"]: each for each in json.loads(result.stdout)["nodes"]}
    expected = {
        "conv": "graph", "norm": "merged", "call": "inlined", "same": "identity", "choice": "graph", "in_then": "body",
        "in_else": "body", "shape": "folded", "unused": "unused", "relu": "graph", "relu_again": "graph",
        "product": "graph", "reshape": "identity", "flatten": "view", "first__1": "graph", "second__1": "graph",
    }  # fmt: skip
    assert {node: each["became"] for node, each in told.items()} == expected
    assert told["norm"]["into"] == ["conv"]
    assert told["call"]["into"] == ["first__1", "second__1"]
    assert told["in_then"]["into"] == ["choice"]
    assert told["call"]["operator"] == "own.Twice"
    table = fusilli("explain", tmp_path / "m.onnx", "--target", "cpu", "--all").stdout
    for line in (r"its work is done by conv +1 +norm", r"no output needs it +1 +unused", r"in the body of choice +2 "):
        assert re.search(line, table)
    html = tmp_path / "r.html"
    run = fusilli("run", tmp_path / "m.onnx", "--device", "cpu", "--report", html, "--json")
    assert run.exit_code == 0, run.output
    ran = {each["node"]: each["became"] for each in json.loads(run.stdout)["nodes"]}
    assert ran == expected
    assert "<td>its work is done by conv</td>" in html.read_text()


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


def test_explain_of_a_loop_that_a_run_ends(fusilli: Fusilli, tmp_path: Path) -> None:
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    real, whole, logical = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
    body = onnx.helper.make_graph(
        [node("Identity", ["g"], ["again"]), node("Tanh", ["s"], ["t"])], "body",
        [value("i", whole, []), value("g", logical, []), value("s", real, [4])],
        [value("again", logical, []), value("t", real, [4])],
    )  # fmt: skip
    loop = node("Loop", ["n", "", "x"], ["y"], name="loop", body=body)
    graph = onnx.helper.make_graph(
        [loop], "loops", [value("x", real, [4]), value("n", whole, [])], [value("y", real, [4])]
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)]), tmp_path / "loop.onnx")
    result = fusilli("explain", tmp_path / "loop.onnx", "--target", "gfx942", "--json")
    assert result.exit_code == 0, result.output
    (group,) = json.loads(result.stdout)["groups"]
    assert (group["nodes"], group["engine"], group["as"]) == (["loop"], "CONTROL_ENGINE", "control of bodies")
    table = " ".join(fusilli("explain", tmp_path / "loop.onnx", "--device", "cpu").stdout.split())
    assert "its bodies are compiled, and Python goes through them" in table


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


# ---- several sizes


@pytest.fixture
def open_model(tmp_path: Path) -> Path:
    """relu(x · w) of x [batch, 4]."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="h"), helper.make_node("Relu", ["h"], ["y"], name="y")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    w = numpy_helper.from_array(np.arange(-6, 6, dtype=np.float32).reshape(4, 3), "w")
    graph = helper.make_graph(nodes, "open", [x], [y], [w])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), tmp_path / "open.onnx")
    return tmp_path / "open.onnx"


@pytest.mark.iree_cpu
def test_a_model_is_compiled_for_several_sizes_and_run_between_them(
    fusilli: Fusilli, open_model: Path, tmp_path: Path
) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "in.npz", x=x.astype(np.float64))
    arrays = ("--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    want = np.maximum(x @ np.arange(-6, 6, dtype=np.float32).reshape(4, 3), 0)
    result = fusilli("run", open_model, "--device", "cpu", "--shapes", "batch=2,4", *arrays, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["padding"] == {"batch": None}
    assert "note: 'x' is converted from float64 to float32" in result.stderr
    with np.load(tmp_path / "out.npz") as written:
        np.testing.assert_array_equal(written["y"], want)

    saved = tmp_path / "open.fusilli"
    result = fusilli("compile", open_model, "--target", "cpu", "--shapes", "batch=2,4", "-o", saved)
    assert result.exit_code == 0, result.output
    assert "batch=2" in result.stdout
    assert "dim 'batch': code for 2, 4; others are padded" in result.stdout
    (tmp_path / "out.npz").unlink()
    assert fusilli("run", saved, "--device", "cpu", *arrays).exit_code == 0
    with np.load(tmp_path / "out.npz") as written:
        np.testing.assert_array_equal(written["y"], want)
    result = fusilli("run", saved, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "4x3" in result.stdout

    np.savez(tmp_path / "in.npz", x=np.zeros((5, 4), np.float32))
    result = fusilli("run", saved, "--device", "cpu", *arrays)
    assert result.exit_code == 2
    assert "dim 0 ('batch') is 5; there is code for 2, 4, and for none as large" in result.stderr


def test_bad_sizes_are_usage(fusilli: Fusilli, open_model: Path, add_file: Path, tmp_path: Path) -> None:
    for sizes, says in (
        ("bach=2", "did you mean batch"),
        ("batch=4..2", "range 4..2 is empty"),
        ("batch", "NAME=SIZES"),
    ):
        result = fusilli("run", open_model, "--device", "cpu", "--shapes", sizes)
        assert result.exit_code == 2
        assert says in result.stderr
    result = fusilli("run", open_model, "--device", "cpu", "--shapes", "batch=2", "--check")
    assert result.exit_code == 2
    assert "give --dim instead of --shapes" in result.stderr
    result = fusilli("compile", add_file, "--target", "cpu", "-o", tmp_path / "x", "--shapes", "n=2")
    assert result.exit_code == 2
    assert "--shapes are for models" in result.stderr
