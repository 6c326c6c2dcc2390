"""Where the nodes of a session run, and why: what `fusilli_plugin.ep_report` gives."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fusilli_plugin.ort_ep.abi import NAME
from hipdnn_backend.offload.shape_counts import ShapeCount

__all__ = ["REQUEST", "NodeReport", "Report", "answer", "ask", "group_numbers"]

REQUEST: Final = "fusilli.report"
"""A session's dynamic option that asks its provider for a report; the value says whose question it is."""

_KERNELS: Final = "in ONNX Runtime's kernels"
_lock = threading.Lock()
_answers: dict[str, Report] = {}


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Where a node runs.

    Attributes:
        name: as the model has it after ONNX Runtime's own optimisations; may be "".
        op_type: e.g. ``Conv``.
        domain: "" for ONNX's own operators.
        group: number of the compiled group, from 1 on; 0 if the node stays with ONNX Runtime.
        engine: that takes it; "" if none does, or if nothing runs for it.
        reason: why it is not claimed; "" if it is.
        flops: of one run, an estimate; see `node_flops`.
    """

    name: str
    op_type: str
    domain: str
    group: int
    engine: str
    reason: str
    flops: int = 0

    @property
    def label(self) -> str:
        """For people."""
        kind = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return f"{kind} '{self.name}'"

    @property
    def place(self) -> str:
        """Where it runs and why, for people."""
        if not self.group:
            return f"ONNX Runtime, {self.reason}"
        return f"group {self.group}, {self.engine or 'nothing to run'}"


@dataclass(frozen=True)
class Report:
    """Where the nodes of a session run. Prints as a table.

    Attributes:
        device: e.g. ``cpu`` or ``hip:0``.
        nodes: of the graphs that ONNX Runtime showed the provider, in their order.
        problems: what went wrong inside while nodes were claimed.
        specialisations: name of a compiled group → how often it was compiled for other shapes.
        elsewhere: name of a compiled group → dims of inputs that ONNX Runtime's kernels run → why.
        shapes: name of a compiled group → dims of inputs → how often it ran, and by what.
        padding: name of a compiled group → dim of option ``shapes`` → why it is not padded, "" if it is.
        numbers: name of a compiled group → its number, as `NodeReport.group` has it; those that are not known are left
            out. Names are ONNX Runtime's.
        time: of the report, in seconds since the epoch.
    """

    device: str
    nodes: tuple[NodeReport, ...]
    problems: tuple[str, ...]
    specialisations: Mapping[str, int]
    elsewhere: Mapping[str, Mapping[str, str]]
    shapes: Mapping[str, Mapping[str, ShapeCount]]
    padding: Mapping[str, Mapping[str, str]]
    numbers: Mapping[str, int]
    time: float

    @property
    def claimed(self) -> int:
        """Number of nodes that the engines run."""
        return sum(1 for node in self.nodes if node.group)

    @property
    def groups(self) -> int:
        """Number of compiled groups."""
        return len({node.group for node in self.nodes} - {0})

    @property
    def claimed_flops(self) -> float:
        """Share of the floating-point operations that the engines do, 0 to 1; 0 if there are none."""
        total = sum(node.flops for node in self.nodes)
        return sum(node.flops for node in self.nodes if node.group) / total if total else 0.0

    def __str__(self) -> str:
        lines = [
            f"{NAME} on {self.device}: {self.claimed} of {len(self.nodes)} nodes in {self.groups} groups, "
            f"{100 * self.claimed_flops:.1f} % of the operations"
        ]
        lines += [f"  {node.label}: {node.place}" for node in self.nodes]
        lines += [f"  problem: {problem}" for problem in self.problems]
        lines += [
            f"  {self._group(name)} for {dims}: ONNX Runtime's kernels, {reason}"
            for name, found in self.elsewhere.items()
            for dims, reason in found.items()
        ]
        lines += [
            f"  {self._group(name)}, dim '{dim}': {f'exact sizes only: {why}' if why else 'padded to the next size'}"
            for name, found in self.padding.items()
            for dim, why in found.items()
        ]
        lines += [
            f"  {self._group(name)} for {dims}: {count.text(_KERNELS)}"
            for name, found in self.shapes.items()
            for dims, count in found.items()
        ]
        return "\n".join(lines)

    def _group(self, name: str) -> str:
        return f"group {self.numbers[name]}" if name in self.numbers else f"group '{name}'"


def group_numbers(nodes: Sequence[NodeReport], groups: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Name of a compiled group → the number that its nodes have, where their labels leave one.

    Args:
        nodes: those of the session.
        groups: the labels of the nodes in each compiled group, by its name.
    """
    numbers: dict[str, set[int]] = {}
    for node in nodes:
        if node.group:
            numbers.setdefault(node.label, set()).add(node.group)
    found = {name: [numbers[label] for label in labels if label in numbers] for name, labels in groups.items()}
    common = {name: set[int].intersection(*each) for name, each in found.items() if each}
    return {name: next(iter(each)) for name, each in common.items() if len(each) == 1}


def answer(question: str, report: Report) -> None:
    """Leave a report for whoever asked."""
    with _lock:
        _answers[question] = report
        while len(_answers) > 64:  # questions from elsewhere, which nobody collects
            del _answers[next(iter(_answers))]


def ask(session: Any) -> Report:
    """The report of an ``onnxruntime.InferenceSession``.

    Raises:
        LookupError: the session does not use this provider.
    """
    if NAME not in session.get_providers():
        raise LookupError(f"the session does not use {NAME}; its providers: {', '.join(session.get_providers())}")
    question = uuid.uuid4().hex
    session.set_ep_dynamic_options({REQUEST: question})
    with _lock:
        found = _answers.pop(question, None)
    if found is None:
        raise LookupError(f"{NAME} of this session did not answer; is the library that of this package?")
    return found
