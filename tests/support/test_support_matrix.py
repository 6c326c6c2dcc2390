from __future__ import annotations

import json
from pathlib import Path

import pytest

from graph_api import FusilliError
from tests.support.support_matrix import BEGIN, END, Entry, dumps, loads, main, page, render, with_table

ENTRIES = [
    Entry("conv-a", "conv_fprop", "HALF", "channels-last", {"cpu": "right", "gfx942": "compiled"}),
    Entry("conv-b", "conv_fprop", "FLOAT", "packed", {"cpu": "failed", "gfx942": "compiled"}),
    Entry("pointwise-sin", "pointwise", "DOUBLE", "packed", {"cpu": "declined: dtype", "gfx942": "compiled"}),
    Entry("pointwise-add", "pointwise", "DOUBLE", "other", {"cpu": "right"}),
]
TABLE = """\
| operation | cpu (run) | gfx942 (emulated) |
| --- | --- | --- |
| `conv_fprop` | 1/2, 1 failed | 0/2, 2 not run |
| `pointwise` | 1/2, 1 declined | 0/1, 1 not run |
| **all** | 2/4, 1 declined, 1 failed (50 %) | 0/3, 3 not run (0 %) |
"""


def test_the_table() -> None:
    assert render(ENTRIES) == TABLE
    assert "| not tried |" in render([Entry("a", "x", "HALF", "packed", {"cpu": "right"}), *ENTRIES[:0],
                                      Entry("b", "y", "HALF", "packed", {"gfx942": "compiled"})])  # fmt: skip


def test_the_file_is_sorted_and_read_back() -> None:
    text = dumps(ENTRIES, "3.13.0")
    assert loads(text) == sorted(ENTRIES, key=lambda entry: entry.case)
    assert dumps(reversed(ENTRIES), "3.13.0") == text
    assert json.loads(text)["iree"] == "3.13.0"
    assert text.splitlines()[2].startswith('{"case": "conv-b", "op": "conv_fprop"')


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '{"format": "fusilli-support", "version": 2, "cases": []}',
     '{"format": "fusilli-support", "version": 1, "cases": [1]}', '{"format": "fusilli-support", "version": 1}',
     '{"format": "fusilli-support", "version": 1, "cases": [{"case": "a", "op": "b", "dtype": "F32", "layout": "c"}]}'],
    ids=range(8),
)  # fmt: skip
def test_what_is_no_file(text: str) -> None:
    with pytest.raises(FusilliError, match="not a support table"):
        loads(text)


def test_the_table_goes_between_the_markers() -> None:
    text = f"# Title\n{BEGIN}\nold\n{END}\nmore\n"
    new = with_table(text, ENTRIES)
    assert new == f"# Title\n{BEGIN}\n{TABLE}{END}\nmore\n"
    assert with_table(new, ENTRIES) == new


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_markers_that_are_not_right(text: str) -> None:
    with pytest.raises(FusilliError, match="once each and in this order"):
        with_table(text, ENTRIES)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme, support = tmp_path / "README.md", tmp_path / "support.json"
    readme.write_text(f"{BEGIN}\n{END}\n")
    arguments = ["--readme", str(readme), "--support", str(support), "--page", str(tmp_path / "support.md")]
    assert main(arguments) == 1
    assert "support.json" in capsys.readouterr().err
    support.write_text(dumps(ENTRIES, "3.13.0"))
    assert main([*arguments, "--check"]) == 1
    assert readme.read_text() == f"{BEGIN}\n{END}\n"
    assert main(arguments) == 0
    assert TABLE in readme.read_text()
    assert (tmp_path / "support.md").read_text() == page(ENTRIES)
    assert main([*arguments, "--check"]) == 0
