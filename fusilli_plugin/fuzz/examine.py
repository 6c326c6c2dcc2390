"""The comparisons that a graph goes through in a worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np

from fusilli_plugin.emulator import EmulationError
from fusilli_plugin.fuzz.cases import Array, Case
from fusilli_plugin.testing.fusion import steps
from fusilli_plugin.testing.graphs.draw import RandomDraw
from fusilli_plugin.testing.places import Arrays, place
from graph_api import CompileError, FusilliError, Graph, GraphError, NotSupportedError, TensorAttr, numerics
from graph_api.layout import strides_in_order
from graph_api.numerics import Comparison, Evaluation
from iree_bridge import Device, Options, Target, support
from iree_bridge.compile.compiler import compile_code

__all__ = ["CHECKS", "Examiner", "Setting", "Verdict"]

P = TypeVar("P")
R = TypeVar("R")
CHECKS: Final[Mapping[str, str]] = {
    "run": "it compiles and runs",
    "reference": "its results are those of float64",
    "alone": "so are the results of its nodes, run one by one",
    "layout": "and its results with other strides",
    "compiler": "and what another compiler makes of it, which it agrees with",
}
"""Name of each comparison and what it finds out, in order."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where graphs are examined; one of device, emulate and target.

    Attributes:
        device, emulate, engine, compiler: as of `fusilli_plugin.testing.place`.
        target: only compiled, for this target.
        against: another ``iree-compile``, whose code is run as well.
        flags: compiler flags after all others.
        memory: bytes that a worker may allocate; 0 is no limit.
    """

    device: str | None = None
    emulate: str | None = None
    target: str | None = None
    engine: str | None = None
    compiler: str | None = None
    against: str | None = None
    flags: tuple[str, ...] = ()
    memory: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Setting:
        """What `to_json` gave.

        Raises:
            TypeError: something else.
        """
        return cls(**{**document, "flags": tuple(document["flags"])})

    @property
    def code_target(self) -> Target:
        """What code is compiled for.

        Raises:
            FusilliError: the device is not there.
        """
        name = self.target or self.emulate
        return Target.parse(name) if name else Device.parse(self.device or Options.from_env().device).target

    def __str__(self) -> str:
        where = self.emulate and f"{self.emulate} (emulated)"
        where = where or (self.target and f"{self.target} (compiled only)") or self.device or Options.from_env().device
        by = [f"{word} {each}" for word, each in (("by", self.compiler), ("against", self.against)) if each]
        return " ".join([f"{self.engine} on {where}" if self.engine else where, *by])


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    Attributes:
        outcome: ``right``, ``declined`` or ``failed``.
        check: of `CHECKS`, which it failed; "" if it did not.
        kind: in which way: ``wrong``, ``not finite``, ``compile refused``, ``hang`` and so on.
        text: for people.
    """

    outcome: str
    check: str = ""
    kind: str = ""
    text: str = ""

    @property
    def signature(self) -> tuple[str, str, str]:
        """Equal for failures of one kind: without names, numbers and paths."""
        return self.check, self.kind, "" if self.kind in ("wrong", "not finite") else _words(self.text)


_COMPLAINT: Final = re.compile(r"\berror\b|LLVM ERROR|[Aa]ssert", re.IGNORECASE)


def _words(text: str) -> str:
    """The line that says what is wrong; where there are several, the first only says of which graph."""
    lines = text.splitlines() or [""]
    told = lines[1:] or lines
    line = next((line for line in told if _COMPLAINT.search(line)), told[0])
    line = re.sub(r"'[^']*'|\"[^\"]*\"|<[^>]*>|(/[\w.+-]+)+", "_", line)
    return re.sub(r"%?\w*\d[\w.]*", "#", line)[:160]


class _FoundError(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.text)
        self.verdict = verdict


