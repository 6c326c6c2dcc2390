"""``fusilli selftest``: does a device compute what it should? The plugin claims more where it does."""

from __future__ import annotations

from typing import NoReturn

import click

from fusilli_ground.texts import host_text
from fusilli_plugin.checks import selftest as check
from fusilli_plugin.cli.base import (
    command,
    device_option,
    echo,
    echo_text,
    emulate_option,
    emulator_for,
    json_option,
    print_json,
    progress,
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
@json_option
@click.pass_context
def selftest(ctx: click.Context, device: str | None, emulate: str | None, release: bool, as_json: bool) -> None:
    r"""Compile graphs, run them on a device and check the results.

    Convolutions, products, attention, norms and experts in FLOAT, HALF and BFLOAT16, their gradients,
    and low precision, each element against a float64 reference; about three minutes the first time.

    Until this has passed on a GPU, with its driver and this compiler, the hipDNN plugin claims only
    graphs that no other provider takes (FUSILLI_CLAIM).

    With --emulate the same graphs, with fewer images, run in an emulator of the chip's code. That says whether
    the compiler is right, not whether a device is: nothing is remembered. Wrong results, races, missing waits,
    reads outside all buffers and instructions without a model are failures, and all graphs are tried.

    \b
    Examples:
      fusilli selftest --device hip
      fusilli selftest --device hip:1 --release
      fusilli selftest --emulate gfx942
    """
    options = Options.from_env()
    emulator = emulator_for(emulate, device, options)
    if emulator:
        if release:
            raise click.UsageError("--release needs a device: what is emulated says nothing about one")
        _emulated(ctx, emulator, as_json)
    place = Device.parse(device or options.device)
    with progress() as step:
        seen: dict[str, str] = {}
        try:
            for name, said in check.run_all(str(place)):
                seen[name] = said
                step.say(f"{place}: {len(seen)} of {len(check.GRAPHS)}: {name}: {said}")
        except FusilliError as error:
            if as_json:
                print_json({"device": str(place), "ok": False, "seen": str(error), "released": 0})
            echo_text(host_text(f"{place}: {error}"), err=True)
            ctx.exit(1)
    quarantine.record_selftest(place, options)
    released = quarantine.release(options) if release else 0
    if as_json:
        print_json({"device": str(place), "ok": True, "seen": seen, "released": released})
        return
    echo(f"{place}: {len(seen)} graphs are right")
    if release:
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
