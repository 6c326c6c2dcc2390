from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fusilli_plugin.edge.build import BuildError
from graph_api import FusilliError
from tests.fusilli_plugin.plugin.hosting import python_library
from tests.support import bench
from tests.support.bench import Measurement, edge, models, native_compiler, report
from tests.support.bench.__main__ import main
from tests.support.bench.edge import Edge

FOUND = [
    Measurement("compile", (1.2, 1.0, 1.1), 1.15, native=(1.0, 1.1, 1.05)),
    Measurement("build", (0.020, 0.0161, 0.010), 15e-3),
    Measurement("call", (3.5e-6, 3.6e-6, 9e-6), 4e-6),
    Measurement("pinned memory", (512 * 2.0**20,), 128 * 2.0**20, unit="B"),
    Measurement("host", (), 5e-6, skipped="there is no C compiler"),
]


def test_medians_and_verdicts() -> None:
    assert [(m.median, m.verdict) for m in FOUND[:4]] == [
        (1.1, "met"), (0.0161, "MISSED"), (3.6e-6, "met"), (2.0**29, "MISSED"),
    ]  # fmt: skip
    assert FOUND[0].value == pytest.approx(1.1 / 1.05)
    assert FOUND[4].verdict == "skipped"
    assert not FOUND[4].met


def test_the_table() -> None:
    assert list(report(FOUND)) == [
        "what           median   min .. max          native  ratio  goal",
        "compile        1.1 s    1 s .. 1.2 s        1.05 s  1.05   <= 1.15x    met",
        "build          16.1 ms  10 ms .. 20 ms                     <= 15 ms    MISSED",
        "call           3.6 us   3.5 us .. 9 us                     <= 4 us     met",
        "pinned memory  512 MiB  512 MiB .. 512 MiB                 <= 128 MiB  MISSED",
        "host                                                       <= 5 us     skipped",
        "skipped: there is no C compiler",
    ]


def test_a_missed_goal_is_said_and_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure", lambda **_: FOUND)
    out = tmp_path / "bench.json"
    assert main(["--json", str(out)]) == 0
    assert "missed: build, pinned memory\n" in capsys.readouterr().out
    data = json.loads(out.read_text())
    assert [(row["name"], row["met"]) for row in data["measurements"]] == [
        ("compile", True), ("build", False), ("call", True), ("pinned memory", False), ("host", False),
    ]  # fmt: skip
    assert data["measurements"][0]["native"] == [1.0, 1.1, 1.05]
    assert data["measurements"][4]["median"] is None
    assert set(data["machine"]) == {"iree", "python", "machine", "cpus", "load"}


def test_a_model_with_a_cold_and_a_warm_cache() -> None:
    (row,) = models.measure(["mlp"])
    for seen in (row.cold, row.warm):
        assert seen.lower_bound <= seen.arena <= seen.naive
        assert seen.read + seen.passes + seen.compile <= seen.ready
    assert row.warm.compile < row.cold.compile
    header, line = models.report([row])
    assert header.split()[:5] == ["model", "graphs", "arena", "naive", "bound"]
    assert line.split()[:2] == ["mlp", str(row.warm.graphs)]
    assert not row.missed


def test_goals_of_models() -> None:
    good = models.Loaded(0.5, 0.5, 0.9, 0.5, 2.9, arena=104, naive=300, lower_bound=100, graphs=1)
    slow = models.Loaded(0.5, 0.5, 1.1, 0.5, 3.1, arena=106, naive=300, lower_bound=100, graphs=1)
    assert models.ModelRow("resnet50", slow, good).missed == ()
    assert models.ModelRow("resnet50", good, slow).missed == (
        "resnet50 ready", "resnet50 passes", "resnet50 arena",
    )  # fmt: skip
    assert models.ModelRow("unet", good, slow).missed == ("unet arena",)


def test_a_model_that_does_not_load_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(FusilliError, match=r"broken\.onnx does not load"):
        models._in_new_process(path, tmp_path / "cache")


def test_what_cannot_be_measured_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> list[Measurement]:
        raise FusilliError("no compiler")

    monkeypatch.setattr(bench, "measure", broken)
    assert main([]) == 1
    assert "bench: no compiler" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--rounds", "0"])


def test_the_native_compiler_is_a_program_of_the_wheel() -> None:
    binary = native_compiler()
    assert binary.read_bytes()[:4] == b"\x7fELF"
    out = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert "IREE compiler version" in out.stdout


def test_without_a_c_compiler_the_edge_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> list[str]:
        raise BuildError("the shim needs a C compiler")

    monkeypatch.setattr(edge, "c_compiler", none)
    made = Edge.prepare(tmp_path, 10)
    assert made.skipped == "the shim needs a C compiler"
    made.warm()  # nothing to do


@pytest.mark.thorough
@pytest.mark.mlir
@pytest.mark.iree_cpu
def test_the_c_program_measures_cpu_and_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_library()
    monkeypatch.setattr(edge, "_BATCHES", 3)
    made = Edge.prepare(tmp_path / "edge", 10)
    made.warm()
    seen = made.sample()
    assert list(seen) == list(edge.GOALS)
    assert all(0 < value < 60 for value in seen.values())
    on_hip = made.sample_hip()
    assert list(on_hip) == list(edge.HIP_GOALS)
    assert on_hip["host memory pinned by four streams"] == 0


@pytest.mark.slow
@pytest.mark.iree_cpu
def test_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--calls", "10", "--target", "cpu"]) == 0
    assert "cold compile of conv+bias+relu for cpu" in capsys.readouterr().out
