"""``fusilli doctor``: what works here, what does not, and how to mend it."""

from __future__ import annotations

import click

from fusilli_plugin.checks.environment import Status, probe
from fusilli_plugin.cli.base import command, echo, json_option, print_json, print_table, progress
from iree_bridge import Options

__all__ = ["doctor"]


@command("doctor")
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    r"""Report what works here and what does not.

    Versions, drivers, devices and the cache are looked at, and a small graph is compiled and run.

    Exit code 1 if something has to be mended; a GPU that is not there is no fault, unless
    FUSILLI_DEVICE names it.

    \b
    Examples:
      fusilli doctor
      FUSILLI_DEVICE=cpu fusilli doctor --json
    """
    with progress() as step:
        findings = list(probe(Options.from_env(), step.say))
    broken = [finding for finding in findings if finding.status is Status.BROKEN]
    if as_json:
        print_json(
            {
                "ok": not broken,
                "findings": [
                    {"what": f.what, "status": f.status.value, "detail": f.detail, "advice": f.advice} for f in findings
                ],
            }
        )
    else:
        print_table(("what", "status", "seen"), [(f.what, f.status.value, f.detail) for f in findings])
        for finding in findings:
            if finding.advice:
                echo(f"{finding.what}: {finding.advice}")
        echo(f"{len(broken)} to mend" if broken else "everything needed works")
    ctx.exit(1 if broken else 0)
