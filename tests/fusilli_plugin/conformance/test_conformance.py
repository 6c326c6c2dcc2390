"""`fusilli conformance`: plugins that keep to the rules pass, and broken ones fail exactly where they are broken."""

from __future__ import annotations

import json
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusilli_plugin.cli import cli
from fusilli_plugin.conformance.areas import DeviceArea, HostArea
from fusilli_plugin.conformance.checks import CHECKS
from fusilli_plugin.conformance.findings import BrokenRule
from fusilli_plugin.conformance.samples import FAMILIES, FUNCTIONS, function, plain, random_sample
from fusilli_plugin.edge.build import compile_shim
from fusilli_plugin.edge.install import Installation, write_sidecar
from hipdnn_backend.device.memory import HostMemory
from hipdnn_backend.wire import Layout, decode_graph

SOURCE = Path(__file__).with_name("relu_plugin.c")
# No results of random graphs, of which this plugin takes none.
INTERFACE = tuple(name for name in CHECKS if not name.startswith("results"))


def build(folder: Path, *macros: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the plugins are compiled with cc, which is not here")
    library = folder / "librelu.so"
    command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += ["-fvisibility=hidden", *(f"-D{macro}" for macro in macros), "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return library


def examined(plugin: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON document of a run."""
    report = plugin.with_name("report.json")
    words = ["conformance", str(plugin), "--device", "standin", "--json", str(report), "--cycles", "40", *arguments]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, done.output
    return json.loads(report.read_text())


def failures(document: dict[str, Any]) -> dict[str, str]:
    return {row["check"]: row["verdict"] for row in document["checks"] if row["verdict"] not in ("passed", "skipped")}


def test_a_plugin_that_keeps_to_the_rules_passes(tmp_path: Path) -> None:
    document = examined(build(tmp_path), "--check", ",".join(INTERFACE), "--check", "results: functions")
    verdicts = {row["check"]: row["verdict"] for row in document["checks"]}
    assert document["ok"]
    assert list(verdicts) == [*INTERFACE, "results: functions"]
    skipped = {name for name, verdict in verdicts.items() if verdict == "skipped"}
    assert skipped == {"restore-with-config", "virtual-tensors", "scalars", "overrides"}
    assert document["operations"]["pointwise"]["right"] == 1, "RELU"


@pytest.mark.thorough
@pytest.mark.parametrize(("macro", "layout"), [("OLD", "November 2025"), ("WITH_CONFIG", "newest")])
def test_published_versions_of_the_interface(tmp_path: Path, macro: str, layout: str) -> None:
    names = "load,names,api-version,claims,save,restore,bad-plans,execute,plans"
    rows = {row["check"]: row for row in examined(build(tmp_path, macro), "--check", names)["checks"]}
    assert f"{layout}: 1" in rows["claims-layouts"]["text"]
    saves = {name: rows[name]["verdict"] for name in ("save", "restore-with-config", "bad-plans")}
    assert set(saves.values()) == ({"skipped"} if macro == "OLD" else {"passed"})


@pytest.mark.thorough
def test_a_careless_plugin_fails_where_it_is_careless(tmp_path: Path) -> None:
    document = examined(build(tmp_path, "CARELESS"), "--check", ",".join(INTERFACE), code=1)
    assert failures(document) == {
        "bad-graphs": "crashed", "bad-configs": "crashed", "leaks-plans": "failed", "leaks-bad-graphs": "crashed",
    }  # fmt: skip
    rows = {row["check"]: row["text"] for row in document["checks"]}
    assert rows["bad-graphs"].startswith("SIGSEGV: damaged graph ")
    assert "8.0 KiB of memory are lost" in rows["leaks-plans"] or "1 of the open files" in rows["leaks-plans"]


def test_a_boastful_plugin_fails_by_its_results(tmp_path: Path) -> None:
    names = ",".join(["load", "claims", "execute", "missing-tensors", "results: functions"])
    document = examined(build(tmp_path, "BOASTFUL"), "--check", names, code=1)
    assert failures(document) == {"results: functions": "failed"}
    tally = document["operations"]["pointwise"]
    assert tally["asked"] == len(FUNCTIONS)
    assert tally["claimed"] == tally["right"] + tally["wrong"] > 20
    assert 1 <= tally["right"] <= 4, "RELU, and what is the same for these numbers"


def test_a_plugin_that_dies_of_a_graph_is_asked_about_the_others(tmp_path: Path) -> None:
    document = examined(build(tmp_path, "BOASTFUL", "FRAGILE"), "--check", "results: functions", code=1)
    died, rest = document["checks"]
    number = [mode.name for mode in FUNCTIONS].index("EXP")
    assert (died["check"], died["verdict"]) == (f"results: functions {number}", "crashed")
    assert died["text"].startswith("SIGABRT: building a plan for EXP")
    assert rest["verdict"] == "failed"
    tally = document["operations"]["pointwise"]
    assert (tally["asked"], tally["broken"]) == (len(FUNCTIONS), 1)


def test_a_plugin_that_hangs_is_a_row(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    plugin = build(tmp_path, "STUCK")
    document = examined(plugin, "--check", "load,execute", "--limit", "5", "--junit", str(junit), code=1)
    assert failures(document) == {"execute": "hung"}
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("4", "1", "0")
    (error,) = suite.iter("error")
    assert error.get("message") == "no end within 5 s: execution 1: executing relu FLOAT"


def ours(folder: Path) -> Path:
    library = compile_shim(folder / "libfusilli_plugin.so")
    write_sidecar(library, Installation.of_this_interpreter())
    return library


@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    "checks",
    [
        # all but what asks for hundreds of graphs, each of which is compiled
        pytest.param(("load", "names", "save"), id="a few"),
        pytest.param(INTERFACE, id="every rule", marks=pytest.mark.thorough),
    ],
)
def test_our_own_plugin_keeps_to_the_rules(tmp_path: Path, checks: Sequence[str]) -> None:
    document = examined(ours(tmp_path), "--check", ",".join(checks))
    verdicts = {row["check"]: row["verdict"] for row in document["checks"]}
    assert set(checks) <= verdicts.keys()
    assert set(verdicts) <= set(INTERFACE)
    assert set(verdicts.values()) == {"passed"}


@pytest.mark.slow
@pytest.mark.iree_cpu
def test_our_own_plugin_passes_whole(tmp_path: Path) -> None:
    document = examined(ours(tmp_path), "--graphs", "3")
    assert not failures(document)
    assert {row["check"] for row in document["checks"]} == set(CHECKS)
    skipped = {row["check"] for row in document["checks"] if row["verdict"] == "skipped"}
    assert all(name.startswith("results: small") for name in skipped), "numbers of these types are not settled"


def test_what_is_no_plugin_fails_to_load(tmp_path: Path) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("no library")
    document = examined(text, "--check", "load,null", code=1)
    assert {row["verdict"] for row in document["checks"]} == {"failed"}
    assert "cannot be loaded" in document["checks"][0]["text"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--check", "nothing"], "there is no check 'nothing'"),
        (["--device", "cpu"], "engine plugins take HIP's devices"),
    ],
)
def test_bad_requests(tmp_path: Path, words: list[str], said: str) -> None:
    file = tmp_path / "libx.so"
    file.write_text("")
    done = CliRunner().invoke(cli, ["conformance", str(file), *words])
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize("size", [1, 16, 4095, 4096, 5000])
@pytest.mark.parametrize("offset", [0, 16])
def test_writes_outside_of_buffers_are_seen(size: int, offset: int) -> None:
    import ctypes

    for area in (HostArea(size, 256, offset=offset), DeviceArea(HostMemory(), size, offset)):
        assert area.address % 256 == offset
        area.write(b"\0" * size)
        area.check("it")
        for at in (-1, size) if area.address + size & 4095 else (-1,):
            byte = ctypes.c_uint8.from_address(area.address + at)
            was, byte.value = byte.value, 0
            with pytest.raises(BrokenRule, match="wrote outside it: a byte 1 "):
                area.check("it")
            byte.value = was
        area.close()


def test_the_graphs_are_those_of_hosts() -> None:
    for sample in [*plain(), *(function(number) for number in range(len(FUNCTIONS)))]:
        data = sample.data(Layout.NEWEST)
        assert data is not None
        assert decode_graph(data).nodes
        assert not any(node.attributes is None for node in sample.graph.nodes)
    assert all(random_sample(family, 0).data(Layout.NEWEST) for family in FAMILIES if family != "custom")
