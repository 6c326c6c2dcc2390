"""The shared libraries that are mapped into this process: a second copy of a GPU runtime would see no devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["mapped_files", "mapped_library"]


def mapped_files(name: str = "") -> Iterator[Path]:
    """Files whose names begin with ``name``, so versions are included, in the order of their addresses.

    A file may come several times. Deleted ones are left out: nobody else finds them any more.
    """
    try:
        maps = Path("/proc/self/maps").read_bytes()
    except OSError:
        return
    for line in maps.splitlines():
        # address, permissions, offset, device, inode, path; the path may hold blanks
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(b"/") and not fields[5].endswith(b" (deleted)"):
            path = os.fsdecode(fields[5])
            if os.path.basename(path).startswith(name):
                yield Path(path)


def mapped_library(name: str) -> str | None:
    """Path of the first file whose name begins with ``name``, None if there is none."""
    return next(map(str, mapped_files(name)), None)
