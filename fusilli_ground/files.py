"""Files of a program that is not ours: one that somebody may miss, and numbers that belong to nobody."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, Final, cast

from fusilli_ground.errors import OptionError

__all__ = ["path_of", "standard_numbers_taken", "whole_file", "write_whole"]

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


def path_of(given: object) -> str:
    """The path that somebody named.

    Raises:
        OptionError: it is none. A number is none either: it would be a file that is open, and be closed with it.
    """
    if not isinstance(given, str | bytes | os.PathLike):
        raise OptionError(f"expected the path of a file, got {given!r}")
    path = os.fsdecode(cast("str | bytes | os.PathLike[str]", given))
    try:
        if b"\0" not in os.fsencode(path):
            return path
    except UnicodeEncodeError:
        pass
    raise OptionError(f"{path!r} cannot be the path of a file")


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], *, mode: int | None = None) -> Generator[BinaryIO]:
    """A file to be written, which takes the place of an old one when all went well.

    Without ``mode`` the file is one that a user names: links are followed, and a device or pipe (``/dev/stdout``) is
    written to, since it must not be replaced by a file. With ``mode``, its permissions, it is one of a folder of ours:
    whatever has its name there is replaced.

    Raises:
        OptionError: the path is none.
        OSError: it cannot be written.
    """
    path = path_of(path)
    if mode is None and _is_special(path):
        with open(path, "wb") as file:
            yield file
        return
    final = Path(os.path.realpath(path) if mode is None else path)
    temporary = final.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        # Exclusive, so a link that somebody else has put there is not written through.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
        with open(fd, "wb") as file:
            yield file
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        os.replace(temporary, final)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name that nobody knows
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_whole(path: str | os.PathLike[str], data: bytes | memoryview, *, mode: int | None = None) -> None:
    """Write a `whole_file`.

    Raises:
        OptionError: the path is none.
        OSError: it cannot be written.
    """
    with whole_file(path, mode=mode) as file:
        file.write(data)


def _is_special(path: str) -> bool:
    """Whether a path names something that is no regular file."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return not path  # "" would mean the folder that we are in
