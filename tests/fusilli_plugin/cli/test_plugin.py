"""``install-plugin``, ``plugin-dir``, ``selftest``, ``warm``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from fusilli_plugin import plugin_dir
from fusilli_plugin.checks import selftest
from fusilli_plugin.checks.roofline import Ceiling, Roofline, Timing
from fusilli_plugin.checks.selftest_cases import read_cases
from fusilli_plugin.edge import install
from fusilli_plugin.engine import quarantine
from graph_api import Graph, TensorAttr
from iree_bridge import Device, Options, Target, build
from iree_bridge.compile.compiler import compile_code

Fusilli = Callable[..., Result]
GRAPHS = Path(__file__).resolve().parents[2] / "data" / "hipdnn_graphs"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the built library: these commands only move names around."""
    library = tmp_path / "package" / "lib" / "libfusilli_plugin.so"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(install, "LIBRARY", library)
    monkeypatch.setattr(install, "is_current", lambda _: True)
    return library


def test_the_folder_is_printed(fusilli: Fusilli, library: Path) -> None:
    result = fusilli("plugin-dir")
    assert result.stdout == f"{library.parent}\n"
    assert plugin_dir() == str(library.parent)


def test_with_the_plugins_of_others(fusilli: Fusilli, library: Path, tmp_path: Path, cold_cache: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "libother.so").touch()
    merged = Path(fusilli("plugin-dir", "--with", other).stdout.strip())
    assert sorted(path.name for path in merged.iterdir()) == ["libfusilli_plugin.so", "libother.so"]
    assert fusilli("plugin-dir", "--with", tmp_path / "none").exit_code == 2


def test_installing(fusilli: Fusilli, library: Path, tmp_path: Path) -> None:
    result = fusilli("install-plugin", "--into", tmp_path / "engines")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "engines" / "libfusilli_plugin.so").resolve() == library.resolve()


def test_what_cannot_be_installed_is_told_with_the_command(fusilli: Fusilli, library: Path, tmp_path: Path) -> None:
    (tmp_path / "engines").touch()
    result = fusilli("install-plugin", "--into", tmp_path / "engines")
    assert result.exit_code == 2
    assert "sudo ln -sfn" in result.output


