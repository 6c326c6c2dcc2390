"""Times of compiling, building and launching from Python."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import numpy as np

from graph_api import FusilliError
from iree_bridge import Options, Target, build
from iree_bridge.compile.compiler import compile_code, emit, recipe_for
from tests.support.bench.graphs import add_graph, conv_graph

__all__ = ["build_sampler", "compile_samplers", "launch_samplers", "native_compiler"]

# A launch takes microseconds; short batches fit between two interruptions by the scheduler, and their median is robust.
_BATCHES: Final = 500
_ROOT: Final = Path(__file__).resolve().parents[3]
_BUILD: Final = """
import sys, time
from pathlib import Path
import numpy
from tests.support.bench.graphs import add_graph
from iree_bridge import Device, Executable, Options, build
options = Options(cache_dir=Path(sys.argv[1]))
graph = add_graph()
start = time.perf_counter()
executable = build(graph, "cpu-sync", options=options)
print(time.perf_counter() - start)
"""


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


def compile_samplers(target: Target, options: Options, folder: Path) -> tuple[Callable[[], float], Callable[[], float]]:
    """Our compile (graph in, cached code out; the worker runs already) and the native one of the same IR and flags."""
    graph = conv_graph()
    recipe = recipe_for(graph, target, options)
    source, output = folder / f"{target.arch}.mlir", folder / f"{target.arch}.vmfb"
    source.write_text(emit(graph, target, options).ir, encoding="utf-8")
    command = [str(native_compiler()), str(source), *recipe.all_flags, "-o", str(output)]

    def ours() -> None:
        compile_code(graph, target, options, refresh=True)

    def native() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
        if done.returncode:
            raise FusilliError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")

    ours()  # starts the worker
    native()  # brings the binary into the page cache
    return lambda: _seconds(ours), lambda: _seconds(native)


def build_sampler(options: Options) -> Callable[[], float]:
    """Seconds of ``build`` from a warm cache in a new process, after imports."""
    command = [sys.executable, "-c", _BUILD, str(options.cache_dir)]

    def sample() -> float:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=options.timeout)
        if done.returncode:
            raise FusilliError(f"building in a new process failed: {done.stderr.strip()[-500:]}")
        return float(done.stdout)

    return sample


def launch_samplers(options: Options, calls: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Seconds per ``call()`` and per ``run``, on the driver that works in the calling thread.

    A batch has a tenth of ``calls``; a sample is the median of 500 batches.
    """
    calls = max(calls // 10, 1)
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
