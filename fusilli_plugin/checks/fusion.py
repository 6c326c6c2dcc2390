"""The fusion suite: what `fusilli_plugin.testing.fusion` compares, for a list of cases, with a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from xml.etree import ElementTree

from fusilli_plugin.checks.fusion_cases import FusionCase
from fusilli_plugin.emulator import Emulator
from fusilli_plugin.testing.fusion import compare, steps
from fusilli_plugin.testing.places import DevicePlace, EmulatedPlace
from graph_api import FusilliError, Graph, numerics
from iree_bridge import Device, Options, Target, support
from iree_bridge.compile.compiler import compile_code

__all__ = ["FusionResult", "junit", "run_case"]


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
        where = EmulatedPlace(device) if isinstance(device, Emulator) else DevicePlace(device, options)
        fused, alone = where.run(graph, inputs), steps(graph, inputs, where, say)
    except FusilliError as error:
        return FusionResult(case.id, "failed", None, None, None, dispatches, str(error))
    say("computing the float64 reference")
    return _judged(case, compare(graph, numerics.evaluate(graph, inputs), fused, alone), dispatches)


def _dispatches(graph: Graph, target: Target, device: Device | Emulator, options: Options) -> int | None:
    if isinstance(device, Emulator) and target == device.target:
        return device.code(graph).dispatches
    return compile_code(graph, target, options).dispatches


def _judged(
    case: FusionCase, worst: Mapping[str, numerics.Comparison], dispatches: Mapping[str, int | None]
) -> FusionResult:
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
