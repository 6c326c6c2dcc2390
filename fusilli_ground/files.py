"""Files of a program that is not ours: one that somebody may miss, and numbers that belong to nobody."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Final

__all__ = ["standard_numbers_taken", "write_whole"]

_STDERR: Final = 2


@contextlib.contextmanager
def standard_numbers_taken() -> Generator[None]:
    """Meanwhile nothing that is opened gets descriptor 0, 1 or 2, also where the program has closed its standard files.

    What a library opened under such a number would get what others print, and go where they open their files anew.
    """
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):  # some places have no /dev/null, so nothing to hold them with
            while (number := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _STDERR:
                held.append(number)
            os.close(number)
        yield
    finally:
        for number in held:
            os.close(number)


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
