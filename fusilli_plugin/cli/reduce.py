"""``fusilli reduce``: makes a graph that fails small."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from fusilli_plugin.cli.base import command, echo, graph_argument, json_option, print_json, progress, require_outputs
from fusilli_plugin.cli.fuzz import place_options
from fusilli_plugin.formats.graphs import load_graph
from fusilli_plugin.fuzz import capsules
from fusilli_plugin.fuzz.campaign import reduced
from fusilli_plugin.fuzz.cases import Case
from fusilli_plugin.fuzz.coverage import operation
from fusilli_plugin.fuzz.crew import Worker
from fusilli_plugin.fuzz.examine import Setting
from fusilli_plugin.testing.graphs.custom import with_references
from iree_bridge.artifact.arrays import load_inputs

__all__ = ["reduce_"]


@command("reduce")
@graph_argument
@place_options
@click.option("--inputs", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="npz file with an array for each input, by tensor name. Default: random inputs.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the random inputs.")
@click.option("--seconds", type=click.FloatRange(min=1), default=600.0, show_default=True, help="How long to try.")
@click.option(
    "--out", "-o", type=click.Path(file_okay=False, path_type=Path), help="Folder to write. Default: GRAPH.reduced"
)
@json_option
@click.pass_context
def reduce_(
    ctx: click.Context,
    graph_file: Path,
    setting: Setting,
    limit: float,
    inputs: Path | None,
    seed: int,
    seconds: float,
    out: Path | None,
    as_json: bool,
) -> None:
    r"""Find the smallest graph and inputs that still fail as a graph does.

    What it fails of is found out as fusilli fuzz does; then nodes, results, operands, attributes, dims, strides, types
    and numbers of the inputs are taken away for as long as it fails in the same way; Ctrl-C keeps the smallest so far.
    The folder is one that `fusilli replay` repeats. Exit code 1 if nothing is wrong with the graph.

    \b
    Examples:
      fusilli reduce graph.json --device cpu
      fusilli reduce graph.json --emulate gfx942 --inputs in.npz -o small
      fusilli reduce graph.json --target gfx950
    """
    folder = out or Path(f"{graph_file.stem if str(graph_file) != '-' else 'graph'}.reduced")
    require_outputs(folder, source=graph_file, inputs=inputs)
    if folder.exists():
        raise click.UsageError(f"{folder} is there already; name a new folder with -o")
    graph = with_references(load_graph(graph_file))
    case = (
        Case(graph, load_inputs(graph, inputs, lambda text: echo(text, err=True))) if inputs else Case.of(graph, seed)
    )
    with (
        tempfile.TemporaryDirectory(prefix="fusilli-reduce-") as cache,
        Worker(setting, limit, Path(cache)) as worker,
        progress() as step,
    ):
        step.say(f"examining '{graph.name}' on {setting}")
        worker.start()
        verdict = worker.examine(case)
        if verdict.outcome != "failed":
            reason = f": {verdict.text}" if verdict.text else ""
            print_json({"outcome": verdict.outcome, "text": verdict.text}) if as_json else echo(
                f"'{graph.name}' on {setting} is {verdict.outcome}{reason}: there is nothing to reduce"
            )
            ctx.exit(1)
        end, found = time.monotonic() + seconds, [case]

        def note(smaller: Case) -> None:
            found.append(smaller)
            step.say(f"still fails: {_size(smaller)}")

        try:
            smallest = reduced(worker, case, verdict, lambda: time.monotonic() > end, note)
        except KeyboardInterrupt:
            capsules.begin(folder, found[-1], setting, verdict)
            echo(f"the smallest so far, {_size(found[-1])}, is in {folder}", err=True)
            raise
        verdict = worker.examine(smallest, (verdict.check,))
        capsules.begin(folder, smallest, setting, verdict)
        missing = worker.complete(folder)
    if as_json:
        nodes = [operation(node) for node in smallest.graph.nodes]
        print_json({"outcome": verdict.outcome, "check": verdict.check, "kind": verdict.kind, "text": verdict.text,
                    "nodes": nodes, "folder": str(folder), "missing": missing})  # fmt: skip
        return
    echo(f"{verdict.check}: {verdict.kind}: {verdict.text.splitlines()[0] if verdict.text else ''}")
    echo(f"from {_size(case)} to {_size(smallest)}: {folder}")
    if missing:
        echo(f"not in the folder: {missing}", err=True)


def _size(case: Case) -> str:
    elements = sum(tensor.volume for tensor in case.graph.tensors)
    return f"{len(case.graph.nodes)} nodes with {elements} elements"
