"""What checks work with: the loaded plugin, plans with watched buffers, and the verdict on results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from fusilli_plugin.conformance.areas import Area
from fusilli_plugin.conformance.findings import BrokenRule, NotTried
from fusilli_plugin.conformance.place import Place
from fusilli_plugin.conformance.samples import Sample, plain
from fusilli_plugin.conformance.subject import Subject
from graph_api.numerics import compare

__all__ = ["CHECKS", "Bench", "Claimed", "Trial", "check"]

Check = Callable[["Bench"], str]


class Known(NamedTuple):
    """A check that is registered."""

    run: Check
    about: str


CHECKS: Final[dict[str, Known]] = {}
"""Name → check, in the order of the report."""


def check(name: str, about: str = "") -> Callable[[Check], Check]:
    """Register a function that returns what it saw, or raises `BrokenRule` or `NotTried`.

    Args:
        name: unique; people choose checks by how names begin.
        about: default: the first line of its docstring.
    """

    def register(function: Check) -> Check:
        if name in CHECKS:
            raise ValueError(f"two checks are named {name}")
        CHECKS[name] = Known(function, about or (function.__doc__ or "").splitlines()[0])
        return function

    return register


class Claimed(NamedTuple):
    """A graph that an engine of the plugin takes."""

    sample: Sample
    engine: int
    data: bytes


@dataclass
class Bench:
    """What a check is given.

    Attributes:
        place: where buffers live.
        path: of the plugin.
        seed: of what is random.
        cycles: how often a leak may show.
        graphs: random graphs of each family.
        first: where to go on among them.
        say: tells the parent what is tried now, for the case that nothing comes after it.
        tell: gives the parent a graph's outcome.
    """

    place: Place
    path: str
    seed: int
    cycles: int
    graphs: int
    first: int
    say: Callable[[str], None]
    tell: Callable[[dict[str, Any]], None]
    _subject: Subject | None = field(default=None, repr=False)

    @property
    def subject(self) -> Subject:
        """The plugin, loaded when first asked for."""
        if self._subject is None:
            self.say("loading the plugin")
            self._subject = Subject(self.path)
        return self._subject

    def claimed(self, handle: int, count: int) -> list[Claimed]:
        """The first plain graphs that the plugin takes.

        Raises:
            NotTried: it takes none.
        """
        found: list[Claimed] = []
        asked = 0
        for sample in plain():
            asked += 1
            taken = self.claim(handle, sample)
            if taken is not None:
                found.append(taken)
            if len(found) == count:
                break
        if not found:
            raise NotTried(f"it claims none of the {asked} plain graphs")
        return found

    def claim(self, handle: int, sample: Sample) -> Claimed | None:
        """The graph with an engine that takes it; None if none does."""
        data = sample.data(self.subject.layout)
        if data is None:
            return None
        self.say(f"asking about {sample.name}")
        engines = self.subject.claims(handle, data)
        return Claimed(sample, engines[0], data) if engines else None

    @contextmanager
    def trial(self, handle: int, claimed: Claimed, *, odd: bool = False, context: int | None = None) -> Iterator[Trial]:
        """A plan for a claimed graph with buffers of its own; with ``context`` that of another plan's."""
        own = context is None
        self.say(f"building a plan for {claimed.sample.name}")
        made = self.subject.build(handle, claimed.engine, claimed.data) if context is None else context
        trial = Trial(self, handle, made, claimed.sample, odd=odd)
        try:
            yield trial
        finally:
            trial.close()
            if own:
                self.subject.destroy_context(handle, made)


