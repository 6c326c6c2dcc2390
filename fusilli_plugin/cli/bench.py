"""``fusilli bench``: times beside ONNX Runtime and PyTorch, on the same cores, in turns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from fusilli_ground.files import write_whole
from fusilli_plugin.bench.page import html, markdown
from fusilli_plugin.bench.run import SIDES, Row, Subject, measure, summary
from fusilli_plugin.bench.workloads import SUITES, workloads
from fusilli_plugin.cli.base import command, echo, json_text, print_table, progress, require_outputs
from fusilli_plugin.cli.models import dims_of
from iree_bridge.targets.cpu import processor, usable_cpus

__all__ = ["bench"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@command("bench")
@click.argument("models", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[MODEL]...")
@click.option(
    "--suite", type=click.Choice([*SUITES]), help="Operations: cpu has 77 of common sizes, latency small ones."
)
@click.option("--threads", default="1", show_default=True, help="Of every side: 1, or several numbers: 1,2.")
@click.option("--rounds", default=9, show_default=True, help="In each of which every side runs for 30 ms or once.")
@click.option("--busy", is_flag=True, help="Beside a process that never stops.")
@click.option("--filter", "pattern", default="", help="Only rows whose name contains this text.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="Models: size of a symbolic dim.")
@click.option("--json", "json_file", type=_FILE, help="Write the rows as JSON.")
@click.option("--markdown", "markdown_file", type=_FILE, help="Write them as a table of Markdown.")
@click.option("--html", "html_file", type=_FILE, help="Write a page with a bar for each ratio.")
def bench(
    models: tuple[Path, ...],
    suite: str | None,
    threads: str,
    rounds: int,
    busy: bool,
    pattern: str,
    dims: tuple[str, ...],
    json_file: Path | None,
    markdown_file: Path | None,
    html_file: Path | None,
) -> None:
    r"""Time operations or ONNX models on the CPU beside ONNX Runtime and PyTorch.

    Each side has a process of its own on the same cores; they run in turns, and medians and the ratios of the rounds
    are told. A side that is not installed, or cannot do a row, has no time there. Models are not run by PyTorch.

    \b
    Examples:
      fusilli bench --suite latency
      fusilli bench --suite cpu --threads 1,2 --html bench.html
      fusilli bench model.onnx --dim batch=1 --threads 2 --busy
    """
    if bool(models) == bool(suite):
        raise click.UsageError("name a --suite, or models")
    if rounds < 1:
        raise click.BadParameter("at least one round", param_hint="--rounds")
    require_outputs(json_file, markdown_file, html_file)
    subjects = [each for each in _subjects(models, suite, dims) if pattern in each.name]
    if not subjects:
        raise click.UsageError(f"no row has {pattern!r} in its name")
    rows: list[Row] = []
    with progress() as step:
        for count in _counts(threads):
            rows += measure(subjects, threads=count, rounds=rounds, busy=busy, tell=step.say)
    about = _about(busy)
    if json_file:
        document = {"about": about, "summary": summary(rows), "rows": [row.to_json() for row in rows]}
        write_whole(json_file, json_text(document).encode())
    if markdown_file:
        write_whole(markdown_file, markdown(rows, about).encode())
    if html_file:
        write_whole(html_file, html(rows, about).encode())
    _print(rows)


def _subjects(models: Sequence[Path], suite: str | None, dims: Sequence[str]) -> Iterator[Subject]:
    if suite:
        yield from (Subject(each.name, {"suite": suite, "name": each.name}) for each in workloads(suite))
    sizes = dims_of(dims)
    for path in models:
        yield Subject(path.stem, {"path": str(path), "dims": sizes}, SIDES[:2])


def _counts(text: str) -> list[int]:
    most = usable_cpus()
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers such as 1,2", param_hint="--threads") from None
    for count in counts:
        if not 1 <= count <= most:
            raise click.BadParameter(f"{count} threads; this process may use 1 to {most} CPUs", param_hint="--threads")
    return counts


def _about(busy: bool) -> dict[str, str]:
    found = {"processor": processor(), "load before": f"{os.getloadavg()[0]:.1f}"}
    if busy:
        found["beside"] = "a busy process"
    for name in ("fusilli-plugin", "iree-base-compiler", "onnxruntime", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _print(rows: Sequence[Row]) -> None:
    print_table(
        ("row", "threads", "ours ms", "+-", "ONNX Runtime", "ratio", "PyTorch", "ratio", "error"),
        [
            (
                row.name, row.threads, *map(_cell, (row.ours_ms, row.ours_spread, row.onnxruntime_ms)),
                *map(_cell, (row.ratio_onnxruntime, row.torch_ms, row.ratio_torch, row.max_error)),
            )
            for row in rows
        ],
    )  # fmt: skip
    for row in rows:
        if "ours" in row.problems:
            echo(f"{row.name}: {row.problems['ours']}")
    for name, value in summary(rows).items():
        echo(f"{name}: {value:.3g}")


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
