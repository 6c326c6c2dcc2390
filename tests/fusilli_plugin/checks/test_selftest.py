"""The self-test: its answers, what it says of a device that is wrong, and its reports."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fusilli_plugin.checks.device_tests import run_device_tests
from fusilli_plugin.checks.roofline import Ceiling, Roofline, Timing
from fusilli_plugin.checks.selftest_cases import ANSWERS, Case, given, read_cases, run_cases
from fusilli_plugin.checks.selftest_report import facts, make_report, read_report, timings
from fusilli_plugin.cli import cli
from fusilli_plugin.engine.plan import FusilliPlan
from fusilli_plugin.report import selftest_page
from graph_api import OPS, DataType, FusilliError
from iree_bridge import Device, Options
from tests.support.selftest_answers import recomputed

CPU = Device.parse("cpu")
ROOFLINE = Roofline(Ceiling(1e9, {}, "not known"), ()).as_json()
FEW = ["conv+bias+ReLU FLOAT", "product HALF INT4", "quantised to MXFP8", "reduction 0"]


def few() -> list[Case]:
    return [case for case in read_cases() if case.name in FEW]


def test_there_are_200_of_all_kinds() -> None:
    cases = read_cases()
    assert len({case.name for case in cases}) == 200
    assert {node.op for case in cases for node in case.graph.nodes} == set(OPS)
    types = {tensor.data_type for case in cases for tensor in case.graph.tensors}
    assert {*DataType} - types <= {DataType.UINT8, DataType.UINT4, DataType.INT64}
    assert ANSWERS.stat().st_size < 1 << 20
    assert all(sample.indices.size for case in cases for sample in case.answers.values())


@pytest.mark.parametrize("part", [pytest.param(part, marks=[pytest.mark.slow] if part else []) for part in range(4)])
def test_the_answers_are_those_of_the_reference(part: int) -> None:
    for case in read_cases()[part::4]:
        if "custom_op" in [node.op for node in case.graph.nodes]:
            continue  # what such a text means is in no file
        made = json.loads(recomputed(case) or "{}")
        kept = json.loads(case.line)
        for uid, (where, values, bounds) in kept["answers"].items():
            other = made["answers"][uid]
            assert where == other[0]
            assert values == pytest.approx(other[1], rel=1e-9, abs=1e-12)
            assert bounds == pytest.approx(other[2], rel=0.02)


@pytest.mark.iree_cpu
def test_a_device_that_is_right() -> None:
    results = list(run_cases(few(), CPU, Options.from_env(), lambda _: None))
    assert {result.name: (result.outcome, result.text) for result in results} == dict.fromkeys(FEW, ("right", ""))


@pytest.mark.thorough
@pytest.mark.iree_cpu
def test_a_device_that_forgets_work(monkeypatch: pytest.MonkeyPatch) -> None:
    execute, count = FusilliPlan.execute, 0

    def sometimes(self: FusilliPlan, *arguments: Any, **others: Any) -> None:
        nonlocal count
        count += 1
        if count != 30:
            execute(self, *arguments, **others)

    monkeypatch.setattr(FusilliPlan, "execute", sometimes)
    tests = {test.name: test for test in run_device_tests(CPU, Options.from_env())}
    assert tests["stream order"].outcome == "wrong"
    assert "element 0:" in tests["stream order"].text
    assert tests["saved plans"].outcome == "right"


def test_answers_see_one_element() -> None:
    case = few()[0]
    results = {tensor: tensor.empty() for tensor in case.graph.arguments().outputs}
    (tensor,) = results
    sample, array = case.answers[tensor.uid], results[tensor]
    array[...] = 0
    where = np.unravel_index(sample.indices, tensor.dims)
    array[where] = sample.expected
    assert case.wrong(results) == ""
    last = tuple(int(axis[-1]) for axis in where)
    assert last == tuple(dim - 1 for dim in tensor.dims), "corners are among them"
    array[last] += 1
    assert "WRONG" in case.wrong(results)


def test_what_is_wrong_between_the_answers_is_seen() -> None:
    case = next(case for case in read_cases() if case.name == "conv 1x1+bias+ReLU FLOAT")
    (tensor,) = case.graph.arguments().outputs
    inputs = given(case.graph)
    result = case.graph.reference(dict(inputs))[tensor].astype(np.float32)
    assert case.wrong_anywhere(inputs, {tensor: result}) == ""
    looked_at = set(map(int, case.answers[tensor.uid].indices))
    other = next(index for index in range(1, result.size) if index not in looked_at)
    result.reshape(-1)[other] += 1
    assert case.wrong({tensor: result}) == ""
    assert "WRONG" in case.wrong_anywhere(inputs, {tensor: result})


# ---- reports


def report(tmp_path: Path, **changes: object) -> Path:
    timed = Timing("<i>product</i> HALF", 0.004, 12 << 20, 2 << 30, "products", 0.5)
    untimed = Timing("sum of two FLOAT", nbytes=8, text="no memory\x1b[2J")
    ceiling = Ceiling(2e10, {"HALF": 2.5e15}, "known")
    document = make_report(CPU, "driver", [], [], Roofline(ceiling, (timed, untimed)), 1.0)
    document |= {"ok": True, "cases": [], "tests": [{"name": "stream order", "outcome": "right", "text": "2 streams"}]}
    document["cases"].append({
        "name": "<b>x</b>\x1b[2J", "operations": ["matmul"], "types": ["HALF"], "outcome": "wrong", "text": "<script>",
        "seconds": 0.5,
    })  # fmt: skip
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document | changes))
    return path


def test_a_report_is_shown(tmp_path: Path) -> None:
    path, page = report(tmp_path, ok=False), tmp_path / "page.html"
    done = CliRunner().invoke(cli, ["doctor", "--report", str(path), "--page", str(page)])
    assert done.exit_code == 1
    assert "the self-test was not passed" in done.output
    assert "\x1b" not in done.output
    text = page.read_text()
    assert "<script>" not in text
    assert "<b>x</b>" not in text
    assert "&lt;script&gt;" in text
    assert "\x1b" not in text
    assert CliRunner().invoke(cli, ["doctor", "--report", str(report(tmp_path))]).exit_code == 0
    document = read_report(path)
    assert {("graphs", "1 wrong"), ("copies", "20 GB/s, measured")} <= set(facts(document))
    assert ("products", "HALF 2.5e+03 Toperations/s, known") in facts(document)
    assert timings(document)[0] == ("<i>product</i> HALF", "4 ms", "537 Goperations/s", "50% of products")
    assert timings(document)[1][:2] == ("sum of two FLOAT", "not timed")
    assert "&lt;i&gt;product&lt;/i&gt;" in text
    assert "50% of products" in done.output
    assert "matmul" in selftest_page(document, facts(document), timings(document))


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"version": 2},
        {"ok": "yes"},
        {"cases": {}},
        {"cases": [{"name": 1}]},
        {"cases": [{"name": "x", "outcome": "fine", "text": "", "operations": [], "types": [], "seconds": 0}]},
        {"cases": [{"name": "x", "outcome": "right", "text": "", "operations": [1], "types": [], "seconds": 0}]},
        {"cases": [{"name": "x", "outcome": "right", "text": "", "operations": [], "types": [], "seconds": "soon"}]},
        {"tests": [None]},
        {"device": None},
        {"roofline": {}},
        {"roofline": ROOFLINE | {"bytes_per_s": -1.0}},
        {"roofline": ROOFLINE | {"products_per_s": {"HALF": "fast"}}},
        {"roofline": ROOFLINE | {"graphs": [{}]}},
        {"roofline": ROOFLINE | {"graphs": [asdict(Timing("x")) | {"share": None}]}},
        {"roofline": ROOFLINE | {"graphs": [asdict(Timing("x")) | {"seconds": float("nan")}]}},
    ],
)
def test_what_is_no_report(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(FusilliError, match="no report of `fusilli selftest -o`, or damaged"):
        read_report(report(tmp_path, **changes))


def test_a_page_without_a_report_is_refused() -> None:
    done = CliRunner().invoke(cli, ["doctor", "--page", "x.html"])
    assert done.exit_code == 2
    assert "--page is for --report" in done.output
