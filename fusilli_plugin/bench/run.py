"""Runs both sides of a comparison in turns: a process for each, which loads one row after the other."""

from __future__ import annotations

import json
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from fusilli_ground.errors import FusilliError

__all__ = ["OTHERS", "SIDES", "BenchError", "Row", "Subject", "beyond", "measure", "others", "setting", "summary"]

OTHERS: Final = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "inductor": "Inductor"}
"""What the other sides are called."""
SIDES: Final = ("ours", *OTHERS)
_WARM_UP: Final = 0.05
_SLICE: Final = 0.03
"""Seconds that a side runs in a round at least."""
_LIMIT: Final = 1200.0
"""Seconds that a side may take to answer; a load may compile a model."""
_SAME: Final = 1.05
"""Times another: what is within noise."""
_NOTHING: Final = 1.5
"""Times what a call of next to nothing takes: a row that takes less says nothing about its kernels."""


class BenchError(FusilliError):
    """A comparison cannot be made: a side's process ended before it has done anything, or a run has failed."""


@dataclass(frozen=True)
class Subject:
    """What is loaded for a row: a workload of a suite, a model file, or a graph on a device.

    Attributes:
        name: of the row.
        load: what the sides are told.
        sides: those that can do it.
        tolerance: ``max_error`` up to which our results are right, where nobody could afford a reference.
        kind: of its row.
    """

    name: str
    load: Mapping[str, Any]
    sides: tuple[str, ...] = ("ours", "onnxruntime", "torch")
    tolerance: float | None = None
    kind: str = ""


@dataclass(frozen=True)
class Row:
    """What was measured. Times are medians over rounds, in ms; None where a side cannot do it, or is not installed.

    Attributes:
        name: of the row.
        threads: of every side; 0: whatever runs on a device.
        busy: processes that never stop beside them.
        ours_ms, onnxruntime_ms, torch_ms, inductor_ms: of a run.
        ours_spread: half of what the middle half of our rounds spans, in ms.
        ratio_onnxruntime, ratio_torch, ratio_inductor: our time by theirs, the median of the rounds' ratios.
        max_error: largest difference of our results from ONNX Runtime's (else PyTorch's), by the largest value of each.
        variant: the forms of our graphs; of training how much of the work engines do.
        verdict: ``right`` or ``wrong`` where our results were held against a float64 reference or ``max_error`` judged.
        problems: side → why it has no time, or what is wrong with its results.
        kind: what is summed up together.
        ratio_net: our time by PyTorch's beyond what a call takes on each side; None where theirs is next to nothing.
    """

    name: str
    threads: int
    busy: int
    ours_ms: float | None
    onnxruntime_ms: float | None
    torch_ms: float | None
    ours_spread: float | None
    ratio_onnxruntime: float | None
    ratio_torch: float | None
    max_error: float | None
    variant: str
    verdict: str
    problems: Mapping[str, str]
    kind: str = ""
    ratio_net: float | None = None
    inductor_ms: float | None = None
    ratio_inductor: float | None = None

    def beside(self, other: str) -> tuple[float | None, float | None]:
        """Another side's time in ms, and ours by it."""
        return getattr(self, f"{other}_ms"), getattr(self, f"ratio_{other}")

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


class _EndedError(BenchError):
    """A side's process ended, or was ended, and another one is there for the next row."""


