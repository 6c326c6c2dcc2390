"""``fusilli explain MODEL``: for each node of a model, which engine takes it, or why none does; nothing is compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fusilli_plugin.cli.base import echo, print_json, print_table, printable, progress
from fusilli_plugin.cli.models import bound_inputs, dims_of, engines_on, targets_engines
from hipdnn_backend.engine import Support
from hipdnn_backend.offload.node_outcomes import Became
from hipdnn_backend.onnx_op import CONTROL_ENGINE, OPERATOR

if TYPE_CHECKING:
    from hipdnn_backend.offload.node_outcomes import Fate
    from hipdnn_backend.offload.pipeline import Group, Partition, Unclaimed

__all__ = ["explain_model"]

_OPERATORS: Final = 6  # that are named in a row of the table


def explain_model(
    path: Path, *, device: str, target: str | None, dims: Sequence[str], bound: Sequence[str],
    as_json: bool, every_node: bool = False,
) -> bool:  # fmt: skip
    """Print which nodes become which graphs.

    Args:
        path: of the model.
        device: where it would run.
        target: what it would be compiled for, None for the device.
        dims: ``--dim`` as given.
        bound: ``--input`` as given.
        as_json: print a document with all nodes.
        every_node: name the nodes without a graph; otherwise they are counted.

    Returns:
        Whether an engine takes every node.

    Raises:
        OffloadError, EngineError, FusilliError, OSError: the model or the device does not serve.
        click.UsageError: the model was saved, so its graphs are made already.
    """
    from hipdnn_backend.offload.program.package import is_package

    with path.open("rb") as file:
        saved = is_package(file.read(4))
    if saved:
        raise click.UsageError(f"{path} is compiled already; fusilli run {path} --report tells what it holds")
    found = _partition(path, device, target, dims, bound)
    if as_json:
        place = {"device": device} if target is None else {"target": target}
        print_json({"model": path.name} | place | _document(found))
    else:
        _print(path, found, every_node)
    grouped = {node for group in found.groups for node in group.nodes}
    return all(each.node in grouped for each in found.unclaimed)


def _partition(path: Path, device: str, target: str | None, dims: Sequence[str], bound: Sequence[str]) -> Partition:
    from hipdnn_backend.offload.control.engine import with_control
    from hipdnn_backend.offload.frontend import load
    from hipdnn_backend.offload.pipeline import partition

    sizes, values = dims_of(dims), bound_inputs(bound)
    engines = engines_on(device) if target is None else next(iter(targets_engines([target]).values()))
    with progress() as step:
        step.say(f"reading {path.name}")
        imported = load(path, dims=sizes, inputs=values, strict=False)
        step.say("asking the engines")
        return partition(imported, engines=with_control(path, engines, target or device, None))


def _document(found: Partition) -> dict[str, Any]:
    return {
        "groups": [
            {
                "nodes": group.nodes,
                "operations": group.operations,
                "engine": group.engine,
                "as": _form(group),
                "declined": {name: _why(answer) for name, answer in group.declined.items()},
            }
            for group in found.groups
        ],
        "unclaimed": [
            {
                "node": each.node,
                "operation": each.operation,
                "reasons": {name: _why(answer) for name, answer in each.reasons.items()},
            }
            for each in found.unclaimed
        ],
        "nodes": [fate.document() for fate in found.fates],
    }


def _print(path: Path, found: Partition, every_node: bool) -> None:
    rows = [
        (
            index,
            printable(" + ".join(group.nodes)),
            " + ".join(name.removeprefix("torch.aten.") for name in group.operations),
            group.engine,
            _form(group),
        )
        for index, group in enumerate(found.groups)
    ]
    print_table(("#", "nodes", "operations", "engine", "as"), rows, title=f"graphs of {path.name}")
    engines = {node: group.engine for group in found.groups for node in group.nodes}
    if found.unclaimed:
        print_table(
            ("node", "operation", "why it is no hipDNN operation", "what happens"),
            [
                (
                    printable(each.node),
                    each.operation.removeprefix("torch.aten."),
                    printable("; ".join(dict.fromkeys(_why(answer) for answer in each.reasons.values()))),
                    _handling(each, engines),
                )
                for each in found.unclaimed
            ],
        )
    _print_others(found, every_node)


def _print_others(found: Partition, every_node: bool) -> None:
    """Prints what became of the nodes that are neither in a graph nor in the table of what nobody takes."""
    others: dict[str, list[Fate]] = {}
    for fate in found.fates:
        if fate.became not in (Became.GRAPH, Became.UNCLAIMED):
            others.setdefault(fate.words if every_node else replace(fate, into=()).words, []).append(fate)
    if not others:
        return
    tell = _names if every_node else _operators
    rows = [(words, len(each), printable(tell(each))) for words, each in others.items()]
    columns = ("what became of them", "nodes", "names" if every_node else "operators")
    print_table(columns, rows, title="nodes without a graph")
    if not every_node:
        echo("--all names them")


def _names(nodes: Sequence[Fate]) -> str:
    return ", ".join(fate.node for fate in nodes)


def _operators(nodes: Sequence[Fate]) -> str:
    """How many there are of each operator, the most frequent first."""
    counts = Counter(fate.operator or "?" for fate in nodes).most_common()
    shown = [f"{count} {operator}" for operator, count in counts[:_OPERATORS]]
    return ", ".join(shown + ([f"and {len(counts) - _OPERATORS} more"] if len(counts) > _OPERATORS else []))


def _form(group: Group) -> str:
    if group.engine == CONTROL_ENGINE:
        return "control of bodies"
    if group.operations[0].startswith("onnx."):
        return "ONNX nodes"
    return "custom operation" if group.custom else "hipDNN graph"


def _handling(node: Unclaimed, engines: Mapping[str, str]) -> str:
    if node.node not in engines:
        return "no engine takes it"
    if engines[node.node] == CONTROL_ENGINE:
        return "its bodies are compiled, and Python goes through them"
    return f"stays ONNX, run by {engines[node.node]}" if node.operation == OPERATOR else "sent as MLIR"


def _why(answer: Support) -> str:
    node = f"node '{answer.node}': " if answer.node else ""
    return f"{node}{answer.reason} [{answer.rule}]"
