"""``fusilli compile``: a graph or a model into a file that runs without the compiler."""

from __future__ import annotations

import time
from pathlib import Path

import click

from fusilli_plugin.cli.base import (
    command,
    echo,
    graph_argument,
    json_option,
    print_json,
    print_table,
    progress,
    require_outputs,
    targets_option,
)
from fusilli_plugin.cli.models import (
    bound_inputs,
    dims_of,
    model_options,
    offload_options,
    targets_engines,
)
from fusilli_plugin.formats.graphs import load_graph
from fusilli_plugin.formats.kinds import is_model
from iree_bridge import Target, compile_graph

__all__ = ["compile_"]


@command("compile")
@graph_argument
@targets_option(required=True, help_text="What to compile for: gfx942, mi300x, cpu, sm_80, ...; several give one file.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Artifact to write.")
@click.option(
    "--ep-context",
    type=click.Path(dir_okay=False, path_type=Path),
    help="ONNX file to write instead, which sessions of ONNX Runtime run with HipDNNExecutionProvider.",
)
@model_options
@json_option
def compile_(
    graph_file: Path,
    targets: tuple[str, ...],
    output: Path | None,
    ep_context: Path | None,
    dims: tuple[str, ...],
    bound: tuple[str, ...],
    layout: str,
    as_json: bool,
) -> None:
    r"""Compile a graph or a model into one file.

    The file holds the code for one or more targets; no device is needed. A model is an ONNX file or a torch-dialect
    .mlir file. `fusilli run` takes what becomes of either.

    \b
    Examples:
      fusilli compile graph.json --target gfx942 -o graph.fusilli
      fusilli compile graph.json --target gfx90a,gfx942,cpu -o graph.fusilli --json
      fusilli compile model.onnx --target gfx942,cpu -o model.fusilli --dim batch=1
      fusilli compile model.onnx --target gfx942,cpu --ep-context compiled.onnx
    """
    if (output is None) == (ep_context is None):
        raise click.UsageError("say with -o or with --ep-context what to write")
    require_outputs(output, ep_context, source=graph_file)
    if is_model(graph_file):
        _compile_model(graph_file, targets, output, ep_context, dims, bound, layout, as_json)
        return
    if output is None:
        raise click.UsageError(f"{graph_file} is a graph; --ep-context is for models")
    if dims or bound:
        raise click.UsageError(f"{graph_file} is a graph; --dim and --input are for models")
    graph = load_graph(graph_file)
    chosen = [Target.parse(target) for target in targets]
    start = time.perf_counter()
    with progress() as step:
        step.say(f"compiling '{graph.name}' for {', '.join(map(str, chosen))}")
        artifact = compile_graph(graph, chosen)
        artifact.save(output)
    seconds = time.perf_counter() - start
    size = output.stat().st_size
    made = [
        {"target": str(code.target), "dispatches": code.dispatches, "bytes": len(code.vmfb), "seconds": code.seconds}
        for code in artifact.codes.values()
    ]
    if as_json:
        print_json({"graph": graph.name, "output": str(output), "bytes": size, "seconds": seconds, "targets": made})
    else:
        print_table(("target", "dispatches", "bytes", "compile s"), [tuple(row.values()) for row in made])
        echo(f"{output}: '{graph.name}', {size} bytes, {seconds:.2f} s")


def _compile_model(
    path: Path,
    targets: tuple[str, ...],
    output: Path | None,
    ep_context: Path | None,
    dims: tuple[str, ...],
    bound: tuple[str, ...],
    layout: str,
    as_json: bool,
) -> None:
    from hipdnn_backend.offload import compile_model
    from hipdnn_backend.offload.program.package import save_package

    sizes, values = dims_of(dims), bound_inputs(bound)
    start = time.perf_counter()
    with progress() as step:
        step.say(f"compiling {path.name} for {', '.join(targets)}")
        name, variants = compile_model(
            path, targets_engines(targets), dims=sizes, inputs=values, options=offload_options(step, layout)
        )
        if output is not None:
            save_package(output, name, variants)
        else:
            assert ep_context is not None, "one of the two is given"
            from fusilli_plugin.ort_ep.context import save_model

            save_model(ep_context, path, name, variants)
            output = ep_context
    seconds, size = time.perf_counter() - start, output.stat().st_size
    made = [
        {
            "target": variant.target,
            "graphs": len(variant.program.graphs),
            "plans": len(variant.plans),
            "bytes": sum(len(plan.payload) for plan in variant.plans),
            "arena": variant.program.arena,
        }
        for variant in variants
    ]
    if as_json:
        print_json({"model": name, "output": str(output), "bytes": size, "seconds": seconds, "targets": made})
    else:
        print_table(("target", "graphs", "plans", "bytes", "arena"), [tuple(row.values()) for row in made])
        echo(f"{output}: '{name}', {size} bytes, {seconds:.2f} s")
