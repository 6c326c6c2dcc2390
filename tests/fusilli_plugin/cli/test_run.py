from __future__ import annotations

import errno
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from graph_api import DataType, Graph, PointwiseMode, TensorAttr

Fusilli = Callable[..., Result]
A = np.array([[1, -2, 3], [4, -5, 6]], np.float32)
B = np.array([[1, 1, 1], [-5, 1, 1]], np.float32)
Y = [[2, 0, 4], [0, 0, 7]]  # relu(A + B)


def fake_build(graph: Graph, *, device: str) -> SimpleNamespace:
    """A device that writes zeros."""

    def run(pack: Mapping[TensorAttr, np.ndarray[Any, Any]]) -> None:
        for tensor in graph.arguments().outputs:
            pack[tensor][...] = 0

    return SimpleNamespace(run=run, device=device)


@pytest.mark.iree_cpu
def test_given_arrays_give_the_right_output_file(fusilli: Fusilli, add_file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=A, b=B)
    out = tmp_path / "out.npz"
    result = fusilli(
        "run", add_file, "--device", "cpu", "--inputs", tmp_path / "in.npz", "--outputs", out, "--check", "--json"
    )
    assert result.exit_code == 0
    with np.load(out) as arrays:
        assert arrays["y"].tolist() == Y
    document = json.loads(result.stdout)
    assert document["ok"] is True
    (output,) = document["outputs"]
    assert (output["name"], output["dims"], output["data_type"], output["max"]) == ("y", [2, 3], "FLOAT", 7.0)
    assert output["max_error"] == 0.0


@pytest.mark.iree_cpu
def test_random_inputs_by_default(fusilli: Fusilli, add_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSILLI_DEVICE", "cpu")
    first, again, other = (fusilli("run", add_file, "--seed", seed, "--json") for seed in (1, 1, 2))
    means = [json.loads(result.stdout)["outputs"][0]["mean"] for result in (first, again, other)]
    assert means[0] == means[1] != means[2]
    assert json.loads(first.stdout)["ok"] is None


@pytest.mark.iree_cpu
def test_text_names_output_and_verdict(fusilli: Fusilli, add_file: Path) -> None:
    result = fusilli("run", add_file, "--device", "cpu", "--check")
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if line.strip().startswith("y"))
    assert line.split()[1:3] == ["2x3", "FLOAT"]
    assert line.rstrip().endswith("yes")
    assert "... building 'add_relu' for cpu" in result.stderr


def test_a_wrong_result_exits_with_1(fusilli: Fusilli, add_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.cli.run.build", fake_build)
    result = fusilli("run", add_file, "--device", "cpu", "--check")
    assert result.exit_code == 1
    assert "wrong result: 'y' WRONG" in result.stderr
    assert fusilli("run", add_file, "--device", "cpu").exit_code == 0  # not checked


def test_the_device_is_never_guessed(fusilli: Fusilli, add_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.cli.run.build", fake_build)
    assert json.loads(fusilli("run", add_file, "--json").stdout)["device"] == "hip"
    monkeypatch.setenv("FUSILLI_DEVICE", "cuda:1")
    assert json.loads(fusilli("run", add_file, "--json").stdout)["device"] == "cuda:1"


def test_an_unknown_device_is_a_user_error(fusilli: Fusilli, add_file: Path) -> None:
    result = fusilli("run", add_file, "--device", "abacus")
    assert result.exit_code == 2
    assert "'abacus'" in result.stderr


def test_an_output_that_cannot_be_written_is_a_user_error(
    fusilli: Fusilli, add_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusilli_plugin.cli.run.build", fake_build)
    result = fusilli("run", add_file, "--device", "cpu", "--outputs", tmp_path / "nowhere" / "out.npz")
    assert result.exit_code == 2
    assert str(tmp_path / "nowhere" / "out.npz") in result.stderr


def test_an_output_on_a_full_disk_leaves_the_old_file(
    fusilli: Fusilli, add_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "out.npz").write_text("old")
    monkeypatch.setattr("fusilli_plugin.cli.run.build", fake_build)
    monkeypatch.setattr("os.replace", refuse)
    result = fusilli("run", add_file, "--device", "cpu", "--outputs", tmp_path / "out.npz")
    assert result.exit_code == 2
    assert "No space left" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".json") == ["out.npz"]
    assert (tmp_path / "out.npz").read_text() == "old"


def test_a_graph_that_no_memory_can_hold_is_a_user_error(fusilli: Fusilli, tmp_path: Path) -> None:
    g = Graph("huge", io_data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dim=(2**30, 2**29))).set_output()
    (tmp_path / "huge.json").write_text(g.to_json())
    result = fusilli("run", tmp_path / "huge.json", "--device", "cpu")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: not enough memory: Unable to allocate")


def test_a_negative_seed_is_a_usage_error(fusilli: Fusilli, add_file: Path) -> None:
    result = fusilli("run", add_file, "--device", "cpu", "--seed", "-1")
    assert result.exit_code == 2
    assert "-1 is not in the range x>=0" in result.stderr


def test_names_do_not_steer_the_terminal(fusilli: Fusilli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.cli.run.build", fake_build)
    g = Graph("g\x1b[31m", io_data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.RELU_FWD, g.tensor("x", dim=(2,))).set_output().set_name("y\x1b[2J\n\u202eä")
    (tmp_path / "g.json").write_text(g.to_json())
    result = fusilli("run", tmp_path / "g.json", "--device", "cpu")
    assert r"y\x1b[2J\n\u202eä" in result.stdout
    assert r"building 'g\x1b[31m'" in result.stderr
    assert "\x1b" not in result.output
