"""``make docs``: the site builds strictly, links checked, and has what the packages export."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.thorough

PAGES = sorted((ROOT / "docs/api").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("package", [page.stem for page in PAGES])
def test_the_api_pages_have_what_is_exported(site: Path, package: str) -> None:
    shown = set(re.findall(rf'id="({package}\.[\w.]+)"', (site / f"api/{package}.html").read_text("utf-8")))
    exported = {name for name in importlib.import_module(package).__all__ if not name.startswith("__")}
    missing = {name for name in exported if not any(each.endswith(f".{name}") for each in shown)}
    assert not missing


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        loaded = re.findall(
            r'<(?:script|img)[^>]* src="(https?:[^"]*)"|<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]*)"', text
        )
        assert not loaded, page.name
