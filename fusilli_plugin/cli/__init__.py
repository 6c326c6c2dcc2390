"""The ``fusilli`` command: one file per subcommand."""

from fusilli_plugin.cli.main import cli, main

__all__ = ["cli", "main"]
