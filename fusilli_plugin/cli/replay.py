"""``fusilli replay``: a failed compile once more."""

from __future__ import annotations

from pathlib import Path

import click

from fusilli_plugin.cli.base import command, json_option, print_json, progress
from graph_api import CompileError
from iree_bridge import compiler, reproducer

__all__ = ["replay"]


@command("replay")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--show", is_flag=True, help="Only show what would be compiled, and with which flags.")
@json_option
@click.pass_context
def replay(ctx: click.Context, folder: Path, show: bool, as_json: bool) -> None:
    r"""Compile again what failed before.

    DIR is the folder that the error message named. The flags are shown first; they may name files, so a folder that
    others can write to is refused. Exit code 1 if the compile still fails.

    \b
    Examples:
      fusilli replay ~/.cache/fusilli-plugin/failures/20260131-120000-conv-0a1b2c3d
      fusilli replay DIR --show
    """
    failed = reproducer.load(folder)
    document = {
        "name": failed.name,
        "target": str(failed.target),
        "flags": [*failed.global_flags, *failed.flags],
        "versions": failed.versions,
        "command": failed.command(),
    }
    if not as_json:
        click.echo(f"'{failed.name}' for {failed.target}, made with {_versions(failed.versions)}")
        click.echo("\n".join(f"  {flag}" for flag in document["flags"]))
        click.echo(f"the same without this package, in that folder: {failed.command()}")
    error = None if show else _compile_again(failed)
    if as_json:
        print_json(document | ({} if show else {"ok": error is None, "error": error}))
    elif error is not None:
        click.echo(error, err=True)
    elif not show:
        click.echo("it compiles now")
    ctx.exit(0 if error is None else 1)


def _compile_again(failed: reproducer.Reproducer) -> str | None:
    """The message of the failure, None if there is none any more."""
    with progress() as step:
        step.say(f"compiling '{failed.name}' for {failed.target}")
        try:
            compiler.replay(failed)
        except CompileError as error:
            return str(error)
    return None


def _versions(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {(version or 'unknown')[:16]}" for name, version in versions.items())
