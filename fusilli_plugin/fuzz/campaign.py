"""Looking for failures for some time, with several workers; what was found by then is the report."""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fusilli_plugin.fuzz import capsules
from fusilli_plugin.fuzz.cases import Case
from fusilli_plugin.fuzz.coverage import Coverage, pairs
from fusilli_plugin.fuzz.crew import Interrupted, Worker
from fusilli_plugin.fuzz.examine import CHECKS, Setting, Verdict
from fusilli_plugin.fuzz.findings import Found, Ledger
from fusilli_plugin.fuzz.reduce import reduce
from fusilli_plugin.testing.graphs import FAMILIES, graph
from graph_api import Graph
from iree_bridge import Target, support

__all__ = ["Campaign", "Plan", "reduced"]

_LOG = logging.getLogger(__name__)
_CANDIDATES: Final = 8
"""Graphs that are made for one that is examined: the one with the most pairs that were seldom tried."""
_CHAINS: Final = 4
"""Chains have all neighbours: they come this many times as often as a graph of another family."""
_NUMBERS: Final = 1_000_000
_COSTLY: Final = {"alone": 0, "layout": 1}
"""Checks that compile again, for which one graph of three has to do."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a campaign does.

    Attributes:
        setting: where graphs are examined.
        folder: where findings go, each in a folder of its own.
        seed: decides which graphs come, in which order.
        budget: seconds after which no graph is begun.
        jobs: worker processes.
        limit: seconds for a case, its compiles included.
        reducing: seconds for making a finding small.
        families: of graphs.
        enough: findings with which it ends; None: it goes on.
    """

    setting: Setting
    folder: Path
    seed: int = 0
    budget: float = 600.0
    jobs: int = 2
    limit: float = 180.0
    reducing: float = 180.0
    families: Sequence[str] = tuple(FAMILIES)
    enough: int | None = None


def reduced(
    worker: Worker,
    case: Case,
    verdict: Verdict,
    is_over: Callable[[], bool],
    say: Callable[[Case], None] = lambda _: None,
) -> Case:
    """The smallest case found that fails with the same signature; ``say`` is told each that is smaller.

    Raises:
        Interrupted: the worker was stopped.
        FusilliError: no worker can be started.
    """

    def fails(other: Case) -> bool:
        found = worker.examine(other, (verdict.check,))
        if found.outcome != "failed" or found.signature != verdict.signature:
            return False
        say(other)
        return True

    return reduce(case, fails, is_over)


def _checks(number: int) -> list[str]:
    return [check for check in CHECKS if _COSTLY.get(check, number % 3) == number % 3]


@dataclass
class Declined:
    """What graphs were declined for: as it was said of the first of them, and how many they are."""

    reason: str
    count: int = 0


