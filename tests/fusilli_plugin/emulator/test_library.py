"""The emulator's core as a library: built where it can be, current, and of the structures that Python has."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fusilli_plugin.edge import build
from fusilli_plugin.emulator import library


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty package folder, and an empty cache folder."""
    monkeypatch.setattr(library, "CORE_LIBRARY", tmp_path / "package" / "lib" / "libgfx_emulator.so")
    monkeypatch.setenv("FUSILLI_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "package").mkdir()
    (tmp_path / "cache").mkdir(mode=0o700)
    return tmp_path


def _fresh() -> library.Core:
    return library._core.__wrapped__()


def _copy(monkeypatch: pytest.MonkeyPatch, made: list[Path]) -> None:
    """Copies the library that is there instead of compiling it again, which takes seconds."""
    real = library.core()
    assert real

    def copied(output: Path | None = None) -> Path:
        output = output or library.CORE_LIBRARY
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = output.with_name(f"{len(made)}.so")
        temporary.write_bytes(_library().read_bytes())
        temporary.replace(output)  # one that is loaded is mapped: it must not be written to
        made.append(output)
        return output

    monkeypatch.setattr(library, "compile_core", copied)


def _library() -> Path:
    kept = build.CORE_LIBRARY
    assert kept.is_file()
    return kept


def test_the_library_says_what_it_was_made_of() -> None:
    library.core()
    assert library._is_current(_library(), build.core_version())
    assert not library._is_current(_library(), "0" * 16)


def test_a_source_tree_builds_it_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    _copy(monkeypatch, made)
    _fresh()
    _fresh()
    assert made == [place / "package" / "lib" / "libgfx_emulator.so"]


def test_a_library_of_other_sources_is_built_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    _copy(monkeypatch, made)
    _fresh()
    monkeypatch.setattr(library, "core_version", lambda: "0" * 16)
    _fresh()
    assert len(made) == 2
    assert made[0] == made[1]


def test_a_package_that_cannot_be_written_has_it_in_the_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    _copy(monkeypatch, made)
    real: Any = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: False if "package" in str(path) else real(path, mode))
    _fresh()
    _fresh()
    (kept,) = made
    assert kept.parent == place / "cache" / "emulator"
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_nothing_is_loaded_from_a_folder_of_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    _copy(monkeypatch, made)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (place / "cache" / "emulator").mkdir()
    (place / "cache" / "emulator").chmod(0o777)
    with pytest.raises(build.BuildError, match="can be written by others"):
        _fresh()


def test_without_a_compiler_the_message_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.BuildError, match="a C compiler is needed"):
        _fresh()


def test_a_file_that_is_no_library_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(b"no library")
    with pytest.raises(build.BuildError, match="cannot be loaded"):
        library.Core(file)


def test_a_privileged_process_starts_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``CC`` and ``PATH`` are words of whoever started it."""
    monkeypatch.setattr(library, "is_privileged", lambda: True)
    monkeypatch.setattr(library, "CORE_LIBRARY", tmp_path / "none.so")
    monkeypatch.setattr(library, "compile_core", lambda *_: pytest.fail("a compiler was started"))
    with pytest.raises(build.BuildError, match="more rights than whoever started it starts no compiler"):
        _fresh()


def test_a_cache_that_cannot_be_written_is_an_error(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSILLI_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(library.os, "access", lambda *_: False)
    with pytest.raises(build.BuildError, match="can be written"):
        _fresh()


@pytest.mark.thorough
def test_threads_build_it_once(place: Path) -> None:
    library._core.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        assert len({id(core) for core in pool.map(lambda _: library.core(), range(4))}) == 1
    library._core.cache_clear()
