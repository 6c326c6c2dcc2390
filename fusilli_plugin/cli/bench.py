"""``fusilli bench``: times beside ONNX Runtime and PyTorch, on the same cores, in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import click
from click.core import ParameterSource

from fusilli_ground.files import write_whole
from fusilli_plugin.bench.page import html, markdown
from fusilli_plugin.bench.run import SIDES, Row, Subject, beyond, measure, others, summary
from fusilli_plugin.bench.workloads import SUITES, workloads
from fusilli_plugin.cli.base import command, echo, json_text, print_table, progress, require_outputs, targets_option
from fusilli_plugin.cli.models import dims_of
from iree_bridge import Device, Options, Target
from iree_bridge.targets.cpu import processor, usable_cpus

__all__ = ["bench"]

_SUITES: Final = (
    "Operations: cpu has 70 of common sizes, latency small ones. models: networks made here, and trained ones of "
    "packages that are installed. training: steps of networks by torch.compile beside PyTorch and Inductor. gpu: f16 "
    "graphs on a device beside PyTorch. gfx: code for AMD chips, read and not run."
)
_FILE = click.Path(dir_okay=False, path_type=Path)
_TIMED: Final = ("cpu", "latency", "models", "training", "files")
_OF_SUITES: Final = {
    "device": ("gpu",),
    "targets": ("gfx",),
    "threads": _TIMED,
    "rounds": (*_TIMED, "gpu"),
    "busy": (*_TIMED, "gpu"),
    "dims": ("files",),
}
"""What each option is for; "files" are models that were named."""
_MOST_BUSY: Final = 64
_GPU_TOLERANCE: Final = 4e-3
"""Of the largest value: four roundings of a 16-bit float."""


@command("bench")
@click.argument("models", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[MODEL]...")
@click.option("--suite", type=click.Choice([*SUITES, "models", "training", "gpu", "gfx"]), help=_SUITES)
@click.option(
    "--device", metavar="D", help="Of the suite gpu: hip, hip:1, cuda:0, cpu; default: FUSILLI_DEVICE, or hip."
)
@targets_option(required=False, help_text="Of the suite gfx; default: gfx942.")
@click.option("--threads", default="1", show_default=True, help="Of every side: 1, or several numbers: 1,2.")
@click.option("--rounds", default=9, show_default=True, help="In each of which every side runs for 30 ms or once.")
@click.option("--busy", default="0", show_default=True, help="Processes beside it that never stop: 0, 1, or 0,1.")
@click.option("--filter", "pattern", default="", help="Only rows whose name contains this text.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="Models: size of a symbolic dim.")
@click.option("--json", "json_file", type=_FILE, help="Write the rows as JSON.")
@click.option("--markdown", "markdown_file", type=_FILE, help="Write them as a table of Markdown.")
@click.option("--html", "html_file", type=_FILE, help="Write a page with a bar for each ratio.")
@click.pass_context
def bench(
    ctx: click.Context,
    models: tuple[Path, ...],
    suite: str | None,
    device: str | None,
    targets: tuple[str, ...],
    threads: str,
    rounds: int,
    busy: str,
    pattern: str,
    dims: tuple[str, ...],
    json_file: Path | None,
    markdown_file: Path | None,
    html_file: Path | None,
) -> None:
    r"""Time operations, ONNX models or training beside ONNX Runtime and PyTorch, or read what AMD code takes.

    On the CPU each side has a process of its own on the same cores; they run in turns, and medians and the ratios of
    the rounds are told. A side that is not installed, or cannot do a row, has no time there. Models are not run by
    PyTorch. The suite gpu times graphs in a device's memory, from the call until the results are there, and counts
    wrong results. The suite gfx needs no device: kernels, spills, instructions, registers, and how far they leave a
    graph from the chip's roofline, beside goals.

    \b
    Examples:
      fusilli bench --suite latency
      fusilli bench --suite cpu --threads 1,2 --html bench.html
      fusilli bench model.onnx --dim batch=1 --threads 2 --busy 1
      fusilli bench --suite models --threads 1,2 --busy 0,1 --markdown models.md
      fusilli bench --suite training --threads 1,2 --filter vit
      fusilli bench --suite gfx --target gfx942 --filter product --html gfx.html
      fusilli bench --suite gpu --device hip --json gpu.json
    """
    if bool(models) == bool(suite):
        raise click.UsageError("name a --suite, or models")
    _refuse_strays(ctx, suite or "files")
    if rounds < 1:
        raise click.BadParameter("at least one round", param_hint="--rounds")
    require_outputs(json_file, markdown_file, html_file)
    write = _Files(json_file, markdown_file, html_file)
    if suite == "gfx":
        _read_code(targets or ("gfx942",), pattern, write)
    else:
        _time(models, suite, device or Options.from_env().device, threads, rounds, busy, pattern, dims, write)


def _refuse_strays(ctx: click.Context, what: str) -> None:
    """Refuse options that would change nothing.

    Raises:
        click.UsageError: one is given.
    """
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and what not in (suites := _OF_SUITES.get(name, (what,))):
            places = ["models that are named" if each == "files" else f"--suite {each}" for each in suites]
            raise click.UsageError(f"{parameter.opts[0]} is for {', '.join(places)}")


class _Files(NamedTuple):
    """Where results are written."""

    json: Path | None
    markdown: Path | None
    html: Path | None

    def write(self, document: Mapping[str, Any], markdown: Callable[[], str], html: Callable[[], str]) -> None:
        """Whatever was asked for."""
        if self.json:
            write_whole(self.json, json_text(document).encode())
        if self.markdown:
            write_whole(self.markdown, markdown().encode())
        if self.html:
            write_whole(self.html, html().encode())


def _read_code(targets: Sequence[str], pattern: str, files: _Files) -> None:
    from fusilli_plugin.bench import gfx
    from fusilli_plugin.bench.graphs import gfx_rows

    chosen = [Target.parse(target) for target in targets]
    if wrong := next((str(target) for target in chosen if target.backend != "rocm"), ""):
        raise click.BadParameter(f"'{wrong}' is no chip of AMD's", param_hint="--target")
    wanted = [row for row in gfx_rows() if pattern in row.name]
    if not wanted:
        raise click.UsageError(f"no row has {pattern!r} in its name")
    options, rows = Options.from_env(), list[gfx.GfxRow]()
    with progress() as step:
        for target in chosen:
            rows += gfx.inspected(wanted, target, options, step.say)
    about = _versions("fusilli-plugin", "iree-base-compiler")
    for target in chosen:
        mine = [row for row in rows if row.target == str(target)]
        print_table(gfx.COLUMNS, [gfx.cells(row) for row in mine], title=str(target))
        for row in mine:
            if row.missed:
                echo(f"{row.name}: {'; '.join(row.missed)}{': ' * bool(row.problem)}{row.problem}")
        for name, value in gfx.gfx_summary(mine).items():
            echo(f"{name}: {value}")
    document = {
        "about": about,
        "summary": {str(t): gfx.gfx_summary([row for row in rows if row.target == str(t)]) for t in chosen},
        "rows": [row.to_json() for row in rows],
    }
    files.write(document, lambda: gfx.gfx_markdown(rows, about), lambda: gfx.gfx_html(rows, about))


def _time(
    models: Sequence[Path], suite: str | None, device: str, threads: str, rounds: int, busy: str, pattern: str,
    dims: Sequence[str], files: _Files,
) -> None:  # fmt: skip
    beside = _numbers(busy, "--busy", 0, _MOST_BUSY, "busy processes")
    counts = [0] if suite == "gpu" else _numbers(threads, "--threads", 1, usable_cpus(), "threads")
    if suite == "gpu":
        Device.parse(device).target  # noqa: B018 - raises if the device is not there
    rows: list[Row] = []
    with progress() as step, TemporaryDirectory() as folder:
        step.say("making the models")
        subjects = list(_subjects(models, suite, device, dims, pattern, Path(folder)))
        if not subjects:
            raise click.UsageError(f"no row has {pattern!r} in its name")
        for count in counts:
            for others in beside:
                rows += measure(subjects, threads=count, rounds=rounds, busy=others, tell=step.say)
    if suite == "gpu":
        rows = beyond(rows, rows[0].name)
    about = ({"device": device} if suite == "gpu" else {}) | _about()
    document = {"about": about, "summary": summary(rows), "rows": [row.to_json() for row in rows]}
    files.write(document, lambda: markdown(rows, about), lambda: html(rows, about))
    _print(rows)


def _subjects(
    models: Sequence[Path], suite: str | None, device: str, dims: Sequence[str], pattern: str, folder: Path
) -> Iterator[Subject]:
    if suite == "models":
        from fusilli_plugin.bench.models import subjects

        yield from subjects(folder, pattern)
    elif suite == "training":
        for name in _trained():
            if pattern in name:
                yield Subject(name, {"network": name}, ("ours", "torch", "inductor"))
    elif suite == "gpu":
        from fusilli_plugin.bench.graphs import gpu_rows

        call, *rows = gpu_rows()
        chosen = [row for row in rows if pattern in row.name]
        for row in (call, *chosen) if chosen else ():
            load = {"graph": row.name, "device": device}
            yield Subject(row.name, load, ("ours", "torch"), _GPU_TOLERANCE, "" if row is call else row.kind)
    elif suite:
        names = [each.name for each in workloads(suite) if pattern in each.name]
        yield from (Subject(name, {"suite": suite, "name": name}) for name in names)
    sizes = dims_of(dims)
    for path in models:
        if pattern in path.stem:
            yield Subject(path.stem, {"path": str(path), "dims": sizes}, SIDES[:2])


def _trained() -> list[str]:
    try:
        from fusilli_plugin.bench.networks.training import NETWORKS
    except ImportError:
        raise click.UsageError("the suite training needs PyTorch: pip install 'fusilli-plugin[torch]'") from None
    return [*NETWORKS]


def _numbers(text: str, option: str, least: int, most: int, what: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers such as 1,2", param_hint=option) from None
    for number in found:
        if not least <= number <= most:
            raise click.BadParameter(f"{number} {what}; there may be {least} to {most} here", param_hint=option)
    return found


def _about() -> dict[str, str]:
    found = {"processor": processor(), "load before": f"{os.getloadavg()[0]:.1f}"}
    return found | _versions("fusilli-plugin", "iree-base-compiler", "onnxruntime", "torch")


def _versions(*names: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _print(rows: Sequence[Row]) -> None:
    sides = others(rows)
    heads = [text for name in sides.values() for text in (name, "ratio")]
    print_table(
        ("row", "threads", "busy", "ours ms", "+-", *heads, "net", "error", ""),
        [
            (
                row.name, row.threads, row.busy, _cell(row.ours_ms), _cell(row.ours_spread),
                *(_cell(number) for side in sides for number in row.beside(side)),
                _cell(row.ratio_net), _cell(row.max_error), row.verdict,
            )
            for row in rows
        ],
    )  # fmt: skip
    for name, problem in dict.fromkeys((row.name, row.problems["ours"]) for row in rows if "ours" in row.problems):
        echo(f"{name}: {problem}")
    for name, value in summary(rows).items():
        echo(f"{name}: {value:.3g}")


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
