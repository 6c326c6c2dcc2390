"""Models that are compiled or restored, before they are put on a device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hipdnn_backend.engine import Engine, Plan, Support
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload.node_outcomes import Fate, fates
from hipdnn_backend.offload.program.package import PackageError, SavedPlan, TargetProgram
from hipdnn_backend.offload.program.program import Program

if TYPE_CHECKING:
    from hipdnn_backend.offload.frontend.imported import Imported
    from hipdnn_backend.offload.report import Report
    from hipdnn_backend.offload.session import OffloadOptions

__all__ = ["Made", "compiled", "restored"]

Array = np.ndarray[Any, Any]

_CPU_ALIGNMENT: Final = 64
_GPU_ALIGNMENT: Final = 256


@dataclass(frozen=True)
class Made:
    """A model that is compiled or restored.

    Attributes:
        target: what for.
        program: planned.
        plans: by the numbers of the program.
        engines: the name of the engine of each plan.
        constants: by name.
        about: see `Model`.
        origins: where each plan was read, none if they were built.
    """

    target: str
    program: Program
    plans: tuple[Plan, ...]
    engines: tuple[str, ...]
    constants: Mapping[str, Array]
    about: Mapping[str, Any]
    origins: tuple[str, ...] = ()

    def variant(self) -> TargetProgram:
        """What a saved model holds of it.

        Raises:
            EngineError: an engine cannot serialize its plans.
        """
        saved = tuple(SavedPlan(name, plan.serialize()) for name, plan in zip(self.engines, self.plans, strict=True))
        return TargetProgram(self.target, self.program, saved, self.constants, self.about)


def compiled(
    source: Any,
    engines: tuple[Engine, ...],
    target: str,
    dims: Mapping[str, int] | None,
    inputs: Mapping[str, Any] | None,
    example: Sequence[Any],
    options: OffloadOptions | None,
) -> Made:
    """A model through the whole pipeline: front end, passes, plans, program; what `about` says is collected here."""
    from hipdnn_backend.offload.compile_attempts import offload_model
    from hipdnn_backend.offload.program.lowering import lower

    made = offload_model(source, engines=engines, dims=dims, inputs=inputs, example=example, options=options)
    imported, offloaded, start = made.imported, made.offloaded, time.perf_counter()
    lowered = lower(
        offloaded.module,
        offloaded.graphs,
        inputs=[each.name for each in imported.inputs],
        constants=[each.name for each in imported.constants],
        outputs=[each.name for each in imported.outputs],
        name=imported.name,
        alignment=_CPU_ALIGNMENT if target.startswith("cpu") else _GPU_ALIGNMENT,
        dtypes=[
            *(each.dtype for each in imported.inputs),
            *(each.value.dtype for each in imported.constants),
            *(each.dtype for each in imported.outputs),
        ],
    )
    names = {graph.plan: graph.engine for graph in lowered.program.graphs}
    about = _about(offloaded.report, lowered.plans) | {
        "target": target,
        "seconds": {**made.seconds, "plan": time.perf_counter() - start},
        "nodes": [each.document() for each in _fates(imported, offloaded.report)],
    }
    return Made(
        target,
        lowered.program,
        lowered.plans,
        tuple(names[number] for number in range(len(lowered.plans))),
        {each.name: each.value for each in imported.constants} | dict(lowered.literals),
        about,
    )


def _fates(imported: Imported, report: Report) -> tuple[Fate, ...]:
    graphs = [each.nodes for each in report.graphs]
    return fates(imported.sources, imported.absorbed, graphs, report.views)


def _about(report: Report, plans: Sequence[Any]) -> dict[str, Any]:
    """A report as a JSON document."""
    return {
        "graphs": {
            each.name: {
                "engine": each.engine,
                "nodes": list(each.nodes),
                "operations": list(each.operations),
                "custom": each.custom,
                "equal_to": each.equal_to,
                "seconds": each.seconds,
                "declined": _said(each.declined),
            }
            for each in report.graphs
        },
        "dispatches": [getattr(plan, "dispatches", None) for plan in plans],
        "passes": [[each.name, each.seconds] for each in report.passes],
        "refused": {node: _said(said) for node, said in report.refused.items()},
        "splits": [
            {"nodes": list(each.nodes), "engine": each.engine, "reason": each.reason, "action": each.action}
            for each in report.splits
        ],
        "layout": report.layout,
        "views": len(report.views),
    }


def _said(answers: Mapping[str, Support]) -> dict[str, dict[str, str]]:
    return {
        name: {"node": answer.node, "rule": answer.rule, "reason": answer.reason} for name, answer in answers.items()
    }


def restored(path: object, variant: TargetProgram, engines: Sequence[Engine]) -> Made:
    """What a saved model holds, with its plans.

    Args:
        path: of the saved model, for people.
        variant: of it.
        engines: that made its plans.

    Raises:
        PackageError: an engine is missing, or cannot restore a plan.
    """
    by_name = {engine.name: engine for engine in engines}
    plans: list[Plan] = []
    for number, saved in enumerate(variant.plans):
        if saved.engine not in by_name:
            raise PackageError(
                f"{path}: plan {number} is of engine {saved.engine}, which is not here; "
                f"there are: {', '.join(by_name) or 'none'}{_left_out()}"
            )
        try:
            plans.append(by_name[saved.engine].restore(saved.payload))
        except EngineError as error:
            raise PackageError(f"{saved.origin} of target {variant.target}: {error}") from error
    names = tuple(saved.engine for saved in variant.plans)
    origins = tuple(saved.origin for saved in variant.plans)
    return Made(variant.target, variant.program, tuple(plans), names, variant.constants, variant.about, origins)


def _left_out() -> str:
    """The engines that are installed and do not work, in words."""
    from hipdnn_backend.host.registry import LoadingMode, Registry

    return "".join(f"; left out: {problem}" for problem in Registry.find(mode=LoadingMode.ABSOLUTE).problems)