@dataclass
class Campaign:
    """One campaign. `run` returns when its time is over, or `stop` was called.

    Attributes:
        plan: what it does.
        coverage: what its graphs had in them.
        ledger: what was found.
        outcomes: graphs by outcome.
        declined: graphs that were, by reason without names and numbers, and what was said of the first of each.
        problem: why it ended early; None if it did not.
    """

    plan: Plan
    coverage: Coverage = field(default_factory=Coverage)
    ledger: Ledger = field(default_factory=Ledger)
    outcomes: Counter[str] = field(default_factory=Counter)
    declined: dict[str, Declined] = field(default_factory=dict)
    problem: Exception | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._numbers = iter(range(self.plan.seed * _NUMBERS, (self.plan.seed + 1) * _NUMBERS))
        self._choices = random.Random(self.plan.seed)
        self._workers: list[Worker] = []
        self._busy: dict[int, str] = {}
        name = self.plan.setting.target or self.plan.setting.emulate
        device = self.plan.setting.device or ""
        name = name or ("cpu" if device.startswith("cpu") else None)
        # What our own code declines need not be asked of a worker; other devices and engines answer there.
        self._target = None if name is None or self.plan.setting.engine else Target.parse(name)
        self.began = time.monotonic()

    def run(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Look for failures until the time is over; an interrupt ends it early.

        Raises:
            FusilliError: what the setting names is not there.
            OSError: the folder cannot be written.
            KeyboardInterrupt: after everything was ended; the report is there.
            Exception: of a fault in here, not of a graph.
        """
        cache = Path(tempfile.mkdtemp(prefix="fusilli-fuzz-cache-"))
        self.plan.folder.mkdir(parents=True, exist_ok=True)
        self._workers = [Worker(self.plan.setting, self.plan.limit, cache) for _ in range(self.plan.jobs)]
        try:
            self._workers[0].start()
            ended = [self._begin(worker) for worker in self._workers]
            try:
                while not all(each.is_set() for each in ended):
                    say(self._state())
                    for each in ended:
                        each.wait(timeout=1.0)
            finally:
                self.stop()
                for each in ended:
                    each.wait()
        finally:
            for worker in self._workers:
                worker.close()
            shutil.rmtree(cache, ignore_errors=True)
        if self.problem is not None:
            raise self.problem

    def most_declined(self) -> list[Declined]:
        """What most graphs were declined for comes first."""
        return sorted(self.declined.values(), key=lambda each: -each.count)

    @property
    def examined(self) -> int:
        """Graphs of which it is known now whether they are right."""
        return self.outcomes["right"] + self.outcomes["failed"]

    def stop(self) -> None:
        """End it now; findings that are being made small are kept as they are."""
        self._stopping.set()
        for worker in self._workers:
            worker.stop()

    def report(self) -> dict[str, Any]:
        """Plain values: what was done and found, and what was never tried."""
        return {
            "setting": self.plan.setting.to_json(),
            "seed": self.plan.seed,
            "seconds": round(time.monotonic() - self.began, 1),
            "outcomes": dict(self.outcomes),
            "declined": [asdict(each) for each in self.most_declined()],
            "findings": [found.to_json() for found in self.ledger.findings],
            "coverage": self.coverage.to_json(),
        }

    # ---- a thread for each worker

    def _begin(self, worker: Worker) -> threading.Event:
        """A thread; what is set when it ends. An interrupted `Thread.join` would hold a running thread for ended."""
        ended = threading.Event()

        def run() -> None:
            try:
                self._work(worker)
            finally:
                ended.set()

        threading.Thread(target=run, daemon=True).start()
        return ended

    def _work(self, worker: Worker) -> None:
        try:
            while not self._is_over():
                chosen = self._next()
                if chosen is None:
                    continue
                number, family, made = chosen
                self._treat(worker, Case.of(made, number % _NUMBERS), f"{family} {number}", _checks(number))
        except Interrupted:
            return
        except Exception as error:  # the others end as well, and `run` raises it
            self.problem = error
            self._stopping.set()

    def _is_over(self) -> bool:
        enough = self.plan.enough is not None and len(self.ledger.findings) >= self.plan.enough
        return enough or self._stopping.is_set() or time.monotonic() - self.began > self.plan.budget

    def _next(self) -> tuple[int, str, Graph] | None:
        """Of some graphs that are served the one with the most that is new; the same ones for the same seed."""
        with self._lock:
            best: tuple[float, tuple[int, str, Graph]] | None = None
            for _ in range(_CANDIDATES):
                number = next(self._numbers)
                weights = [_CHAINS if name == "chain" else 1 for name in self.plan.families]
                family = self._choices.choices(list(self.plan.families), weights)[0]
                made = graph(number, family)
                answer = None if self._target is None else support(made, self._target)
                if answer is not None and not answer.ok:
                    self.coverage.declined.update(pairs(made))
                    self._count(Verdict("declined", text=answer.reason))
                    continue
                novelty = self.coverage.novelty(made)
                if best is None or novelty > best[0]:
                    best = novelty, (number, family, made)
            if best is None:
                return None
            self.coverage.add(best[1][2])
            return best[1]

    def _treat(self, worker: Worker, case: Case, source: str, checks: Sequence[str]) -> None:
        verdict = worker.examine(case, checks)
        with self._lock:
            self._count(verdict)
            if verdict.outcome == "declined":
                self.coverage.decline(case.graph)
            known = self.ledger.known(verdict, case.graph) if verdict.outcome == "failed" else None
            if known is not None:
                known.count += 1
        if verdict.outcome != "failed" or known is not None:
            return
        _LOG.info("%s: %s: %s: %s", source, verdict.check, verdict.kind, verdict.text)
        self._keep(worker, case, verdict, source)

    def _count(self, verdict: Verdict) -> None:
        self.outcomes[verdict.outcome] += 1
        if verdict.outcome == "declined":
            self.declined.setdefault(verdict.signature[2], Declined(verdict.text)).count += 1

    def _keep(self, worker: Worker, case: Case, verdict: Verdict, source: str) -> None:
        """Makes a finding small and writes it; one that is interrupted is written as it is by then."""
        smallest, end = [case], time.monotonic() + self.plan.reducing
        new = Found(verdict, case, source, len(case.graph.nodes))
        self._busy[id(worker)] = f"reducing {source}"
        try:
            reduced(worker, case, verdict, lambda: time.monotonic() > end, smallest.append)
            new.verdict = self._again(worker, smallest[-1], verdict)
        finally:
            self._busy.pop(id(worker), None)
            new.case = smallest[-1]
            with self._lock:
                kept = self.ledger.add(new)
                if kept is new:
                    new.capsule = self._free_folder(new.name)
                    capsules.begin(new.capsule, new.case, self.plan.setting, new.verdict)
        if kept is new and new.capsule is not None:
            new.missing = worker.complete(new.capsule)

    def _again(self, worker: Worker, case: Case, verdict: Verdict) -> Verdict:
        """What is said of the smallest; of a failure that does not come each time, what was said first."""
        found = worker.examine(case, (verdict.check,))
        return found if found.signature == verdict.signature else verdict

    def _free_folder(self, name: str) -> Path:
        folder, number = self.plan.folder / name, 1
        while folder.exists():
            number += 1
            folder = self.plan.folder / f"{name}-{number}"
        return folder

    def _state(self) -> str:
        seconds = time.monotonic() - self.began
        counts = ", ".join(f"{count} {name}" for name, count in self.outcomes.items() if name != "declined")
        busy = "".join(f"; {each}" for each in list(self._busy.values()))
        found = f"{len(self.ledger.findings)} findings"
        return f"{seconds:.0f} of {self.plan.budget:.0f} s: {counts or 'starting'}; {found}{busy}"
