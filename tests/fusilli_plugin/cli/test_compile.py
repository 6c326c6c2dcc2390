from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from iree_bridge import Artifact

Fusilli = Callable[..., Result]


@pytest.mark.iree_cpu
def test_one_file_for_several_targets(fusilli: Fusilli, add_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "add.fusilli"
    result = fusilli("compile", add_file, "--target", "cpu,gfx942", "--target", "cpu", "-o", out, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert [code["target"] for code in document["targets"]] == ["cpu", "gfx942"]
    assert all(code["dispatches"] == 1 and code["bytes"] > 1000 for code in document["targets"])
    assert document["bytes"] == out.stat().st_size > 1000
    assert isinstance(Artifact.load(out), Artifact)


@pytest.mark.iree_cpu
def test_a_saved_graph_is_a_graph_everywhere_and_runs_without_the_compiler(
    fusilli: Fusilli, add_file: Path, tmp_path: Path, cold_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "add.fusilli"
    assert fusilli("compile", add_file, "--target", "cpu", "-o", out).exit_code == 0
    monkeypatch.setenv("FUSILLI_CACHE_DIR", str(cold_cache / "another"))
    monkeypatch.setenv("FUSILLI_COMPILE", "never")
    a, b = np.full((2, 3), 2, np.float32), np.array([[1, -9, 0], [0, 0, -2]], np.float32)
    np.savez(tmp_path / "in.npz", a=a, b=b)
    arrays = ("--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    result = fusilli("run", out, "--device", "cpu", *arrays, "--check", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["graph"], document["ok"]) == ("add_relu", True)
    with np.load(tmp_path / "out.npz") as written:
        np.testing.assert_array_equal(written["y"], [[3, 0, 2], [2, 2, 0]])
    assert "a model and its" not in fusilli("explain", out, "--target", "gfx942").stderr
    assert "FUSILLI_COMPILE=never" in fusilli("inspect", out, "--target", "gfx942").stderr
    assert "this is a saved graph, no model" in fusilli("plan", out).stderr
    assert "--dim" in fusilli("compile", out, "--target", "cpu", "-o", tmp_path / "x", "--dim", "n=1").stderr
    other = fusilli("run", out, "--device", "hip")
    assert other.exit_code == 2


@pytest.mark.iree_cpu
@pytest.mark.parametrize("part", [0.1, 0.9])
def test_a_saved_graph_that_is_cut_is_damaged(fusilli: Fusilli, add_file: Path, tmp_path: Path, part: float) -> None:
    out = tmp_path / "add.fusilli"
    assert fusilli("compile", add_file, "--target", "cpu", "-o", out).exit_code == 0
    data = out.read_bytes()
    out.write_bytes(data[: int(len(data) * part)])
    for command in (("run", "--device", "cpu"), ("inspect", "--target", "cpu"), ("plan",)):
        result = fusilli(command[0], out, *command[1:])
        assert result.exit_code == 2
        assert f"{out} is damaged: it begins as a saved graph, but its end is missing" in result.stderr
    out.write_bytes(data.replace(b"tensor<", b"tensor>", 1))
    changed = fusilli("run", out, "--device", "cpu")
    assert changed.exit_code == 2
    assert "damaged" in changed.stderr


def test_the_folder_is_looked_at_before_the_graph(fusilli: Fusilli, tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("no graph")
    result = fusilli("compile", tmp_path / "none.json", "--target", "cpu", "-o", tmp_path / "gone" / "F")
    assert result.exit_code == 2
    assert f"{tmp_path / 'gone' / 'F'}: there is no folder {tmp_path / 'gone'}" in result.stderr


def test_an_unknown_target_is_refused_with_the_known_ones(fusilli: Fusilli, add_file: Path, tmp_path: Path) -> None:
    result = fusilli("compile", add_file, "--target", "gfx000", "-o", tmp_path / "x")
    assert result.exit_code == 2
    assert "target 'gfx000' is unknown" in result.stderr
    assert "gfx942" in result.stderr
    assert not (tmp_path / "x").exists()
