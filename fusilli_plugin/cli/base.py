"""What the subcommands share: options, tables, JSON and progress."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich import box
from rich.console import Console
from rich.table import Table

from fusilli_ground.texts import json_printable, printable
from fusilli_plugin.formats.kinds import Kind, kind_of
from hipdnn_backend.offload.overwriting import model_files, overwritten

if TYPE_CHECKING:
    from fusilli_plugin.emulator import Emulator
    from iree_bridge import Options

__all__ = [
    "Step",
    "command",
    "debug_option",
    "device_option",
    "echo",
    "echo_text",
    "emulate_option",
    "emulator_for",
    "file_option",
    "graph_argument",
    "group",
    "help_text",
    "is_debug",
    "json_option",
    "json_text",
    "named_file",
    "print_json",
    "print_table",
    "printable",
    "progress",
    "require_outputs",
    "targets_option",
    "unique_options",
]

F = TypeVar("F", bound=Callable[..., Any])

_DEBUG = "fusilli.debug"
# Wide enough for every table of ours: in a pipe or a log nothing wraps.
_PLAIN_WIDTH = 180
_STDIN = 0  # file descriptor


def _set_debug(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_DEBUG] = True


def is_debug(ctx: click.Context) -> bool:
    """True if ``--debug`` was given to the group or to a subcommand."""
    return bool(ctx.meta.get(_DEBUG))


debug_option = click.option(
    "--debug", is_flag=True, is_eager=True, expose_value=False, callback=_set_debug, help="Show tracebacks of errors."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
graph_argument = click.argument(
    "graph_file", metavar="GRAPH.json", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)


def unique_options(_ctx: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Splits comma-separated values and drops repeated ones, in order."""
    parts = (part.strip() for value in values for part in value.split(","))
    names = tuple(dict.fromkeys(part for part in parts if part))
    if values and not names:
        raise click.BadParameter("it names nothing")
    return names


def targets_option(*, required: bool, help_text: str) -> Callable[[F], F]:
    """``--target T[,T...]``, repeatable; the command gets a tuple of names."""
    return click.option(
        "--target",
        "targets",
        metavar="T[,T...]",
        multiple=True,
        required=required,
        callback=unique_options,
        help=help_text,
    )


device_option = click.option(
    "--device",
    metavar="D",
    help="cpu, hip, hip:1, cuda:0; default: FUSILLI_DEVICE, or hip. Nothing falls back to the CPU unasked.",
)


emulate_option = click.option(
    "--emulate",
    metavar="CHIP",
    help="Run the code of gfx90a, gfx942 or gfx950 in an emulator instead: no GPU is needed, slowly.",
)


def emulator_for(chip: str | None, device: str | None, options: Options) -> Emulator | None:
    """The emulator that ``--emulate`` asks for; None without it.

    Raises:
        click.UsageError: it and a device are asked for, or a chip that has no model.
        ExecutionError: the emulator's core cannot be built.
    """
    if chip is None:
        return None
    if device is not None:
        raise click.UsageError("--emulate and --device exclude each other")
    from fusilli_plugin.emulator import CHIPS, Emulator
    from iree_bridge import Target

    if chip not in CHIPS:
        raise click.UsageError(f"{chip!r} cannot be emulated; {', '.join(CHIPS)} can")
    return Emulator(Target.parse(chip), options)


