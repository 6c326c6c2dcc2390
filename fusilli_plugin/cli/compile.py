"""``fusilli compile``: a graph into an artifact file that runs without the compiler."""

from __future__ import annotations

import time
from pathlib import Path

import click

from fusilli_plugin.cli.base import (
    command,
    graph_argument,
    json_option,
    print_json,
    print_table,
    progress,
    targets_option,
)
from fusilli_plugin.cli.graphs import load_graph
from iree_bridge import Target, compile_graph

__all__ = ["compile_"]


@command("compile")
@graph_argument
@targets_option(required=True, help_text="What to compile for: gfx942, mi300x, cpu, sm_80, ...; several give one file.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Artifact to write."
)
@json_option
def compile_(graph_file: Path, targets: tuple[str, ...], output: Path, as_json: bool) -> None:
    r"""Compile a graph into an artifact file.

    One file holds the code for one or more targets; no device is needed.

    \b
    Examples:
      fusilli compile graph.json --target gfx942 -o graph.fusilli
      fusilli compile graph.json --target gfx90a,gfx942,cpu -o graph.fusilli --json
    """
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
        click.echo(f"{output}: '{graph.name}', {size} bytes, {seconds:.2f} s")
