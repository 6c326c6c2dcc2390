"""``fusilli selftest``: does a device compute what it should? The plugin claims more where it does."""

from __future__ import annotations

import click

from fusilli_plugin import quarantine
from fusilli_plugin.checks import selftest as check
from fusilli_plugin.cli.base import command, device_option, echo, echo_text, json_option, print_json, progress
from fusilli_plugin.texts import host_text
from graph_api import FusilliError
from iree_bridge import Device, Options

__all__ = ["selftest"]


@command("selftest")
@device_option
@click.option("--release", is_flag=True, help="Also forget the graphs that were found to give wrong results.")
@json_option
@click.pass_context
def selftest(ctx: click.Context, device: str | None, release: bool, as_json: bool) -> None:
    r"""Compile graphs, run them on a device and check the results.

    Convolutions, products, attention and norms in FLOAT, HALF and BFLOAT16, each element against a
    float64 reference; about two minutes the first time.

    Until this has passed on a GPU, with its driver and this compiler, the hipDNN plugin claims only
    graphs that no other provider takes (FUSILLI_CLAIM).

    \b
    Examples:
      fusilli selftest --device hip
      fusilli selftest --device hip:1 --release
    """
    options = Options.from_env()
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
