"""``docs/support.json`` and the README's table say what the case tables and the support rules say today."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cases import OpCase, all_cases
from tests.support.outcomes import GFX_TARGETS, OutcomeRecorder, case_id, entry_of, expected_outcome
from tests.support.support_matrix import BEGIN, END, Entry, loads, page, with_table

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs/support.json"
# Seen of every operation; the other targets have their place in the file once their sweep has run to its end.
RECORDED = {"cpu", *GFX_TARGETS}
NUMERICS = "tests/iree_bridge/test_numerics.py::test_case[{}]"
GFX = "tests/iree_bridge/test_gfx_emulated.py::test_case[gfx942-{}]"


@pytest.fixture(scope="module")
def entries() -> dict[str, Entry]:
    assert FILE.exists(), "docs/support.json is missing; make test-full writes it"
    return {entry.case: entry for entry in loads(FILE.read_text("utf-8"))}


@pytest.fixture(scope="module")
def cases() -> dict[str, OpCase]:
    return {case_id(family, case): case for family, case in all_cases()}


def test_the_readme_shows_it(entries: dict[str, Entry]) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert with_table(text, list(entries.values())) == text, "run: make support"
    assert (ROOT / "docs/support.md").read_text("utf-8") == page(list(entries.values())), "likewise"


def test_it_knows_every_operation_and_nothing_failed(entries: dict[str, Entry], cases: dict[str, OpCase]) -> None:
    stale = sorted(set(entries) - set(cases))
    assert not stale, f"cases that exist no more; make test-full writes the file: {stale}"
    ops = {entry_of(name, case.graph(), {}).op for name, case in cases.items()}
    missing = sorted(ops - {entry.op for entry in entries.values() if set(entry.outcomes) >= RECORDED})
    assert not missing, f"operations without outcomes on {sorted(RECORDED)}; make test-full writes them: {missing}"
    failed = [entry.case for entry in entries.values() if "failed" in entry.outcomes.values()]
    assert not failed


def test_what_it_calls_declined_is_declined(entries: dict[str, Entry], cases: dict[str, OpCase]) -> None:
    for name in set(entries) & set(cases):
        graph = cases[name].graph()
        outcomes = entries[name].outcomes
        expected = {target: expected_outcome(graph, target) for target in outcomes}
        # Compiled and not run, on AMD chips, is said as such.
        unrun = {target: said for target, said in outcomes.items() if said.startswith("compiled") and target != "cpu"}
        assert all(expected[target] == "right" for target in unrun), name
        assert entries[name] == entry_of(name, graph, expected | unrun)


# ---- the recorder --------------------------------------------------------------------------------------------------


def reported(nodeid: str, outcome: str, when: str = "call") -> Any:
    return SimpleNamespace(
        nodeid=nodeid, when=when, passed=outcome == "passed", failed=outcome == "failed", skipped=outcome == "skipped"
    )


def test_the_recorder_merges_into_what_is_there(tmp_path: Path) -> None:
    path, readme = tmp_path / "support.json", tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")

    def session(*reports: Any) -> dict[str, dict[str, str]]:
        recorder = OutcomeRecorder(path, readme)
        for report in reports:
            recorder.pytest_runtest_logreport(report)
        recorder.pytest_sessionfinish()
        return {entry.case: dict(entry.outcomes) for entry in loads(path.read_text())} if path.exists() else {}

    assert session(reported("tests/test_other.py::test_case[pointwise-add_float]", "passed")) == {}
    add, sin = "pointwise-add_float", "pointwise-sin_double"
    assert session(
        reported(NUMERICS.format(add), "passed", "setup"),
        reported(NUMERICS.format(add), "passed"),
        reported(NUMERICS.format(add), "passed", "teardown"),
        reported(NUMERICS.format(sin), "passed"),
        reported(NUMERICS.format("pointwise-no_such_case"), "passed"),
        reported(GFX.format(add), "failed"),
    ) == {add: {"cpu": "right", "gfx942": "failed"}, sin: {"cpu": "declined: dtype"}}
    assert session(reported(GFX.format(add), "passed"), reported(NUMERICS.format(sin), "skipped")) == {
        add: {"cpu": "right", "gfx942": "right"},
        sin: {"cpu": "declined: dtype"},
    }
    assert "| `pointwise` | 1/2, 1 declined | 1/1 |" in readme.read_text()
    assert (
        "| `pointwise-add_float` | `pointwise` | FLOAT | packed | right | right |"
        in path.with_suffix(".md").read_text()
    )
    assert session(reported(NUMERICS.format(add), "passed"), reported(NUMERICS.format(add), "failed", "teardown")) == {
        add: {"cpu": "failed", "gfx942": "right"},
        sin: {"cpu": "declined: dtype"},
    }
