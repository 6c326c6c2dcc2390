"""``fusilli bench``: what is timed is the same on all sides, and figures come from rounds in turns."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fusilli_plugin.bench import run
from fusilli_plugin.bench.page import _bar, html, markdown
from fusilli_plugin.bench.run import BenchError, Row, Subject, beyond, measure, summary
from fusilli_plugin.bench.workloads import SUITES, feeds_of, find, workloads
from fusilli_plugin.cli.main import cli

ROOT = Path(__file__).resolve().parents[3]


def row(name: str = "add", ratio: float | None = 2.0, threads: int = 1, **more: Any) -> Row:
    values: dict[str, Any] = {
        "busy": 0, "verdict": "",
        "ours_ms": 2.0, "onnxruntime_ms": 1.0, "torch_ms": None, "ours_spread": 0.1, "ratio_onnxruntime": ratio,
        "ratio_torch": None, "max_error": 1e-7, "variant": "plain", "problems": {},
    }  # fmt: skip
    return Row(name=name, threads=threads, **values | more)


def test_suites_have_enough_rows_with_names_of_their_own() -> None:
    for suite in SUITES:
        names = [each.name for each in workloads(suite)]
        assert len(names) == len(set(names))
        assert find(suite, names[-1]).name == names[-1]
    assert len(workloads("cpu")) >= 60
    with pytest.raises(LookupError, match="no row 'x'"):
        find("cpu", "x")


@pytest.mark.ort
@pytest.mark.parametrize("number", range(0, len(workloads("cpu")), 9))
def test_a_row_is_the_same_in_onnx_and_in_pytorch(number: int) -> None:
    onnxruntime, torch = pytest.importorskip("onnxruntime"), pytest.importorskip("torch")
    workload = workloads("cpu")[number]
    session = onnxruntime.InferenceSession(workload.model().SerializeToString(), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, feeds_of(workload))
    tensors = {name: torch.from_numpy(array) for name, array in workload.arrays().items()}
    expected = workload.torch(torch, tensors).numpy()
    assert got.shape == expected.shape
    assert got.dtype == workload.out
    tolerance = 1e-2 if workload.dtype == "float16" else 1e-4
    np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=tolerance, atol=tolerance)


@pytest.mark.thorough
@pytest.mark.ort
@pytest.mark.mlir
@pytest.mark.iree_cpu
def test_a_suite_is_measured_and_written(tmp_path: Path) -> None:
    files = {name: tmp_path / f"rows.{name}" for name in ("json", "markdown", "html")}
    arguments = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    done = CliRunner().invoke(
        cli, ["bench", "--suite", "latency", "--filter", "add 16", "--rounds", "3", "--busy", "1", *arguments]
    )
    assert done.exit_code == 0, done.output
    assert re.search(r"add 16 +1 +1 +\d", done.output)
    document = json.loads(files["json"].read_text())
    (found,) = document["rows"]
    assert found["busy"] == 1
    assert found["ours_ms"] > 0
    assert found["onnxruntime_ms"] > 0
    assert found["ratio_onnxruntime"] > 0
    assert found["max_error"] == 0
    assert (found["name"], found["threads"], found["problems"]) == ("add 16", 1, {})
    assert document["summary"]["rows with onnxruntime, 1 threads beside 1 busy"] == 1
    assert "| add 16 | 1 | 1 |" in files["markdown"].read_text()
    assert "<td>add 16</td>" in files["html"].read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a --suite, or models"),
        (["--suite", "cpu", "--filter", "nothing is called so"], "no row has"),
        (["--suite", "cpu", "--threads", "x"], "no list of numbers"),
        (["--suite", "cpu", "--threads", "0"], "there may be 1 to"),
        (["--suite", "cpu", "--busy", "-1"], "-1 busy processes; there may be 0 to 64"),
        (["--suite", "cpu", "--rounds", "0"], "at least one round"),
        (["--suite", "none"], "'none' is not one of"),
        (["--suite", "cpu", "--device", "hip"], "--device is for --suite gpu"),
        (["--suite", "models", "--target", "gfx942"], "--target is for --suite gfx"),
        (["--suite", "latency", "--dim", "n=1"], "--dim is for models that are named"),
        (
            ["--suite", "gfx", "--rounds", "3"],
            "--rounds is for --suite cpu, --suite latency,",
        ),
        (["--suite", "gpu", "--threads", "2"], "--threads is for --suite cpu,"),
        ([__file__, "--device", "cpu"], "--device is for --suite gpu"),
    ],
)
def test_usage(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["bench", *arguments])
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.thorough
def test_a_step_of_training_is_measured_beside_pytorch_and_inductor(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "steps.json"
    done = CliRunner().invoke(
        cli, ["bench", "--suite", "training", "--filter", "mlp", "--rounds", "1", "--json", str(out)]
    )
    assert done.exit_code == 0, done.output
    (found,) = json.loads(out.read_text())["rows"]
    assert found["name"] == "mlp"
    assert found["onnxruntime_ms"] is None
    assert found["ours_ms"] > 0
    assert found["torch_ms"] > 0
    assert (found["inductor_ms"] is None) == ("inductor" in found["problems"])  # it may have no C++ compiler
    assert found["max_error"] < 1e-5
    assert found["variant"] == "100.0% in engines"
    assert "PyTorch" in done.output
    assert "ONNX Runtime" not in done.output


def test_what_a_side_cannot_do_is_told(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"\x08\x07no model")
    (found,) = measure([Subject("bad", {"path": str(bad)}, ("onnxruntime",))], threads=1, rounds=1)
    assert found.onnxruntime_ms is None
    assert "INVALID_PROTOBUF" in found.problems["onnxruntime"]
    assert found.max_error is None


def test_a_side_whose_process_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.sys, "executable", "/bin/false")
    with pytest.raises(BenchError, match=r"ours: its process ended \(1\)"):
        list(measure([Subject("x", {})], threads=1))


def test_a_row_that_ends_a_process_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The side stands in for one whose driver crashes: at a load, and at a run."""
    program = tmp_path / "side.py"
    program.write_text(
        "import json, os, sys\n"
        "import numpy as np\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    what = request.get('load') or what\n"
        "    if what['ends'] == ('load' if 'load' in request else 'run'):\n"
        "        sys.exit('driver: bad state')\n"
        "    if 'load' in request:\n"
        "        np.savez(request['result'], np.ones(2))\n"
        "    print(json.dumps({'form': '', 'verdict': '', 'wrong': '', 'seconds': 0.5}), flush=True)\n"
    )
    start = run._Side._start

    def other(side: run._Side) -> None:
        side._command = [sys.executable, str(program)]
        start(side)

    monkeypatch.setattr(run._Side, "_start", other)
    subjects = [Subject(f"{number} {ends}", {"ends": ends}, ("ours",)) for number, ends in enumerate(
        ["no", "load", "load", "no", "run", "no"]
    )]  # fmt: skip
    rows = list(measure(subjects, threads=1, rounds=2))
    assert [each.ours_ms for each in rows] == [500, None, None, 500, None, 500]
    problems = [each.problems.get("ours", "") for each in rows]
    assert [bool(text) for text in problems] == [False, True, True, False, True, False]
    assert problems[4] == "ours: its process ended (1): driver: bad state"


