"""Whole models with one and two threads, alone and beside a busy one: ``python -m tests.support.bench.threads``.

ONNX Runtime's CPU provider and ours, each in a process of its own, in turns. Prints medians and 90th percentiles in
ms, of the last round: an earlier one fills the cache.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fusilli_ground.texts import say
from tests.support.bench.models import MODELS

__all__ = ["main"]

_WAYS = ("onnxruntime:1", "cpu-sync", "onnxruntime:2", "cpu", "cpu-iree")
_ROOT = Path(__file__).resolve().parents[3]
_WARM_UP = 10


def _filled(dims: tuple[Any, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.random(dims, np.float32).astype(dtype) if dtype.kind == "f" else np.ones(dims, dtype)


def _call(path: str, way: str) -> Callable[[], object]:
    """One run of a model by a device of ours, or by ONNX Runtime with a number of threads."""
    device, _, threads = way.partition(":")
    if threads:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(threads)
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        types = {"tensor(float)": np.dtype(np.float32), "tensor(int64)": np.dtype(np.int64)}
        feeds = {each.name: _filled(tuple(each.shape), types[each.type]) for each in session.get_inputs()}
        return lambda: session.run(None, feeds)
    from hipdnn_backend import offload

    model = offload.load(path, device=device)
    given = {each.name: _filled(each.dims, np.dtype(each.dtype)) for each in model.inputs}
    return lambda: model.run(given)


def _measure(path: str, way: str, runs: int) -> None:
    run, seconds = _call(path, way), list[float]()
    for _ in range(_WARM_UP):
        run()
    for _ in range(runs):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    tenth = statistics.quantiles(seconds, n=10)[-1]
    say(f"{1e3 * statistics.median(seconds):.3g} ({1e3 * tenth:.3g})")


def _round(folder: Path, runs: int) -> dict[str, list[str]]:
    rows = dict[str, list[str]]()
    for name in MODELS:
        for way in _WAYS:
            command = [sys.executable, "-m", __spec__.name, "--of", str(folder / f"{name}.onnx"), way]
            done = subprocess.run(
                [*command, "--runs", str(runs)], cwd=_ROOT, capture_output=True, text=True, check=True
            )
            rows.setdefault(name, []).append(done.stdout.strip().splitlines()[-1])
    return rows


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="threads", description=__doc__)
    parser.add_argument("--busy", action="store_true", help="beside a process that never stops")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--of", nargs=2, metavar=("MODEL", "WAY"), help="one measurement, in this process")
    given = parser.parse_args()
    if given.of:
        path, way = given.of
        _measure(path, way, given.runs)
        return
    import onnx

    from tests.support import onnx_models

    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if given.busy else None
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in MODELS:
                onnx.save(getattr(onnx_models, name)(), Path(folder, f"{name}.onnx"))
            rows = dict[str, list[str]]()
            for _ in range(given.rounds):
                rows = _round(Path(folder), given.runs)
    finally:
        if other is not None:
            other.kill()
            other.wait()
    say(f"{'model':14}" + "".join(f"{way:>20}" for way in _WAYS))
    for name, cells in rows.items():
        say(f"{name:14}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
