"""How a command ends that could not do its work: a code, and a message of one paragraph instead of a traceback."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from fusilli_ground.texts import host_text
from fusilli_plugin.cli.base import echo, is_debug
from fusilli_plugin.cli.entry import INTERRUPTED
from graph_api.errors import FusilliError
from hipdnn_backend.errors import DeviceError, EngineError
from hipdnn_backend.offload.errors import OffloadError

__all__ = ["BROKEN_PIPE", "Failure", "Guarded"]

BROKEN_PIPE: Final = 141

_STDOUT: Final = 1  # file descriptor

# What is told in a sentence instead of a traceback: bad input, and what could not be done.
_TOLD: Final = (FusilliError, OffloadError, EngineError, DeviceError, OSError, MemoryError)


class Failure(click.ClickException):
    """What the user is told when a command could not do its work."""

    exit_code = 2


class Guarded(click.Command):
    """No error that was foreseen, interrupt, broken pipe or full disk leaves it as a traceback.

    Exit codes: 0 done and right; 1 a check failed or a result is wrong; 2 usage, bad input, or something that could not
    be done; 130 interrupted; 141 the reader of the output went away.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _ending(parent):  # --help and --version print here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _ending(ctx):
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


@contextmanager
def _ending(ctx: click.Context | None) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        _silence()
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except KeyboardInterrupt:
        echo("interrupted", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except click.ClickException as error:  # of what was typed, or lies in a folder of somebody's
        vars(error)["message"] = host_text(error.message)  # its type has more to print than the message
        raise
    except _TOLD as error:
        if ctx is not None and is_debug(ctx):
            traceback.print_exc()
        raise Failure(_words(error)) from error


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno == errno.EBADF and _is_closed():
        _silence()
        return "standard output is closed, so what was to be printed is lost"
    try:
        sys.stdout.flush()
    except OSError:
        _silence()
    memory = "not enough memory: " if isinstance(error, MemoryError) else ""
    return memory + host_text(str(error))


def _is_closed() -> bool:
    """Whether standard output is what `entry.open_standard_files` put in the place of a closed one."""
    return fcntl.fcntl(_STDOUT, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def _silence() -> None:
    """The interpreter flushes standard output once more at exit: what is left has to go somewhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