def test_no_side_outlives_who_asks() -> None:
    """A side is stopped while others run: it does not see that its input ended."""
    parent = (
        "import sys, tempfile, time; from pathlib import Path; from fusilli_plugin.bench import run\n"
        "side = run._Side('ours', 1, Path(tempfile.mkdtemp()))\n"
        "assert 'error' in side.load({'suite': 'cpu', 'name': 'none'})\n"
        "print(side._process.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        stat = Path(f"/proc/{int(asking.stdout.readline())}/stat")
        try:
            _wait_for(stat, "T")
        finally:
            asking.kill()
    _wait_for(stat, "Z")


def _wait_for(stat: Path, state: str) -> None:
    """Until a process is in a state, or is gone."""
    deadline = time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != state:
        assert time.monotonic() < deadline, f"not {state}"
        time.sleep(0.02)


def test_a_summary_by_hand() -> None:
    found = summary([row(ratio=4.0), row("b", ratio=1.0), row("c", ratio=None), row("d", ratio=0.5, threads=2)])
    assert found == {
        "geometric mean over onnxruntime, 1 threads": 2.0,
        "largest ratio over onnxruntime, 1 threads": 4.0,
        "rows with onnxruntime, 1 threads": 2,
        "geometric mean over onnxruntime, 2 threads": 0.5,
        "largest ratio over onnxruntime, 2 threads": 0.5,
        "rows with onnxruntime, 2 threads": 1,
        "rows slower than with 1, 2 threads": 0,
    }
    assert run._ratio({"ours": [2.0, 2.0, 9.0], "torch": [1.0, 1.0, 1.0]}, "torch") == 2.0
    assert run._ratio({"ours": [2.0]}, "torch") is None


def test_rows_that_threads_make_slower_are_counted() -> None:
    times = {
        ("a", 1, 0): 1.0,
        ("a", 2, 0): 1.1,
        ("b", 1, 0): 1.0,
        ("b", 2, 0): 1.04,
        ("a", 1, 1): 3.0,
        ("a", 2, 1): 1.0,
    }
    rows = [row(name, threads=threads, busy=busy, ours_ms=ms) for (name, threads, busy), ms in times.items()]
    found = summary([*rows, row("c", threads=2)])
    assert found["rows slower than with 1, 2 threads"] == 1
    assert found["rows slower than with 1, 2 threads beside 1 busy"] == 0


def test_wrong_rows_are_counted() -> None:
    rows = [row(verdict="right"), row("b", verdict="wrong"), row("c")]
    found = summary(rows)
    assert found["wrong rows, 1 threads"] == 1
    assert found["rows not checked, 1 threads"] == 1
    assert 'class="wrong"' in html(rows, {})


def test_times_beyond_a_call_by_hand() -> None:
    rows = [
        row("call", ours_ms=0.07, torch_ms=0.01), row("long", ours_ms=0.27, torch_ms=0.06, kind="product"),
        row("hidden", ours_ms=0.05, torch_ms=0.03, kind="product"), row("short", ours_ms=0.08, torch_ms=0.012),
        row("missing", torch_ms=None),
    ]  # fmt: skip
    found = {each.name: each.ratio_net for each in beyond(rows, "call")}
    assert found["long"] == pytest.approx(4.0)
    assert found["hidden"] == 0.0
    assert found["call"] is found["short"] is found["missing"] is None
    assert beyond(rows[1:], "call") == rows[1:]


def test_differences_by_hand() -> None:
    values = np.array([4.0, -2.0, np.nan, np.inf])
    assert run._apart(values, values) == 0.0
    assert run._apart(values + np.array([0, 1, 0, 0]), values) == 0.25
    assert run._apart(np.array([np.nan, 1.0]), np.array([1.0, 1.0])) == np.inf
    assert run._apart(np.array([np.inf, 1.0]), np.array([-np.inf, 1.0])) == np.inf
    assert run._apart(np.zeros(3), np.zeros(2)) == np.inf
    assert run._apart(np.zeros(0), np.zeros(0)) == 0.0


def test_pages_say_what_rows_say() -> None:
    rows = [row("<b>", problems={"ours": "it broke"}), row("quick", ratio=1 / 3)]
    page = html(rows, {"processor": "<x>"})
    assert "&lt;b&gt;" in page
    assert "processor: &lt;x&gt;" in page
    assert page.count('class="slower"') == page.count('class="faster"') == 1
    text = markdown(rows, {"processor": "x"})
    assert "| row | threads | busy | ours, ms | ONNX Runtime | ratio | net | error | form |  |" in text
    assert "| quick | 1 | 0 | 2 | 1 | 0.333 | - | 1e-07 | plain |  |" in text
    both = markdown([row(torch_ms=4.0, ratio_torch=0.5, inductor_ms=8.0, ratio_inductor=0.25)], {})
    assert "| ONNX Runtime | ratio | PyTorch | ratio | Inductor | ratio | net |" in both
    assert "| 2 | 1 | 2 | 4 | 0.5 | 8 | 0.25 | - |" in both
    assert "* <b>: ours: it broke" in text
    assert _bar(1.0) == (50.0, 0.0)
    assert _bar(100.0) == (50.0, 50.0)
    assert _bar(None) is None
    begin, width = _bar(1 / 3) or (0, 0)
    assert (round(begin, 6), round(width, 6)) == (0.0, 50.0)
