from __future__ import annotations

import json
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
