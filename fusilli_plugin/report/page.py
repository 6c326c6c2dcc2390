"""HTML pages (``templates``) about models and self-tests: no scripts, nothing from the network, all text escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from fusilli_plugin.report.flow import flow_svg
from fusilli_plugin.report.memory import memory_svg
from fusilli_plugin.report.rows import StepRow
from fusilli_plugin.report.svg import bytes_text, colour_of, printable, time_text
from hipdnn_backend.offload.node_outcomes import Became
from hipdnn_backend.offload.program.program import Program, Space

if TYPE_CHECKING:
    import jinja2

__all__ = ["page", "selftest_page"]


def page(name: str, device: str, program: Program, rows: Sequence[StepRow], about: Mapping[str, Any]) -> str:
    """The page.

    Args:
        name: of the model.
        device: where it ran, or the target that it was compiled for.
        program: what runs.
        rows: see `step_rows`.
        about: see `hipdnn_backend.offload.Model.about`.
    """
    return _template("page.html").render(
        name=name,
        device=device,
        facts=_facts(program, rows, about),
        key=_key(rows),
        flow=flow_svg(program, rows),
        memory=memory_svg(program),
        rows=rows,
        without_a_step=_without_a_step(about),
        about=about,
    )


def selftest_page(
    document: Mapping[str, Any], facts: Sequence[tuple[str, str]], timings: Sequence[tuple[str, str, str, str]]
) -> str:
    """A page about a report of `fusilli selftest`.

    Args:
        document: what `fusilli_plugin.checks.selftest_report.read_report` gives.
        facts: what stands above.
        timings: graph, time, rate, part of the roofline.
    """
    operations: dict[str, Counter[str]] = {}
    for case in document["cases"]:
        for name in case["operations"]:
            counts = operations.setdefault(name, Counter())
            counts["all"] += 1
            counts[case["outcome"] if case["outcome"] in ("right", "declined") else "off"] += 1
    first = ("wrong", "failed", "declined", "skipped", "right")
    cases = sorted(document["cases"], key=lambda case: first.index(case["outcome"]))
    rows = [
        (name, {key: counts[key] for key in ("all", "right", "declined", "off")})
        for name, counts in sorted(operations.items())
    ]
    return _template("selftest.html").render(
        document=document, facts=facts, timings=timings, operations=rows, cases=cases
    )


@cache
def _template(name: str) -> jinja2.Template:
    import jinja2  # slow to load, and few runs write a page

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fusilli_plugin.report"),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": bytes_text, "time": time_text}
    return environment.get_template(name)


def _shown(value: object) -> object:
    """What an expression of the template puts into the page, before it is escaped."""
    return value if hasattr(value, "__html__") else printable(str(value))


def _facts(program: Program, rows: Sequence[StepRow], about: Mapping[str, Any]) -> list[tuple[str, str]]:
    timed = [row.seconds for row in rows if row.seconds is not None and not row.once]
    kept = (Space.CONSTANT, Space.FOLDED)
    constants = sum(buffer.nbytes for buffer in program.buffers if buffer.space in kept)
    return [
        ("steps", str(len(rows))),
        ("different plans", str(program.plans)),
        ("model nodes in fusions", str(sum(len(row.nodes) for row in rows if row.kind == "fusion"))),
        ("sum of the steps of a run", time_text(sum(timed)) if timed else "not timed"),
        ("arena (without sharing)", f"{bytes_text(program.arena)} ({bytes_text(program.naive)})"),
        ("constants", bytes_text(constants)),
        *([("layout between graphs", str(about["layout"]))] if about.get("layout") else []),
        *((what, time_text(float(seconds))) for what, seconds in about.get("seconds", {}).items()),
    ]


def _key(rows: Sequence[StepRow]) -> list[tuple[str, str]]:
    """What the colours of the picture mean."""
    engines = list(dict.fromkeys(row.engine for row in rows if row.engine))
    seen = dict.fromkeys((row.kind, row.engine) for row in rows)
    words = {"fusion": "hipDNN operations", "custom": "one custom operation", "copy": "copy"}
    return [
        (colour_of(kind, engine, engines), words[kind] + (f" on {engine}" if engine else "")) for kind, engine in seen
    ]


def _without_a_step(about: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of nodes, by what became of them."""
    nodes: dict[str, list[str]] = {}
    for each in about.get("nodes", ()):
        if each["became"] != Became.GRAPH:
            nodes.setdefault(each["words"], []).append(each["node"])
    return nodes
