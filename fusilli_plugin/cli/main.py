"""The command group: finds subcommands when they are asked for. `Guarded` has the exit codes."""

from __future__ import annotations

import importlib
import logging

import click

from fusilli_ground.spelling import did_you_mean
from fusilli_ground.texts import host_text
from fusilli_plugin import __version__
from fusilli_plugin.cli.base import group
from fusilli_plugin.cli.entry import quiet_imports
from fusilli_plugin.cli.guarded import Guarded

__all__ = ["cli", "main"]

# name -> (module of fusilli_plugin.cli, object in it); imported on use, so that --help and --version stay quick
_COMMANDS = {
    "demo": ("demo", "demo"),
    "compile": ("compile", "compile_"),
    "convert": ("convert", "convert"),
    "run": ("run", "run"),
    "plan": ("plan", "plan"),
    "inspect": ("inspect", "inspect"),
    "explain": ("explain", "explain"),
    "engines": ("engines", "engines"),
    "check": ("check", "check"),
    "fuzz": ("fuzz", "fuzz"),
    "conformance": ("conformance", "conformance"),
    "reduce": ("reduce", "reduce_"),
    "doctor": ("doctor", "doctor"),
    "cache": ("cache", "cache"),
    "replay": ("replay", "replay"),
    "install-plugin": ("plugin", "install_plugin"),
    "plugin-dir": ("plugin", "show_plugin_dir"),
    "selftest": ("selftest", "selftest"),
    "warm": ("warm", "warm"),
    "tune": ("tune", "tune"),
    "bench": ("bench", "bench"),
}


class _Commands(Guarded, click.Group):
    """Loads subcommands lazily."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name]
        with quiet_imports():
            found: click.Command = getattr(importlib.import_module(f"fusilli_plugin.cli.{module}"), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _COMMANDS:
            ctx.fail(f"No such command {args[0]!r}{did_you_mean(args[0], _COMMANDS)}.")
        return super().resolve_command(ctx, args)


def _start_logging() -> None:
    """FUSILLI_LOG_LEVEL (debug, info, warning, error; default warning) decides what of the logs goes to stderr."""
    from iree_bridge.compile.options import Options

    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=Options.from_env().log_level, handlers=[handler])


class _Printable(logging.Formatter):
    """Names in records come from anybody."""

    def format(self, record: logging.LogRecord) -> str:
        return host_text(super().format(record))


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
    """Run the command; `fusilli_plugin.cli.entry.main` is where it begins."""
    cli.main(prog_name="fusilli")
