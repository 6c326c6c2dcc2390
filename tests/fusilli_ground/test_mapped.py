"""What is mapped into this process, against libraries that the test maps itself."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

from fusilli_ground.mapped import mapped_files, mapped_library


def _copy(to: Path) -> Path:
    """A shared library of this Python under another name."""
    source = next(path for path in mapped_files("libc.so") if Path(path).is_file())
    shutil.copy(source, to)
    return to


def test_a_library_under_a_name_with_blanks_and_a_version(tmp_path: Path) -> None:
    folder = tmp_path / "with blanks"
    folder.mkdir()
    made = _copy(folder / "libfusilli test.so.7")
    assert mapped_library("libfusilli test.so") is None
    handle = ctypes.CDLL(str(made))
    assert mapped_files("libfusilli test.so") == [str(made)], "once, though it is mapped in several pieces"
    assert mapped_library("libfusilli") == str(made)
    assert str(made) in mapped_files()
    made.unlink()
    assert mapped_library("libfusilli test.so") is None, "nobody else finds it"
    del handle


def test_all_files_are_there_once() -> None:
    found = mapped_files()
    assert len(found) == len(set(found))
    assert all(path.startswith("/") for path in found)
