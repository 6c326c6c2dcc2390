"""``fusilli run`` for a model: run it, and show what it is made of."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fusilli_ground.files import write_whole
from fusilli_plugin.checks.graph_dump import Dump, require_new, save_dump
from fusilli_plugin.cli.base import echo, print_json, print_table, progress
from fusilli_plugin.cli.models import (
    bound_inputs,
    dims_of,
    early_feeds,
    feeds_from,
    load_model,
    load_shaped,
    outputs_document,
    print_padding,
    random_feeds,
    summary,
)
from fusilli_plugin.formats.kinds import Kind, kind_of
from graph_api import GraphError
from iree_bridge.artifact.arrays import save_arrays

if TYPE_CHECKING:
    from fusilli_plugin.checks.model_check import Checked, Finding
    from fusilli_plugin.cli.base import Step
    from fusilli_plugin.engine.plan import FusilliPlan
    from fusilli_plugin.report import StepRow
    from hipdnn_backend.offload import Model, ShapedModel
    from hipdnn_backend.offload.program.program import Execute, PlannedGraph
    from hipdnn_backend.offload.program.runner import Prepared, Timing

__all__ = ["ModelRun", "run_model"]

Array = np.ndarray[Any, Any]

_TIMED_RUNS: Final = 5
_REASON: Final = 60  # characters of a reason in the table; the page has all


@dataclass(frozen=True)
class ModelRun:
    """What the command line asks for.

    Attributes:
        path: of the model.
        device: where to run.
        inputs: npz file, None for random inputs.
        outputs: npz file to write.
        seed: of the random inputs.
        check: compare each graph with ONNX Runtime.
        dims: ``--dim`` as given.
        bound: ``--input`` as given.
        layout: ``--layout`` as given.
        shapes: ``--shapes`` as given.
        page: print the table and write this page; None for neither.
        trace: where the trace goes, None for none.
        dump: number of the graph to dump, None for none.
        dump_to: its folder, None for a name made from the model's.
    """

    path: Path
    device: str
    inputs: Path | None = None
    outputs: Path | None = None
    seed: int = 0
    check: bool = False
    dims: Sequence[str] = ()
    bound: Sequence[str] = ()
    layout: str = "auto"
    shapes: str | None = None
    page: Path | None = None
    trace: Path | None = None
    dump: int | None = None
    dump_to: Path | None = None

    @property
    def dump_folder(self) -> Path:
        """Where the dump goes."""
        return self.dump_to or Path(f"{self.path.stem}.graph{self.dump}")


def run_model(asked: ModelRun, as_json: bool) -> int:
    """Run a model once, and more often where times are asked for.

    Returns:
        The exit code: 1 if a graph is wrong.

    Raises:
        OffloadError, DeviceError, EngineError, FusilliError, OSError: with a message for the user.
    """
    document: dict[str, Any] = {}
    _refuse(asked)
    if asked.shapes or _has_sizes(asked.path):
        return _run_shaped(asked, as_json)
    given = _early(asked)
    with progress() as step, _load(asked, step) as model:
        dumped = None if asked.dump is None else _dumped(asked.dump, model)
        feeds = given or _feeds(asked, model)
        step.say(f"running on {asked.device}")
        start = time.perf_counter()
        outputs = model.run(feeds)
        seconds = time.perf_counter() - start
        if asked.outputs:
            save_arrays(outputs, asked.outputs)
        checked = _check(asked, model, feeds, step) if asked.check else None
        rows = _report(asked, model, feeds, step, document) if asked.page or asked.trace else []
        if dumped is not None:
            document["dump"] = str(_dump(dumped, asked, model, feeds))
        document |= {"model": model.name, "device": asked.device, "target": model.target, "load": model.seconds}
    findings = checked.findings if checked else ()
    wrong = [finding for finding in findings if not finding.ok]
    random = dict(checked.random) if checked else {}
    if as_json:
        document |= {"seconds": seconds, "ok": not wrong if checked else None, "random": random}
        print_json(document | {"checked": list(map(vars_of, findings)), "outputs": outputs_document(outputs)})
    else:
        _print(asked, document, outputs, rows, seconds)
        if checked:
            echo(f"{len(findings) - len(wrong)} of {len(findings)} compared values are right")
        if checked and random:
            echo(f"not compared is what depends on {checked.random_nodes}")
    for finding in wrong[:1]:
        echo(f"the first graph that is wrong: {finding}", err=True)
    return 1 if wrong else 0


def _has_sizes(path: Path) -> bool:
    """Whether it is a saved model that is compiled for several sizes."""
    if kind_of(path) is not Kind.SAVED_MODEL:
        return False
    from hipdnn_backend.offload.program.package import Package

    return Package.open(path).has_sizes


def _run_shaped(asked: ModelRun, as_json: bool) -> int:
    """Run a model that is compiled for several sizes: on given inputs, or on random ones of the largest.

    Raises:
        GraphError: what looks at one program is asked for, or the arrays do not fit.
        OptionError, OffloadError, DeviceError, EngineError, FusilliError, OSError: with a message for the user.
    """
    if asked.check or asked.page or asked.trace or asked.dump is not None:
        raise GraphError(
            f"{asked.path}: --check, --report, --trace and --dump-graph look at the program of one shape; give --dim "
            "instead of --shapes"
        )
    with (
        progress() as step,
        load_shaped(asked.path, asked.device, step, asked.shapes, asked.dims, asked.bound, asked.layout) as model,
    ):
        feeds = _shaped_feeds(asked, model)
        step.say(f"running on {asked.device}")
        start = time.perf_counter()
        outputs = model.run(feeds)
        seconds = time.perf_counter() - start
        if asked.outputs:
            save_arrays(outputs, asked.outputs)
    document = {"model": model.name, "device": asked.device, "target": model.target, "load": model.seconds}
    if as_json:
        padding = {dim.name: dim.refusal or None for dim in model.opened}
        print_json(document | {"seconds": seconds, "padding": padding, "outputs": outputs_document(outputs)})
    else:
        print_padding(model.opened)
        _print(asked, document, outputs, [], seconds)
    return 0


def _shaped_feeds(asked: ModelRun, model: ShapedModel) -> dict[str, Array]:
    if asked.inputs is None:
        return random_feeds(model.largest, asked.seed)
    return feeds_from(asked.inputs, model.name, model.inputs)


def _refuse(asked: ModelRun) -> None:
    """Tell now what could not be done after the model is loaded and run.

    Raises:
        GraphError: nothing is there that the model can be checked with.
        OSError: the folder for the dump is in use.
    """
    if asked.dump is not None:
        require_new(asked.dump_folder)
    if asked.check:
        if kind_of(asked.path) is Kind.SAVED_MODEL or asked.path.suffix == ".mlir":
            raise GraphError(f"{asked.path}: --check compares with ONNX Runtime, which needs the ONNX model itself")
        try:
            import fusilli_plugin.checks.model_check  # noqa: F401
        except ImportError as error:
            raise GraphError(f"--check needs onnxruntime ({error}); run: pip install onnxruntime") from error


def _early(asked: ModelRun) -> dict[str, Array] | None:
    """The arrays for the inputs, if the model's file says what they have to be; None if it is loaded first."""
    if asked.inputs is None or kind_of(asked.path) is Kind.SAVED_MODEL or asked.path.suffix == ".mlir":
        return None
    return early_feeds(asked.path, asked.inputs, asked.dims, asked.bound)


