"""``hipdnn-ep-opt``: the passes of the offload pipeline on MLIR text, with the flags of MLIR's own opt tools.

Exit codes: those of `Guarded`; 2 also for text that is no MLIR, and for a pass that failed or ended the process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusilli_ground.environment import environment
from fusilli_ground.files import write_whole
from fusilli_plugin import __version__
from fusilli_plugin.cli.base import debug_option, echo, echo_text, help_text, require_outputs
from fusilli_plugin.cli.entry import INTERRUPTED, quiet_imports
from fusilli_plugin.cli.guarded import Failure, Guarded
from iree_bridge import Options

if TYPE_CHECKING:
    from hipdnn_backend.offload.pipeline import Pass

__all__ = ["ep_opt", "main"]

_PIPELINE = "hipdnn-offload-pipeline"
_CHOSEN = "hipdnn-ep-opt.passes"
_MAX_TEXT = 1 << 30  # bytes


class _PassCommand(Guarded):
    """A command that also has a flag per pass; their order on the command line is the order in which they run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = _passes()
        chosen: list[Pass] = []
        rest: list[str] = []
        for position, argument in enumerate(args):
            name = argument.removeprefix("-").removeprefix("-") if argument.startswith("-") else ""
            if argument == "--":
                rest += args[position:]
                break
            if name in known:
                chosen += known[name]
            else:
                rest.append(argument)
        ctx.meta[_CHOSEN] = chosen
        return super().parse_args(ctx, rest)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Passes, in the order in which they shall run"):
            formatter.write_dl(
                [(f"--{name}", ", ".join(each.title for each in found)) for name, found in _passes().items()]
            )


def _passes() -> dict[str, tuple[Pass, ...]]:
    try:
        with quiet_imports():
            from hipdnn_backend.offload.pipeline import PASSES, PIPELINE
    except ImportError as error:
        raise Failure(str(error)) from error
    return {_PIPELINE: PIPELINE} | {name: (each,) for name, each in PASSES.items()}


@click.command("hipdnn-ep-opt", cls=_PassCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="[FILE.mlir]", default="-",
                type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))  # fmt: skip
@click.option("-o", "output", type=click.Path(dir_okay=False, path_type=Path), help="Default: standard output.")
@click.option("--device", metavar="D", help="What graphs are compiled for. Default: FUSILLI_DEVICE, or cpu.")
@click.option("--mlir-print-ir-after-all", "print_after", is_flag=True, help="Print the IR after each pass to stderr.")
@click.option("--mlir-print-ir-before-all", "print_before", is_flag=True, help="Print the IR before the first pass.")
@click.option("--mlir-print-local-scope", "local_scope", is_flag=True, help="Print attributes in place, no aliases.")
@click.option("--mlir-print-debuginfo", "locations", is_flag=True, help="Print where each operation comes from.")
@click.option("--mlir-elide-elementsattrs-if-larger", "elide", metavar="N", type=click.IntRange(min=0),
              help="Leave out the elements of constants with more than N.")  # fmt: skip
@click.option("--mlir-disable-threading", "single", is_flag=True, help="MLIR uses one thread.")
@click.option("--mlir-timing", "timing", is_flag=True, help="Print how long each pass took to stderr.")
@click.option("--no-fuse", is_flag=True, help="hipdnn-offload gives each operation a graph of its own.")
@click.option("--keep-leftovers", is_flag=True, help="hipdnn-outline-leftovers leaves everything but reshapes.")
@click.option("--layout", type=click.Choice(["row-major", "channels-last", "auto"]), default="auto",
              show_default=True, help="hipdnn-assign-layouts: of the tensors between graphs.")  # fmt: skip
@click.option("--reproducers", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
              help="Folder for what failing passes leave. Default: that for temporary files.")  # fmt: skip
