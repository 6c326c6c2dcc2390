"""``fusilli fuzz``: looks for wrong code, and makes what it finds small."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fusilli_ground.files import write_whole
from fusilli_plugin.cli.base import (
    command,
    device_option,
    echo,
    json_option,
    json_text,
    print_json,
    print_table,
    progress,
    unique_options,
)
from fusilli_plugin.cli.entry import INTERRUPTED
from fusilli_plugin.fuzz.campaign import Campaign, Plan
from fusilli_plugin.fuzz.coverage import operation
from fusilli_plugin.fuzz.examine import Setting
from fusilli_plugin.fuzz.workarounds import raw_flags
from fusilli_plugin.testing.graphs import FAMILIES
from graph_api import FusilliError
from iree_bridge import Options

__all__ = ["fuzz", "place_options"]

_UNITS = {"s": 1, "m": 60, "h": 3600}
_NEVER_SHOWN = 12
_REASONS_SHOWN = 8


def place_options(function: Callable[..., Any]) -> Any:
    """Where graphs are examined: options that `fuzz` and `reduce` share, which become ``setting`` and ``limit``."""

    @functools.wraps(function)
    def with_setting(
        *args: Any,
        device: str | None,
        emulate: str | None,
        target: str | None,
        engine: str | None,
        compiler: str | None,
        against: str | None,
        raw: tuple[str, ...],
        memory: str,
        **others: Any,
    ) -> Any:
        setting = _setting_of(device, emulate, target, engine, compiler, against, raw, memory)
        return function(*args, setting=setting, **others)

    options = (
        device_option,
        click.option("--emulate", metavar="CHIP", help="Run the code of gfx90a, gfx942 or gfx950 in the emulator."),
        click.option("--target", metavar="T", help="Only compile for this target; nothing is run."),
        click.option("--engine", metavar="NAME|PLUGIN.so", help="An engine of hipDNN's, by name or its plugin's file."),
        click.option("--iree-compile", "compiler", metavar="PATH", help="Compile with this program."),
        click.option("--against", metavar="PATH", help="Compile with this one as well: both have to be right."),
        click.option("--raw", multiple=True, callback=unique_options, metavar="NAME[,...]",
                     help="Switch workarounds of ours off, by name; all: every one of the target's."),
        click.option("--limit", type=click.FloatRange(min=1), default=180.0, show_default=True,
                     help="Seconds for a graph, its compiles included; more is a hang."),
        click.option("--memory", metavar="SIZE", default="8G", show_default=True,
                     help="What a worker may allocate (not on GPUs)."),
    )  # fmt: skip
    made: Any = with_setting
    for option in reversed(options):
        made = option(made)
    return made


def _setting_of(
    device: str | None,
    emulate: str | None,
    target: str | None,
    engine: str | None,
    compiler: str | None,
    against: str | None,
    raw: tuple[str, ...],
    memory: str,
) -> Setting:
    """The setting that the options ask for.

    Raises:
        click.UsageError: some exclude each other.
        FusilliError: a target or workaround that does not exist, a device that is not there.
    """
    given = {"--device": device, "--emulate": emulate, "--target": target}
    places = [name for name, value in given.items() if value is not None]
    if len(places) > 1:
        raise click.UsageError(f"{' and '.join(places)} exclude each other")
    by = [name for name, value in (("--engine", engine), ("--iree-compile", compiler), ("--against", against)) if value]
    if by and (emulate or target):
        raise click.UsageError(f"{by[0]} is for devices; FUSILLI_PYTHON names another build of the compiler here")
    if engine and len(by) > 1:
        raise click.UsageError(f"{by[0]} and {by[1]} exclude each other")
    if not places:
        device = Options.from_env().device
    size = Options.from_env({"FUSILLI_COMPILE_MEMORY": memory}).memory
    setting = Setting(device=device, emulate=emulate, target=target, engine=engine, compiler=compiler, against=against)
    if device is None or device.startswith("cpu"):
        setting = replace(setting, memory=size)
    return replace(setting, flags=raw_flags(raw, setting.code_target.backend)) if raw else setting


def _seconds(_ctx: click.Context, _parameter: click.Parameter, value: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value.strip())
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{value!r} is no time; write 90s, 10m or 4h")
    return float(match[1]) * _UNITS[match[2] or "s"]


@command("fuzz")
@place_options
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Which graphs come.")
@click.option("--budget", default="10m", show_default=True, callback=_seconds, help="Time: 90s, 10m, 4h.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Worker processes.")
@click.option("--family", "families", multiple=True, callback=unique_options, metavar="NAME[,...]",
              help="Only graphs of these families.")  # fmt: skip
@click.option("--findings", type=click.IntRange(min=1), metavar="N", help="End when so many were found.")
@click.option("--out", "-o", type=click.Path(file_okay=False, path_type=Path), help="Folder for what is found.")
@json_option
@click.pass_context
def fuzz(
    ctx: click.Context,
    setting: Setting,
    limit: float,
    seed: int,
    budget: float,
    jobs: int,
    families: tuple[str, ...],
    findings: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    r"""Look for graphs whose code is wrong, does not compile, crashes or hangs.

    Random graphs of all operations run in worker processes. The results have to be those of float64, per element; so
    have those of the nodes one by one, of the graph with other strides, and with --against those of another compiler.
    Graphs with pairs of operation, type, layout, size and neighbour that seldom came are preferred; the report tells
    what never came.

    Each finding is made small (see fusilli reduce) and written to a folder that `fusilli replay` repeats: graph,
    inputs, expected and computed results, module, flags, versions. Failures of one kind are one finding. Ctrl-C ends
    with the report. Exit code 1 if something was found, 2 if nothing was looked at, e.g. since all is declined.

    \b
    Examples:
      fusilli fuzz --device cpu --budget 10m
      fusilli fuzz --emulate gfx942 --family convolution,groups --seed 3
      fusilli fuzz --target gfx950 --budget 1h --jobs 8 -o findings
      fusilli fuzz --emulate gfx942 --raw padding,whole-sums
      fusilli fuzz --device hip --engine ./libother_plugin.so
      fusilli fuzz --device cpu --iree-compile /opt/iree/bin/iree-compile --against /usr/bin/iree-compile
    """
    unknown = [name for name in families if name not in FAMILIES]
    if unknown:
        raise click.UsageError(f"unknown family {unknown[0]!r}; known are {', '.join(FAMILIES)}")
    plan = Plan(
        setting=setting,
        folder=out or Path(time.strftime("fusilli-fuzz-%Y%m%d-%H%M%S")),
        seed=seed,
        budget=budget,
        jobs=jobs,
        limit=limit,
        families=families or tuple(FAMILIES),
        enough=findings,
    )
    campaign, interrupted = Campaign(plan), False
    with progress() as step:
        try:
            campaign.run(_seldom(step.say))
        except KeyboardInterrupt:
            interrupted = True
    document = campaign.report()
    write_whole(plan.folder / "report.json", json_text(document).encode())
    print_json(document) if as_json else _print(campaign)
    if not campaign.examined and not interrupted:
        most = next(iter(campaign.most_declined()), None)
        why = (
            f"all of them are declined: {most.count} x {most.reason}" if most else "--budget was over before the first"
        )
        raise FusilliError(f"{setting}: no graph was examined, {why}")
    ctx.exit(INTERRUPTED if interrupted else 1 if campaign.ledger.findings else 0)


def _seldom(say: Any) -> Any:
    """Tells a state that has changed, at most every ten seconds."""
    last = [0.0]

    def tell(text: str) -> None:
        if time.monotonic() - last[0] >= 10:
            last[0] = time.monotonic()
            say(text)

    return tell


def _print(campaign: Campaign) -> None:
    if campaign.ledger.findings:
        rows = [
            [
                found.count,
                found.verdict.check,
                found.verdict.kind,
                " → ".join(operation(node) for node in found.case.graph.nodes),
                found.source,
                found.capsule or "-",
            ]
            for found in campaign.ledger.findings
        ]
        print_table(["graphs", "check", "kind", "nodes", "first in", "folder"], rows)
    if campaign.declined:
        rows = [[each.count, each.reason] for each in campaign.most_declined()[:_REASONS_SHOWN]]
        print_table(["declined", "because"], rows)
    print_table(["pairs of", "tried", "declined", "never"], campaign.coverage.rows())
    never = [pair for pair in campaign.coverage.never() if pair not in campaign.coverage.declined]
    apart = [str(pair) for pair in never if "operation" in pair.first and "neighbour" in pair.second]
    if apart:
        shown = apart[:: max(1, len(apart) // _NEVER_SHOWN)][:_NEVER_SHOWN]
        echo(f"never side by side, for example: {', '.join(shown)}; all are in report.json")
    counts = ", ".join(f"{count} {name}" for name, count in sorted(campaign.outcomes.items()))
    found = len(campaign.ledger.findings)
    echo(f"{campaign.plan.setting}: {counts or 'no graphs'}; {found} findings; {campaign.plan.folder / 'report.json'}")
