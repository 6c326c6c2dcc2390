"""``fusilli run``: a graph or a model on a device, with given or random inputs, checked if asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from fusilli_plugin.cli.base import (
    command,
    device_option,
    echo,
    file_option,
    graph_argument,
    json_option,
    named_file,
    print_json,
    print_table,
    progress,
    require_outputs,
)
from fusilli_plugin.cli.models import model_options, shapes_option
from fusilli_plugin.cli.run_model import ModelRun, run_model
from fusilli_plugin.formats.graphs import load_graph
from fusilli_plugin.formats.kinds import Kind, kind_of
from graph_api import TensorAttr, numerics
from graph_api.numerics import Comparison
from iree_bridge import Artifact, Options, build
from iree_bridge.artifact.arrays import load_inputs, save_outputs

__all__ = ["run"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@command("run")
@graph_argument
@device_option
@click.option("--inputs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="npz file with an array for each input, by tensor name. Default: random inputs.")  # fmt: skip
@click.option("--outputs", type=_FILE, help="npz file to write the outputs to, by tensor name.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random inputs.")
@click.option(
    "--check",
    is_flag=True,
    help="Compare every element with the float64 reference; models: each graph with ONNX Runtime's CPU provider.",
)
@model_options
@shapes_option
@file_option(
    "--report",
    ".html",
    "Models: print a table of the graphs, and write a page with pictures; its path is printed.",
)
@click.option("--trace", type=_FILE, help="Models: write a trace for Perfetto or chrome://tracing.")
@click.option(
    "--dump-graph",
    type=click.IntRange(min=0),
    metavar="N",
    help="Models: write the graph of step N with its data to a folder that `fusilli replay` runs alone.",
)
@click.option(
    "--dump-to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Models: that folder. Default: MODEL.graphN here.",
)
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    graph_file: Path,
    device: str | None,
    inputs: Path | None,
    outputs: Path | None,
    seed: int,
    check: bool,
    dims: tuple[str, ...],
    bound: tuple[str, ...],
    layout: str,
    shapes: str | None,
    report: Path | None,
    trace: Path | None,
    dump_graph: int | None,
    dump_to: Path | None,
    as_json: bool,
) -> None:
    r"""Run a graph or a model once on a device.

    It is compiled first, unless the cache has its code. What `fusilli compile` made of a graph or of a model holds its
    code, and runs without a compiler. A model is an ONNX file or a torch-dialect .mlir file.

    Exit code 1 if --check finds a wrong element.

    \b
    Examples:
      fusilli run graph.json --device cpu --check
      fusilli run graph.json --device hip:1 --inputs in.npz --outputs out.npz
      fusilli run graph.fusilli --device cpu
      fusilli run model.onnx --device cpu --dim batch=1 --check --report page.html
      fusilli run model.onnx --device cpu --shapes batch=1,2,4 --inputs in.npz
    """
    device = device or Options.from_env().device
    require_outputs(outputs, report, trace, dump_to, source=graph_file, inputs=inputs)
    kind = kind_of(graph_file)
    if kind in (Kind.MODEL, Kind.SAVED_MODEL):
        asked = ModelRun(
            path=graph_file,
            device=device,
            inputs=inputs,
            outputs=outputs,
            seed=seed,
            check=check,
            dims=dims,
            bound=bound,
            layout=layout,
            shapes=shapes,
            page=named_file(report, f"{graph_file.stem}.report.html"),
            trace=trace,
            dump=dump_graph,
            dump_to=dump_to,
        )
        ctx.exit(run_model(asked, as_json))
    if dims or bound or shapes or report or trace or dump_graph is not None or dump_to:
        raise click.UsageError(f"{graph_file} is a graph; --help says which options are for models")
    artifact = Artifact.load(graph_file) if kind is Kind.SAVED_GRAPH else None
    graph = load_graph(graph_file) if artifact is None else artifact.graph
    arrays = load_inputs(graph, inputs, lambda text: echo(text, err=True)) if inputs else graph.random_inputs(seed)
    results = {tensor: tensor.empty() for tensor in graph.arguments().outputs}
    with progress() as step:
        step.say(f"building '{graph.name}' for {device}")
        executable = build(graph, device=device) if artifact is None else artifact.load_on(device)
        step.say(f"running on {device}")
        start = time.perf_counter()
        executable.run({**arrays, **results})
        seconds = time.perf_counter() - start
        if check:
            step.say("computing the float64 reference")
        comparisons = numerics.check(graph, {**arrays}, {**results}) if check else []
    if outputs:
        save_outputs(results, outputs)
    wrong = [comparison for comparison in comparisons if not comparison.ok]
    if as_json:
        print_json(_document(graph.name, device, seconds, results, comparisons, check))
    else:
        _print(device, seconds, results, comparisons)
    for comparison in wrong:
        echo(f"wrong result: {comparison}", err=True)
    ctx.exit(1 if wrong else 0)


def _summary(array: np.ndarray[Any, Any]) -> dict[str, float]:
    """Least, mean and largest value; NaN if there is one, or if the array is empty."""
    values = array.astype(np.float64)
    if not values.size:
        return dict.fromkeys(("min", "mean", "max"), float("nan"))
    return {"min": float(values.min()), "mean": float(values.mean()), "max": float(values.max())}


def _document(
    name: str,
    device: str,
    seconds: float,
    results: dict[TensorAttr, np.ndarray[Any, Any]],
    comparisons: list[Comparison],
    check: bool,
) -> dict[str, Any]:
    checks = {comparison.tensor: comparison for comparison in comparisons}
    outputs = []
    for tensor, array in results.items():
        entry: dict[str, Any] = {"name": tensor.name, "dims": tensor.dims, "data_type": tensor.data_type.name}
        entry |= _summary(array)
        if tensor in checks:
            found = checks[tensor]
            entry |= {name: getattr(found, name) for name in ("ok", "max_error", "max_ratio", "tolerance", "index")}
        outputs.append(entry)
    ok = all(comparison.ok for comparison in comparisons) if check else None
    return {"graph": name, "device": device, "seconds": seconds, "ok": ok, "outputs": outputs}


def _print(
    device: str, seconds: float, results: dict[TensorAttr, np.ndarray[Any, Any]], comparisons: list[Comparison]
) -> None:
    columns = ["output", "dims", "type", "min", "mean", "max"]
    rows: list[list[object]] = [
        [tensor.name, "x".join(map(str, tensor.dims)), tensor.data_type.name, *_summary(array).values()]
        for tensor, array in results.items()
    ]
    if comparisons:
        columns += ["max error", "error/tolerance", "right"]
        for row, comparison in zip(rows, comparisons, strict=True):
            row += [comparison.max_error, comparison.max_ratio, comparison.ok]
    print_table(columns, rows)
    echo(f"{seconds * 1e3:.3g} ms on {device} (first call)")
