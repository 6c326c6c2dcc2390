"""``fusilli engines``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from hipdnn_backend.engine import engine_id
from tests.hipdnn_backend.toys import tiny_plugin

Fusilli = Callable[..., Result]


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hipDNN, no plugins, no packages but those of the test."""
    monkeypatch.setenv("HIPDNN_BACKEND_LIBRARY", str(tmp_path / "rocm" / "libhipdnn_backend.so"))
    monkeypatch.delenv("HIPDNN_PLUGIN_DIR", raising=False)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins"
    folder.mkdir()
    tiny_plugin(folder / "b.so")
    (folder / "a.so").write_text("no library")
    (folder / "c.so").write_bytes((folder / "b.so").read_bytes())
    return folder


def test_a_line_per_engine_and_per_problem(fusilli: Fusilli, folder: Path) -> None:
    result = fusilli("engines", "--plugin", folder)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    id_ = f"0x{engine_id('TINY_ENGINE') % 2**64:016X}"
    assert ["TINY_ENGINE", id_, "1.4.0", "0.1", str(folder / "b.so")] in lines
    assert f"left out: {folder / 'a.so'}: cannot be loaded" in result.stdout
    assert f"left out: {folder / 'c.so'}: engine TINY_ENGINE is left out" in result.stdout


def test_json(fusilli: Fusilli, folder: Path, tmp_path: Path) -> None:
    document = json.loads(fusilli("engines", "--plugin", folder / "b.so", "--json").stdout)
    engine = {"name": "TINY_ENGINE", "id": engine_id("TINY_ENGINE"), "version": "0.1", "api_version": "1.4.0"}
    assert document == {
        "engines": [engine | {"origin": str(folder / "b.so")}],
        "problems": [],
        "backend": str(tmp_path / "rocm" / "libhipdnn_backend.so"),
    }


def test_hipdnns_own_folder(fusilli: Fusilli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPDNN_PLUGIN_DIR", str(folder))
    assert [engine["name"] for engine in json.loads(fusilli("engines", "--json").stdout)["engines"]] == ["TINY_ENGINE"]


def test_no_engine_at_all(fusilli: Fusilli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.cli.engines.find_backend_library", lambda: None)
    result = fusilli("engines")
    assert result.exit_code == 0
    assert "hipDNN: no libhipdnn_backend.so was found" in result.stdout


def test_a_plugin_that_is_not_there(fusilli: Fusilli, tmp_path: Path) -> None:
    assert fusilli("engines", "--plugin", tmp_path / "none.so").exit_code == 2
