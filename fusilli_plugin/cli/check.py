"""``fusilli check``: suites that users run on their device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from fusilli_ground.files import write_whole
from fusilli_ground.texts import host_text
from fusilli_plugin.checks.fusion import FusionResult, junit, run_case
from fusilli_plugin.checks.fusion_cases import fusion_cases
from fusilli_plugin.cli.base import (
    Step,
    command,
    device_option,
    echo,
    echo_text,
    emulate_option,
    emulator_for,
    json_text,
    print_json,
    print_table,
    progress,
    require_outputs,
    targets_option,
)
from iree_bridge import Device, Options, Target

__all__ = ["check"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@command("check")
@click.option("--suite", type=click.Choice(["fusion"]), default="fusion", show_default=True, help="What to check.")
@device_option
@emulate_option
@targets_option(required=False, help_text="Also compile each case for these targets and count its dispatches.")
@click.option("--filter", "pattern", default="", help="Only cases whose id contains this text.")
@click.option("--junit", "junit_file", type=_FILE, help="Write the results as JUnit XML.")
@click.option(
    "--json", "json_file", type=_FILE, is_flag=False, flag_value="-", help="Write them as JSON; without F, print it."
)
@click.pass_context
def check(
    ctx: click.Context,
    suite: str,
    device: str | None,
    emulate: str | None,
    targets: tuple[str, ...],
    pattern: str,
    junit_file: Path | None,
    json_file: Path | None,
) -> None:
    r"""Check fusion on a device: fused graphs, their nodes one by one, and float64 must agree.

    Every element has its own tolerance; the columns show the largest error as a multiple of it. Exit code 1 if a result
    is wrong or a case fails. Case ids are stable.

    With --emulate a case also fails if its code reads outside all buffers, depends on luck (a race, a wait that is not
    there) or has an instruction without a model; the message names the instruction. There are 120 cases, each with
    several compiles: use --filter.

    \b
    Examples:
      fusilli check --suite fusion --device cpu
      fusilli check --device hip --target gfx942 --json fusion.json --junit fusion.xml
      fusilli check --device cpu --filter conv_bias_relu/nhwc --json
      fusilli check --emulate gfx942 --filter matmul
    """
    options = Options.from_env()
    place = emulator_for(emulate, device, options) or Device.parse(device or options.device)
    wanted = [Target.parse(name) for name in targets]
    cases = [case for case in fusion_cases() if pattern in case.id]
    if not cases:
        raise click.UsageError(f"no case of suite {suite} has {pattern!r} in its id")
    require_outputs(None if str(json_file) == "-" else json_file, junit_file)
    results: list[FusionResult] = []
    with progress() as step:
        for number, case in enumerate(cases, start=1):
            say = _teller(step, f"{number}/{len(cases)} {case.id}")
            results.append(run_case(case, place, wanted, options, say))
    document = {"suite": suite, "device": str(place), "cases": [result.to_json() for result in results]}
    if junit_file:
        write_whole(junit_file, junit(results, f"fusilli.{suite}.{place}").encode())
    if json_file and str(json_file) != "-":
        write_whole(json_file, json_text(document).encode())
    if json_file and str(json_file) == "-":
        print_json(document)
    else:
        _print(results, [str(place.target), *map(str, wanted)])
    ctx.exit(1 if any(result.status in ("wrong", "failed") for result in results) else 0)


def _teller(step: Step, where: str) -> Callable[[str], None]:
    return lambda what: step.say(f"{where}: {what}")


def _print(results: list[FusionResult], targets: list[str]) -> None:
    columns = ["case", "status", "fused", "steps", "between", *(f"dispatches {target}" for target in targets)]
    rows = [
        [
            result.id,
            result.status,
            *("-" if ratio is None else round(ratio, 3) for ratio in (result.fused, result.steps, result.between)),
            *(result.dispatches.get(target, "-") for target in targets),
        ]
        for result in results
    ]
    print_table(columns, rows)
    for result in results:
        if result.message:
            echo_text(host_text(f"{result.id}: {result.status}: {result.message}"))
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("right", "wrong", "failed", "declined")
    }
    echo(", ".join(f"{count} {status}" for status, count in counts.items()))
