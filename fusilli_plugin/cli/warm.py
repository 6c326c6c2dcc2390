"""``fusilli warm``: compile logged graphs ahead of time, for machines that must not compile."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from fusilli_plugin.cli.base import command, echo, json_option, print_json, print_table, progress, targets_option
from fusilli_plugin.formats.graphs import load_graph
from graph_api import FusilliError, NotSupportedError
from iree_bridge import Options, Target, support
from iree_bridge.compile.compiler import compile_code

__all__ = ["warm"]


@dataclass(frozen=True)
class _Row:
    """What became of one file for one target."""

    file: str
    target: str
    outcome: str
    seconds: float
    ok: bool


@command("warm")
@click.option(
    "--from", "source", type=click.Path(exists=True, path_type=Path), required=True, metavar="DIR",
    help="A folder that HIPDNN_LOG_GRAPH_DIR filled, or a graph file.",
)  # fmt: skip
@targets_option(required=True, help_text="What to compile for: gfx942, mi300x, ...; several are compiled one by one.")
@json_option
@click.pass_context
def warm(ctx: click.Context, source: Path, targets: tuple[str, ...], as_json: bool) -> None:
    r"""Fill the cache with the code of logged graphs.

    No GPU is needed. Take the folder FUSILLI_CACHE_DIR to the machine that runs, name it there in
    FUSILLI_CACHE_READONLY and set FUSILLI_COMPILE=never. Graphs that are not served are skipped;
    exit code 1 if one that is served does not compile.

    \b
    Examples:
      HIPDNN_LOG_GRAPH_DIR=graphs ./application
      FUSILLI_CACHE_DIR=code fusilli warm --from graphs --target gfx942
    """
    chosen = [Target.parse(target) for target in targets]
    files = [source] if source.is_file() else sorted(p for p in source.iterdir() if p.suffix in (".json", ".bin"))
    options = Options.from_env()
    rows: list[_Row] = []
    with progress() as step:
        for file in files:
            for target in chosen:
                step.say(f"{file.name} for {target}")
                rows.append(_warm(file, target, options))
    failed = [row for row in rows if not row.ok]
    if as_json:
        print_json({"ok": not failed, "cache": str(options.cache_dir), "graphs": [vars(row) for row in rows]})
    else:
        print_table(("file", "target", "outcome", "s"), [(r.file, r.target, r.outcome, r.seconds) for r in rows])
        echo(f"{len(rows) - len(failed)} of {len(rows)} done, in {options.cache_dir}")
    ctx.exit(1 if failed else 0)


def _warm(file: Path, target: Target, options: Options) -> _Row:
    start = time.perf_counter()
    try:
        graph = load_graph(file)
        answer = support(graph, target)
        if not answer:
            return _Row(file.name, str(target), f"not served: {answer.reason}", 0.0, True)
        code = compile_code(graph, target, options)
        outcome, ok = "in the cache" if code.from_cache else "compiled", True
    except FusilliError as error:
        declined: BaseException | None = error
        while declined is not None and not isinstance(declined, NotSupportedError):
            declined = declined.__cause__
        if declined is not None:
            return _Row(file.name, str(target), f"not served: {declined.reason}", 0.0, True)
        outcome, ok = str(error).splitlines()[0], False
    return _Row(file.name, str(target), outcome, time.perf_counter() - start, ok)