def _feeds(asked: ModelRun, model: Model) -> dict[str, Array]:
    if asked.inputs is None:
        return random_feeds(model, asked.seed)
    return feeds_from(asked.inputs, model.name, model.inputs)


def _load(asked: ModelRun, step: Step) -> Model:
    return load_model(asked.path, asked.device, step, asked.dims, asked.bound, asked.layout)


def vars_of(finding: Finding) -> dict[str, Any]:
    """A finding for ``--json``."""
    return {
        "step": finding.step, "graph": finding.graph, "value": finding.value, "error": finding.error,
        "tolerance": finding.tolerance, "ok": finding.ok,
    }  # fmt: skip


def _check(asked: ModelRun, model: Model, feeds: dict[str, Array], step: Step) -> Checked:
    from fusilli_plugin.checks.model_check import check_model

    step.say("comparing each graph with ONNX Runtime")
    return check_model(model, asked.path, feeds, dims=dims_of(asked.dims), inputs=bound_inputs(asked.bound))


def _report(
    asked: ModelRun, model: Model, feeds: dict[str, Array], step: Step, document: dict[str, Any]
) -> list[StepRow]:
    from fusilli_plugin.report import page, step_rows, trace
    from fusilli_plugin.report.rows import best_times

    step.say(f"timing each step, {_TIMED_RUNS} runs")
    runs: list[list[Timing]] = [model.profile(feeds) for _ in range(_TIMED_RUNS)]
    rows = step_rows(model.program, model.about, best_times(runs))
    if asked.page:
        write_whole(asked.page, page(asked.path.name, asked.device, model.program, rows, model.about).encode())
        document["html"] = str(asked.page)
    if asked.trace:
        write_whole(asked.trace, json.dumps(trace(model.name, model.about, rows, runs)).encode())
        document["trace"] = str(asked.trace)
    document["memory"] = {"arena": model.program.arena, "naive": model.program.naive}
    document["steps"] = [_row_document(row) for row in rows]
    document["nodes"] = model.about.get("nodes", [])
    return rows


