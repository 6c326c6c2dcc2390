"""``fusilli tune``: the fastest right form of graphs, measured on a device; results as a file for other machines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from fusilli_plugin.cli.base import (
    Step,
    command,
    device_option,
    echo,
    json_option,
    print_json,
    print_table,
    progress,
    require_outputs,
    targets_option,
)
from fusilli_plugin.cli.models import load_model
from fusilli_plugin.formats.graphs import load_graph
from fusilli_plugin.formats.kinds import is_model
from graph_api import FusilliError, Graph
from iree_bridge import Device, Options, Target
from iree_bridge.compile import tuned
from iree_bridge.compile.compiler import cache_for
from iree_bridge.compile.tuned import Record

__all__ = ["tune"]

_LEAST: Final = 5.0
"""Seconds that each graph of a model gets at least."""


@command("tune")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="[FILE]...")
@device_option
@targets_option(required=False, help_text="Chips of AMD's, of which no device is at hand: graphs only.")
@click.option("--budget", default=60.0, show_default=True, help="Seconds for each file; more where graphs need more.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=N", help="Models: size of a symbolic dim.")
@click.option(
    "--export", "target_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all that the cache keeps."
)
@click.option(
    "--import", "source_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take over what another cache has exported.",
)  # fmt: skip
@json_option
@click.pass_context
def tune(
    ctx: click.Context,
    files: tuple[Path, ...],
    device: str | None,
    targets: tuple[str, ...],
    budget: float,
    dims: tuple[str, ...],
    target_file: Path | None,
    source_file: Path | None,
    as_json: bool,
) -> None:
    r"""Measure which form of a graph, or of the graphs of a model, is fastest on a device.

    Each form is compiled, checked against float64 references on two inputs, and timed if it is right. The fastest
    serves from then on, in every program that uses this cache (FUSILLI_TUNE=off switches that off). Exit code 1 if a
    graph could not be measured.

    With --target nothing is run: forms that were executed in the emulator for graphs like this one are ordered by what
    their code takes. What a device measures counts before that.

    \b
    Examples:
      fusilli tune graph.json --device cpu
      fusilli tune model.onnx --device hip --budget 600 --export tuned.json
      fusilli tune graph.json --target gfx942
      fusilli tune --import tuned.json
    """
    options = Options.from_env()
    if not files and target_file is None and source_file is None:
        raise click.UsageError("name a graph or a model, or --import or --export")
    if not budget > 0:
        raise click.BadParameter(f"{budget} is not positive", param_hint="--budget")
    chips = [Target.parse(target) for target in targets]
    if chips and device is not None:
        raise click.UsageError("name a --device, or a --target that no device is at hand for")
    if chips and (model := next((file for file in files if is_model(file)), None)):
        raise click.UsageError(f"{model} is a model; with --target name graphs")
    require_outputs(target_file)
    store = cache_for(options)
    taken = [] if source_file is None else tuned.read_file(source_file)
    for record in taken:
        tuned.keep(store, record)
    rows: list[dict[str, Any]] = []
    where: dict[str, Any] = {"targets": [str(chip) for chip in chips]}
    with progress() as step:
        if chips:
            rows += [_ranked(load_graph(file), chip, budget, step, options) for file in files for chip in chips]
        else:
            place = Device.parse(device or options.device)
            where = {"device": str(place)}
            for file in files:
                rows += _all_measured(file, place, budget, dims, step, options)
    kept = [record for key in store.tuned_keys() for record in tuned.records(store, key)]
    if target_file is not None:
        tuned.write_file(target_file, kept)
    if as_json:
        print_json(where | {"imported": len(taken), "kept": len(kept), "graphs": rows})
    else:
        _print(rows, len(taken), len(kept), target_file)
    ctx.exit(1 if any("error" in row for row in rows) else 0)


def _graphs(file: Path, device: str, dims: Sequence[str], step: Step) -> list[Graph]:
    """The graphs of a file, each once, those with the most work first."""
    if not is_model(file):
        return [load_graph(file)]
    from fusilli_plugin.engine.plan import FusilliPlan

    with load_model(file, device, step, dims) as model:
        graphs = [plan.graph for plan in model.plans if isinstance(plan, FusilliPlan)]
    found = {graph.canonical_json(): graph for graph in graphs}
    return sorted(found.values(), key=lambda graph: -(graph.flops() or 0))


def _all_measured(
    file: Path, place: Device, budget: float, dims: Sequence[str], step: Step, options: Options
) -> list[dict[str, Any]]:
    graphs = _graphs(file, str(place), dims, step)
    share = max(budget / max(len(graphs), 1), _LEAST)
    return [
        _measured(graph, place, share, step, f"{file.name} {number}/{len(graphs)}", options)
        for number, graph in enumerate(graphs, start=1)
    ]


def _measured(graph: Graph, place: Device, budget: float, step: Step, what: str, options: Options) -> dict[str, Any]:
    from iree_bridge.tuning import tune as measure

    begun = time.perf_counter()
    row: dict[str, Any] = {"graph": graph.name or what}
    try:
        record = measure(graph, place, options, budget=budget, tell=lambda text: step.say(f"{what}: {text}"))
    except FusilliError as error:
        return row | {"error": str(error).splitlines()[0]}
    return row | _described(record) | {"seconds": round(time.perf_counter() - begun, 2)}


def _ranked(graph: Graph, chip: Target, budget: float, step: Step, options: Options) -> dict[str, Any]:
    from iree_bridge.tuning import rank

    begun = time.perf_counter()
    row: dict[str, Any] = {"graph": graph.name, "target": str(chip)}
    try:
        record = rank(graph, chip, options, budget=budget, tell=lambda text: step.say(f"{graph.name}: {text}"))
    except FusilliError as error:
        return row | {"error": str(error).splitlines()[0]}
    return row | _described(record) | {"seconds": round(time.perf_counter() - begun, 2)}


def _described(record: Record) -> dict[str, Any]:
    by_name = {figure.form: figure for figure in record.figures}
    default, best = record.figures[0], by_name[record.winner]
    return {
        "winner": record.winner,
        "ms": 1e3 * best.seconds,
        "default": default.form,
        "default_ms": 1e3 * default.seconds if default.seconds else None,
        "forms": [figure._asdict() for figure in record.figures],
    }


def _print(rows: list[dict[str, Any]], taken: int, kept: int, target_file: Path | None) -> None:
    if rows:
        print_table(
            ("graph", "default ms", "fastest", "ms", "of the default", "left out"),
            [_cells(row) for row in rows if "error" not in row],
        )
    if any("target" in row for row in rows):
        echo("times are estimates by what code takes: nothing was run")
    for row in rows:
        if "error" in row:
            echo(f"{row['graph']}: {row['error']}")
        else:
            echo(*(f"{row['graph']}: {each['form']}: {each['verdict']}: {each['text']}" for each in _others(row)))
    if taken:
        echo(f"{taken} results taken over")
    echo(f"{kept} results in the cache" + (f", written to {target_file}" if target_file else ""))


def _others(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The forms that took no part, for one reason or another."""
    return [each for each in row["forms"] if each["verdict"] != tuned.RIGHT]


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    bad = ", ".join(f"{each['form']} ({each['verdict']})" for each in _others(row))
    default = row["default_ms"]
    ratio = f"{row['ms'] / default:.2f}" if default else "-"
    return row["graph"], f"{default:.3g}" if default else "-", row["winner"], f"{row['ms']:.3g}", ratio, bad
