"""Which engine is fastest for a graph, among those whose results are right.

Every engine runs the graph on the caller's own buffers. Before each engine's checked run the outputs are filled with
bytes that are NaN in every floating-point type, so that what an engine does not write shows. Results are compared with
the caller's reference, or with those of the other engines. Then the engines take turns, so that a machine that warms up
or slows down does so for all of them.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np

from hipdnn_backend.device.memory import Memory
from hipdnn_backend.engine import Engine
from hipdnn_backend.errors import DeviceError, EngineError, NoEngineError, PackError
from hipdnn_backend.host import arrays
from hipdnn_backend.host.arrays import DTYPES, Operands, Pack
from hipdnn_backend.wire import DataType, KnobValue, WireGraph, WireTensor

__all__ = ["TOLERANCES", "Rank", "Ranking", "Verdict", "rank"]

_LOG: Final = logging.getLogger(__name__)
_UNWRITTEN: Final = 0xFF
_Array = np.ndarray[Any, Any]
_Results = dict[int, _Array]

TOLERANCES: Final[dict[DataType, float]] = {
    DataType.DOUBLE: 1e-10,
    DataType.FLOAT: 1e-4,
    DataType.HALF: 1e-2,
    DataType.BFLOAT16: 5e-2,
    DataType.FP8_E4M3: 0.25,
    DataType.FP8_E5M2: 0.5,
    DataType.FP8_E4M3_FNUZ: 0.25,
    DataType.FP8_E5M2_FNUZ: 0.5,
}
"""Allowed difference by data type of the output, as a part of the output's largest value; integers must be equal."""


class _Plan(Protocol):
    """What is timed; `hipdnn_backend.host.execution.HostPlan` is one."""

    @cached_property
    def operands(self) -> Operands: ...

    def execute(self, pack: Pack, *, stream: int = 0) -> None: ...

    def close(self) -> None: ...


class _Host(Protocol):
    """Whose engines are timed; `hipdnn_backend.host.execution.Host` is one."""

    @property
    def memory(self) -> Memory: ...

    def candidates(self, graph: bytes | WireGraph) -> list[Engine]: ...

    def build(
        self, graph: bytes | WireGraph, *, engine: int | str | None, knobs: Mapping[str, KnobValue] | None
    ) -> _Plan: ...


class Verdict(Enum):
    """What became of an engine."""

    RIGHT = "right"
    UNCHECKED = "unchecked"
    UNDECIDED = "undecided"
    WRONG = "wrong"
    FAILED = "failed"


@dataclass
class Rank:
    """One engine's result.

    Attributes:
        engine: its name.
        verdict: RIGHT: agrees with the reference, or with most engines; UNCHECKED: the only engine, and no reference;
            UNDECIDED: engines differ and nothing tells which is right; WRONG; FAILED: it did not build or run.
        reason: for all but RIGHT.
        median: ns of one execution, to its end on the device; None if it was not timed.
        deviation: largest difference from what it was compared with, as a part of the output's largest value.
    """

    engine: str
    verdict: Verdict
    reason: str = ""
    median: float | None = None
    deviation: float | None = None
    times: list[int] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Ranking:
    """All engines that claim a graph: the fastest first, then those that were refused.

    Attributes:
        ranks: in that order.
    """

    ranks: tuple[Rank, ...]

    @property
    def best(self) -> str:
        """Name of the fastest engine whose results were not refused.

        Raises:
            NoEngineError: all were.
        """
        for entry in self.ranks:
            if entry.median is not None:
                return entry.engine
        reasons = "; ".join(f"{entry.engine} {entry.verdict.value}: {entry.reason}" for entry in self.ranks)
        raise NoEngineError("rank", reasons or "no engine runs the graph")

    def __getitem__(self, engine: str) -> Rank:
        for entry in self.ranks:
            if entry.engine == engine:
                return entry
        raise KeyError(engine)


