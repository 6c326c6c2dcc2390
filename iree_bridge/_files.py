"""Writing a file that somebody may miss: as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], data: bytes | memoryview) -> None:
    """Put ``data`` in place of the file that ``path`` names, through links; what was there stays if that fails.

    A device or pipe (``/dev/stdout``) is written to: it must not be replaced by a file.

    Raises:
        OSError: it cannot be written.
    """
    try:
        special = not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        special = not os.fspath(path)  # "" would mean the folder that we are in
    if special:
        Path(path).write_bytes(data)
        return
    final = Path(os.path.realpath(path))
    temporary = final.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.replace(temporary, final)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name that nobody knows
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
