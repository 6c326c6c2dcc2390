"""The command group: finds subcommands when they are asked for, and turns exceptions into exit codes.

Exit codes: 0 done and right; 1 a check failed or a result is wrong; 2 usage, bad input, or something that could not be
done, with a message of one paragraph; 130 interrupted; 141 the reader of the output went away.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from typing import Any

import click

from fusilli_plugin import __version__
from fusilli_plugin.cli.base import group, is_debug, open_standard_files, printable
from graph_api.errors import FusilliError, did_you_mean
from hipdnn_backend.errors import DeviceError, EngineError
from hipdnn_backend.offload.errors import OffloadError

__all__ = ["cli", "main"]

INTERRUPTED = 130
BROKEN_PIPE = 141

_STDOUT = 1  # file descriptor

# name -> (module of fusilli_plugin.cli, object in it); imported on use, so that --help and --version stay quick
_COMMANDS = {
    "demo": ("demo", "demo"),
    "compile": ("compile", "compile_"),
    "run": ("run", "run"),
    "plan": ("plan", "plan"),
    "inspect": ("inspect", "inspect"),
    "explain": ("explain", "explain"),
    "engines": ("engines", "engines"),
    "check": ("check", "check"),
    "doctor": ("doctor", "doctor"),
    "cache": ("cache", "cache"),
    "replay": ("replay", "replay"),
    "install-plugin": ("plugin", "install_plugin"),
    "plugin-dir": ("plugin", "show_plugin_dir"),
    "selftest": ("selftest", "selftest"),
    "warm": ("warm", "warm"),
}


# What is told in a sentence instead of a traceback: bad input, and what could not be done.
_TOLD = (FusilliError, OffloadError, EngineError, DeviceError, OSError, MemoryError)


class _Failure(click.ClickException):
    """What the user is told when a command could not do its work."""

    exit_code = 2


class _Commands(click.Group):
    """Loads subcommands lazily; no error that was foreseen, interrupt or broken pipe leaves it as a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        found: click.Command = getattr(importlib.import_module(f"fusilli_plugin.cli.{module}"), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], _COMMANDS)}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:  # None: the caller closed it
                sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The interpreter flushes stdout once more at exit; what is left must not go into the closed pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
            raise click.exceptions.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except _TOLD as error:
            if is_debug(ctx):
                traceback.print_exc()
            memory = "not enough memory: " if isinstance(error, MemoryError) else ""
            raise _Failure(memory + printable(str(error))) from error


def _start_logging() -> None:
    """FUSILLI_LOG_LEVEL (debug, info, warning, error; default warning) decides what of the logs goes to stderr."""
    from iree_bridge.options import Options

    logging.basicConfig(level=Options.from_env().log_level, format="%(levelname)s %(name)s: %(message)s")


@group("fusilli", cls=_Commands)
@click.version_option(__version__, prog_name="fusilli")
def cli() -> None:
    r"""Compile and run hipDNN operation graphs through Torch-MLIR and IREE.

    \b
    Examples:
      fusilli doctor
      fusilli run graph.json --device cpu --check
      fusilli compile graph.json --target gfx942,cpu -o graph.fusilli
      fusilli inspect graph.json --target gfx942

    Environment: FUSILLI_DEVICE is the default of --device, FUSILLI_CACHE_DIR holds compiled code, FUSILLI_LOG_LEVEL is
    debug, info, warning or error.
    """
    _start_logging()


def main() -> None:
    """Entry point of the ``fusilli`` command."""
    open_standard_files()
    cli.main(prog_name="fusilli")
