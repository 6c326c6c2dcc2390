"""Where the commands begin. Only the standard library is imported: whatever takes time is imported under protection."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

__all__ = ["INTERRUPTED", "hipdnn_ep_opt", "main", "open_standard_files", "quiet_imports"]

INTERRUPTED: Final = 130


def main() -> None:
    """Entry point of the ``fusilli`` command."""
    _start("fusilli_plugin.cli.main")


def hipdnn_ep_opt() -> None:
    """Entry point of the ``hipdnn-ep-opt`` command."""
    _start("fusilli_plugin.cli.ep_opt")


def _start(name: str) -> None:
    open_standard_files()
    with quiet_imports():
        module = importlib.import_module(name)
    try:
        module.main()
    finally:
        if _is_usual():  # the work is done or given up: what happens at exit is no place for tracebacks either
            signal.signal(signal.SIGINT, _leave)


@contextmanager
def quiet_imports() -> Iterator[None]:
    """An interrupt ends the process: inside an import it would be a traceback, or an import that is said to fail."""
    if not _is_usual():
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_usual() -> bool:
    """Whether an interrupt raises KeyboardInterrupt, and this thread may change that."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _leave(_number: int, _frame: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def open_standard_files() -> None:
    """Opens what the caller closed: no file that is opened later gets its number, nothing meets None.

    Standard output becomes a file that cannot be written: a command that has something to print then says that it could
    not. One that has not, since its result is a file, is none the worse.
    """
    for number, mode in enumerate((os.O_RDWR, os.O_RDONLY, os.O_RDWR)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free number is this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
