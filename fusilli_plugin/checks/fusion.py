"""The fusion suite: a fused graph, its nodes one by one, and float64 must agree, element by element.

Three comparisons per case, each against the bounds of ``graph_api.numerics``: fused with float64, step by step with
float64, and fused with step by step (twice the bound, since both may be off).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np

from fusilli_plugin.checks.fusion_cases import FusionCase
from fusilli_plugin.emulator import Emulator
from graph_api import ExecutionError, FusilliError, Graph, TensorAttr, numerics
from graph_api.split import node_graphs
from iree_bridge import Device, Options, Target, build, support
from iree_bridge.compile.compiler import compile_code

__all__ = ["FusionResult", "junit", "run_case"]

Arrays = dict[TensorAttr, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class FusionResult:
    """One case on one device.

    Attributes:
        id: of the case.
        status: ``right``, ``wrong``, ``declined`` or ``failed``.
        fused, steps, between: largest error as a multiple of the element's tolerance: fused with float64, step by step
            with float64, fused with step by step; None if it did not come to that.
        dispatches: kernel launches of the fused graph, by target name.
        message: why it was declined, or what is wrong.
    """

    id: str
    status: str
    fused: float | None
    steps: float | None
    between: float | None
    dispatches: Mapping[str, int | None]
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def run_case(
    case: FusionCase,
    device: Device | Emulator,
    targets: Sequence[Target],
    options: Options,
    say: Callable[[str], None] = lambda _: None,
) -> FusionResult:
    """Runs a case on a device or in an emulator, compiles it for ``targets``; no FusilliError leaves this function.

    ``say`` is told what is begun, since a compile may take many seconds.
    """
    graph = case.build().validate()
    dispatches: dict[str, int | None] = {}
    try:
        for target in (device.target, *targets):
            answer = support(graph, target)
            if not answer.ok:
                return FusionResult(case.id, "declined", None, None, None, dispatches, f"{target}: {answer.reason}")
            say(f"compiling for {target}")
            dispatches[str(target)] = _dispatches(graph, target, device, options)
        say(f"running on {device}")
        inputs = case.inputs(graph)
        fused = _run(graph, inputs, device, options)
        steps = _run_steps(graph, inputs, device, options, say)
    except FusilliError as error:
        return FusionResult(case.id, "failed", None, None, None, dispatches, str(error))
    say("computing the float64 reference")
    return _compare(case, graph, inputs, fused, steps, dispatches)


def _dispatches(graph: Graph, target: Target, device: Device | Emulator, options: Options) -> int | None:
    if isinstance(device, Emulator) and target == device.target:
        return device.code(graph).dispatches
    return compile_code(graph, target, options).dispatches


def _run(graph: Graph, inputs: Arrays, device: Device | Emulator, options: Options) -> Arrays:
    if isinstance(device, Emulator):
        return device.run(graph, inputs)[0]
    results = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
    build(graph, device, options=options).run({**inputs, **results})
    return results


def _run_steps(
    graph: Graph, inputs: Arrays, device: Device | Emulator, options: Options, say: Callable[[str], None]
) -> Arrays:
    """The results of the graph, node by node; what one node writes the next reads."""
    known = {tensor.name: array for tensor, array in inputs.items()}
    alone = node_graphs(graph)
    for number, step in enumerate(alone, start=1):
        say(f"compiling and running node {number} of {len(alone)} alone")
        pack = {tensor: known[tensor.name] for tensor in step.arguments().inputs}
        try:
            results = _run(step, pack, device, options)
        except ExecutionError as error:
            raise ExecutionError(f"node {number} of {len(alone)} alone: {error}") from error
        known |= {tensor.name: array for tensor, array in results.items()}
    return {tensor: known[tensor.name] for tensor in graph.arguments().outputs}


def _compare(
    case: FusionCase, graph: Graph, inputs: Arrays, fused: Arrays, steps: Arrays, dispatches: Mapping[str, int | None]
) -> FusionResult:
    exact = numerics.evaluate(graph, inputs)
    worst: dict[str, numerics.Comparison] = {}
    for tensor in graph.arguments().outputs:
        value, bound = exact.values[tensor], exact.errors[tensor]
        found = {
            "fused": numerics.compare(tensor, fused[tensor], value, bound),
            "steps": numerics.compare(tensor, steps[tensor], value, bound),
            "between": numerics.compare(tensor, fused[tensor], steps[tensor].astype(np.float64), 2 * bound),
        }
        for name, comparison in found.items():
            if name not in worst or comparison.max_ratio > worst[name].max_ratio:
                worst[name] = comparison
    wrong = [f"{name}: {comparison}" for name, comparison in worst.items() if not comparison.ok]
    ratios = {name: comparison.max_ratio for name, comparison in worst.items()}
    return FusionResult(
        case.id, "wrong" if wrong else "right", **ratios, dispatches=dispatches, message="; ".join(wrong)
    )


def junit(results: Sequence[FusionResult], name: str) -> str:
    """The results as a JUnit XML document, as continuous-integration servers read it."""
    bad = [result for result in results if result.status in ("wrong", "failed")]
    skipped = [result for result in results if result.status == "declined"]
    suite = ElementTree.Element(
        "testsuite", name=name, tests=str(len(results)), failures=str(len(bad)), skipped=str(len(skipped))
    )
    for result in results:
        entry = ElementTree.SubElement(suite, "testcase", classname=name, name=result.id)
        if result.status == "declined":
            ElementTree.SubElement(entry, "skipped", message=result.message)
        elif result.status != "right":
            ElementTree.SubElement(entry, "failure", message=result.message)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
