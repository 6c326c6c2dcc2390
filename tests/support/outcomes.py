"""``pytest --support-json docs/support.json``: what the case tests saw goes there and into the tables made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graph_api import Graph
from graph_api.layout import packed_strides, stride_order
from iree_bridge import Target, support
from iree_bridge.compile.versions import iree_version
from tests.cases import OpCase, all_cases
from tests.support.support_matrix import TARGETS, Entry, dumps, loads, page, with_table

__all__ = ["GFX_TARGETS", "OutcomeRecorder", "case_id", "entry_of", "expected_outcome"]

GFX_TARGETS = tuple(target for target in TARGETS if target != "cpu")
_TESTS = (
    (re.compile(r"tests/iree_bridge/test_numerics\.py::test_case\[(?P<case>.+)\]$"), "cpu"),
    (re.compile(r"tests/iree_bridge/test_gfx_emulated\.py::test_case\[(?P<target>gfx\w+)-(?P<case>.+)\]$"), ""),
)


class OutcomeRecorder:
    """A pytest plugin for the process that sees all reports: with xdist, the controller.

    Cases that did not run keep what the file says of them; cases that the tables have no more are dropped.
    """

    def __init__(self, path: Path, readme: Path) -> None:
        self.path = path
        self.readme = readme
        self._passed: dict[tuple[str, str], bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes how a case ended on a target."""
        key = _case_and_target(report.nodeid)
        if key is None or report.skipped:
            return
        if report.when == "call" or report.failed:
            self._passed[key] = report.passed and self._passed.get(key, True)

    def pytest_sessionfinish(self) -> None:
        """Writes the file and the table."""
        if not self._passed:
            return
        known = {entry.case: entry for entry in loads(self.path.read_text("utf-8"))} if self.path.exists() else {}
        tried = {*known, *(name for name, _ in self._passed)}
        entries = [self._merged(name, case, known.get(name)) for name, case in _by_id().items() if name in tried]
        self.path.write_text(dumps(entries, iree_version()), encoding="utf-8")
        self.readme.write_text(with_table(self.readme.read_text("utf-8"), entries), encoding="utf-8")
        self.path.with_suffix(".md").write_text(page(entries), encoding="utf-8")

    def _merged(self, name: str, case: OpCase, known: Entry | None) -> Entry:
        outcomes = dict(known.outcomes) if known else {}
        graph = case.graph()
        for target in TARGETS:
            passed = self._passed.get((name, target))
            if passed is not None:
                outcomes[target] = expected_outcome(graph, target) if passed else "failed"
        return entry_of(name, graph, outcomes)


def case_id(family: str, case: OpCase) -> str:
    """The name of a case in test ids and in the file."""
    return f"{family}-{case.name}"


def expected_outcome(graph: Graph, target: str) -> str:
    """The outcome of a case whose test passed."""
    answer = support(graph, Target.parse(target))
    if not answer.ok:
        return f"declined: {answer.rule}"
    return "right"


def entry_of(name: str, graph: Graph, outcomes: dict[str, str]) -> Entry:
    """The entry of a case: about its first operation that is not pointwise, and its first input (or output)."""
    ops = [node.op for node in graph.nodes]
    op = next((op for op in ops if op != "pointwise"), ops[0])
    outputs, inputs = graph.arguments()
    first = (*inputs, *outputs)[0]
    order = stride_order(first.dims, first.strides)
    last = (0, *range(2, first.rank), 1)
    layout = "channels-last" if first.rank > 2 and order == last else "other"
    if tuple(first.strides) == packed_strides(first.dims):
        layout = "packed"
    return Entry(name, op, first.data_type.name, layout, outcomes)


def _by_id() -> dict[str, OpCase]:
    return {case_id(family, case): case for family, case in all_cases()}


def _case_and_target(nodeid: str) -> tuple[str, str] | None:
    for pattern, target in _TESTS:
        match = pattern.search(nodeid)
        if match is not None:
            return match["case"], target or match["target"]
    return None