class _Side:
    """A process that runs one side; a new one for the next row if a row ends it."""

    def __init__(self, name: str, threads: int, folder: Path) -> None:
        self.name = name
        self._result = folder / f"{name}.npz"
        self._command = [sys.executable, "-m", "fusilli_plugin.bench.side", name, str(threads)]
        self._log_file = folder / f"{name}.log"
        self._has_answered = False
        self._start()

    def _start(self) -> None:
        self._log = self._log_file.open("w+b")
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def load(self, what: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask({"load": what, "result": str(self._result)})

    def results(self) -> list[np.ndarray[Any, Any]]:
        with np.load(self._result, allow_pickle=False) as arrays:
            return [arrays[name] for name in arrays.files]

    def seconds(self, slice_: float) -> float:
        answer = self._ask({"seconds": slice_})
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}")
        return float(answer["seconds"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        line = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            if select.select([self._process.stdout], [], [], _LIMIT)[0]:
                line = self._process.stdout.readline()
            else:
                self._process.kill()
        if not line:
            raise self._ended()
        self._has_answered = True
        # Its threads may wait for more work by spinning, on the cores that the next side is to have.
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(line)

    def _ended(self) -> BenchError:
        """Says what the process said last; if others of its kind have worked, there is another one then."""
        code = self._process.wait()
        self._log.seek(0)
        said = self._log.read()[-600:].decode(errors="replace").strip().splitlines()
        text = f"{self.name}: its process ended ({code}): {said[-1] if said else ''}"
        if not self._has_answered:
            return BenchError(text)
        self.close()
        self._start()
        return _EndedError(text)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # it ended, and what it was not told is still here
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


def measure(
    subjects: Iterable[Subject],
    *,
    threads: int,
    rounds: int = 9,
    busy: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """A row for each subject: the sides load it, and run it in turns on the same cores, the others stopped.

    Args:
        subjects: what to measure.
        threads: of each side, and cores that it may run on; 0: all cores, for what runs on a GPU.
        rounds: in each of which every side runs for a while.
        busy: processes that never stop beside them, on the cores that this process may use.
        tell: called with what is done next.

    Raises:
        BenchError: a side's process ended before it has done anything.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for _ in range(busy):
            stack.enter_context(_busy())
        wanted = list(subjects)
        names = [name for name in SIDES if any(name in subject.sides for subject in wanted)]
        sides = {name: _Side(name, threads, folder) for name in names}
        for side in sides.values():
            stack.callback(side.close)
        for subject in wanted:
            tell(f"{subject.name}, {setting(threads, busy)}")
            yield _row(subject, sides, threads, busy, rounds)


def setting(threads: int, busy: int) -> str:
    """In which setting rows were measured, in words."""
    return (f"{threads} threads" if threads else "on the device") + (f" beside {busy} busy" if busy else "")


@contextmanager
def _busy() -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def _row(subject: Subject, sides: Mapping[str, _Side], threads: int, busy: int, rounds: int) -> Row:
    problems: dict[str, str] = {}
    ready: dict[str, _Side] = {}
    form = verdict = ""
    for name in subject.sides:
        try:
            answer = sides[name].load(subject.load)
        except _EndedError as error:
            answer = {"error": str(error)}
        if "error" in answer:
            problems[name] = answer["error"]
            continue
        ready[name] = sides[name]
        form = answer["form"] or form
        verdict = answer["verdict"] or verdict
        if answer["wrong"]:
            problems[name] = answer["wrong"]
    times: dict[str, list[float]] = {name: [] for name in ready}
    for number in range(rounds + 1):
        for name in [*times]:
            try:
                seconds = ready[name].seconds(_SLICE if number else _WARM_UP)
            except BenchError as error:  # a launch has failed, or ended the process: no times, and others go on
                problems[name] = str(error)
                del times[name]
                continue
            if number:
                times[name].append(seconds)
    error = _error(ready)
    if not verdict and error is not None and subject.tolerance is not None:
        verdict = "right" if error <= subject.tolerance else "wrong"
    ms = {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
    return Row(
        name=subject.name,
        threads=threads,
        busy=busy,
        ours_ms=ms.get("ours"),
        onnxruntime_ms=ms.get("onnxruntime"),
        torch_ms=ms.get("torch"),
        ours_spread=_spread(times.get("ours", [])),
        ratio_onnxruntime=_ratio(times, "onnxruntime"),
        ratio_torch=_ratio(times, "torch"),
        max_error=error,
        variant=form,
        verdict=verdict,
        problems=problems,
        kind=subject.kind,
        inductor_ms=ms.get("inductor"),
        ratio_inductor=_ratio(times, "inductor"),
    )


def _spread(seconds: Sequence[float]) -> float | None:
    if len(seconds) < 2:
        return None
    quarters = statistics.quantiles(seconds, n=4)
    return 1e3 * (quarters[2] - quarters[0]) / 2


def _ratio(times: Mapping[str, Sequence[float]], other: str) -> float | None:
    if "ours" not in times or other not in times:
        return None
    return statistics.median(own / theirs for own, theirs in zip(times["ours"], times[other], strict=True))


def _error(ready: Mapping[str, _Side]) -> float | None:
    other = next((name for name in ("onnxruntime", "torch") if name in ready), None)
    if other is None or "ours" not in ready:
        return None
    ours, theirs = (ready[name].results() for name in ("ours", other))
    return max(map(_apart, ours, theirs), default=0.0) if len(ours) == len(theirs) else float("inf")


def _apart(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> float:
    """The largest difference by the largest value; infinite where only one of them has no number."""
    if ours.shape != theirs.shape:
        return float("inf")
    own, other = ours.astype(np.float64), theirs.astype(np.float64)
    same = (own == other) | (np.isnan(own) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(own - other))
    if not np.all(np.isfinite(difference)):
        return float("inf")
    scale = float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other)))
    return float(np.max(difference, initial=0.0)) / (scale or 1.0)


def beyond(rows: Sequence[Row], call: str) -> list[Row]:
    """The rows with ``ratio_net``: beyond the times of the row called ``call``, which does next to nothing."""
    base = next((row for row in rows if row.name == call), None)
    if base is None or base.ours_ms is None or base.torch_ms is None:
        return list(rows)
    found: list[Row] = []
    for row in rows:
        if row.ours_ms is not None and row.torch_ms is not None and row.torch_ms > _NOTHING * base.torch_ms:
            net = max(row.ours_ms - base.ours_ms, 0.0) / (row.torch_ms - base.torch_ms)
            found.append(replace(row, ratio_net=net))
        else:
            found.append(row)
    return found


def others(rows: Sequence[Row]) -> dict[str, str]:
    """The other sides that some row has a time of, and what they are called."""
    return {side: name for side, name in OTHERS.items() if any(row.beside(side)[0] is not None for row in rows)}


def summary(rows: Sequence[Row]) -> dict[str, float | int]:
    """Geometric mean, largest ratio and number of rows, against each other side and in each setting; wrong rows."""
    found: dict[str, float | int] = {}
    for threads, busy in sorted({(row.threads, row.busy) for row in rows}):
        mine = [row for row in rows if (row.threads, row.busy) == (threads, busy)]
        where = setting(threads, busy)
        for other in OTHERS:
            ratios = [ratio for row in mine if (ratio := row.beside(other)[1]) is not None]
            if ratios:
                found[f"geometric mean over {other}, {where}"] = statistics.geometric_mean(ratios)
                found[f"largest ratio over {other}, {where}"] = max(ratios)
                found[f"rows with {other}, {where}"] = len(ratios)
        for kind in dict.fromkeys(row.kind for row in mine if row.kind):
            for which, name in (("ratio_torch", ""), ("ratio_net", " beyond a call")):
                ratios = [r for row in mine if row.kind == kind and (r := getattr(row, which)) is not None]
                if ratios and min(ratios) > 0:
                    found[f"geometric mean over torch, {kind}{name}"] = statistics.geometric_mean(ratios)
        if any(row.verdict for row in mine):
            found[f"wrong rows, {where}"] = sum(row.verdict == "wrong" for row in mine)
            found[f"rows not checked, {where}"] = sum(not row.verdict for row in mine)
    return found | _slower(rows)


def _slower(rows: Sequence[Row]) -> dict[str, int]:
    """How many of our rows more threads make slower, for each step in threads and each number of busy processes."""
    times = {(row.name, row.threads, row.busy): row.ours_ms for row in rows if row.ours_ms is not None}
    counts = sorted({row.threads for row in rows})
    found: dict[str, int] = {}
    for busy in sorted({row.busy for row in rows}):
        for few, many in pairwise(counts):
            both = [(times[name, few, busy], time) for (name, threads, other), time in times.items()
                    if (threads, other) == (many, busy) and (name, few, busy) in times]  # fmt: skip
            found[f"rows slower than with {few}, {setting(many, busy)}"] = sum(t > _SAME * own for own, t in both)
    return found