def rank(
    host: _Host,
    graph: bytes | WireGraph,
    pack: Pack,
    *,
    reference: Mapping[int, Any] | None = None,
    tolerance: float | None = None,
    rounds: int = 20,
    warmup: int = 3,
    stream: int = 0,
    knobs: Mapping[str, Mapping[str, KnobValue]] | None = None,
) -> Ranking:
    """Time the engines that run a graph; see `hipdnn_backend.host.execution.Host.rank`.

    Args:
        host: has the engines.
        graph: what to run.
        pack: as for `hipdnn_backend.host.execution.HostPlan.execute`. No output may share memory with an input.
        reference: output uid → the right values, of the tensor's dims; may leave outputs out.
        tolerance: allowed difference as a part of an output's largest value; default: `TOLERANCES`.
        rounds: timed executions of each engine.
        warmup: executions before those.
        stream: where everything runs.
        knobs: engine name → its settings.

    Raises:
        PackError: the pack does not fit the graph, or the reference does not.
        ValueError: ``rounds`` is less than 1.
    """
    if rounds < 1 or warmup < 0:
        raise ValueError(f"{rounds} rounds and {warmup} executions before them cannot be timed")
    plans, ranks = _built(host, graph, knobs or {})
    try:
        if plans:
            trial = _Trial(host, next(iter(plans.values())), pack, stream)
            results = {name: found for name, plan in plans.items() if (found := trial.results(plan, ranks[name]))}
            wanted = _reference(trial.outputs, reference) if reference is not None else {}
            _judge(ranks, results, wanted, trial.outputs, tolerance)
            served = [name for name in results if ranks[name].verdict in (Verdict.RIGHT, Verdict.UNCHECKED)]
            _time(trial, plans, ranks, served, rounds, warmup)
            _confirm(trial, plans, ranks, served, results, tolerance)
            _finish(trial, plans, ranks)
    finally:
        for plan in plans.values():
            plan.close()
    order = sorted(ranks.values(), key=lambda entry: (entry.median is None, entry.median or 0.0))
    return Ranking(tuple(order))


def _built(
    host: _Host, graph: bytes | WireGraph, knobs: Mapping[str, Mapping[str, KnobValue]]
) -> tuple[dict[str, _Plan], dict[str, Rank]]:
    plans: dict[str, _Plan] = {}
    ranks: dict[str, Rank] = {}
    for engine in host.candidates(graph):
        ranks[engine.name] = Rank(engine.name, Verdict.UNCHECKED)
        try:
            plans[engine.name] = host.build(graph, engine=engine.id, knobs=knobs.get(engine.name))
        except EngineError as error:
            ranks[engine.name] = Rank(
                engine.name, Verdict.FAILED, f"it claims the graph and does not build it: {error}"
            )
    return plans, ranks


class _Trial:
    """Runs plans of one graph on one pack."""

    def __init__(self, host: _Host, plan: _Plan, pack: Pack, stream: int) -> None:
        operands = plan.operands
        self._memory = host.memory
        self._pack = pack
        self._stream = stream
        self.outputs = operands.outputs
        self._where = arrays.addresses(operands, pack, host.memory)
        self._sizes = {tensor.uid: arrays.extent(tensor) for tensor in (*operands.inputs, *operands.outputs)}
        self._check_apart(operands.inputs)
        self._inputs = {tensor.uid: self._read(tensor.uid) for tensor in operands.inputs}

    def run(self, plan: _Plan) -> None:
        """One execution, to its end."""
        plan.execute(self._pack, stream=self._stream)
        self._memory.synchronize(self._stream)

    def results(self, plan: _Plan, entry: Rank) -> _Results | None:
        """The outputs of a run on outputs that hold nothing; None if it fails or spoils an input."""
        for tensor in self.outputs:
            fill = np.full(self._sizes[tensor.uid], _UNWRITTEN, np.uint8)
            self._memory.write(self._where[tensor.uid], fill)
        try:
            self.run(plan)
        except (EngineError, DeviceError) as error:
            entry.verdict, entry.reason = Verdict.FAILED, str(error)
            return None
        for uid, before in self._inputs.items():
            if self._read(uid) != before:
                self._memory.write(self._where[uid], before)
                entry.verdict, entry.reason = Verdict.WRONG, f"it changes its input, tensor {uid}"
        if entry.verdict is Verdict.WRONG:
            return None
        return {tensor.uid: _values(tensor, self._read(tensor.uid)) for tensor in self.outputs}

    def _read(self, uid: int) -> bytes:
        return self._memory.read(self._where[uid], self._sizes[uid])

    def _check_apart(self, inputs: Sequence[WireTensor]) -> None:
        spans = [(self._where[tensor.uid], self._sizes[tensor.uid], tensor.uid) for tensor in inputs]
        for tensor in self.outputs:
            start, size = self._where[tensor.uid], self._sizes[tensor.uid]
            for other, length, uid in spans:
                if start < other + length and other < start + size:
                    reason = f"output {tensor.uid} shares memory with input {uid}: repeated runs would change it"
                    raise PackError(reason, tensor.uid)


