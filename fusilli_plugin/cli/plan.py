"""``fusilli plan``: the memory plan of a model, as numbers and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusilli_ground.files import write_whole
from fusilli_plugin.cli.base import (
    command,
    echo,
    file_option,
    json_option,
    named_file,
    print_json,
    print_table,
    progress,
    require_outputs,
)
from fusilli_plugin.cli.models import (
    bound_inputs,
    dims_of,
    model_options,
    offload_options,
    targets_engines,
)
from fusilli_plugin.formats.kinds import Kind, kind_of
from graph_api import GraphError

if TYPE_CHECKING:
    from hipdnn_backend.offload.program.program import Program

__all__ = ["plan"]


@command("plan")
@click.argument("model", metavar="MODEL", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--target",
    default="cpu",
    show_default=True,
    metavar="T",
    help="What to compile for; graphs need other workspaces on other targets. No device is needed.",
)
@file_option("--svg", ".svg", "Write the picture; its path is printed.")
@model_options
@json_option
def plan(
    model: Path,
    target: str,
    svg: Path | None,
    dims: tuple[str, ...],
    bound: tuple[str, ...],
    layout: str,
    as_json: bool,
) -> None:
    r"""Show how a model's buffers share memory.

    The graphs are compiled first, unless the cache has their code, since how much workspace each needs is part of the
    plan. The picture has a box for each buffer: steps to the right, addresses upwards.

    \b
    Examples:
      fusilli plan model.onnx
      fusilli plan model.onnx --target gfx942 --svg plan.svg
      fusilli plan model.fusilli --target gfx942 --json
    """
    kind = kind_of(model)
    if kind not in (Kind.MODEL, Kind.SAVED_MODEL):
        raise GraphError(
            f"{model}: this is a {kind.value}, no model (ONNX, torch-dialect .mlir, or saved by `fusilli compile`)"
        )
    require_outputs(svg, source=model)
    picture = named_file(svg, f"{model.stem}.plan.svg")
    program = _program(model, target, dims, bound, layout)
    from fusilli_plugin.report import memory_svg
    from fusilli_plugin.report.memory import placed_lives
    from hipdnn_backend.offload.memory import lower_bound

    found = placed_lives(program)
    bound_bytes = lower_bound([life for life, _, _ in found])
    document: dict[str, Any] = {
        "model": program.name, "target": target, "arena": program.arena, "naive": program.naive,
        "lower_bound": bound_bytes, "steps": len(program.steps),
    }  # fmt: skip
    if picture is not None:
        write_whole(picture, memory_svg(program).encode())
        document["svg"] = str(picture)
    rows = [(life.need.name, life.size, offset, life.first, life.last) for life, offset, _ in found]
    if as_json:
        names = ("name", "bytes", "offset", "first_step", "last_step")
        print_json(document | {"memory": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    print_table(
        ("memory", "bytes", "offset", "first step", "last step"), sorted(rows, key=lambda row: (row[3], row[2]))
    )
    echo(
        f"arena {program.arena} bytes; {program.naive} without sharing, {bound_bytes} are in use at one time"
        + (f"; the picture: {picture}" if picture is not None else "")
    )


def _program(model: Path, target: str, dims: tuple[str, ...], bound: tuple[str, ...], layout: str) -> Program:
    from hipdnn_backend.offload import compile_model
    from hipdnn_backend.offload.program.package import Package

    if kind_of(model) is Kind.SAVED_MODEL:
        return Package.open(model).variant(target).program
    with progress() as step:
        step.say(f"compiling {model.name} for {target}")
        _, variants = compile_model(
            model, targets_engines([target]), dims=dims_of(dims), inputs=bound_inputs(bound),
            options=offload_options(step, layout),
        )  # fmt: skip
    return variants[0].program
