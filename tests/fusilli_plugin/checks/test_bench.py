from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fusilli_plugin.checks import bench
from fusilli_plugin.checks.bench import Measurement, main, native_compiler, report
from graph_api import FusilliError

FOUND = [
    Measurement("compile", (1.2, 1.0, 1.1), 1.15, native=(1.0, 1.1, 1.05)),
    Measurement("build", (0.020, 0.0161, 0.010), 15e-3),
    Measurement("call", (3.5e-6, 3.6e-6, 9e-6), 4e-6),
]


def test_medians_and_verdicts() -> None:
    assert [(m.median, m.met) for m in FOUND] == [(1.1, True), (0.0161, False), (3.6e-6, True)]
    assert FOUND[0].value == pytest.approx(1.1 / 1.05)


def test_the_table() -> None:
    assert list(report(FOUND)) == [
        "what     median   min .. max      native  ratio  goal",
        "compile  1.1 s    1 s .. 1.2 s    1.05 s  1.05   <= 1.15x  met",
        "build    16.1 ms  10 ms .. 20 ms                 <= 15 ms  MISSED",
        "call     3.6 us   3.5 us .. 9 us                 <= 4 us   met",
    ]


def test_a_missed_goal_is_said_and_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure", lambda **_: FOUND)
    out = tmp_path / "bench.json"
    assert main(["--json", str(out)]) == 0
    assert "missed: build\n" in capsys.readouterr().out
    data = json.loads(out.read_text())
    assert [(row["name"], row["met"]) for row in data["measurements"]] == [
        ("compile", True), ("build", False), ("call", True),
    ]  # fmt: skip
    assert data["measurements"][0]["native"] == [1.0, 1.1, 1.05]
    assert set(data["machine"]) == {"iree", "python", "machine", "cpus", "load"}


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


@pytest.mark.slow
@pytest.mark.iree_cpu
def test_measuring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rounds", "1", "--calls", "10", "--target", "cpu"]) == 0
    assert "cold compile of conv+bias+relu for cpu" in capsys.readouterr().out