def file_option(name: str, ending: str, help_text: str) -> Callable[[F], F]:
    """``NAME [FILE]``: the command gets None without it, a path, or an empty one if no file is named.

    A file has to have the ending: without that check ``NAME model.onnx`` would write over the model.
    """

    def checked(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> Path | None:
        if value and not value.endswith(ending):
            raise click.BadParameter(f"{value!r} does not end in {ending}; to name no file, put {name} last")
        return None if value is None else Path(value)

    metavar = f"[FILE{ending}]"
    return click.option(name, is_flag=False, flag_value="", metavar=metavar, callback=checked, help=help_text)


def named_file(given: Path | None, name: str) -> Path | None:
    """What `file_option` gave; for a file without a name, one in a folder of the user's, not in whichever one is in.

    Raises:
        OptionError, OSError: the folder cannot be made.
    """
    if given != Path():
        return given
    from iree_bridge.compile.options import Options

    folder = Options.from_env().cache_dir / "reports"
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / name


def require_outputs(*files: Path | None, source: Path | None = None, inputs: Path | None = None) -> None:
    """Refuse now what could not be written after minutes of work, or what would be written over what is read.

    Args:
        files: what the command writes; None is none.
        source: the graph or model that it reads, ``-`` for standard input.
        inputs: another file that it reads.

    Raises:
        click.UsageError: the folder of a file is not there, or cannot be written; a file is one that is read, or two
            are the same.
        GraphError, OffloadError, OSError: the source cannot be read.
    """
    named: dict[str, Path] = {}
    for file in files:
        if file is None:
            continue
        final = Path(os.path.realpath(file))
        if not final.parent.is_dir():
            raise click.UsageError(f"{file}: there is no folder {final.parent}")
        if not file.exists() and not os.access(final.parent, os.W_OK | os.X_OK):
            raise click.UsageError(f"{file}: folder {final.parent} cannot be written")
        lost = overwritten(file, _read_files(source, inputs))
        if lost is not None:
            what = "standard input" if lost == _STDIN else lost
            raise click.UsageError(f"{file} is a file that this command reads ({what}); name another one to write")
        if str(final) in named and (final.is_file() or not final.exists()):
            raise click.UsageError(f"{file} and {named[str(final)]} are one file, and two are to be written")
        named[str(final)] = file


def _read_files(source: Path | None, inputs: Path | None) -> Iterator[Path | int]:
    if inputs is not None:
        yield inputs
    if source is None:
        return
    if str(source) == "-":
        yield _STDIN
    elif kind_of(source) is Kind.MODEL:
        yield from model_files(source)
    else:
        yield source


def command(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a function the subcommand ``name``, with ``--debug``; its docstring is the help."""

    def wrap(function: Callable[..., Any]) -> click.Command:
        return click.command(name, help=help_text(function))(debug_option(function))

    return wrap


def group(name: str, cls: type[click.Group] = click.Group) -> Callable[[Callable[..., Any]], click.Group]:
    """Makes a function the group ``name`` of subcommands, with ``--debug``; its docstring is the help."""

    def wrap(function: Callable[..., Any]) -> click.Group:
        settings = {"help_option_names": ["-h", "--help"]}
        return click.group(name, cls=cls, help=help_text(function), context_settings=settings)(debug_option(function))

    return wrap


def help_text(function: Callable[..., Any] | None) -> str:
    r"""The docstring of a command. Docstrings are raw, so click's mark for "do not wrap" stands there as ``\b``."""
    return (inspect.getdoc(function) or "").replace("\\b\n", "\b\n")


def json_text(document: object) -> str:
    """One JSON document; floats that JSON lacks become strings."""
    return json_printable(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False))


def print_json(document: object) -> None:
    """Prints one JSON document on stdout; floats that JSON lacks become strings."""
    echo_text(json_text(document))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Prints a table on stdout: as wide as the terminal, unwrapped elsewhere. Cells that are numbers align right."""
    table = Table(box=box.SIMPLE_HEAD, title=printable(title, keep="") or None, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        cells = [row[index] for row in rows]
        numeric = bool(cells) and all(isinstance(cell, int | float) or cell in ("", "-") for cell in cells)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False, markup=False, emoji=False
    )
    with console.capture() as capture:
        console.print(table)
    # click reports a closed pipe as BrokenPipeError; rich would end the process with a code of its own.
    echo_text("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
    return printable(str(value), keep="")


def echo(*lines: object, err: bool = False) -> None:
    """Print lines, with what would steer the terminal or begin another line escaped; ruff forbids ``click.echo``."""
    for line in lines:
        click.echo(printable(str(line), keep="\t"), err=err)  # noqa: TID251 - one of the two places


def echo_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text of several lines that are all somebody's, like IR; what would steer the terminal is escaped."""
    click.echo(printable(text), err=err, nl=nl)  # noqa: TID251 - the other


@dataclass
class Step:
    """Tells the user what is going on now."""

    say: Callable[[str], None]


@contextlib.contextmanager
def progress() -> Iterator[Step]:
    """Progress on stderr: a live line on a terminal, plain lines elsewhere; stdout stays for results."""
    if sys.stderr.isatty():
        with Console(stderr=True, highlight=False, markup=False).status("starting") as status:
            yield Step(lambda text: status.update(printable(text)))
    else:
        yield Step(lambda text: echo(f"... {text}", err=True))
