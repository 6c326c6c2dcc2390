"""Runs both sides of a comparison in turns: a process for each, which loads one row after the other."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fusilli_ground.errors import FusilliError

__all__ = ["BenchError", "Row", "Subject", "measure", "summary"]

SIDES: Final = ("ours", "onnxruntime", "torch")
_WARM_UP: Final = 0.05
_SLICE: Final = 0.03
"""Seconds that a side runs in a round at least."""
_LOADING: Final = 1200.0


class BenchError(FusilliError):
    """A comparison cannot be made: a side's process ended, or none of them could load a row."""


@dataclass(frozen=True)
class Subject:
    """What is loaded for a row: a workload of a suite, or a model file.

    Attributes:
        name: of the row.
        load: what the sides are told.
        sides: those that can do it.
    """

    name: str
    load: Mapping[str, Any]
    sides: tuple[str, ...] = SIDES


@dataclass(frozen=True)
class Row:
    """What was measured. Times are medians over rounds, in ms; None where a side cannot do it, or is not installed.

    Attributes:
        name: of the row.
        threads: of every side.
        ours_ms, onnxruntime_ms, torch_ms: of a run.
        ours_spread: half of what the middle half of our rounds spans, in ms.
        ratio_onnxruntime, ratio_torch: our time by theirs, the median of the rounds' ratios.
        max_error: largest difference of our first result from ONNX Runtime's (else PyTorch's), by its largest value.
        variant: the forms of our graphs.
        problems: side → why it has no time.
    """

    name: str
    threads: int
    ours_ms: float | None
    onnxruntime_ms: float | None
    torch_ms: float | None
    ours_spread: float | None
    ratio_onnxruntime: float | None
    ratio_torch: float | None
    max_error: float | None
    variant: str
    problems: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


class _Side:
    """A process that runs one side."""

    def __init__(self, name: str, threads: int, folder: Path) -> None:
        self.name = name
        self._result = folder / f"{name}.npy"
        command = [sys.executable, "-m", "fusilli_plugin.bench.side", name, str(threads)]
        self._log = (folder / f"{name}.log").open("w+b")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def load(self, what: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask({"load": what, "result": str(self._result)})

    def result(self) -> np.ndarray[Any, Any]:
        return np.load(self._result, allow_pickle=False)

    def seconds(self, slice_: float) -> float:
        answer = self._ask({"seconds": slice_})
        if "error" in answer:
            raise BenchError(f"{self.name}: {answer['error']}")
        return float(answer["seconds"])

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._log.seek(0)
            said = self._log.read()[-600:].decode(errors="replace").strip().splitlines()
            raise BenchError(f"{self.name}: its process ended ({self._process.wait()}): {said[-1] if said else ''}")
        # Its threads may wait for more work by spinning, on the cores that the next side is to have.
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(line)

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
    busy: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Row]:
    """A row for each subject: the sides load it, and run it in turns on the same cores, the others stopped.

    Args:
        subjects: what to measure.
        threads: of each side, and cores that it may run on.
        rounds: in each of which every side runs for a while.
        busy: beside a process that never stops, on the same cores.
        tell: called with what is done next.

    Raises:
        BenchError: a side's process ended.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if busy:
            stack.enter_context(_busy())
        sides = {name: _Side(name, threads, folder) for name in SIDES}
        for side in sides.values():
            stack.callback(side.close)
        for subject in subjects:
            tell(f"{subject.name}, {threads} threads")
            yield _row(subject, sides, threads, rounds)


@contextmanager
def _busy() -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def _row(subject: Subject, sides: Mapping[str, _Side], threads: int, rounds: int) -> Row:
    problems: dict[str, str] = {}
    ready: dict[str, _Side] = {}
    form = ""
    for name in subject.sides:
        answer = sides[name].load(subject.load)
        if "error" in answer:
            problems[name] = answer["error"]
            continue
        ready[name] = sides[name]
        form = answer["form"] or form
    times = {name: [] for name in ready}
    for side in ready.values():
        side.seconds(_WARM_UP)
    for _ in range(rounds):
        for name, side in ready.items():
            times[name].append(side.seconds(_SLICE))
    ms = {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
    return Row(
        name=subject.name,
        threads=threads,
        ours_ms=ms.get("ours"),
        onnxruntime_ms=ms.get("onnxruntime"),
        torch_ms=ms.get("torch"),
        ours_spread=_spread(times.get("ours", [])),
        ratio_onnxruntime=_ratio(times, "onnxruntime"),
        ratio_torch=_ratio(times, "torch"),
        max_error=_error(ready),
        variant=form,
        problems=problems,
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
    ours, theirs = (ready[name].result().astype(np.float64) for name in ("ours", other))
    if ours.shape != theirs.shape:
        return float("inf")
    scale = float(np.max(np.abs(theirs), initial=0.0))
    return float(np.max(np.abs(ours - theirs), initial=0.0)) / (scale or 1.0)


def summary(rows: Sequence[Row]) -> dict[str, float | int]:
    """Geometric mean, largest ratio and number of rows, against each other side and for each number of threads."""
    found: dict[str, float | int] = {}
    for threads in sorted({row.threads for row in rows}):
        mine = [row for row in rows if row.threads == threads]
        for other in ("onnxruntime", "torch"):
            ratios = [ratio for row in mine if (ratio := getattr(row, f"ratio_{other}")) is not None]
            if ratios:
                where = f"{other}, {threads} threads"
                found[f"geometric mean over {where}"] = statistics.geometric_mean(ratios)
                found[f"largest ratio over {where}"] = max(ratios)
                found[f"rows with {where}"] = len(ratios)
    return found
