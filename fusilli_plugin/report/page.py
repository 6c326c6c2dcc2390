"""One HTML page about a model: no scripts, nothing from the network, all text escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusilli_plugin.report.flow import flow_svg
from fusilli_plugin.report.memory import memory_svg
from fusilli_plugin.report.rows import StepRow
from fusilli_plugin.report.svg import bytes_text, colour_of, escape, time_text
from hipdnn_backend.offload.node_outcomes import Became
from hipdnn_backend.offload.program.program import Program, Space

__all__ = ["page"]

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1120px; padding: 0 1rem; color: #222; }
h1 { font-size: 1.4rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.facts { display: flex; flex-wrap: wrap; gap: .5rem 2rem; padding: 0; list-style: none }
.facts b { display: block; font-size: 1.15rem }
.picture { overflow: auto; border: 1px solid #ddd; border-radius: 6px; padding: 8px; background: #fff }
.tall { max-height: 640px }
table { border-collapse: collapse; font-size: 12px; width: 100% }
th, td { text-align: left; padding: 3px 8px; border-bottom: 1px solid #e3e3e3; vertical-align: top }
td.n, th.n { text-align: right; white-space: nowrap } td.w { overflow-wrap: anywhere }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 5px 0 14px }
.why { color: #666 }
"""


def page(name: str, device: str, program: Program, rows: Sequence[StepRow], about: Mapping[str, Any]) -> str:
    """The page.

    Args:
        name: of the model.
        device: where it ran, or the target that it was compiled for.
        program: what runs.
        rows: see `step_rows`.
        about: see `hipdnn_backend.offload.Model.about`.
    """
    engines = list(dict.fromkeys(row.engine for row in rows if row.engine))
    sections = [
        f"<h1>{escape(name)} on {escape(device)}</h1>",
        _facts(program, rows, about),
        "<h2>Model</h2>",
        f"<p>{_key(rows, engines)}</p>",
        f'<div class="picture tall">{flow_svg(program, rows)}</div>',
        "<h2>Memory plan</h2>",
        f'<div class="picture">{memory_svg(program)}</div>',
        "<h2>Steps</h2>",
        _table(rows),
        *_without_a_step(about),
        *_refused(about),
        *_splits(about),
        *_passes(about),
    ]
    head = f'<meta charset="utf-8"><title>{escape(name)}: offload report</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(sections) + "\n</body></html>\n"


def _facts(program: Program, rows: Sequence[StepRow], about: Mapping[str, Any]) -> str:
    timed = [row.seconds for row in rows if row.seconds is not None and not row.once]
    kept = (Space.CONSTANT, Space.FOLDED)
    constants = sum(buffer.nbytes for buffer in program.buffers if buffer.space in kept)
    facts = [
        ("steps", str(len(rows))),
        ("different plans", str(program.plans)),
        ("model nodes in fusions", str(sum(len(row.nodes) for row in rows if row.kind == "fusion"))),
        ("sum of the steps of a run", time_text(sum(timed)) if timed else "not timed"),
        ("arena (without sharing)", f"{bytes_text(program.arena)} ({bytes_text(program.naive)})"),
        ("constants", bytes_text(constants)),
        *([("layout between graphs", str(about["layout"]))] if about.get("layout") else []),
        *((what, time_text(float(seconds))) for what, seconds in about.get("seconds", {}).items()),
    ]
    items = "".join(f"<li><b>{escape(value)}</b>{escape(what)}</li>" for what, value in facts)
    return f'<ul class="facts">{items}</ul>'


def _key(rows: Sequence[StepRow], engines: list[str]) -> str:
    seen = dict.fromkeys((row.kind, row.engine) for row in rows)
    words = {"fusion": "hipDNN operations", "custom": "one custom operation", "copy": "copy"}
    return "".join(
        f'<span class="key" style="background:{colour_of(kind, engine, engines)}"></span>'
        f"{escape(words[kind])}{escape(f' on {engine}' if engine else '')}"
        for kind, engine in seen
    )


