"""The ``fusilli`` command: one file per subcommand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusilli_plugin.cli.entry import main

if TYPE_CHECKING:
    from fusilli_plugin.cli.main import cli

__all__ = ["cli", "main"]


def __getattr__(name: str) -> Any:
    """The group of commands, loaded on use: an interrupt while it is must not be a traceback, see `entry`."""
    if name != "cli":
        raise AttributeError(f"module 'fusilli_plugin.cli' has no attribute {name!r}")
    from fusilli_plugin.cli.main import cli

    return cli
