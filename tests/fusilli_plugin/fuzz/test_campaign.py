"""`fusilli fuzz`, `reduce` and `replay` as a user meets them, over faults in workers that compile nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fusilli_plugin.fuzz import campaign
from fusilli_plugin.fuzz.campaign import Campaign, Plan
from fusilli_plugin.fuzz.examine import Setting
from fusilli_plugin.fuzz.workarounds import WORKAROUNDS, raw_flags
from fusilli_plugin.testing.graphs import graph
from graph_api import FusilliError, Graph
from iree_bridge import Support, Target
from tests.fusilli_plugin.fuzz.faulty import environment, fusilli

PRODUCTS = 'if "matmul" in ops: found = {t: v * 0 + t.data_type.numpy.type(2) for t, v in found.items()}'
CRASH = 'if "reduction" in ops: os.abort()'


@pytest.mark.iree_cpu
def test_findings_are_one_small_graph_each_and_can_be_repeated(tmp_path: Path) -> None:
    arguments = ["fuzz", "--device", "cpu", "--budget", "50s", "--jobs", "2", "--family", "product,reduction,pool"]
    done = fusilli(tmp_path, *arguments, "--findings", "2", "-o", "out", "--json", fault=f"{PRODUCTS}\n{CRASH}")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    kinds = {finding["kind"]: finding for finding in document["findings"]}
    assert set(kinds) == {"wrong", "crash SIGABRT"}
    assert kinds["wrong"]["nodes"] == ["matmul"]
    assert [name.split()[0] for name in kinds["crash SIGABRT"]["nodes"]] == ["reduction"]
    assert document == json.loads((tmp_path / "out/report.json").read_text())
    assert "matmul x HALF" in document["coverage"]["tried"]["operation x type"] or document["coverage"]["tried"]
    folder = Path(kinds["wrong"]["capsule"])
    made = Graph.from_json((tmp_path / folder / "graph.json").read_bytes())
    assert all(tensor.volume == 1 for tensor in made.tensors)
    expected = np.load(tmp_path / folder / "expected.npz")
    assert expected[made.arguments().outputs[0].name].dtype == made.arguments().outputs[0].data_type.numpy
    files = {path.name for path in (tmp_path / folder).iterdir()}
    assert {"module.mlir", "command.txt", "flags.txt", "versions.json", "inputs.npz", "results.npz"} <= files
    assert "torch.aten" in (tmp_path / folder / "module.mlir").read_text()
    again = fusilli(tmp_path, "replay", str(folder), fault=f"{PRODUCTS}\n{CRASH}")
    assert again.returncode == 1, again.stderr
    assert "on cpu: failed: reference: wrong" in again.stdout
    mended = fusilli(tmp_path, "replay", str(folder))
    assert mended.returncode == 0, mended.stderr
    assert "on cpu: right" in mended.stdout


def test_reduce_alone(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(graph(4, "scaled product").to_json())
    arguments = ["reduce", "g.json", "--device", "cpu", "--json"]
    done = fusilli(tmp_path, *arguments, fault=PRODUCTS)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["nodes"], document["folder"]) == (["matmul"], "g.reduced")
    assert "there already" in fusilli(tmp_path, *arguments, fault=PRODUCTS).stderr
    right = fusilli(tmp_path, *arguments, "-o", "other", fault="pass")
    assert right.returncode == 1
    assert json.loads(right.stdout)["outcome"] == "right"


@pytest.mark.thorough
def test_an_interrupt_ends_with_the_report_and_what_was_found(tmp_path: Path) -> None:
    """The finding is being made small when it comes."""
    fault = f"time.sleep(0.3)\n{PRODUCTS}"
    arguments = ["fuzz", "--device", "cpu", "--budget", "10m", "--jobs", "1", "--family", "product", "-o", "out"]
    child = subprocess.Popen(
        [sys.executable, "-m", "fusilli_plugin", *arguments], cwd=tmp_path, text=True,
        env=environment(tmp_path, fault) | {"FUSILLI_LOG_LEVEL": "info"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stderr is not None
    begin = time.monotonic()
    while "reference: wrong" not in child.stderr.readline():
        assert time.monotonic() - begin < 60
    time.sleep(1.0)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130, err
    assert "1 findings" in out
    (capsule,) = [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert (capsule / "graph.json").is_file()
    assert json.loads((capsule / "finding.json").read_text())["verdict"]["kind"] == "wrong"


def test_a_run_in_which_all_is_declined_is_no_success(tmp_path: Path) -> None:
    arguments = ["fuzz", "--device", "cpu", "--engine", "FUSILLI_ENGINE", "--budget", "2s", "--jobs", "1"]
    done = fusilli(tmp_path, *arguments, "--family", "norm", "-o", "out", fault="pass")
    assert done.returncode == 2, done.stdout
    assert "FUSILLI_ENGINE on cpu: no graph was examined, all of them are declined:" in done.stderr
    (declined,) = json.loads((tmp_path / "out/report.json").read_text())["declined"]
    assert declined["count"] > 1
    assert f"{declined['count']} x {declined['reason']}" in done.stderr
    assert declined["reason"].endswith("nodes are too many")


@pytest.mark.a_few("arguments0-*", "arguments2-*")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cpu", "--target", "gfx942"], "--device and --target exclude each other"),
        (["--emulate", "gfx942", "--engine", "X"], "--engine is for devices"),
        (["--device", "cpu", "--engine", "X", "--against", "y"], "--engine and --against exclude each other"),
        (["--device", "cpu", "--budget", "soon"], "is no time"),
        (["--device", "cpu", "--family", "poodle"], "unknown family 'poodle'"),
        (["--target", "gfx942", "--raw", "stack"], "has no workaround 'stack'"),
        (["--target", "gfx942", "--raw", "paddin"], "padding"),
        (["--device", "cpu", "--iree-compile", "/no/such"], "/no/such is no program"),
        (["--target", "gfx9999"], "gfx9999"),
    ],
)
def test_what_means_nothing_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = fusilli(tmp_path, "fuzz", *arguments, "-o", "out")
    assert done.returncode == 2, done.stdout
    assert message in done.stderr


def test_workarounds_are_named_and_their_flags_are_the_compilers() -> None:
    """A flag that the compiler does not know would be a raw run that changes nothing; slow tests compile with all."""
    assert raw_flags(["all"], "llvm-cpu") == tuple(
        flag for each in WORKAROUNDS.values() if "llvm-cpu" in each.backends for flag in each.undo
    )
    with pytest.raises(FusilliError, match="code for llvm-cpu has no workaround 'padding': it is of rocm"):
        raw_flags(["padding"], "llvm-cpu")


@pytest.mark.a_few("cpu")
@pytest.mark.mlir
@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_86"])
def test_the_compiler_knows_every_flag_of_the_table(target: str) -> None:
    from iree_bridge import Options
    from iree_bridge.compile.compiler import compile_code

    chosen = Target.parse(target)
    options = Options.from_env(extra_flags=raw_flags(["all"], chosen.backend))
    assert compile_code(graph(1, "pointwise"), chosen, options).vmfb


def test_what_is_not_served_is_counted_and_never_asked_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "support", lambda graph, target: Support(False, "", "rule", "none is served"))
    made = Campaign(Plan(setting=Setting(target="gfx942"), folder=tmp_path))
    assert made._next() is None
    assert made.outcomes == {"declined": 8}
    assert made.coverage.declined
    assert not made.coverage.tried


def test_the_same_seed_gives_the_same_graphs(tmp_path: Path) -> None:
    def first(seed: int) -> list[str]:
        made = Campaign(Plan(setting=Setting(target="gfx942"), folder=tmp_path, seed=seed))
        return [chosen[2].to_json() for _ in range(12) if (chosen := made._next()) is not None]

    assert first(3) == first(3) != first(4)
