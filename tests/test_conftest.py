from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.support.thorough import mark_the_others


def test_no_setting_of_the_caller_reaches_a_test() -> None:
    assert [name for name in os.environ if name.startswith("FUSILLI_")] == ["FUSILLI_CACHE_DIR"]


def test_the_cache_of_the_run_is_private(tmp_path: Path) -> None:
    cache = Path(os.environ["FUSILLI_CACHE_DIR"])
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert cache.parents[0] in tmp_path.parents


def test_a_cold_cache_is_empty_and_private(cold_cache: Path) -> None:
    assert os.environ["FUSILLI_CACHE_DIR"] == str(cold_cache)
    assert stat.S_IMODE(cold_cache.stat().st_mode) == 0o700
    assert not list(cold_cache.iterdir())


class Item:
    """As much of a collected test as is looked at."""

    def __init__(self, case: str | None, *kept: str) -> None:
        self.nodeid = "tests/test_it.py::test_it" + ("" if case is None else f"[{case}]")
        self.kept, self.added = kept, list[str]()
        if case is not None:
            self.callspec = type("CallSpec", (), {"id": case})

    def get_closest_marker(self, name: str) -> Any:
        return pytest.Mark(name, self.kept, {}, _ispytest=True) if self.kept else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.added.append(mark.name)


def _thorough(cases: list[str], *kept: str, all_are_here: bool = True) -> list[str]:
    items: Any = [Item(case, *kept) for case in cases]
    mark_the_others(items, all_are_here=all_are_here)
    return [case for case, item in zip(cases, items, strict=True) if item.added == ["thorough"]]


def test_what_a_few_leaves_out_is_thorough() -> None:
    cases = ["cpu-(3, 4)", "gfx942-(3, 4)", "gfx942-[5]", "cpu-[5]"]
    assert _thorough(cases, "cpu-(3, 4)") == cases[1:]
    assert _thorough(cases, "gfx942-*", "cpu-[5]") == cases[:1]
    assert _thorough(cases) == []


def test_a_case_that_does_not_exist_is_told() -> None:
    with pytest.raises(pytest.UsageError, match=r"cases that do not exist:\ntests/test_it.py::test_it: 'c\*'$"):
        _thorough(["a", "b"], "a", "c*")
    assert _thorough(["b"], "a", "c*", all_are_here=False) == ["b"]
    with pytest.raises(pytest.UsageError, match="test_it: a_few takes ids of cases"):
        mark_the_others([Item(None, "a")], all_are_here=True)  # pyright: ignore[reportArgumentType]