def _values(tensor: WireTensor, raw: bytes) -> _Array:
    """A tensor's elements in its dims; as bytes if numpy has no such type."""
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None or 0 in tensor.dims:
        return np.frombuffer(raw, np.uint8)
    strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
    return np.ndarray(tensor.dims, dtype, raw, strides=strides)


def _reference(outputs: Sequence[WireTensor], reference: Mapping[int, Any]) -> _Results:
    known = {tensor.uid: tensor for tensor in outputs}
    wanted: _Results = {}
    for uid, value in reference.items():
        if uid not in known:
            raise PackError(f"reference: {uid} is no output of the graph; those are {sorted(known)}", uid)
        if known[uid].data_type not in DTYPES:
            raise PackError(f"reference: arrays have no type {known[uid].data_type.name}; leave out output {uid}", uid)
        wanted[uid] = np.asarray(value)
        if wanted[uid].shape != known[uid].dims:
            shape = list(wanted[uid].shape)
            raise PackError(f"reference: output {uid} has dims {list(known[uid].dims)}, the array {shape}", uid)
    return wanted


def _difference(tensor: WireTensor, got: _Array, wanted: _Array, tolerance: float | None) -> tuple[float, str]:
    """Largest difference as a part of the largest wanted value, and what is wrong with it, "" if it is small enough."""
    if 0 in tensor.dims:
        return 0.0, ""
    exact = tensor.data_type not in TOLERANCES
    if exact:
        wrong = got != wanted.astype(got.dtype)
        part = 0.0 if not wrong.any() else float("inf")
    else:
        have, want = got.astype(np.float64), wanted.astype(np.float64)
        finite = want[np.isfinite(want)]
        scale = float(np.abs(finite).max(initial=0.0)) or 1.0
        same = (have == want) | (np.isnan(have) & np.isnan(want))
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(have - want) / scale)
        error = np.where(np.isnan(error), np.inf, error)
        wrong = error > (TOLERANCES[tensor.data_type] if tolerance is None else tolerance)
        part = float(error.max(initial=0.0))
    if not wrong.any():
        return part, ""
    index = np.unravel_index(int(np.argmax(wrong if exact else error)), wrong.shape)
    place = f"tensor {tensor.uid} '{tensor.name}'[{', '.join(map(str, index))}]"
    return part, f"{int(wrong.sum())} of {wrong.size} elements, {place} is {got[index]} instead of {wanted[index]}"


def _compare(
    outputs: Sequence[WireTensor], got: _Results, wanted: _Results, tolerance: float | None
) -> tuple[float, str]:
    """The largest difference over all outputs, and the first complaint."""
    found = [
        _difference(tensor, got[tensor.uid], wanted[tensor.uid], tolerance)
        for tensor in outputs
        if tensor.uid in wanted
    ]
    return max((part for part, _ in found), default=0.0), next((text for _, text in found if text), "")


