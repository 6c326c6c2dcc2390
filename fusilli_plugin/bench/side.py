"""One side of a comparison, in a process of its own: ``python -m fusilli_plugin.bench.side SIDE THREADS``.

Reads one JSON object a line and answers each with one. ``{"load": {...}, "result": file}`` loads a workload (``suite``,
``name``) or a model (``path``, ``dims``), runs it once and writes the first result; ``{"seconds": s}`` runs for about
that long and answers the seconds of a run. Nobody else writes to the standard output that the parent reads.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from fusilli_plugin.bench.workloads import Workload, feeds_of, find

__all__ = ["main"]

_PR_SET_PDEATHSIG: Final = 1
Array = np.ndarray[Any, Any]
Run = Callable[[], Array]


def _ours(request: Mapping[str, Any], threads: int) -> tuple[Run, str]:
    from fusilli_plugin.engine.engine import FusilliEngine
    from fusilli_plugin.engine.plan import FusilliPlan
    from hipdnn_backend import offload

    device = "cpu-sync" if threads == 1 else "cpu"
    engines = offload.engines_for("cpu", [FusilliEngine(device)])
    model = offload.load(_source(request), device=device, engines=engines, dims=request.get("dims"))
    feeds = feeds_of(_workload(request)) if "name" in request else _random(model.inputs)
    forms = {plan.form for plan in model.plans if isinstance(plan, FusilliPlan)}

    def run() -> Array:
        return next(iter(model.run(feeds).values()))

    return run, ", ".join(sorted(forms))


def _onnxruntime(request: Mapping[str, Any], threads: int) -> tuple[Run, str]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    for name, size in (request.get("dims") or {}).items():
        options.add_free_dimension_override_by_name(name, size)
    source = _source(request)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    if "name" in request:
        feeds = feeds_of(_workload(request))
    else:
        feeds = {each.name: _filled(each.shape, _TYPES[each.type]) for each in session.get_inputs()}
    return lambda: np.asarray(session.run(None, feeds)[0]), ""


def _torch(request: Mapping[str, Any], threads: int) -> tuple[Run, str]:
    import torch

    torch.set_num_threads(threads)
    workload = _workload(request)
    tensors = {name: torch.from_numpy(array) for name, array in workload.arrays().items()}

    def run() -> Array:
        with torch.inference_mode():
            return np.asarray(workload.torch(torch, tensors).numpy())

    return run, ""


_SIDES = {"ours": _ours, "onnxruntime": _onnxruntime, "torch": _torch}
_TYPES = {
    "tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int64)": "int64", "tensor(int32)": "int32",
    "tensor(uint8)": "uint8", "tensor(int8)": "int8", "tensor(bool)": "bool", "tensor(double)": "float64",
}  # fmt: skip


def _workload(request: Mapping[str, Any]) -> Workload:
    return find(request["suite"], request["name"])


def _source(request: Mapping[str, Any]) -> Any:
    return _workload(request).model().SerializeToString() if "name" in request else request["path"]


def _random(inputs: Any) -> dict[str, Array]:
    return {each.name: _filled(each.dims, np.dtype(each.dtype).name) for each in inputs}


def _filled(dims: Any, dtype: str) -> Array:
    sizes = [size if isinstance(size, int) else 1 for size in dims]
    kind = np.dtype(dtype)
    rng = np.random.default_rng(3)
    return rng.random(sizes, np.float32).astype(kind) if kind.kind == "f" else np.ones(sizes, kind)


def _timed(run: Run, seconds: float) -> float:
    """Seconds of a run, of as many as take about ``seconds``; at least one."""
    count, begun = 0, time.perf_counter()
    while True:
        run()
        count += 1
        spent = time.perf_counter() - begun
        if spent >= seconds:
            return spent / count


def main() -> None:
    """Entry point."""
    side, threads = sys.argv[1], int(sys.argv[2])
    # Whoever asks may be killed while this process is stopped, which nothing but that signal ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the standard error
    run: Run | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                run = None
                run, form = _SIDES[side](request["load"], threads)
                result = np.asarray(run())
                np.save(request["result"], result, allow_pickle=False)
                answer: dict[str, Any] = {"form": form}
            else:
                assert run is not None
                answer = {"seconds": _timed(run, request["seconds"])}
        except Exception as error:  # whatever a side cannot do is what its column says
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
