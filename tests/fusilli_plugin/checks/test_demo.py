from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fusilli_plugin.checks.demo import Case, cases, inspect_gfx, run_case
from fusilli_plugin.cli import cli
from graph_api import DataType, Graph, PointwiseMode
from iree_bridge.compile.options import Options


def small_case(peer: Mapping[str, Any] | None = None) -> Case:
    """A 1x1 convolution with bias and ReLU whose result is known: relu(2 * 3 * 1 - 5) = 1 everywhere."""
    g = Graph("small", io_data_type=DataType.HALF)
    x, w = g.tensor("x", dim=(1, 32, 16, 16), layout="NHWC"), g.tensor("w", dim=(32, 32, 1, 1), layout="NHWC")
    b = g.tensor("b", dim=(1, 32, 1, 1))
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w), b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True).set_name("y")
    g.validate()
    inputs = {tensor: tensor.empty() for tensor in g.arguments().inputs}
    for tensor, array in inputs.items():
        array[...] = -5 if tensor.name == "b" else 0
        if tensor.name != "b":
            array[:, :2] = 3 if tensor.name == "x" else 1  # two channels of 32 count
    return Case("small", g, inputs, peer or {}, "peer" if peer else "")


@pytest.mark.iree_cpu
def test_a_case_is_compared_with_float64_and_its_peer(cold_cache: Path) -> None:
    options = Options.from_env()
    assert options.cache_dir == cold_cache
    right, off = np.ones((1, 32, 16, 16)), np.full((1, 32, 16, 16), 1.5)
    exact, peer = run_case(small_case({"y": right}), "cpu", options)
    assert (exact.against, exact.ok, exact.max_error, exact.cache_hit) == ("float64", True, 0.0, False)
    assert (peer.against, peer.ok, peer.max_error) == ("peer", True, 0.0)
    assert exact.dispatches >= 1
    assert exact.seconds > 0
    exact, peer = run_case(small_case({"y": off}), "cpu", options)
    assert (exact.ok, exact.cache_hit) == (True, True)
    assert (peer.ok, peer.max_error) == (False, 0.5)


@pytest.mark.mlir
def test_a_lone_convolution_must_be_one_dispatch_on_the_matrix_units() -> None:
    (row,) = inspect_gfx([small_case()], ["gfx942"], Options.from_env())
    assert (row.case, row.inspection.dispatches, row.ok) == ("small", 1, True)
    assert row.inspection.matrix


@pytest.mark.a_few("False")
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.iree_cpu
def test_the_command_s_exit_code_is_its_verdict(right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = small_case({"y": np.full((1, 32, 16, 16), 1.0 if right else 2.0)})
    monkeypatch.setattr("fusilli_plugin.cli.demo.cases", lambda _model: [case])
    monkeypatch.setattr("fusilli_plugin.cli.demo.GFX_TARGETS", ("gfx942",))
    model = tmp_path / "model"
    model.write_bytes(b"")

    def run(*args: str) -> Result:
        return CliRunner().invoke(cli, ["demo", "--model", str(model), *args])

    text, document = run(), run("--json")
    assert text.exit_code == document.exit_code == (0 if right else 1)
    assert ("all results are right" in text.stdout) == right
    assert json.loads(document.stdout)["ok"] is right
    assert [row["against"] for row in json.loads(document.stdout)["runs"]] == ["float64", "peer"]
    assert json.loads(document.stdout)["gfx"][0]["target"] == "gfx942"


def test_the_convolutions_are_those_of_the_issue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.checks.demo._block_case", lambda _model: small_case())
    found = list(cases(Path("unused")))
    assert [case.name for case in found[:4]] == [
        "conv-bias-relu-f32-nchw",
        "conv-bias-relu-f32-nhwc",
        "conv-bias-relu-f16-nchw",
        "conv-bias-relu-f16-nhwc",
    ]
    for case in found[:4]:
        dims = {
            tensor.name: tensor.dims for tensor in (*case.graph.arguments().inputs, *case.graph.arguments().outputs)
        }
        assert dims == {"x": (8, 64, 56, 56), "w": (64, 64, 3, 3), "b": (1, 64, 1, 1), "y": (8, 64, 56, 56)}
        (x,) = [tensor for tensor in case.inputs if tensor.name == "x"]
        assert x.strides == ((64 * 3136, 3136, 56, 1) if case.name.endswith("nchw") else (64 * 3136, 1, 64 * 56, 64))
        assert case.inputs[x].dtype == (np.float32 if "f32" in case.name else np.float16)
