"""The fusion suite: a sample runs, wrong results are found, reports can be read."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from fusilli_plugin.checks import fusion
from fusilli_plugin.checks.fusion_cases import FILLS, fusion_cases
from fusilli_plugin.cli.main import cli
from fusilli_plugin.testing.places import DevicePlace
from graph_api import Graph, PointwiseMode, TensorAttr
from graph_api.split import node_graphs
from iree_bridge import Device, Options, Target

CASES = {case.id: case for case in fusion_cases()}
SAMPLE = [
    "conv_bias_relu/nhwc/f32/coded",
    "conv_batchnorm_relu/nchw/bf16/coded",
    "relu_backward_dgrad_wgrad/nchw/f32/cancelling",
    "layernorm_matmul/column/f16/coded",
]


def test_ids_are_unique_and_cover_the_promised_patterns() -> None:
    assert len(CASES) == len(fusion_cases())
    patterns = {name.split("/")[0] for name in CASES}
    assert patterns == {
        "conv_bias_relu", "conv_bias_gelu", "conv_bias_swish", "conv_batchnorm_relu", "batchnorm_relu",
        "conv_bias_residual_relu", "conv_two_outputs", "conv_output_in_the_middle", "conv_reduction_matmul",
        "relu_backward_dgrad_wgrad", "matmul_bias_gelu", "layernorm_matmul",
    }  # fmt: skip


@pytest.mark.thorough
@pytest.mark.iree_cpu
@pytest.mark.parametrize("name", SAMPLE)
def test_sample_is_right_on_the_cpu(name: str) -> None:
    result = fusion.run_case(CASES[name], Device.parse("cpu"), [], Options.from_env())
    assert result.status == "right", result.message
    assert result.dispatches["cpu"]


@pytest.mark.iree_cpu
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name not in SAMPLE])
def test_case_is_right_on_the_cpu(name: str) -> None:
    result = fusion.run_case(CASES[name], Device.parse("cpu"), [Target.parse("gfx942")], Options.from_env())
    assert result.status == "right", result.message


@pytest.mark.parametrize("fill", ["coded", "random"])
def test_a_misplaced_element_shows(fill: str) -> None:
    """No two neighbours are equal along any dim, so shifted or transposed results differ."""
    graph = Graph("g")
    tensor = graph.tensor("x", dim=(2, 16, 9, 9))
    values = FILLS[fill](tensor, 0)
    for axis in range(4):
        assert np.all(np.diff(values, axis=axis) != 0)


def test_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element off by 3 % of its value, in the fused run alone."""

    def run(_place: DevicePlace, graph: Graph, inputs: dict[TensorAttr, Any]) -> dict[TensorAttr, Any]:
        values = graph.reference(inputs)
        arrays = {tensor: value.astype(tensor.data_type.numpy) for tensor, value in values.items()}
        if len(graph.nodes) > 1:
            (array,) = arrays.values()
            array[1, 3, 2, 1] = np.float16(float(array[1, 3, 2, 1]) * 1.03 + 0.1)
        return arrays

    monkeypatch.setattr(DevicePlace, "run", run)
    monkeypatch.setattr(fusion, "compile_code", lambda *_: type("Code", (), {"dispatches": 1}))
    result = fusion.run_case(CASES["conv_bias_relu/nchw/f16/coded"], Device.parse("cpu"), [], Options())
    assert result.status == "wrong"
    assert "[1, 3, 2, 1]" in result.message
    assert result.steps is not None
    assert result.steps <= 1 < (result.fused or 0)


def test_junit_counts_and_names() -> None:
    results = [
        fusion.FusionResult("a/b", "right", 0.1, 0.1, 0.0, {"cpu": 1}),
        fusion.FusionResult("c/d", "wrong", 9.0, 0.1, 4.0, {"cpu": 1}, "fused: <bad> & worse"),
        fusion.FusionResult("e/f", "declined", None, None, None, {}, "no"),
    ]
    suite = ElementTree.fromstring(fusion.junit(results, "fusilli.fusion.cpu"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert suite.findall("testcase")[1].find("failure").get("message") == "fused: <bad> & worse"  # type: ignore[union-attr]


@pytest.mark.iree_cpu
def test_command(tmp_path: Any) -> None:
    file, document = tmp_path / "out.xml", tmp_path / "out.json"
    arguments = ["check", "--device", "cpu", "--filter", "matmul_bias_gelu/row/f32/coded"]
    arguments += ["--junit", str(file), "--json", str(document)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "1 right, 0 wrong, 0 failed, 0 declined" in done.output
    for begun in ("compiling for cpu", "compiling and running node 3 of 3 alone", "computing the float64 reference"):
        assert f"1/1 matmul_bias_gelu/row/f32/coded: {begun}" in done.stderr
    assert ElementTree.parse(file).getroot().get("tests") == "1"
    (case,) = json.loads(document.read_text())["cases"]
    assert case["status"] == "right"
    printed = CliRunner().invoke(cli, [*arguments[:5], "--json"])
    assert json.loads(printed.stdout)["cases"] == [case]
    assert CliRunner().invoke(cli, ["check", "--device", "cpu", "--filter", "no such"]).exit_code == 2
    nowhere = CliRunner().invoke(cli, ["check", "--device", "cpu", "--json", str(tmp_path / "no" / "f.json")])
    assert "there is no folder" in nowhere.stderr


def test_a_graph_taken_apart_computes_the_same() -> None:
    g = Graph("g", io_data_type=CASES[SAMPLE[0]].build().io_data_type)
    x = g.tensor("x", dim=(2, 3))
    y = g.pointwise(PointwiseMode.MUL, x, 3.0)
    z = g.pointwise(PointwiseMode.ADD, y, x, name="add").set_output(True)
    first, second = node_graphs(g)
    value = np.arange(6.0).reshape(2, 3)
    (between,) = first.reference({"x": value}).values()
    (result,) = second.reference({"x": value, y.name: between}).values()
    np.testing.assert_array_equal(result, g.reference({x: value})[z])
    assert second.nodes[0].name == "add"
