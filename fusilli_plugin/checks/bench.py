"""Latencies, next to the native compiler of the same wheel on the same IR: ``python -m fusilli_plugin.checks.bench``.

Every round measures everything once, so that a change of the machine's load meets all of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from graph_api import DataType, FusilliError, Graph, PointwiseMode
from iree_bridge import Options, Target, build
from iree_bridge.compiler import compile_code, emit, recipe_for
from iree_bridge.versions import iree_version

__all__ = ["GOALS", "Measurement", "main", "measure", "native_compiler", "report"]

GOALS = {"compile": 1.15, "build": 15e-3, "call": 4e-6, "run": 10e-6}
"""Compile: times the native compiler's time. The others: seconds."""

_TARGETS = ("cpu", "gfx942")
# A launch takes microseconds; short batches fit between two interruptions by the scheduler, and their median is robust.
_BATCHES = 50
_BUILD = """
import sys, time
from pathlib import Path
import numpy
from fusilli_plugin.checks.bench import add_graph
from iree_bridge import Device, Executable, Options, build
options = Options(cache_dir=Path(sys.argv[1]))
graph = add_graph()
start = time.perf_counter()
executable = build(graph, "cpu-sync", options=options)
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Measurement:
    """What was seen of one thing.

    Attributes:
        name: what was measured.
        seconds: of each round.
        goal: for the median: in seconds, or as a multiple of the native compiler's median where ``native`` is given.
        native: seconds of the native compiler, round by round; empty if it has no part.
    """

    name: str
    seconds: tuple[float, ...]
    goal: float
    native: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """Median of the rounds in seconds."""
        return statistics.median(self.seconds)

    @property
    def value(self) -> float:
        """What the goal is for: the median, or its ratio to the native compiler's."""
        return self.median / statistics.median(self.native) if self.native else self.median

    @property
    def met(self) -> bool:
        """True if the goal is met."""
        return self.value <= self.goal


def native_compiler() -> Path:
    """The ``iree-compile`` binary inside the compiler's wheel (the command of that name starts Python first).

    Raises:
        FusilliError: it is not installed.
    """
    spec = importlib.util.find_spec("iree.compiler")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        binary = Path(folder) / "_mlir_libs" / "iree-compile"
        if os.access(binary, os.X_OK):
            return binary
    raise FusilliError("the native iree-compile was not found; run: pip install iree-base-compiler")


def conv_graph() -> Graph:
    """Convolution, bias and ReLU as in a residual network, f16, channels last."""
    g = Graph("bench_conv", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(8, 64, 56, 56), layout="NHWC")
    w = g.tensor("w", dim=(64, 64, 3, 3), layout="NHWC")
    b = g.tensor("b", dim=(1, 64, 1, 1), layout="NHWC")
    y = g.pointwise(PointwiseMode.ADD, g.conv_fprop(x, w, padding=1), b)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    return g.validate()


def add_graph() -> Graph:
    """The sum of two tensors of 16 floats, not validated yet."""
    g = Graph("bench_add", io_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(16,)), g.tensor("b", dim=(16,))
    g.pointwise(PointwiseMode.ADD, a, b).set_output(True).set_name("y")
    return g


def measure(*, rounds: int = 7, calls: int = 500, targets: Sequence[str] = _TARGETS) -> list[Measurement]:
    """Measures everything.

    Args:
        rounds: samples of each time.
        calls: launches in a batch; a sample is the median of 50 batches.
        targets: what the convolution is compiled for.

    Raises:
        FusilliError: something does not compile, build or run.
    """
    with tempfile.TemporaryDirectory(prefix="fusilli-bench-") as folder:
        options = replace(Options.from_env(), cache_dir=Path(folder) / "cache", cache_readonly=())
        samplers: dict[str, tuple[float, Callable[[], float], Callable[[], float] | None]] = {}
        for name in targets:
            ours, native = _compile_samplers(Target.parse(name), options, Path(folder))
            samplers[f"cold compile of conv+bias+relu for {name}"] = (GOALS["compile"], ours, native)
        call, run = _launch_samplers(options, calls)
        samplers["build from a warm cache, new process"] = (GOALS["build"], lambda: _build_seconds(options), None)
        samplers["call() of a 16-element add"] = (GOALS["call"], call, None)
        samplers["run() of a 16-element add"] = (GOALS["run"], run, None)
        seconds: dict[str, list[float]] = {name: [] for name in samplers}
        native_seconds: dict[str, list[float]] = {name: [] for name in samplers}
        for index in range(rounds):
            for name, (_, ours, native) in samplers.items():
                sides = [(seconds, ours), *([(native_seconds, native)] if native else [])]
                # Who goes first alternates: it may find files in another state.
                for samples, sample in sides if index % 2 else reversed(sides):
                    samples[name].append(sample())
        return [
            Measurement(name, tuple(seconds[name]), goal, tuple(native_seconds[name]))
            for name, (goal, _, _) in samplers.items()
        ]