class Examiner:
    """Examines cases in one setting.

    Raises:
        FusilliError: the setting's device, engine or compiler is not there.
    """

    def __init__(self, setting: Setting, options: Options) -> None:
        options = replace(options, extra_flags=(*options.extra_flags, *setting.flags), failures=0)
        self.options, self._target, self._other = options, None, None
        if setting.target is not None:
            self._target = Target.parse(setting.target)
            return
        self._place = place(
            setting.device, emulate=setting.emulate, engine=setting.engine, compiler=setting.compiler, options=options
        )
        if setting.against is not None:
            self._other = place(setting.device, compiler=setting.against, options=options)

    def examine(self, case: Case, checks: Sequence[str] = tuple(CHECKS)) -> Verdict:
        """The first comparison that fails. No FusilliError leaves this method."""
        try:
            return self._compiled(case.graph) if self._target is not None else self._compared(case, checks)
        except _FoundError as found:
            return found.verdict

    def results(self, case: Case) -> Mapping[TensorAttr, Array]:
        """What the graph computes here; nothing where it is only compiled, or does not get that far."""
        if self._target is not None:
            return {}
        try:
            return self._place.run(case.graph, dict(case.inputs))
        except FusilliError:
            return {}

    def _compiled(self, graph: Graph) -> Verdict:
        assert self._target is not None
        answer = support(graph, self._target)
        if not answer.ok:
            return Verdict("declined", text=answer.reason)
        _done("run", lambda target: compile_code(graph, target, self.options), self._target)
        return Verdict("right")

    def _compared(self, case: Case, checks: Sequence[str]) -> Verdict:
        graph, inputs = case.graph, dict(case.inputs)
        if reason := self._place.declines(graph):
            return Verdict("declined", text=reason)
        results = _done("run", lambda where: where.run(graph, inputs), self._place)
        exact = _reference(graph, inputs)
        if exact is not None and "reference" in checks:
            _require("reference", graph, results, exact)
        if exact is not None and "alone" in checks and len(graph.nodes) > 1:
            self._alone(case, exact)
        if exact is not None and "layout" in checks:
            self._relaid(case, exact)
        if self._other is not None and "compiler" in checks:
            others = _done("compiler", lambda where: where.run(graph, inputs), self._other)
            if exact is not None:
                _require("compiler", graph, others, exact)
        return Verdict("right")

    def _alone(self, case: Case, exact: Evaluation) -> None:
        try:
            results = _done("alone", lambda where: steps(case.graph, dict(case.inputs), where), self._place)
        except NotSupportedError:  # a node in the middle of a graph may have types that none has alone
            return
        _require("alone", case.graph, results, exact)

    def _relaid(self, case: Case, exact: Evaluation) -> None:
        """Other strides, which follow from the graph: the same each time."""
        for graph, inputs in _other_strides(case):
            if self._place.declines(graph):
                continue
            results = _done("layout", lambda where, g=graph, i=inputs: where.run(g, i), self._place)
            _require("layout", case.graph, {case.graph.find(t.name): array for t, array in results.items()}, exact)


def _other_strides(case: Case) -> Iterator[tuple[Graph, Arrays]]:
    outputs, inputs = case.graph.arguments()
    draw = RandomDraw(int(case.digest[:8], 16))
    strides = {t: strides_in_order(t.dims, draw.order(t.rank)) for t in (*outputs, *inputs) if t.rank > 1}
    try:
        graph = case.graph.with_dims({}, strides)
    except FusilliError:  # some operations want some tensors packed
        return
    named, pack = case.named(), dict[TensorAttr, Array]()
    for tensor in graph.arguments().inputs:
        pack[tensor] = tensor.empty()
        pack[tensor][...] = named[tensor.name]
    yield graph, pack


def _done(check: str, act: Callable[[P], R], where: P) -> R:
    """What ``act`` gives.

    Raises:
        _FoundError: it raised something.
        NotSupportedError: a node alone is declined.
    """
    try:
        return act(where)
    except EmulationError as error:
        raise _FoundError(Verdict("failed", check, str(error.verdict), error.text)) from error
    except NotSupportedError as error:
        if check == "alone":
            raise
        raise _FoundError(Verdict("failed", check, "declined late", str(error))) from error
    except CompileError as error:
        raise _FoundError(Verdict("failed", check, f"compile {error.kind or 'failed'}", str(error))) from error
    except FusilliError as error:
        raise _FoundError(Verdict("failed", check, "does not run", str(error))) from error


def _reference(graph: Graph, inputs: Arrays) -> Evaluation | None:
    """None for a custom operation whose meaning nobody told."""
    try:
        return numerics.evaluate(graph, dict(inputs))
    except GraphError:
        return None


def _require(check: str, graph: Graph, results: Mapping[TensorAttr, Array], exact: Evaluation) -> None:
    for tensor in graph.arguments().outputs:
        found = numerics.compare(tensor, results[tensor], exact.values[tensor], exact.errors[tensor])
        if not found.ok:
            raise _FoundError(Verdict("failed", check, _kind(found), str(found)))


def _kind(found: Comparison) -> str:
    return "not finite" if np.isfinite(found.expected) and not np.isfinite(found.got) else "wrong"