class Trial:
    """A plan with buffers.

    Attributes:
        sample: whose plan it is.
        workspace: None if it needs none.
        areas: by uid; for scalars that come from the host, arrays.
    """

    def __init__(self, bench: Bench, handle: int, context: int, sample: Sample, *, odd: bool = False) -> None:
        self._bench, self.handle, self.context, self.sample = bench, handle, context, sample
        outputs, inputs = sample.graph.arguments()
        self._outputs, self._inputs = outputs, inputs
        self.scalars = {t.uid: np.ascontiguousarray(sample.inputs[t]) for t in inputs if t.is_pass_by_value}
        tensors = [tensor for tensor in (*outputs, *inputs) if not tensor.is_pass_by_value]
        self.areas: dict[int, Area] = {t.uid: bench.place.area(t.nbytes, odd=odd) for t in tensors}
        self._raw = {t.uid: bytes(t.pack(sample.inputs[t])) for t in inputs if not t.is_pass_by_value}
        size = bench.subject.size(handle, context)
        self.workspace: Area | None = bench.place.area(size, odd=odd) if size else None
        self.fill()

    @property
    def pack(self) -> dict[int, int]:
        """The addresses by uid, results first."""
        scalars = {uid: array.ctypes.data for uid, array in self.scalars.items()}
        return {uid: area.address for uid, area in self.areas.items()} | scalars

    @property
    def required(self) -> list[int]:
        """Uids without which nothing can be computed."""
        return list(self.pack)

    def fill(self) -> None:
        """Write the inputs, and something that is no result anywhere else."""
        for tensor in self._outputs:
            self.areas[tensor.uid].write(b"\xff" * tensor.nbytes)
        for uid, raw in self._raw.items():
            self.areas[uid].write(raw)
        if self.workspace:
            self.workspace.write(b"\xff" * self.workspace.size)

    def status(self, pack: Mapping[int, int] | None = None, workspace: int | None = None) -> int:
        """Execute, with other addresses or another workspace if they are given."""
        given = self.pack if pack is None else pack
        at = (self.workspace.address if self.workspace else 0) if workspace is None else workspace
        return self._bench.subject.execute(self.handle, self.context, given.items(), at)

    def go(self, what: str, *, handle: int | None = None, pack: Mapping[int, int] | None = None) -> None:
        """Execute, which has to succeed and be right, and to leave everything else alone.

        Raises:
            BrokenRule: it is not so.
        """
        self.fill()
        self._bench.say(f"{what}: executing {self.sample.name}")
        before, self.handle = self.handle, handle or self.handle
        try:
            status = self.status(pack)
            if status:
                text = self._bench.subject.error()
                raise BrokenRule(f"{what}: the execution of {self.sample.name} fails with status {status}: {text}")
            self._bench.place.memory.synchronize()
        finally:
            self.handle = before
        self.judge(what)

    def judge(self, what: str) -> None:
        """Look at results, inputs and surroundings.

        Raises:
            BrokenRule: a result is wrong, or something else was written.
            NotTried: kernels were given to the stand-in, which runs none.
        """
        for uid, area in self.areas.items():
            area.check(f"the buffer of tensor {uid} of {self.sample.name} ({what})")
            if uid in self._raw and area.read()[: len(self._raw[uid])] != self._raw[uid]:
                raise BrokenRule(f"{what}: {self.sample.name} changes its input {uid}")
        if self.workspace:
            self.workspace.check(f"the workspace of {self.sample.name} ({what})")
        wrong = self.wrong()
        if wrong:
            raise BrokenRule(f"{what}: {self.sample.name} is wrong: {wrong}")

    def wrong(self) -> str:
        """The first result that differs from the one in float64; "" if none does.

        Raises:
            NotTried: kernels were given to the stand-in, which runs none.
        """
        if self._bench.place.launches:
            raise NotTried("the plugin launched kernels, and the stand-in for HIP runs none; results need a GPU")
        exact = self.sample.exact
        for tensor in self._outputs:
            raw = np.frombuffer(self.areas[tensor.uid].read(), np.uint8)
            found = compare(tensor, tensor.unpack(raw), exact.values[tensor], exact.errors[tensor])
            if not found.ok:
                return str(found)
        return ""

    def close(self) -> None:
        """Give the buffers back."""
        for area in (*self.areas.values(), *([self.workspace] if self.workspace else [])):
            area.close()
