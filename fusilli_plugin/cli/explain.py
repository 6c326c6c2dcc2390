"""``fusilli explain``: which engine a graph gets, why, and what ours makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fusilli_plugin.cli.base import (
    command,
    device_option,
    echo,
    graph_argument,
    json_option,
    print_json,
    print_table,
    progress,
)
from fusilli_plugin.cli.engines import engine_facts, plugins_option
from fusilli_plugin.cli.explain_model import explain_model
from fusilli_plugin.cli.inspect import document, facts
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import Reading, import_graph
from fusilli_plugin.formats.graphs import load_wire_graph
from fusilli_plugin.formats.kinds import is_model
from hipdnn_backend.engine import Support
from hipdnn_backend.host.execution import Host
from hipdnn_backend.host.registry import Registry
from hipdnn_backend.host.selection import Selection
from hipdnn_backend.wire import WireGraph, decode_graph
from iree_bridge import Options, Target
from iree_bridge.compile.inspect import Inspection, inspect_graph

__all__ = ["explain"]


@command("explain")
@graph_argument
@device_option
@click.option("--target", metavar="T", help="Answer for a device that is not here, e.g. gfx942.")
@click.option("--preferred", metavar="ENGINE", help="As if the program preferred this engine (name or id).")
@click.option("--dim", "dims", metavar="NAME=N", multiple=True, help="Models: size of a symbolic dim.")
@click.option("--input", "bound", metavar="NAME=VALUE", multiple=True, help="Models: bind an input to a value.")
@click.option("--all", "every_node", is_flag=True, help="Models: name the nodes without a graph, too.")
@plugins_option
@json_option
@click.pass_context
def explain(
    ctx: click.Context,
    graph_file: Path,
    device: str | None,
    target: str | None,
    preferred: str | None,
    dims: tuple[str, ...],
    bound: tuple[str, ...],
    every_node: bool,
    plugins: tuple[Path, ...],
    as_json: bool,
) -> None:
    r"""Tell which engine runs a graph or the parts of a model, and why.

    Every engine that is found here (see fusilli engines) is asked. The choice follows hipDNN's rules: the preferred
    engine, HIPDNN_HEUR_CONFIG_PATH, HIPDNN_HEUR_FALLBACK_ENGINE_ORDER, then hipDNN's own order. If FUSILLI_ENGINE
    runs the graph, it is compiled and what came out is reported. With --target the answer is that of a device that
    has passed fusilli selftest, unless FUSILLI_CLAIM says which graphs to claim.

    Of a model (ONNX, .mlir) each node is told: in which graph it goes to which engine, or why it is no operation of
    hipDNN's. Nodes for which nothing runs, since they are computed beforehand for example, are counted; --all names
    them, --json has them all. Nothing is compiled.

    Exit code 1 if no engine runs the graph, or a node of the model.

    \b
    Examples:
      fusilli explain graph.json --target gfx942
      fusilli explain model.onnx --target gfx942 --dim batch=1
      fusilli explain graph.bin --device cpu --preferred MIOPEN_ENGINE --json
    """
    if every_node and not is_model(graph_file):
        raise click.UsageError("--all is for models, this is a graph")
    if is_model(graph_file):
        if preferred or plugins:
            raise click.UsageError("--preferred and --plugin are for graphs, this is a model")
        _exclude(device, target)
        chosen = device or Options.from_env().device
        served = explain_model(
            graph_file, device=chosen, target=target, dims=dims, bound=bound, as_json=as_json, every_node=every_node
        )
        ctx.exit(0 if served else 1)
    data = load_wire_graph(graph_file)
    graph = decode_graph(data)
    ours = _our_engine(device, target)
    host = Host(Registry.find([ours], paths=plugins))
    try:
        answers = host.why_not(data)
        order = _selected(host, data, preferred)
        inspection = _inspected(ours, graph, answers)
        if as_json:
            print_json(_document(host, graph, answers, order, inspection))
        else:
            _print(host, graph, answers, order, inspection)
    finally:
        host.close()
    ctx.exit(0 if order.ids else 1)


def _exclude(device: str | None, target: str | None) -> None:
    if device is not None and target is not None:
        raise click.UsageError("--device and --target exclude each other: a device has a target")


def _our_engine(device: str | None, target: str | None) -> FusilliEngine:
    if target is None:
        return FusilliEngine(device)
    _exclude(device, target)
    chosen, options = Target.parse(target), Options.from_env()
    if not options.claim:
        # What is left to others by default depends on a self-test of the device, which is not here.
        options = replace(options, claim="all")
    return FusilliEngine(chosen.device, target=chosen, options=options)


def _selected(host: Host, graph: bytes, preferred: str | None) -> Selection:
    try:
        return host.select(graph, preferred=preferred)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _inspected(ours: FusilliEngine, graph: WireGraph, answers: Mapping[str, Support]) -> Inspection | None:
    if not answers[ours.name]:
        return None
    with progress() as step:
        step.say(f"compiling '{graph.name}' for {ours.target}")
        return inspect_graph(import_graph(graph, Reading.of(ours.options)), ours.target, ours.options)


def _name_of(host: Host, order: Selection) -> str | None:
    return host.registry.engine(order.ids[0]).name if order.ids else None


def _document(
    host: Host,
    graph: WireGraph,
    answers: Mapping[str, Support],
    order: Selection,
    inspection: Inspection | None,
) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for entry in host.registry.entries:
        answer = answers[entry.engine.name]
        told = {"ok": answer.ok, "node": answer.node, "rule": answer.rule, "reason": answer.reason}
        entries.append(engine_facts(entry) | told)
    return {
        "graph": graph.name,
        "chosen": _name_of(host, order),
        "policy": order.policy,
        "reason": order.reason,
        "notes": order.notes,
        "engines": entries,
        "problems": [{"source": problem.source, "reason": problem.reason} for problem in host.registry.problems],
        "compiled": None if inspection is None else document(inspection),
    }


def _print(
    host: Host,
    graph: WireGraph,
    answers: Mapping[str, Support],
    order: Selection,
    inspection: Inspection | None,
) -> None:
    chosen = _name_of(host, order)
    rows = [(name, "runs it" if answer.ok else "declines", _why(answer)) for name, answer in answers.items()]
    print_table(("engine", "answer", "why"), rows)
    title = f"graph '{graph.name}'"
    echo(f"{title}: {chosen} is used: {order.reason}" if chosen else f"{title}: {order.reason}")
    for note in order.notes:
        echo(f"note: {note}")
    for problem in host.registry.problems:
        echo(f"left out: {problem}")
    if inspection is not None:
        print_table(*facts([inspection]), title="what FUSILLI_ENGINE compiles it to")


def _why(answer: Support) -> str:
    if answer.ok:
        return ""
    node = f"node '{answer.node}': " if answer.node else ""
    return f"{node}{answer.reason} [{answer.rule}]"