def _compile_samplers(
    target: Target, options: Options, folder: Path
) -> tuple[Callable[[], float], Callable[[], float]]:
    """Our compile (graph in, cached code out; the worker runs already) and the native one of the same IR and flags."""
    graph = conv_graph()
    recipe = recipe_for(graph, target, options)
    source, output = folder / f"{target.arch}.mlir", folder / f"{target.arch}.vmfb"
    source.write_text(emit(graph, target, options).ir, encoding="utf-8")
    command = [str(native_compiler()), str(source), *recipe.flags, *recipe.global_flags, "-o", str(output)]

    def ours() -> None:
        compile_code(graph, target, options, refresh=True)

    def native() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
        if done.returncode:
            raise FusilliError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")

    ours()  # starts the worker
    native()  # brings the binary into the page cache
    return lambda: _seconds(ours), lambda: _seconds(native)


def _build_seconds(options: Options) -> float:
    command = [sys.executable, "-c", _BUILD, str(options.cache_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
    if done.returncode:
        raise FusilliError(f"building in a new process failed: {done.stderr.strip()[-500:]}")
    return float(done.stdout)


def _launch_samplers(options: Options, calls: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Seconds per ``call()`` and per ``run``, on the driver that works in the calling thread."""
    graph = add_graph()
    executable = build(graph, "cpu-sync", options=options)
    (y,), (a, b) = graph.arguments()
    pack: dict[Any, np.ndarray[Any, Any]] = {a: a.empty(), b: b.empty(), y: y.empty()}
    pack[a][...], pack[b][...] = 1, 2
    call = executable.bind(pack)
    call()
    if not (pack[y] == 3).all():
        raise FusilliError("the 16-element add computes wrong results")

    def calling() -> None:
        for _ in repeat(None, calls):
            call()

    def running() -> None:
        run = executable.run
        for _ in repeat(None, calls):
            run(pack)

    def sample(work: Callable[[], None]) -> float:
        return statistics.median(_seconds(work) / calls for _ in range(_BATCHES))

    return lambda: sample(calling), lambda: sample(running)


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Lines of a table: name, median with spread, goal, verdict."""
    rows: list[tuple[str, ...]] = [("what", "median", "min .. max", "native", "ratio", "goal", "")]
    for m in measurements:
        native = (_show(statistics.median(m.native)), f"{m.value:.2f}") if m.native else ("", "")
        goal = f"<= {m.goal:.2f}x" if m.native else f"<= {_show(m.goal)}"
        spread = f"{_show(min(m.seconds))} .. {_show(max(m.seconds))}"
        rows.append((m.name, _show(m.median), spread, *native, goal, "met" if m.met else "MISSED"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _show(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1 or unit == "us":
            return f"{seconds * factor:.3g} {unit}"
    raise AssertionError


def _machine() -> dict[str, Any]:
    return {
        "iree": iree_version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; a missed goal is reported, not an error.

    Returns:
        Exit code: 0 if everything could be measured, 1 if not.
    """
    parser = argparse.ArgumentParser(prog="bench", description="Latencies, next to the native iree-compile.")
    parser.add_argument("--json", metavar="F", type=Path, help="also write what was measured, as JSON")
    parser.add_argument("--rounds", type=int, default=7, help="samples of each time (default: %(default)s)")
    parser.add_argument(
        "--calls", type=int, default=500, help="launches in a batch, 50 batches to a sample (default: %(default)s)"
    )
    parser.add_argument(
        "--target", action="append", help="compile for this one; may be repeated (default: cpu, gfx942)"
    )
    given = parser.parse_args(arguments)
    if given.rounds < 1 or given.calls < 1:
        parser.error("--rounds and --calls must be at least 1")
    machine = _machine()
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if machine["load"] > 0.5 * machine["cpus"]:
        print("the machine is busy: times are too long, and ratios less certain")
    try:
        found = measure(rounds=given.rounds, calls=given.calls, targets=given.target or _TARGETS)
    except FusilliError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("\n".join(report(found)))
    missed = [m.name for m in found if not m.met]
    print(f"missed: {', '.join(missed)}" if missed else "all goals are met")
    if given.json is not None:
        rows = [asdict(m) | {"median": m.median, "value": m.value, "met": m.met} for m in found]
        given.json.write_text(json.dumps({"machine": machine, "measurements": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
