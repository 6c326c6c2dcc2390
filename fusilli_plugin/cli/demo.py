"""``fusilli demo``: the whole way on a few graphs, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fusilli_plugin.checks.demo import GFX_TARGETS, GfxRow, RunRow, cases, inspect_gfx, run_case
from fusilli_plugin.cli.base import command, echo, json_option, print_json, print_table, progress
from fusilli_plugin.cli.inspect import facts
from iree_bridge import Options

__all__ = ["demo"]


@command("demo")
@click.option(
    "--model",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="ch_PP-OCRv4_det_infer.onnx, or the wheel of rapidocr-onnxruntime 1.4.4 that carries it.",
)
@click.option("--device", default="cpu", show_default=True, help="Where to run: cpu, hip, cuda:0, ...")
@json_option
@click.pass_context
def demo(ctx: click.Context, model: Path, device: str, as_json: bool) -> None:
    r"""Show the whole way on a few graphs.

    Fused convolutions and the first block of a real model are compiled, run and compared, element by element, with the
    float64 reference, the block also with onnxruntime. Then they are compiled for AMD GPUs and the code is inspected.
    Exit code 1 if anything is wrong, spills registers, or falls apart into several dispatches. `make demo` does it all,
    the download of the model included; by hand:

    \b
    Examples:
      pip download --no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4
      fusilli demo --model rapidocr_onnxruntime-1.4.4-py3-none-any.whl
      fusilli demo --model ch_PP-OCRv4_det_infer.onnx --device hip
    """
    options = Options.from_env()
    runs: list[RunRow] = []
    found: list[GfxRow] = []
    with progress() as step:
        step.say("preparing the graphs")
        chosen = list(cases(model))
        for number, case in enumerate(chosen, start=1):
            step.say(f"[{number}/{len(chosen)}] {case.name} on {device}")
            runs += run_case(case, device, options)
        total = len(chosen) * len(GFX_TARGETS)
        step.say(f"[1/{total}] compiling for {', '.join(GFX_TARGETS)}")
        for row in inspect_gfx(chosen, GFX_TARGETS, options):
            found.append(row)
            step.say(f"[{len(found)}/{total}] {row.case} for {row.inspection.target}")
    ok = all(row.ok for row in runs) and all(row.ok for row in found)
    if as_json:
        print_json({"ok": ok, "runs": [vars(row) for row in runs], "gfx": [_gfx_json(row) for row in found]})
    else:
        _print_runs(runs)
        _print_gfx(found)
        echo("all results are right" if ok else "SOMETHING IS WRONG, see the last columns")
    ctx.exit(0 if ok else 1)


def _print_runs(rows: list[RunRow]) -> None:
    columns = (
        "case",
        "device",
        "against",
        "max error",
        "tolerance",
        "error/tol",
        "median ms",
        "dispatches",
        "hit",
        "right",
    )
    cells = [
        (
            r.case,
            r.device,
            r.against,
            r.max_error,
            r.tolerance,
            r.ratio,
            r.seconds * 1e3,
            r.dispatches,
            r.cache_hit,
            r.ok,
        )
        for r in rows
    ]
    print_table(columns, cells, title="Run, every element checked (hit: nothing had to be compiled)")


def _print_gfx(rows: list[GfxRow]) -> None:
    columns, cells = facts([row.inspection for row in rows])
    print_table(
        ("case", *columns, "good"),
        [(row.case, *line, row.ok) for row, line in zip(rows, cells, strict=True)],
        title="Compiled for AMD GPUs, read from the produced code (not run here)",
    )


def _gfx_json(row: GfxRow) -> dict[str, Any]:
    columns, (cells,) = facts([row.inspection])
    return {"case": row.case, **dict(zip(columns, cells, strict=True)), "ok": row.ok}