def _judge(
    ranks: Mapping[str, Rank],
    results: Mapping[str, _Results],
    reference: _Results,
    outputs: Sequence[WireTensor],
    tolerance: float | None,
) -> None:
    """Set the verdicts by the reference, for outputs without one by what most engines say."""
    suspects: list[str] = []
    for name, got in results.items():
        part, complaint = _compare(outputs, got, reference, tolerance)
        if complaint:
            ranks[name].verdict, ranks[name].reason = Verdict.WRONG, f"it differs from the reference: {complaint}"
        else:
            suspects.append(name)
        ranks[name].deviation = part if reference else None
    if all(tensor.uid in reference for tensor in outputs):
        for name in suspects:
            ranks[name].verdict = Verdict.RIGHT
        return
    _vote(ranks, {name: results[name] for name in suspects}, outputs, tolerance)


def _vote(
    ranks: Mapping[str, Rank], results: Mapping[str, _Results], outputs: Sequence[WireTensor], tolerance: float | None
) -> None:
    """The largest group of engines that agree is right, if it is more than one and larger than any other."""
    if len(results) == 1:
        (name,) = results
        ranks[name].verdict = Verdict.UNCHECKED
        ranks[name].reason = "no other engine and no reference to compare it with"
        return
    agreeing = {
        name: {other for other in results if not _compare(outputs, results[other], results[name], tolerance)[1]}
        for name in results
    }
    leader = max(results, key=lambda name: len(agreeing[name]), default="")
    majority = agreeing.get(leader, set())
    rivals = [group for name, group in agreeing.items() if name not in majority]
    decided = len(majority) > 1 and all(len(group) < len(majority) for group in rivals)
    for name, got in results.items():
        part, complaint = _compare(outputs, got, results[leader], tolerance)
        ranks[name].deviation = max(part, ranks[name].deviation or 0.0)
        if decided and name in majority:
            ranks[name].verdict = Verdict.RIGHT
        elif decided:
            names = ", ".join(sorted(majority))
            ranks[name].verdict = Verdict.WRONG
            ranks[name].reason = f"it differs from {names}, which agree: {complaint}"
        else:
            others = ", ".join(sorted(set(results) - agreeing[name]))
            ranks[name].verdict = Verdict.UNDECIDED
            ranks[name].reason = f"it and {others} differ, and without a reference nothing tells which is right"


def _time(
    trial: _Trial,
    plans: Mapping[str, _Plan],
    ranks: Mapping[str, Rank],
    names: Sequence[str],
    rounds: int,
    warmup: int,
) -> None:
    # Round by round, not engine by engine: what else the machine does meanwhile slows all of them alike.
    for number in range(-warmup, rounds):
        for name in names:
            if ranks[name].verdict is Verdict.FAILED:
                continue
            start = time.perf_counter_ns()
            try:
                trial.run(plans[name])
            except (EngineError, DeviceError) as error:
                ranks[name].verdict, ranks[name].reason = Verdict.FAILED, f"it failed when it was run again: {error}"
                continue
            if number >= 0:
                ranks[name].times.append(time.perf_counter_ns() - start)


def _confirm(
    trial: _Trial,
    plans: Mapping[str, _Plan],
    ranks: Mapping[str, Rank],
    names: Sequence[str],
    results: Mapping[str, _Results],
    tolerance: float | None,
) -> None:
    """Repeated runs must give what the first gave; then the median counts."""
    for name in names:
        entry = ranks[name]
        again = trial.results(plans[name], entry) if entry.verdict is not Verdict.FAILED else None
        if again is None:
            continue
        complaint = _compare(trial.outputs, again, results[name], tolerance)[1]
        if complaint:
            entry.verdict, entry.reason = Verdict.WRONG, f"repeated runs give other results: {complaint}"
        else:
            entry.median = statistics.median(entry.times)


def _finish(trial: _Trial, plans: Mapping[str, _Plan], ranks: Mapping[str, Rank]) -> None:
    """Leave the best engine's results in the outputs."""
    timed = [entry for entry in ranks.values() if entry.median is not None]
    if timed:
        trial.run(plans[min(timed, key=lambda entry: entry.median or 0.0).engine])
    for entry in ranks.values():
        if entry.verdict in (Verdict.WRONG, Verdict.FAILED, Verdict.UNDECIDED):
            _LOG.warning("engine %s is refused (%s): %s", entry.engine, entry.verdict.value, entry.reason)