def test_without_hipdnn_a_folder_has_to_be_named(
    fusilli: Fusilli, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIPDNN_BACKEND_LIBRARY", str(tmp_path / "rocm" / "lib" / "libhipdnn_backend.so"))
    result = fusilli("install-plugin")
    assert result.exit_code == 2
    assert "no hipDNN was found on this machine" in result.stderr
    assert "--into DIR" in result.stderr
    assert not (tmp_path / "rocm").exists()


def test_a_plugin_folder_that_is_named_elsewhere_is_noted(
    fusilli: Fusilli, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIPDNN_PLUGIN_DIR", str(tmp_path / "elsewhere"))
    assert "load plugins from there only" in fusilli("install-plugin", "--into", tmp_path / "engines").stderr
    assert fusilli("install-plugin", "--into", tmp_path / "elsewhere").stderr == ""


@pytest.fixture
def two_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter self-test."""
    cases = [case for case in read_cases() if case.name in ("conv+bias+ReLU FLOAT", "layer norm HALF")]
    monkeypatch.setattr("fusilli_plugin.cli.selftest.read_cases", lambda: cases)
    timing = Timing("product FLOAT", 0.002, 12 << 20, 2 << 30, "products", 0.25)
    found = Roofline(Ceiling(2e10, {"FLOAT": 4.2e12}, "measured"), (timing,))
    monkeypatch.setattr("fusilli_plugin.cli.selftest.measure", lambda device, options: found)


@pytest.mark.thorough
@pytest.mark.iree_cpu
@pytest.mark.usefixtures("two_graphs")
def test_a_selftest_is_remembered(fusilli: Fusilli, cold_cache: Path) -> None:
    result = fusilli("selftest", "--device", "cpu", "--release")
    assert result.exit_code == 0, result.output
    assert "cpu: 2 right of 2 graphs" in result.output
    assert "cpu: stream order: right: 2 streams of 64 executions" in result.output
    assert "cpu: stream capture: skipped: the CPU has no streams" in result.output
    assert "cpu: saved plans: right: 4 plans" in result.output
    assert "cpu: product FLOAT: 2 ms, 1.07 Toperations/s, 25% of products" in result.output
    assert "0 graphs are no longer in quarantine" in result.output
    assert quarantine.has_passed_selftest(Device.parse("cpu"), Options.from_env())
    document = json.loads(fusilli("selftest", "--device", "cpu", "--json").stdout)
    assert (document["device"], document["ok"], document["released"]) == ("cpu", True, 0)
    assert [case["name"] for case in document["cases"]] == ["conv+bias+ReLU FLOAT", "layer norm HALF"]


@pytest.mark.iree_cpu
@pytest.mark.usefixtures("two_graphs")
def test_a_wrong_result_fails_the_selftest(fusilli: Fusilli, cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __init__(self, graph: Graph, device: Device, *, options: Options) -> None:
            self._right = build(graph, device=device, options=options)

        def run(self, pack: dict[TensorAttr, np.ndarray]) -> None:
            self._right.run(pack)
            for tensor in self._right.outputs:
                pack[tensor].flat[-1] += 1

    monkeypatch.setattr("fusilli_plugin.checks.selftest_cases.build", Wrong)
    result = fusilli("selftest", "--device", "cpu")
    assert result.exit_code == 1
    assert "conv+bias+ReLU FLOAT: wrong: 'y' WRONG" in result.stderr
    assert not quarantine.has_passed_selftest(Device.parse("cpu"), Options.from_env())


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("command_line.md", "{all} graphs of all operations"),
        ("command_line.md", "runs {emulated} of them"),
        ("emulator.md", "with fewer images; {emulated}, exit status"),
        ("gpu_findings.md", "`fusilli selftest --device hip` runs {all} graphs"),
        ("reports.md", "{all} graphs"),
    ],
)
def test_the_pages_say_how_many_graphs_the_selftest_has(page: str, text: str) -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    numbers = {"all": len(read_cases()), "emulated": len(selftest.SMALL)}
    assert text.format(**numbers) in (docs / page).read_text("utf-8")


@pytest.mark.parametrize("name", ["experts HALF", "experts, gradients HALF"])
def test_experts_of_the_selftest_have_rows_and_every_row_a_place(name: str) -> None:
    graph = selftest.GRAPHS[name]()
    results = graph.reference(selftest.inputs(graph))
    for tensor in graph.arguments().outputs:
        assert np.all(np.any(results[tensor] != 0, axis=2))


@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.parametrize("name", selftest.GRAPHS)
def test_every_graph_of_the_selftest(name: str) -> None:
    assert selftest.run("cpu", selftest.GRAPHS[name]()).startswith("right")
    for target in ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"):
        compile_code(selftest.GRAPHS[name](), Target.parse(target))


def test_a_device_that_is_not_there_fails_the_selftest(fusilli: Fusilli, cold_cache: Path) -> None:
    result = fusilli("selftest", "--device", "cuda:77", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False
    assert not (cold_cache / "selftest").exists()


@pytest.mark.iree_cpu
def test_warming_a_cache(fusilli: Fusilli, tmp_path: Path, add_graph: Graph) -> None:
    folder = tmp_path / "graphs"
    folder.mkdir()
    for name in ("pw_relu.bin", "pw_relu.json"):
        shutil.copy(GRAPHS / name, folder)
    (folder / "ours.json").write_text(add_graph.to_json())
    (folder / "broken.json").write_text("{")
    (folder / "notes.txt").touch()
    result = fusilli("warm", "--from", folder, "--target", "cpu", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    outcomes = {row["file"]: row["outcome"] for row in document["graphs"]}
    assert set(outcomes) == {"pw_relu.bin", "pw_relu.json", "ours.json", "broken.json"}
    assert {outcomes["pw_relu.bin"], outcomes["ours.json"]} <= {"compiled", "in the cache"}
    assert outcomes["pw_relu.json"] == "in the cache"
    (folder / "broken.json").unlink()
    assert fusilli("warm", "--from", folder, "--target", "cpu").exit_code == 0


def test_a_graph_that_is_not_served_is_skipped(fusilli: Fusilli, tmp_path: Path) -> None:
    graph = json.loads((GRAPHS / "pw_relu.json").read_text())
    for tensor in graph["tensors"]:
        tensor["data_type"] = "double"
    graph["compute_type"], graph["nodes"][0]["attributes"]["operation"] = "double", "SIN"
    (tmp_path / "sin.json").write_text(json.dumps(graph))
    result = fusilli("warm", "--from", tmp_path / "sin.json", "--target", "cpu")
    assert result.exit_code == 0, result.output
    assert "not served: " in result.output
