from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from graph_api import DataType, Graph

Fusilli = Callable[..., Result]


@pytest.fixture
def conv_file(tmp_path: Path) -> Path:
    """A 3x3 f16 convolution big enough for matrix instructions."""
    g = Graph("conv", io_data_type=DataType.HALF)
    x, w = g.tensor("x", dim=(1, 64, 16, 16), layout="NHWC"), g.tensor("w", dim=(64, 64, 3, 3), layout="NHWC")
    g.conv_fprop(x, w, padding=(1, 1)).set_output(True)
    path = tmp_path / "conv.json"
    path.write_text(g.to_json())
    return path


@pytest.mark.mlir
def test_json_tells_what_amd_code_does(fusilli: Fusilli, conv_file: Path) -> None:
    result = fusilli("inspect", conv_file, "--target", "gfx942", "--json")
    assert result.exit_code == 0
    (found,) = json.loads(result.stdout)
    assert (found["target"], found["dispatches"], found["spills"]) == ("gfx942", 1, 0)
    assert all(name.startswith("v_mfma_f32_") and count > 0 for name, count in found["matrix"].items())
    assert found["matrix"]
    assert 0 < found["kernels"][0]["vgprs"] <= 512
    assert (found["chip"], found["form"]) == ("MI300X", "fused padding")
    assert found["flops"] >= 2 * 9 * 64 * 64 * 16 * 16
    assert found["bytes"] == 2 * (2 * 64 * 16 * 16 + 9 * 64 * 64)
    assert 0 < found["bound_s"] < found["estimate_s"]
    assert any("for 304 compute units" in cause for cause in found["causes"])


@pytest.mark.mlir
def test_a_line_per_target_and_per_kernel(fusilli: Fusilli, add_file: Path) -> None:
    result = fusilli("inspect", add_file, "--target", "gfx90a,cpu", "--kernels")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["gfx90a", "1", "none"] in [line[:3] for line in lines]
    assert ["cpu", "1", "-", "-", "-", "-", "-"] in lines
    assert any(line[:1] == ["gfx90a"] and "dispatch_0" in line[1] for line in lines if line)
    assert [line for line in lines if line[:2] == ["gfx90a", "plain"] and "for 104 units" in " ".join(line)]
    assert "... [2/2] compiling 'add_relu' for cpu" in result.stderr


@pytest.mark.mlir
def test_files_are_what_the_compiler_is_given_and_makes(fusilli: Fusilli, add_file: Path, tmp_path: Path) -> None:
    result = fusilli("inspect", add_file, "--target", "gfx942,cpu:x86-64-v3", "--files", tmp_path / "code")
    assert result.exit_code == 0, result.stderr
    amd, cpu = tmp_path / "code/gfx942", tmp_path / "code/cpu-x86-64-v3"
    assert f"{cpu}: command.txt, " in result.stdout
    assert "torch.aten.relu" in (cpu / "module.mlir").read_text()
    words = shlex.split((cpu / "command.txt").read_text())
    done = subprocess.run(
        [Path(sys.executable).parent / words[0], *words[1:]], cwd=cpu, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert (cpu / "module.vmfb").stat().st_size > 1000
    assert not (cpu / "kernels.s").exists()
    assembly = (amd / "kernels.s").read_text()
    assert assembly.count(".amdhsa_kernel ") == 1
    assert "s_endpgm" in assembly
    assert fusilli("replay", amd, "--show").exit_code == 0


def test_files_are_not_written_over(fusilli: Fusilli, add_file: Path, tmp_path: Path) -> None:
    (tmp_path / "code/cpu").mkdir(parents=True)
    result = fusilli("inspect", add_file, "--target", "gfx942,cpu", "--files", tmp_path / "code")
    assert result.exit_code == 2
    assert "code/cpu is there already; name another folder" in result.stderr
    assert not (tmp_path / "code/gfx942").exists()
