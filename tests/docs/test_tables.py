"""Tables of names in the pages have all names that the code knows, and no others."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields

import pytest

from fusilli_plugin.conformance.checks import CHECKS
from fusilli_plugin.engine.knobs import knobs_for
from fusilli_plugin.fuzz.workarounds import WORKAROUNDS
from fusilli_plugin.ort_ep.options import ProviderOptions
from fusilli_plugin.testing import pytest_plugin
from hipdnn_backend.offload.torch_compile.options import CompileOptions
from iree_bridge import Target
from iree_bridge.targets import variants
from tests.support.pages import ROOT

_NAME = re.compile(r"`([^`]+)`")


def _rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, or any other line, of a page; without the table's head."""
    text = (ROOT / page).read_text("utf-8")
    assert text.count(f"\n{heading}\n") == 1, f"{page}: '{heading}'"
    lines = text.partition(f"\n{heading}\n")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    end = next((number for number, line in enumerate(lines) if number > start and not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[start + 2 : end]]


def _names(cells: Collection[str]) -> list[str]:
    return [name for cell in cells for name in _NAME.findall(cell)]


def _options(page: str, column: int) -> dict[str, str]:
    """Option -> the cell of its default, which stands in ``column``."""
    return {_names(row[:1])[0]: row[column] for row in _rows(page, "## Options")}


@pytest.mark.parametrize(
    ("page", "column", "options"),
    [("docs/onnxruntime.md", 2, ProviderOptions), ("docs/pytorch.md", 1, CompileOptions)],
)
def test_options(page: str, column: int, options: type[ProviderOptions | CompileOptions]) -> None:
    documented = _options(page, column)
    assert sorted(documented) == sorted(each.name for each in fields(options))
    for each in fields(options):
        if isinstance(each.default, int):  # flags are 0 and 1 in sessions, False in Python
            assert documented[each.name].strip("`") in (str(each.default), str(int(each.default))), each.name


def test_knobs() -> None:
    text = (ROOT / "docs/hipdnn_engine.md").read_text("utf-8")
    (said,) = re.findall(r"^\* Knobs: (.*?)Unknown ones", text, re.DOTALL | re.MULTILINE)
    documented = {name for name in _NAME.findall(said) if "." in name}
    assert documented == {knob.knob_id for knob in knobs_for(Target.parse("gfx942"))}


def test_workarounds() -> None:
    codes = {"rocm": "AMD", "cuda": "NVIDIA", "llvm-cpu": "CPU"}
    rows = _rows("docs/fusion_testing.md", "### Is a workaround still needed?")
    documented = {_names(row[:1])[0]: row[1] for row in rows}
    places = {name: [codes[each] for each in it.backends] for name, it in WORKAROUNDS.items()}
    assert documented == {name: "all" if len(each) == 3 else ", ".join(each) for name, each in places.items()}


def test_options_of_the_pytest_plugin() -> None:
    asked: list[str] = []

    class Parser:
        def getgroup(self, *_: str) -> Parser:
            return self

        def addoption(self, name: str, **_: str) -> None:
            asked.append(name)

        def addini(self, *_: str, **__: str) -> None:
            return

    pytest_plugin.pytest_addoption(Parser())  # pyright: ignore[reportArgumentType] - it has what is called
    documented = [name.split()[0] for name in _names(_rows("docs/fusion_testing.md", "## pytest")[0][:1])]
    assert documented == asked


def test_checks_of_conformance() -> None:
    """`leaks-*` and `results: *` stand for families."""
    documented = _names([row[0] for row in _rows("docs/conformance.md", "## What is checked")])
    stars = [name.removesuffix("*") for name in documented if name.endswith("*")]
    left = [name for name in CHECKS if not name.startswith(tuple(stars))]
    assert sorted(left) == sorted(name for name in documented if not name.endswith("*"))
    assert all(any(name.startswith(star) for name in CHECKS) for star in stars)


@pytest.mark.parametrize(("number", "backend"), [(0, "llvm-cpu"), (1, "rocm"), (2, "cuda")])
def test_forms(number: int, backend: str) -> None:
    row = _rows("docs/tuning.md", "## Which forms there are")[number]
    for cell, table in zip(row[1:], (variants._FORMS, variants._TRIALS), strict=True):
        assert _names([cell]) == [form.variant.name for form in table.get(backend, ())]
