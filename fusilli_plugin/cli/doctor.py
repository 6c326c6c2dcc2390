"""``fusilli doctor``: what works here, what does not, and how to mend it."""

from __future__ import annotations

from pathlib import Path

import click

from fusilli_ground.files import write_whole
from fusilli_plugin.checks.environment import Status, probe
from fusilli_plugin.checks.selftest_report import facts, read_report, timings
from fusilli_plugin.cli.base import command, echo, json_option, print_json, print_table, progress, require_outputs
from fusilli_plugin.report import selftest_page
from iree_bridge import Options

__all__ = ["doctor"]


@command("doctor")
@click.option(
    "--report",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="F",
    help="Show a report of `fusilli selftest -o` instead.",
)
@click.option(
    "--page", type=click.Path(dir_okay=False, path_type=Path), metavar="F.html", help="Write the report as a page."
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, report: Path | None, page: Path | None, as_json: bool) -> None:
    r"""Report what works here and what does not.

    With --report it shows what a self-test found, on this machine or on that of whoever sent the report.

    Versions, drivers, devices and the cache are looked at, and a small graph is compiled and run.

    Exit code 1 if something has to be mended; a GPU that is not there is no fault, unless
    FUSILLI_DEVICE names it.

    \b
    Examples:
      fusilli doctor
      FUSILLI_DEVICE=cpu fusilli doctor --json
      fusilli doctor --report report.json --page report.html
    """
    if page and not report:
        raise click.UsageError("--page is for --report")
    if report:
        ctx.exit(_show(report, page, as_json))
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


def _show(report: Path, page: Path | None, as_json: bool) -> int:
    """Prints a report of a self-test, and writes its page; 1 if it was not passed."""
    require_outputs(page, inputs=report)
    document = read_report(report)
    if page:
        write_whole(page, selftest_page(document, facts(document), timings(document)).encode())
    if as_json:
        print_json(document)
        return 0 if document["ok"] else 1
    print_table(("what", "is"), facts(document))
    rows = [(test["name"], test["outcome"], test["text"]) for test in document["tests"]]
    rows += [(case["name"], case["outcome"], case["text"]) for case in document["cases"] if case["outcome"] != "right"]
    print_table(("test or graph", "outcome", "seen"), rows)
    print_table(("timed", "takes", "does", "of the roofline"), timings(document))
    echo("the self-test was passed" if document["ok"] else "the self-test was not passed")
    return 0 if document["ok"] else 1
