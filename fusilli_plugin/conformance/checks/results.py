"""What is claimed is computed, and right: random graphs of all operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusilli_plugin.conformance.bench import Bench, Claimed, check
from fusilli_plugin.conformance.findings import BrokenRule, NotTried
from fusilli_plugin.conformance.samples import FAMILIES, FUNCTIONS, Sample, function, random_sample

RESULTS = "results"
"""Checks of this file begin with it. Where a plugin dies of a graph, a new process goes on with the next."""


def _register(name: str, about: str, make: Callable[[Bench, int], Sample], count: int | None = None) -> None:
    """A check of so many graphs; by default as many as are asked for."""

    @check(f"{RESULTS}: {name}", about)
    def run(bench: Bench) -> str:
        handle = bench.subject.handle()
        asked = claimed = 0
        failed: list[str] = []
        for number in range(bench.first, bench.graphs if count is None else count):
            outcome, text = _outcome(bench, handle, number, make(bench, number))
            asked += 1
            claimed += outcome != "declined"
            if outcome in ("wrong", "broken"):
                failed.append(text)
        if failed:
            raise BrokenRule(f"{len(failed)} of {claimed} claimed graphs: {failed[0]}")
        if not claimed:
            raise NotTried(f"it claims none of {asked} graphs")
        return f"{claimed} of {asked} graphs are claimed, and right"


def _outcome(bench: Bench, handle: int, number: int, sample: Sample) -> tuple[str, str]:
    """What comes of one graph; the parent is told."""
    operations = sorted({node.op for node in sample.graph.nodes})
    facts: dict[str, Any] = {"graph": sample.name, "number": number, "operations": operations}
    bench.tell({**facts, "outcome": "begun"})
    outcome, text = "declined", ""
    try:
        taken = bench.claim(handle, sample)
        if taken is not None:
            outcome, text = _run(bench, handle, taken)
    except BrokenRule as error:
        outcome, text = "broken", str(error)
    bench.tell({**facts, "outcome": outcome, "text": text})
    return outcome, f"{sample.name}: {text}"


def _run(bench: Bench, handle: int, claimed: Claimed) -> tuple[str, str]:
    with bench.trial(handle, claimed) as trial:
        trial.fill()
        bench.say(f"executing {claimed.sample.name}")
        if trial.status():
            return "broken", f"its execution fails: {bench.subject.error()}"
        bench.place.memory.synchronize()
        wrong = trial.wrong()
        if wrong:
            return "wrong", wrong
        trial.judge("random graphs")
        return "right", ""


_register("functions", "Each pointwise function alone.", lambda _, number: function(number), len(FUNCTIONS))
for _name in FAMILIES:
    if _name != "custom":  # hipDNN has no word for what such a graph computes
        _register(
            _name, f"Random graphs: {_name}.", lambda bench, number, f=_name: random_sample(f, bench.seed + number)
        )