@click.version_option(__version__, prog_name="hipdnn-ep-opt")
@debug_option
@click.pass_context
def ep_opt(ctx: click.Context, /, **settings: Any) -> None:
    r"""Run passes of the offload pipeline over MLIR text and print the result.

    The text may be in the torch dialect or in that of any later stage, hipdnn.execute in its own syntax or generic.

    \b
    Examples:
      hipdnn-ep-opt --hipdnn-offload-pipeline --mlir-print-ir-after-all --mlir-print-local-scope two_convs.mlir
      hipdnn-ep-opt --cse --hipdnn-offload two_convs.mlir
    """
    require_outputs(settings["output"], source=settings["source"])
    logging.basicConfig(level=Options.from_env().log_level, format="%(levelname)s %(name)s: %(message)s")
    _run(ctx.meta[_CHOSEN], **settings)


def _run(chosen: list[Pass], *, source: Path, output: Path | None, device: str | None, **settings: Any) -> None:
    from hipdnn_backend.offload import printer
    from hipdnn_backend.offload.mlir import new_context
    from hipdnn_backend.offload.pipeline import run_passes
    from hipdnn_backend.offload.session import Layout, OffloadOptions, Session

    def text_of(module: Any) -> str:
        return printer.to_text(
            module, local_scope=settings["local_scope"], locations=settings["locations"], elide=settings["elide"]
        )

    def dump(when: str, module: Any) -> None:
        echo_text(f"// -----// IR Dump {when} //----- //\n{text_of(module)}\n", err=True)

    def after(each: Pass, module: Any) -> None:
        if settings["print_after"]:
            dump(f"After {each.title} ({each.argument})", module)

    context = new_context()
    if settings["single"]:
        context.enable_multithreading(False)
    module = printer.parse(_read(source), context, source=str(source))
    if settings["print_before"]:
        dump("Before the passes", module)
    options = OffloadOptions(
        fuse=not settings["no_fuse"],
        leftovers=not settings["keep_leftovers"],
        layout=Layout(settings["layout"]),
        reproducers=settings["reproducers"],
    )
    session = Session(_engines(chosen, device), options)
    run_passes(module, chosen, session, after=after)
    if settings["timing"]:
        for spent in session.report.passes:
            echo(f"{spent.seconds * 1e3:10.3f} ms  {spent.name}", err=True)
    _write(text_of(module) + "\n", output)


def _engines(chosen: list[Pass], device: str | None) -> tuple[Any, ...]:
    """The engine that graphs are compiled with; none if no pass asks for one, so that no device need be there."""
    if not any(each.asks for each in chosen):
        return ()
    from fusilli_plugin.engine.engine import FusilliEngine

    options = Options.from_env({"FUSILLI_DEVICE": "cpu", **environment()})
    return (FusilliEngine(device, options=options),)


def _read(source: Path) -> str:
    data = sys.stdin.buffer.read(_MAX_TEXT + 1) if str(source) == "-" else _file(source)
    if len(data) > _MAX_TEXT:
        raise Failure(f"{source} has more than {_MAX_TEXT} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Failure(f"{source} is no UTF-8 text: {error}") from None


def _file(source: Path) -> bytes:
    with source.open("rb") as file:
        return file.read(_MAX_TEXT + 1)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        echo_text(text, nl=False)
    else:
        write_whole(output, text.encode())


ep_opt.help = help_text(ep_opt.callback)


def main() -> None:
    """Run the command in a child, which MLIR may end; `fusilli_plugin.cli.entry` is where it begins.

    The terminal interrupts both; the child is waited for.
    """
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    child = os.fork()
    if not child:
        signal.signal(signal.SIGINT, before)
        if interrupts:
            os._exit(INTERRUPTED)
        ep_opt.main(prog_name="hipdnn-ep-opt")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status and interrupts and before is not signal.SIG_IGN:
        sys.exit(INTERRUPTED)  # also if that ended MLIR
    if status < 0:
        echo(
            f"Error: MLIR ended the process ({signal.Signals(-status).name}), as it does where its own checks fail; "
            "what it said is above. --mlir-print-ir-after-all shows the last pass that was done",
            err=True,
        )
        sys.exit(2)
    sys.exit(status)
