"""``fusilli selftest``: does a device compute what it should? The plugin claims more where it does."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from fusilli_ground.files import write_whole
from fusilli_ground.texts import host_text
from fusilli_plugin.checks import selftest as check
from fusilli_plugin.checks.device_tests import run_device_tests
from fusilli_plugin.checks.roofline import measure
from fusilli_plugin.checks.selftest_cases import Result, read_cases, run_cases
from fusilli_plugin.checks.selftest_report import facts, make_report, timings
from fusilli_plugin.cli.base import (
    command,
    device_option,
    echo,
    echo_text,
    emulate_option,
    emulator_for,
    json_option,
    json_text,
    print_json,
    progress,
    require_outputs,
)
from fusilli_plugin.emulator import Emulator
from fusilli_plugin.engine import quarantine
from graph_api import FusilliError
from iree_bridge import Device, Options

__all__ = ["selftest"]


@command("selftest")
@device_option
@emulate_option
@click.option("--release", is_flag=True, help="Also forget the graphs that were found to give wrong results.")
@click.option("--out", "-o", type=click.Path(dir_okay=False, path_type=Path), metavar="F", help="Also write a report.")
@json_option
@click.pass_context
def selftest(
    ctx: click.Context, device: str | None, emulate: str | None, release: bool, out: Path | None, as_json: bool
) -> None:
    r"""Compile graphs, run them on a device and check the results.

    200 graphs of all operations and types, with answers that were computed in float64 once; the order of streams,
    streams captured into graphs of HIP's, several devices at once, saved plans; the times of six graphs beside
    what the device can do. A few minutes the first time.

    Until this has passed on a GPU, with its driver and this compiler, the hipDNN plugin leaves to other engines
    what they may take, and checks each graph before it serves (FUSILLI_CLAIM, FUSILLI_VERIFY).

    -o writes a report, which `fusilli doctor --report` shows, here or elsewhere.

    With --emulate 55 of the graphs, with fewer images, run in an emulator of the chip's code. That says whether
    the compiler is right, not whether a device is: nothing is remembered. Wrong results, races, missing waits,
    reads outside all buffers and instructions without a model are failures, and all graphs are tried.

    \b
    Examples:
      fusilli selftest --device hip
      fusilli selftest --device hip:1 --release
      fusilli selftest --device hip -o report.json
      fusilli selftest --emulate gfx942
    """
    options = Options.from_env()
    emulator = emulator_for(emulate, device, options)
    if emulator:
        if release:
            raise click.UsageError("--release needs a device: what is emulated says nothing about one")
        _emulated(ctx, emulator, as_json)
    require_outputs(out)
    place = Device.parse(device or options.device)
    try:
        assert place.target  # what follows has a device
    except FusilliError as error:
        if as_json:
            print_json({"device": str(place), "ok": False, "problem": str(error), "released": 0})
        echo_text(host_text(f"{place}: {error}"), err=True)
        ctx.exit(1)
    document = _run(place, options)
    if out:
        write_whole(out, json_text(document).encode())
    released = 0
    if document["ok"]:
        quarantine.record_selftest(place, options)
        released = quarantine.release(options) if release else 0
    if as_json:
        print_json({**document, "released": released})
    else:
        _tell(document, released if release else None)
    ctx.exit(0 if document["ok"] else 1)


def _run(place: Device, options: Options) -> dict[str, Any]:
    """Everything, with progress."""
    start, cases = time.monotonic(), read_cases()
    results: list[Result] = []
    with progress() as step:
        for result in run_cases(cases, place, options, lambda name: None):
            results.append(result)
            step.say(f"{place}: {len(results)} of {len(cases)}: {result.name}: {result.outcome}")
        step.say(f"{place}: streams, captures, devices, saved plans")
        tests = list(run_device_tests(place, options))
        step.say(f"{place}: times")
        roofline = measure(place, replace(options, claim="all", verify_first=False))
    driver = quarantine.device_software(place)
    return make_report(place, driver, results, tests, roofline, time.monotonic() - start)


def _tell(document: dict[str, Any], released: int | None) -> None:
    for case in document["cases"]:
        if case["outcome"] in ("wrong", "failed"):
            echo_text(host_text(f"{document['device']}: {case['name']}: {case['outcome']}: {case['text']}"), err=True)
    for test in document["tests"]:
        is_wrong = test["outcome"] in ("wrong", "failed")
        echo(f"{document['device']}: {test['name']}: {test['outcome']}: {test['text']}", err=is_wrong)
    for name, *rest in timings(document):
        echo_text(host_text(f"{document['device']}: {name}: {', '.join(filter(None, rest))}"))
    echo(f"{document['device']}: {dict(facts(document))['graphs']} of {len(document['cases'])} graphs")
    if released is not None:
        echo(f"{released} graphs are no longer in quarantine")


def _emulated(ctx: click.Context, emulator: Emulator, as_json: bool) -> NoReturn:
    """Tries all graphs in an emulator, tells what came of each and ends the command."""
    seen: dict[str, str] = {}
    failed: dict[str, str] = {}
    with progress() as step:
        for name, outcome in check.emulate_all(emulator, step.say):
            seen[name] = outcome.text if outcome.ok else f"{outcome.verdict}: {outcome.text}"
            if not outcome.ok:
                failed[name] = seen[name]
            step.say(f"{emulator}: {len(seen)} of {len(check.SMALL)}: {name}: {seen[name]}")
    if as_json:
        print_json({"device": str(emulator), "ok": not failed, "seen": seen, "failed": failed, "released": 0})
    else:
        for name, text in failed.items():
            echo(f"{emulator}: {name}: {text}", err=True)
        echo(f"{emulator}: {len(seen) - len(failed)} of {len(seen)} graphs are right")
    ctx.exit(1 if failed else 0)
