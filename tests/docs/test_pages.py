"""Links, anchors and lengths of the pages."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import PACKAGES, PAGES, ROOT, anchors, links, spans

IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_relative_to(ROOT), f"{link} leaves the repository"
        assert target.exists(), f"{link}: there is no {target.relative_to(ROOT)}"
        if anchor:
            assert anchor in anchors(target), f"{link}: {target.name} has {sorted(anchors(target))}"


def test_links_and_anchors_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` c, d\n\n## A b c d\n\n[x](one.md#two) `[no](link.md)`\n![y](p.png)\n```sh\n[no](link.md)\n# no\n```\n"
    )
    assert links(page) == ["one.md#two", "p.png"]
    assert anchors(page) == {"a-b-c-d", "a-b-c-d-1"}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_changelog_has_this_version() -> None:
    from fusilli_plugin import __version__

    versions = re.findall(r"^## \[([\w.]+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert __version__ in versions


_TOPS = "|".join(PACKAGES)
_PATH = re.compile(rf"(?:{_TOPS}|tests|docs|examples)/[\w./*-]*")
_DOTTED = re.compile(rf"(?<!\w)(?:{_TOPS})(?:\.\w+)+")


def _resolves(dotted: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    found: Any = importlib.import_module(dotted.partition(".")[0])
    for part in dotted.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            if not hasattr(found, "__path__") or importlib.util.find_spec(f"{found.__name__}.{part}") is None:
                return False
            found = importlib.import_module(f"{found.__name__}.{part}")
    return True


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_what_is_named_exists(page: Path) -> None:
    """Files and names of ours, in code spans."""
    for span in spans(page):
        if _PATH.fullmatch(span):
            assert list(ROOT.glob(span.rstrip("/"))), f"there is no {span}"
        for dotted in _DOTTED.findall(span):
            assert _resolves(dotted), f"there is no {dotted} (in `{span}`)"