def _row_document(row: StepRow) -> dict[str, Any]:
    return {
        "name": row.name, "kind": row.kind, "engine": row.engine, "operations": row.operations, "nodes": row.nodes,
        "declined": dict(row.declined), "equal_to": row.equal_to, "dispatches": row.dispatches, "bytes": row.moved,
        "workspace": row.workspace, "compile_seconds": row.compile_seconds, "seconds": row.seconds,
        "once": row.once,
    }  # fmt: skip


@dataclass(frozen=True)
class _Dumped:
    """What is dumped: the number of a step, what it executes, on which plan."""

    number: int
    step: Execute
    graph: PlannedGraph
    plan: FusilliPlan


def _dumped(number: int, model: Model) -> _Dumped:
    """What ``--dump-graph`` names.

    Raises:
        GraphError: it is no step with a graph, or one of another engine.
    """
    from fusilli_plugin.engine.plan import FusilliPlan
    from hipdnn_backend.offload.program.program import Execute

    program = model.program
    step = program.steps[number] if 0 <= number < len(program.steps) else None
    if not isinstance(step, Execute):
        numbers = [n for n, each in enumerate(program.steps) if isinstance(each, Execute)]
        raise GraphError(f"--dump-graph {number}: steps with a graph are {_ranges(numbers)}")
    graph, plan = program.graphs[step.graph], model.plans[program.graphs[step.graph].plan]
    if not isinstance(plan, FusilliPlan):
        raise GraphError(f"--dump-graph {number}: '{graph.name}' runs on {graph.engine}, whose graphs cannot be dumped")
    return _Dumped(number, step, graph, plan)


def _dump(dumped: _Dumped, asked: ModelRun, model: Model, feeds: dict[str, Array]) -> Path:
    """Writes the graph of a step with the data that this run gives it."""
    number, graph, plan = dumped.number, dumped.graph, dumped.plan
    views = dict(zip((*graph.inputs, *graph.outputs), dumped.step.operands, strict=True))
    arguments, found = plan.graph.arguments(), {}

    def fetch(tensors: Sequence[Any], at: Prepared) -> None:
        for tensor in tensors:
            found[tensor] = at.fetch(views[tensor.uid], tensor.dims, tensor.strides)

    def look(done: int, at: Prepared) -> None:
        # Inputs are there once the step before is done, and stay until this one is.
        if done == number:
            fetch((*arguments.inputs, *arguments.outputs), at)

    model.profile(feeds, look)
    about = {"model": model.name, "step": number, "graph": graph.name, "nodes": list(graph.nodes)}
    inputs = {tensor: found[tensor] for tensor in arguments.inputs}
    outputs = {tensor: found[tensor] for tensor in arguments.outputs}
    save_dump(asked.dump_folder, Dump(plan.graph, asked.device, inputs, outputs, about))
    return asked.dump_folder


def _ranges(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}, without the copies among them" if numbers else "none"


def _print(
    asked: ModelRun, document: dict[str, Any], outputs: dict[str, Array], rows: Sequence[StepRow], seconds: float
) -> None:
    if asked.page:
        _print_rows(rows)
        memory = document["memory"]
        echo(f"arena {memory['arena']} bytes, {memory['naive']} without sharing; the page: {document['html']}")
    columns = ("output", "dims", "type", "min", "mean", "max")
    print_table(
        columns,
        [
            (name, "x".join(map(str, array.shape)), array.dtype.name, *summary(array).values())
            for name, array in outputs.items()
        ],
    )
    echo(f"loaded in {document['load']:.3g} s; {seconds * 1e3:.3g} ms on {asked.device} (first run)")
    if "dump" in document:
        echo(f"wrote {document['dump']}; run it alone: fusilli replay {document['dump']}")
    if "trace" in document:
        echo(f"wrote {document['trace']}; open it in https://ui.perfetto.dev")


def _print_rows(rows: Sequence[StepRow]) -> None:
    columns = ("#", "graph", "operations", "engine", "declined by", "dispatches", "ms", "bytes")
    print_table(
        columns,
        [
            (
                number,
                row.title,
                _cut(row.label, 48),
                row.engine,
                _cut("; ".join(f"{name or 'translation'}: {reason}" for name, reason in row.declined.items()), _REASON),
                "-" if row.dispatches is None else row.dispatches,
                "-" if row.seconds is None else row.seconds * 1e3,
                row.moved,
            )
            for number, row in enumerate(rows)
        ],
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
