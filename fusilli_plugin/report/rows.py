"""A row for each step of a model: what it computes, who runs it, what it moves, how long it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hipdnn_backend.offload.program.program import Copy, Program, Step
from hipdnn_backend.offload.program.runner import Timing

__all__ = ["StepRow", "best_times", "edges", "step_rows"]


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step of a program.

    Attributes:
        name: of the graph, or what is copied.
        kind: ``fusion`` (hipDNN operations), ``custom`` (one custom operation with MLIR in it) or ``copy``.
        engine: that runs it, "" for copies.
        operations: short names of the operations in it.
        nodes: names of the model's nodes that it computes.
        declined: engine name → why it did not get the graph, or takes its nodes as no hipDNN operations; the name ""
            stands for the translation to a hipDNN graph.
        equal_to: name of the graph whose plan it shares, "" if it has its own.
        dispatches: kernel launches, None if they are not known.
        moved: bytes that it reads and writes.
        workspace: bytes.
        compile_seconds: 0 if it was not compiled, because it shares a plan.
        seconds: of a run, None if it was not timed.
        once: it runs when the model is loaded, not in each run.
    """

    name: str
    kind: str
    engine: str
    operations: tuple[str, ...]
    nodes: tuple[str, ...]
    declined: Mapping[str, str]
    equal_to: str
    dispatches: int | None
    moved: int
    workspace: int
    compile_seconds: float
    seconds: float | None
    once: bool

    @property
    def title(self) -> str:
        """The name, with what is special about the step."""
        notes = [("custom", self.kind == "custom"), ("once, at load", self.once)]
        return self.name + "".join(f" ({note})" for note, is_so in notes if is_so)

    @property
    def label(self) -> str:
        """The operations in one line."""
        return " + ".join(self.operations) or self.name


def step_rows(program: Program, about: Mapping[str, Any], times: Sequence[float] | None = None) -> list[StepRow]:
    """A row for each step.

    Args:
        program: the steps.
        about: what `hipdnn_backend.offload.Model.about` says; a saved model's may lack parts.
        times: seconds of each step, see `best_times`.
    """
    seconds: Sequence[float | None] = times if times is not None else [None] * len(program.steps)
    timed = zip(program.steps, seconds, strict=True)
    return [_row(program, step, about, taken, number < program.setup) for number, (step, taken) in enumerate(timed)]


def best_times(runs: Sequence[Sequence[Timing]]) -> list[float]:
    """The least time of each step over several runs, in seconds."""
    return [min(timing.seconds for timing in same) for same in zip(*runs, strict=True)]


def _row(program: Program, step: Step, about: Mapping[str, Any], seconds: float | None, once: bool) -> StepRow:
    """A row for a step; of a copy there is nothing to say but its name, bytes and time."""
    views = [program.views[number] for number in program.touched(step)]
    moved = sum(view.count * view.itemsize for view in views)
    if isinstance(step, Copy):
        name = program.step_name(step)
        return StepRow(name, "copy", "", ("copy",), (), {}, "", None, moved, 0, 0.0, seconds, once)
    graph = program.graphs[step.graph]
    said: Mapping[str, Any] = about.get("graphs", {}).get(graph.name, {})
    dispatches = dict(enumerate(about.get("dispatches", ())))
    return StepRow(
        name=graph.name,
        kind="custom" if said.get("custom") else "fusion",
        engine=graph.engine,
        operations=tuple(_short(name) for name in said.get("operations", ())),
        nodes=graph.nodes,
        declined=_declined(said, graph.nodes, about.get("refused", {})),
        equal_to=said.get("equal_to", ""),
        dispatches=dispatches.get(graph.plan),
        moved=moved,
        workspace=graph.workspace_size,
        compile_seconds=float(said.get("seconds", 0.0)),
        seconds=seconds,
        once=once,
    )


def _declined(said: Mapping[str, Any], nodes: Sequence[str], refused: Mapping[str, Any]) -> dict[str, str]:
    """Why engines did not get a graph; for a custom operation also why its nodes are no hipDNN operations there."""
    found = {name: _reason(answer) for name, answer in said.get("declined", {}).items()}
    if said.get("custom"):
        for node in nodes:
            for name, answer in refused.get(node, {}).items():
                found.setdefault(name, _reason({"node": node, **{k: v for k, v in answer.items() if v}}))
    return found


def _short(operation: str) -> str:
    """``torch.aten.add.Tensor`` → ``add``."""
    parts = [part for part in operation.split(".") if part not in ("torch", "aten", "prims", "prim", "onnx")]
    return parts[0] if parts else operation


def _reason(answer: Mapping[str, Any]) -> str:
    node = f"{answer['node']}: " if answer.get("node") else ""
    rule = f" [{answer['rule']}]" if answer.get("rule") else ""
    return f"{node}{answer.get('reason', '')}{rule}"


def edges(program: Program) -> list[tuple[int, int]]:
    """Pairs of steps of which the second reads what the first wrote; -1 stands for the inputs of the model."""
    found: list[tuple[int, int]] = []
    writers: dict[int, list[tuple[int, int, int]]] = {}  # buffer → (first element, behind the last, step)
    for named in program.inputs:
        view = program.views[named.view]
        writers.setdefault(view.buffer, []).append((view.offset, view.end, -1))
    for number, step in enumerate(program.steps):
        written = set(program.written(step))
        read = [view for view in program.touched(step) if view not in written]
        sources = {
            writer
            for view in (program.views[index] for index in read)
            for start, stop, writer in writers.get(view.buffer, ())
            if start < view.end and view.offset < stop
        }
        found += [(source, number) for source in sorted(sources)]
        for index in written:
            view = program.views[index]
            writers.setdefault(view.buffer, []).append((view.offset, view.end, number))
    return found
