"""A run as a trace: the JSON that chrome://tracing and Perfetto open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusilli_plugin.report.rows import StepRow
from hipdnn_backend.offload.program.runner import Timing

__all__ = ["trace"]

_PROCESS, _LOADING, _RUNS = 1, 1, 2
_MICROSECONDS = 1e6


def trace(
    name: str, about: Mapping[str, Any], rows: Sequence[StepRow], runs: Sequence[Sequence[Timing]]
) -> dict[str, Any]:
    """The document: one track with the passes, one with the steps of each run, one after the other.

    Args:
        name: of the model.
        about: see `hipdnn_backend.offload.Model.about`.
        rows: see `step_rows`.
        runs: timings of each run.
    """
    events = [_named("process_name", 0, name), _named("thread_name", _LOADING, "loading")]
    events.append(_named("thread_name", _RUNS, "runs"))
    clock = 0.0
    for what, seconds in about.get("passes", ()):
        events.append(_event(str(what), _LOADING, clock, float(seconds), {}))
        clock += float(seconds)
    for number, timings in enumerate(runs):
        length = max((timing.start + timing.seconds for timing in timings), default=0.0)
        events.append(_event(f"run {number}", _RUNS, clock, length, {}))
        events += [
            _event(timing.name, _RUNS, clock + timing.start, timing.seconds, _details(rows[timing.step]))
            for timing in timings
        ]
        clock += length
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _details(row: StepRow) -> dict[str, Any]:
    return {
        "engine": row.engine,
        "operations": row.label,
        "nodes": ", ".join(row.nodes),
        "bytes": row.moved,
        "dispatches": row.dispatches,
    }


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _event(name: str, thread: int, start: float, seconds: float, details: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "pid": _PROCESS, "tid": thread, "args": details,
        "ts": start * _MICROSECONDS, "dur": seconds * _MICROSECONDS,
    }  # fmt: skip
