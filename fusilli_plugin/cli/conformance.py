"""``fusilli conformance``: does an engine plugin keep to hipDNN's interface, and compute what it claims?"""

from __future__ import annotations

from pathlib import Path

import click

from fusilli_ground.files import write_whole
from fusilli_plugin.cli.base import (
    command,
    echo,
    json_text,
    print_table,
    progress,
    require_outputs,
    unique_options,
)
from fusilli_plugin.conformance.findings import FAILURES
from fusilli_plugin.conformance.place import PlaceName
from fusilli_plugin.conformance.suite import Plan, Report, run_suite

__all__ = ["conformance"]


@command("conformance")
@click.argument("plugin", metavar="PLUGIN.so", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--device", metavar="D", help="standin, hip, hip:1, cuda:0; default: hip, or standin without a HIP device."
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="F",
    help="Also write a JSON document.",
)
@click.option(
    "--junit",
    "junit_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="F",
    help="Also write JUnit's XML.",
)
@click.option(
    "--check",
    "names",
    multiple=True,
    callback=unique_options,
    metavar="NAME[,...]",
    help="Only checks whose names begin like this.",
)
@click.option(
    "--graphs", type=click.IntRange(min=1), default=8, show_default=True, help="Random graphs of each of 23 families."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Which graphs, which damage.")
@click.option(
    "--cycles", type=click.IntRange(min=8), default=200, show_default=True, help="Repetitions in which leaks show."
)
@click.option(
    "--limit",
    type=click.FloatRange(min=1),
    default=180.0,
    show_default=True,
    help="Seconds for a check; more is a hang.",
)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Checks at a time.")
@click.pass_context
def conformance(
    ctx: click.Context,
    plugin: Path,
    device: str | None,
    json_file: Path | None,
    junit_file: Path | None,
    names: tuple[str, ...],
    graphs: int,
    seed: int,
    cycles: int,
    limit: float,
    jobs: int,
) -> None:
    r"""Check an engine plugin of hipDNN, of anybody.

    It is called as hipDNN calls it, through every published version of the interface: loading, handles, questions
    about graphs, plans, saved plans, executions, threads, forks, damaged bytes, missing tensors; and what it claims is
    compared with float64. Buffers end before memory that cannot be touched. Each check has a process and a time limit
    of its own, so that a crash or a hang is a row of the table.

    Without a HIP device a stand-in takes HIP's place: device memory is host memory, and kernels are not run. Results
    are looked at then only if the plugin computes on the host, as ours does there (FUSILLI_DEVICE=cpu).

    Exit code 1 if a check failed.

    \b
    Examples:
      fusilli conformance /opt/rocm/lib/hipdnn_plugins/engines/libmiopen_plugin.so --junit miopen.xml
      fusilli conformance build/libmy_plugin.so --check leaks,threads --cycles 1000
      fusilli conformance build/libmy_plugin.so --device standin --json report.json
    """
    require_outputs(json_file, junit_file)
    place = PlaceName.found() if device is None else PlaceName.parse(device)
    plan = Plan(plugin.resolve(), place, limit=limit, graphs=graphs, seed=seed, cycles=cycles, names=names, jobs=jobs)
    with progress() as step:
        report = run_suite(plan, step.say)
    if json_file:
        write_whole(json_file, json_text(report.as_json()).encode())
    if junit_file:
        write_whole(junit_file, report.as_junit())
    _print(report)
    ctx.exit(0 if report.ok else 1)


def _print(report: Report) -> None:
    print_table(["check", "verdict", "seen"], [[row.check, row.verdict, row.text] for row in report.rows])
    if report.operations:
        rows = [
            [name, tally.asked, tally.claimed, tally.right, tally.wrong, tally.broken]
            for name, tally in sorted(report.operations.items())
        ]
        print_table(["operation", "asked", "claimed", "right", "wrong", "broken"], rows)
    counts = {
        verdict: sum(row.verdict == verdict for row in report.rows) for verdict in ("passed", *FAILURES, "skipped")
    }
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    echo(f"{report.plan.path.name} on {report.plan.place}: {told}")
