"""One side of a comparison, in a process of its own: ``python -m fusilli_plugin.bench.side SIDE THREADS``.

Reads one JSON object a line and answers each with one. ``{"load": {...}, "result": file}`` loads a workload (``suite``,
``name``), a model (``path``, ``dims``), a graph on a device (``graph``, ``device``) or a network that is trained
(``network``), runs it once and writes the results; ``{"seconds": s}`` runs for about that long and answers the seconds
of a run. Nobody else writes to the standard output that the parent reads. With 0 threads it stays on the cores that it
was given.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

import numpy as np

from fusilli_plugin.bench.loaded import Loaded
from fusilli_plugin.bench.workloads import Workload, feeds_of, find

__all__ = ["main"]

_PR_SET_PDEATHSIG: Final = 1
Array = np.ndarray[Any, Any]


def _ours(request: Mapping[str, Any], threads: int, end: ExitStack) -> Loaded:
    if "graph" in request:
        from fusilli_plugin.bench.on_device import ours

        return ours(request["graph"], request["device"], end)
    if "network" in request:
        from hipdnn_backend.offload.torch_compile import fusilli, torch_report

        return _trained(request, threads, fusilli, lambda step: f"{torch_report(step.call).flop_share:.1%} in engines")
    from fusilli_plugin.engine.engine import FusilliEngine
    from fusilli_plugin.engine.plan import FusilliPlan
    from hipdnn_backend import offload

    device = "cpu-sync" if threads == 1 else "cpu"
    engines = offload.engines_for("cpu", [FusilliEngine(device)])
    model = offload.load(_source(request), device=device, engines=engines, dims=request.get("dims"))
    feeds = feeds_of(_workload(request)) if "name" in request else _random(model.inputs)
    forms = {plan.form for plan in model.plans if isinstance(plan, FusilliPlan)}
    return Loaded(lambda: model.run(feeds), lambda: model.run(feeds).values(), ", ".join(sorted(forms)))


def _onnxruntime(request: Mapping[str, Any], threads: int, end: ExitStack) -> Loaded:
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

    def run() -> Any:
        return session.run(None, feeds)

    return Loaded(run, run)


def _torch(request: Mapping[str, Any], threads: int, end: ExitStack) -> Loaded:
    if "graph" in request:
        from fusilli_plugin.bench.on_device import in_torch

        return in_torch(request["graph"], request["device"], threads)
    if "network" in request:
        return _trained(request, threads)
    import torch

    torch.set_num_threads(threads)
    workload = _workload(request)
    tensors = {name: torch.from_numpy(array) for name, array in workload.arrays().items()}

    def run() -> Any:
        with torch.inference_mode():
            return workload.torch(torch, tensors)

    return Loaded(run, lambda: [run().numpy()])


def _inductor(request: Mapping[str, Any], threads: int, end: ExitStack) -> Loaded:
    return _trained(request, threads, "inductor")


def _trained(
    request: Mapping[str, Any], threads: int, backend: Any = None, form: Callable[[Any], str] = lambda step: ""
) -> Loaded:
    import torch

    from fusilli_plugin.bench.networks.training import Step

    torch.set_num_threads(threads)
    step = Step(request["network"], backend)
    results = step.results()  # of the first step: what compiles does so here
    return Loaded(step.run, lambda: results, form(step))


_SIDES = {"ours": _ours, "onnxruntime": _onnxruntime, "torch": _torch, "inductor": _inductor}
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


def _timed(run: Callable[[], object], seconds: float) -> float:
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
    if threads:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the standard error
    loaded: Loaded | None = None
    end = ExitStack()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "load" in request:
                loaded = None
                end.close()
                loaded = _SIDES[side](request["load"], threads, end)
                np.savez(request["result"], *map(np.asarray, loaded.results()))
                answer = {name: getattr(loaded, name) for name in ("form", "verdict", "wrong")}
            else:
                assert loaded is not None
                answer: dict[str, Any] = {"seconds": _timed(loaded.run, request["seconds"])}
        except Exception as error:  # whatever a side cannot do is what its column says
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
