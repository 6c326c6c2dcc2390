from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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


def test_an_unknown_target_is_refused_with_the_known_ones(fusilli: Fusilli, add_file: Path, tmp_path: Path) -> None:
    result = fusilli("compile", add_file, "--target", "gfx000", "-o", tmp_path / "x")
    assert result.exit_code == 2
    assert "target 'gfx000' is unknown" in result.stderr
    assert "gfx942" in result.stderr
    assert not (tmp_path / "x").exists()
