"""``hipdnn-graph-to-executable``: each ``hipdnn.graph`` region is compiled and becomes a ``hipdnn.executable``.

All graphs that are not equal are compiled at the same time. What does not compile is given another chance: by the next
engine; as a custom operation; in halves; and only then reported. `offload.compile_attempts` gives it one more.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Final

from hipdnn_backend.engine import Engine, Plan, Support, is_fallback
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload.errors import OffloadError
from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.passes.assign_layouts import arranged, reset_layouts, restrided
from hipdnn_backend.offload.passes.graph import FunctionGraph
from hipdnn_backend.offload.passes.leftovers import MAX_LITERAL, atoms
from hipdnn_backend.offload.passes.offload import outline_groups
from hipdnn_backend.offload.passes.regions import (
    CUSTOM,
    EXECUTABLE,
    Region,
    erase_dead,
    graphs,
    inline,
    is_operator,
    operation_names,
    replace_results,
    tensor_operations,
)
from hipdnn_backend.offload.report import GraphReport, Progress, Split
from hipdnn_backend.offload.session import CompiledGraph, Session, canonical
from hipdnn_backend.offload.to_wire import NotTranslated, Translation, translate, translate_leftover
from hipdnn_backend.offload.to_wire.onnx_model import not_taken
from hipdnn_backend.onnx_op import OPERATOR
from hipdnn_backend.wire import EngineConfig, WireGraph, encode_graph

__all__ = ["NotCompiledError", "Uncompiled", "graph_to_executable"]

Operation = Any


@dataclass(frozen=True, slots=True)
class Uncompiled:
    """Operations that cannot be apart, and that no engine compiles.

    Attributes:
        nodes: the model's nodes concerned.
        operations: their MLIR names.
        declined: engine name → why not.
    """

    nodes: tuple[str, ...]
    operations: tuple[str, ...]
    declined: Mapping[str, Support]

    def __str__(self) -> str:
        what = ", ".join(self.operations) + (f" (node {', '.join(self.nodes)})" if self.nodes else "")
        why = "; ".join(f"{name or 'translation'}: {support.reason}" for name, support in self.declined.items())
        return f"no engine compiles {what}: {why}"


class NotCompiledError(OffloadError):
    """No engine compiles some operations.

    Attributes:
        failures: those that were found at one time; there may be more.
        splits: what was tried before.
    """

    def __init__(self, failures: Sequence[Uncompiled], splits: Sequence[Split] = ()) -> None:
        self.failures = tuple(failures)
        self.splits = tuple(splits)
        super().__init__("; ".join(map(str, failures)))


@dataclass(frozen=True)
class _Job:
    """A graph on its way to a plan.

    Attributes:
        op: the ``hipdnn.graph`` operation.
        translation: its wire graph.
        graph: the canonical form of it; equal for equal graphs.
        engine: that shall compile it.
        declined: the engines that do not.
        failed: those of them that tried.
    """

    op: Operation
    region: Region
    custom: bool
    translation: Translation
    graph: WireGraph
    engine: Engine
    declined: Mapping[str, Support]
    failed: Mapping[str, Support]

    @property
    def key(self) -> Key:
        """Equal for jobs that share a plan."""
        return self.engine.name, self.graph


@dataclass(frozen=True)
class _Built:
    plan: Plan
    seconds: float


Key = tuple[str, WireGraph]
"""Name of an engine and a canonical graph."""

Pending = tuple[Operation, Mapping[str, Support]]
"""A region and the engines that failed to compile it."""


def graph_to_executable(module: Any, session: Session) -> None:
    """Compile every region and put a reference to the compiled graph in its place.

    Requires: self-contained regions.
    Ensures: ``session.graphs`` has every graph under its unique name; equal graphs share a plan.

        %0 = torch.operator "hipdnn.graph"(%a, %b) ({ ... })
      becomes
        %0 = torch.operator "hipdnn.executable"(%a, %b) {graph = "hipdnn_graph_0"}

    Raises:
        NotCompiledError: an operation is compiled by no engine, whatever was tried.
    """
    _Compiler(module, session).run()


class _Compiler:
    def __init__(self, module: Any, session: Session) -> None:
        self._module = module
        self._session = session
        self._built: dict[Key, _Built] = {}
        self._failures: list[Uncompiled] = []
        # With a fallback engine, all that does not compile is found at one time; without, the first is the end.
        self._goes_on = any(map(is_fallback, session.engines))
        self._is_relaid = False  # tensors between graphs have other strides than graphs were made for

    def run(self) -> None:
        """Compiles until nothing is left to compile."""
        pending: list[Pending] = [(op, {}) for op in graphs(self._module)]
        finished: dict[Any, _Job] = {}
        try:
            while pending:
                jobs = self._start_all(pending)
                if self._failures and not self._goes_on:
                    break
                if self._is_relaid:
                    self._is_relaid = False
                    finished.clear()
                    self._failures.clear()
                    pending = [(op, {}) for op in graphs(self._module)]  # what is built is not built again
                    continue
                errors = self._compile(jobs)
                pending = []
                for job in jobs:
                    error = errors.get(job.key)
                    if error is None:
                        finished[job.op.results[0]] = job
                    else:
                        support = Support.no(str(error), rule="compile")
                        pending.append((job.op, {**job.failed, job.engine.name: support}))
        except BaseException:
            self._close()
            raise
        if self._failures:
            self._close()
            raise NotCompiledError(self._failures, self._session.report.splits)
        self._replace(finished)

    def _close(self) -> None:
        for built in self._built.values():
            built.plan.close()

    # ---- from regions to jobs

    def _start_all(self, pending: list[Pending]) -> list[_Job]:
        jobs, waiting = [], list(pending)
        while waiting and not self._is_relaid:
            started = self._start(*waiting.pop(0))
            if isinstance(started, _Job):
                jobs.append(started)
            elif isinstance(started, Uncompiled):
                self._failures.append(started)
                if not self._goes_on:
                    break
            else:
                waiting = [*((op, {}) for op in started), *waiting]
        return jobs

    def _start(self, op: Operation, failed: Mapping[str, Support]) -> _Job | Uncompiled | list[Operation]:
        """The job of a region, or the regions to try instead."""
        region, custom = Region.of(op), CUSTOM in op.attributes
        failed = {**not_taken(region.ops), **failed}
        make = translate_leftover if custom else translate
        try:
            translation = make(region.ops, region.inputs, region.outputs, "_".join(region.nodes()) or "graph")
        except NotTranslated as error:
            return self._instead(op, region, {"": Support.no(str(error), rule="translation")})
        translation = restrided(translation, arranged(op))
        graph = canonical(translation.graph)
        answer = self._session.choose(translation, graph, failed=failed)
        if answer.engine is None:
            return self._instead(op, region, answer.declined)
        if failed:
            self._note(
                region.nodes(), failed, f"{'left' if _carries_onnx(region) else 'given'} to {answer.engine.name}"
            )
        return _Job(op, region, custom, translation, graph, answer.engine, answer.declined, failed)

    def _instead(self, op: Operation, region: Region, declined: Mapping[str, Support]) -> list[Operation] | Uncompiled:
        """What to try when no engine compiles a region."""
        # read now: taking the region apart erases its constants
        nodes, names = region.nodes(), operation_names(region.ops)
        if arranged(op):
            self._note(nodes, declined, "tried again with row-major tensors between graphs")
            reset_layouts(self._module, self._session)
            self._is_relaid = True
            return []
        if CUSTOM not in op.attributes:
            self._note(nodes, declined, "sent as a custom operation")
            op.attributes[CUSTOM] = ir.UnitAttr.get(op.context)
            return [op]
        self._goes_on = self._goes_on and not _carries_onnx(region)  # there is nothing else to try for such nodes
        parts = _halves(op, region)
        if parts is None:
            return Uncompiled(nodes, names, declined)
        sizes = " and ".join(str(len(tensor_operations(Region.of(part).ops))) for part in parts)
        self._note(nodes, declined, f"split into {sizes} operations")
        return parts

    def _note(self, nodes: tuple[str, ...], declined: Mapping[str, Support], action: str) -> None:
        engine, support = list(declined.items())[-1]
        self._session.report.splits.append(Split(nodes, engine, support.reason, action))

    # ---- from jobs to plans

    def _compile(self, jobs: Sequence[_Job]) -> dict[Key, EngineError]:
        """Compiles what is not compiled yet; the errors by key."""
        wanted: dict[Key, _Job] = {}
        for job in jobs:
            if job.key not in self._built:
                wanted.setdefault(job.key, job)
        if not wanted:
            return {}
        errors: dict[Key, EngineError] = {}
        tell = self._session.options.progress
        pool = ThreadPoolExecutor(min(self._session.options.threads, len(wanted)), "hipdnn-compile")
        try:
            futures = {pool.submit(_build, job): job for job in wanted.values()}
            for done, future in enumerate(as_completed(futures), start=1):
                job, (made, seconds) = futures[future], future.result()
                if isinstance(made, EngineError):
                    errors[job.key] = made
                else:
                    self._built[job.key] = _Built(made, seconds)
                if tell is not None:
                    why = str(made) if isinstance(made, EngineError) else ""
                    tell(Progress(done, len(futures), job.translation.graph.name, job.engine.name, seconds, why))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return errors

    # ---- from plans to executables

    def _replace(self, jobs: Mapping[Any, _Job]) -> None:
        """Each region becomes an executable of its own; equal ones share a plan, and the report names the first."""
        first: dict[Key, str] = {}
        for number, op in enumerate(graphs(self._module)):
            job = jobs[op.results[0]]
            name = f"hipdnn_graph_{number}"
            built = self._built[job.key]
            self._session.graphs[name] = CompiledGraph(
                name=name,
                wire=encode_graph(job.translation.graph),
                engine=job.engine,
                plan=built.plan,
                inputs=job.translation.inputs,
                outputs=job.translation.outputs,
                nodes=job.region.nodes(),
                declined=job.declined,
                workspace_size=built.plan.workspace_size,
                custom=job.custom,
                varies=_varies(job.region),
                arranged=frozenset(arranged(job.op)),
            )
            self._report(self._session.graphs[name], job, built, first.get(job.key, ""))
            first.setdefault(job.key, name)
            _executable(op, name)

    def _report(self, graph: CompiledGraph, job: _Job, built: _Built, equal_to: str) -> None:
        self._session.report.graphs.append(
            GraphReport(
                name=graph.name,
                engine=graph.engine.name,
                nodes=graph.nodes,
                operations=operation_names(job.region.ops),
                custom=graph.custom,
                equal_to=equal_to,
                seconds=0.0 if equal_to else built.seconds,
                workspace_size=graph.workspace_size,
                declined=graph.declined,
            )
        )


_DROPS: Final = tuple(
    f"torch.aten.{name}" for name in ("dropout", "native_dropout", "feature_dropout", "alpha_dropout")
)


def _varies(region: Region) -> bool:
    """Whether it may drop elements in training, or carries ONNX, which may be random. No other draws are compiled."""
    return _carries_onnx(region) or any(op.name.startswith(_DROPS) for op in region.ops)


def _carries_onnx(region: Region) -> bool:
    return any(is_operator(op, OPERATOR) for op in region.ops)


def _build(job: _Job) -> tuple[Plan | EngineError, float]:
    """The plan or why there is none, and the seconds that this took."""
    start = time.perf_counter()
    try:
        made = job.engine.build(encode_graph(job.translation.graph), EngineConfig(engine_id=job.engine.id))
    except EngineError as error:
        made = error
    return made, time.perf_counter() - start


def _executable(op: Operation, name: str) -> None:
    executable = ir.Operation.create(
        op.name,
        results=[result.type for result in op.results],
        operands=list(op.operands),
        attributes={"name": ir.StringAttr.get(EXECUTABLE, op.context), "graph": ir.StringAttr.get(name, op.context)},
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    replace_results(op, list(executable.results))
    op.erase()


def _halves(op: Operation, region: Region) -> list[Operation] | None:
    """Two regions in place of one; None if its operations cannot be apart."""
    function = op.parent.operation
    marks = {result for each in region.ops for result in each.results}
    inline(op)
    graph = FunctionGraph(function, max_literal=MAX_LITERAL)
    parts = atoms(graph, [node.number for node in graph.nodes if node.op.results[0] in marks])
    if len(parts) > 1:
        middle = len(parts) // 2
        groups = [sum(parts[:middle]), sum(parts[middle:])]
    else:
        groups = [sum(parts)]
    made = outline_groups(graph, groups, custom=True)
    erase_dead(function.parent.operation)
    return made if len(parts) > 1 else None
