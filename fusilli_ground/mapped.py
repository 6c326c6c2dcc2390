"""The shared libraries that are mapped into this process: a second copy of a GPU runtime would see no devices."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["mapped_files", "mapped_library"]


def mapped_files(name: str = "") -> list[str]:
    """Paths of files whose names begin with ``name``, so versions are included, in the order of their addresses.

    Deleted ones are left out: nobody else finds them any more. Applicability asks for all of them each time, so nothing
    is done for a line that can be done for a file.
    """
    try:
        maps = Path("/proc/self/maps").read_bytes()
    except OSError:
        return []
    # address, permissions, offset, device, inode, path; the path may hold blanks
    fields = (line.split(None, 5) for line in maps.splitlines())
    paths = dict.fromkeys(each[5] for each in fields if len(each) == 6 and each[5].startswith(b"/"))
    begin = os.fsencode(name)
    return [
        os.fsdecode(path)
        for path in paths
        if path.rpartition(b"/")[2].startswith(begin) and not path.endswith(b" (deleted)")
    ]


def mapped_library(name: str) -> str | None:
    """Path of the first file whose name begins with ``name``, None if there is none."""
    return next(iter(mapped_files(name)), None)