def _table(rows: Sequence[StepRow]) -> str:
    head = (
        '<tr><th class="n">#</th><th>graph</th><th>operations</th><th>engine</th><th class="n">dispatches</th>'
        '<th class="n">time</th><th class="n">moved</th><th class="n">workspace</th><th class="n">compile</th>'
        "<th>nodes</th></tr>"
    )
    body = "".join(_table_row(number, row) for number, row in enumerate(rows))
    return f"<table>{head}{body}</table>"


def _table_row(number: int, row: StepRow) -> str:
    why = "".join(
        f'<div class="why">{escape(name or "translation")}: {escape(reason)}</div>'
        for name, reason in row.declined.items()
    )
    compiled = f"= {row.equal_to}" if row.equal_to else time_text(row.compile_seconds) if row.compile_seconds else "-"
    return (
        f'<tr><td class="n">{number}</td><td>{escape(row.title)}</td><td>{escape(row.label)}{why}</td>'
        f'<td>{escape(row.engine)}</td><td class="n">{"-" if row.dispatches is None else row.dispatches}</td>'
        f'<td class="n">{"-" if row.seconds is None else time_text(row.seconds)}</td>'
        f'<td class="n">{bytes_text(row.moved)}</td><td class="n">{bytes_text(row.workspace)}</td>'
        f'<td class="n">{escape(compiled)}</td><td class="w">{escape(", ".join(row.nodes))}</td></tr>'
    )


def _without_a_step(about: Mapping[str, Any]) -> list[str]:
    nodes: dict[str, list[str]] = {}
    for each in about.get("nodes", ()):
        if each["became"] != Became.GRAPH:
            nodes.setdefault(each["words"], []).append(each["node"])
    if not nodes:
        return []
    lines = [
        f'<tr><td>{escape(words)}</td><td class="n">{len(names)}</td><td class="w">{escape(", ".join(names))}</td></tr>'
        for words, names in nodes.items()
    ]
    head = '<tr><th>what became of them</th><th class="n">nodes</th><th>names</th></tr>'
    return ["<h2>Nodes without a step</h2>", f"<table>{head}{''.join(lines)}</table>"]


def _refused(about: Mapping[str, Any]) -> list[str]:
    refused: Mapping[str, Any] = about.get("refused", {})
    if not refused:
        return []
    lines = [
        f'<tr><td class="w">{escape(node)}</td><td>{escape(engine or "translation")}</td>'
        f'<td class="w">{escape(str(said.get("reason", "")))}</td></tr>'
        for node, answers in refused.items()
        for engine, said in answers.items()
    ]
    head = "<tr><th>node</th><th>engine</th><th>why it is no hipDNN operation there</th></tr>"
    return ["<h2>Not taken as hipDNN operations</h2>", f"<table>{head}{''.join(lines)}</table>"]


def _splits(about: Mapping[str, Any]) -> list[str]:
    splits: Sequence[Mapping[str, Any]] = about.get("splits", ())
    if not splits:
        return []
    lines = [
        "<tr>"
        f'<td class="w">{escape(", ".join(each.get("nodes", ())))}</td>'
        f"<td>{escape(str(each.get('engine', '')))}</td>"
        f'<td class="w">{escape(str(each.get("reason", ""))[:500])}</td>'
        f"<td>{escape(str(each.get('action', '')))}</td></tr>"
        for each in splits
    ]
    head = "<tr><th>nodes</th><th>engine</th><th>what it said</th><th>what was done</th></tr>"
    return ["<h2>Did not compile at first</h2>", f"<table>{head}{''.join(lines)}</table>"]


def _passes(about: Mapping[str, Any]) -> list[str]:
    passes: Sequence[Sequence[Any]] = about.get("passes", ())
    if not passes:
        return []
    lines = [f'<tr><td>{escape(str(n))}</td><td class="n">{time_text(float(s))}</td></tr>' for n, s in passes]
    head = '<tr><th>pass</th><th class="n">time</th></tr>'
    return ["<h2>Passes</h2>", f"<table>{head}{''.join(lines)}</table>"]
