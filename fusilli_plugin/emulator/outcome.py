"""One graph, emulated and compared with the float64 reference: what commands, tests and sweeps ask."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from fusilli_plugin.edge.build import BuildError
from fusilli_plugin.emulator.assembly import UnmodelledError
from fusilli_plugin.emulator.layout import EVENTS
from fusilli_plugin.emulator.library import core
from fusilli_plugin.emulator.machine import HazardError, Machine, Memory
from fusilli_plugin.emulator.program import Assembled, assemble, check_chip, emulate
from graph_api import ExecutionError, FusilliError, Graph, NotSupportedError, TensorAttr, numerics
from iree_bridge import Options, Target, support

__all__ = ["EmulationError", "Emulator", "Outcome", "Verdict"]

Array = np.ndarray[Any, Any]
Arrays = dict[TensorAttr, Array]

_READ_OUTSIDE = EVENTS[0]


class Verdict(StrEnum):
    """What came of a graph. Only ``right`` is no failure, and ``declined`` says that there was no code to run."""

    RIGHT = "right"
    WRONG = "wrong"
    HAZARD = "hazard"
    UNMODELLED = "unmodelled"
    OUTSIDE = "outside"
    DECLINED = "declined"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """What came of a graph.

    Attributes:
        verdict: ``wrong``: an element differs from the reference by more than its tolerance; ``hazard``: the code
            depends on luck, or writes where it must not; ``unmodelled``: it has an instruction, modifier or command
            without a model; ``outside``: it reads outside all buffers; ``declined``: the emitter declines the graph;
            ``failed``: it does not compile.
        text: for people; names the instruction where there is one.
        ratio: the largest error as a multiple of its tolerance; None if it did not come to that.
        counts: how often each opcode was executed, and the events of the emulator.
    """

    verdict: Verdict
    text: str
    ratio: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the code ran and is right."""
        return self.verdict is Verdict.RIGHT


class EmulationError(ExecutionError):
    """Code that cannot be emulated, or that must not be trusted whatever it computes.

    Attributes:
        verdict: `Verdict.HAZARD`, `Verdict.UNMODELLED` or `Verdict.OUTSIDE`.
    """

    def __init__(self, verdict: Verdict, text: str) -> None:
        super().__init__(f"{verdict}: {text}")
        self.verdict, self.text = verdict, text


class Emulator:
    """Runs graphs as a chip would. The code of a graph is compiled once and kept as long as this object.

    Args:
        target: an AMD chip of `fusilli_plugin.emulator.CHIPS`, or its name.
        options: as for a compile; ``FUSILLI_EXTRA_COMPILER_FLAGS`` count.
        offsets_wrap: see `Memory`.

    Raises:
        NotSupportedError: there is no such target, or no model of the chip.
        ExecutionError: the emulator's core cannot be built.
    """

    def __init__(self, target: Target | str, options: Options | None = None, *, offsets_wrap: bool = True) -> None:
        target = Target.parse(target) if isinstance(target, str) else target
        check_chip(target)
        try:
            core()
        except BuildError as error:
            raise ExecutionError(str(error)) from error
        self.target, self.options, self._wrap = target, Options.or_env(options), offsets_wrap
        self._code: dict[str, Assembled] = {}

    def __str__(self) -> str:
        return f"{self.target.chip} (emulated)"

    def code(self, graph: Graph) -> Assembled:
        """The code of a graph.

        Raises:
            GraphError, NotSupportedError, CompileError: as for a compile.
        """
        key = graph.to_json()
        if key not in self._code:
            self._code[key] = assemble(graph, self.target, self.options)
        return self._code[key]

    def run(
        self, graph: Graph, pack: Mapping[TensorAttr, Array], code: Assembled | None = None
    ) -> tuple[Arrays, Machine]:
        """The results of a graph, and the machine with what it counted.

        Args:
            graph: validated.
            pack: its inputs.
            code: its code; by default it is compiled.

        Raises:
            EmulationError: a hazard, something unmodelled, or reads outside all buffers.
            GraphError, NotSupportedError, CompileError: as for a compile.
        """
        code = code or self.code(graph)
        machine = Machine(Memory(0))
        machine.memory.offsets_wrap = self._wrap
        try:
            results = emulate(graph, pack, code, machine)
        except UnmodelledError as error:
            raise EmulationError(Verdict.UNMODELLED, str(error)) from error
        except HazardError as error:
            raise EmulationError(Verdict.HAZARD, str(error)) from error
        if machine.counts[_READ_OUTSIDE]:
            where = f"{machine.counts[_READ_OUTSIDE]} {_READ_OUTSIDE}, first {machine.first_outside}"
            raise EmulationError(Verdict.OUTSIDE, where)
        return results, machine

    def examine(
        self, graph: Graph, pack: Mapping[TensorAttr, Array] | None = None, code: Assembled | None = None
    ) -> Outcome:
        """Runs a graph and compares it with the reference. No FusilliError leaves this method.

        Args:
            graph: validated.
            pack: its inputs; by default those of ``graph.random_inputs(seed=0)``.
            code: its code; by default it is compiled.
        """
        if code is None and not (answer := support(graph, self.target)).ok:
            return Outcome(Verdict.DECLINED, answer.reason)
        start = time.perf_counter()
        try:
            pack = graph.random_inputs(seed=0) if pack is None else pack
            results, machine = self.run(graph, pack, code)
        except EmulationError as error:
            return Outcome(error.verdict, error.text)
        except NotSupportedError as error:
            return Outcome(Verdict.DECLINED, str(error))
        except FusilliError as error:
            return Outcome(Verdict.FAILED, str(error))
        seconds = time.perf_counter() - start
        comparisons = numerics.check(graph, pack, results)
        ratio = max((each.max_ratio for each in comparisons), default=0.0)
        wrong = "; ".join(str(each) for each in comparisons if not each.ok)
        if wrong:
            return Outcome(Verdict.WRONG, wrong, ratio, machine.counts)
        return Outcome(Verdict.RIGHT, f"right, {seconds:.1f} s", ratio, machine.counts)
