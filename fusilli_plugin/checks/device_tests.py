"""What a device has to do beside computing: keep the order of streams, work beside others, run saved plans."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from fusilli_plugin.checks import selftest
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph
from graph_api import (
    DataType,
    ExecutionError,
    FusilliError,
    Graph,
    NotSupportedError,
    PointwiseMode,
    TensorAttr,
    numerics,
)
from hipdnn_backend import CudaMemory, HipMemory, HostMemory
from hipdnn_backend.device.memory import Buffer, Memory
from hipdnn_backend.engine import Plan
from hipdnn_backend.wire import EngineConfig, encode_graph
from iree_bridge import Device, Options

__all__ = ["DeviceTest", "memory_of", "plan_of", "run_device_tests", "stream_of"]

_CHAIN: Final = 64
_SIZE: Final = 1 << 16
_MANY: Final = 64
_GRAPH_FUNCTIONS: Final = (
    "hipStreamBeginCapture", "hipStreamEndCapture", "hipGraphInstantiate", "hipGraphLaunch", "hipGraphExecDestroy",
    "hipGraphDestroy",
)  # fmt: skip
_CAPTURE_OF_THREAD: Final = 1  # hipStreamCaptureModeThreadLocal: what other threads do meanwhile is no concern of it


@dataclass(frozen=True)
class DeviceTest:
    """What came of a test: ``right``, ``wrong``, ``failed`` or ``skipped``, and what was seen."""

    name: str
    outcome: str
    text: str


def run_device_tests(device: Device, options: Options) -> Iterator[DeviceTest]:
    """All of them."""
    for name, run in _TESTS.items():
        try:
            outcome, text = run(device, replace(options, claim="all", verify_first=False))
        except FusilliError as error:
            outcome, text = "failed", str(error)
        yield DeviceTest(name, outcome, text)


def _stream_order(device: Device, options: Options) -> tuple[str, str]:
    """Two streams, each with a chain of sums that read what the last one wrote; nothing is waited for in between."""
    places = [(FusilliEngine(device, options=options), memory_of(device))] * 2
    wrong = _chains(places)
    return ("wrong", f"stream {wrong}") if wrong else ("right", f"{len(places)} streams of {_CHAIN} executions")


def _several_devices(device: Device, options: Options) -> tuple[str, str]:
    """A chain of sums on each device of the kind, all at once; then a small graph on each, from threads."""
    if not device.is_gpu:
        return "skipped", "there is one CPU"
    found: list[Device] = []
    for index in range(_MANY):
        other = replace(device, index=index)
        try:
            assert other.target
        except ExecutionError:  # there is none of this number
            break
        except NotSupportedError:  # another chip, for which the compiler has no code
            continue
        found.append(other)
    if len(found) < 2:
        return "skipped", "there is one device"
    wrong = _chains([(FusilliEngine(each, options=options), memory_of(each)) for each in found])
    if wrong:
        return "wrong", f"device {wrong}"
    with ThreadPoolExecutor(len(found)) as pool:
        list(pool.map(selftest.run, map(str, found)))
    return "right", f"{len(found)} devices at once"


def _chains(places: Sequence[tuple[FusilliEngine, Memory]]) -> str:
    """Chains of sums, one for each place on a stream of its own, enqueued in turns and waited for in the end.

    Returns:
        Number of the place, element and value that is wrong, "" if none is.
    """
    graph, (a, b, y) = _sums()
    start, step = np.arange(_SIZE, dtype=np.float32), np.ones(_SIZE, np.float32)
    with contextlib.ExitStack() as stack:
        chains: list[tuple[Plan, Memory, int, list[Buffer]]] = []
        for number, (engine, memory) in enumerate(places):
            plan, stream = stack.enter_context(plan_of(engine, graph)), stack.enter_context(stream_of(memory))
            buffers = [stack.enter_context(memory.allocate(4 * _SIZE)) for _ in range(3)]
            for buffer, values in zip(buffers, (start + number, start, step), strict=True):
                buffer.write(values)
            chains.append((plan, memory, stream, buffers))
        for link, (plan, _, stream, (x, other, steps)) in itertools.product(range(_CHAIN), chains):
            read, written = (x, other) if link % 2 == 0 else (other, x)
            plan.execute({a.uid: read.address, b.uid: steps.address, y.uid: written.address}, stream=stream)
        for _, memory, stream, _ in chains:
            memory.synchronize(stream)
        results = [np.frombuffer(buffers[_CHAIN % 2].read(), np.float32) for *_, buffers in chains]
    return next((f"{n}, {off}" for n, got in enumerate(results) if (off := _off(got, start + n + _CHAIN))), "")


def _capture(device: Device, options: Options) -> tuple[str, str]:
    """Executions of a plan captured into a graph of the runtime's, which is launched twice, with other data."""
    if device.kind != "hip":
        return "skipped", "the CPU has no streams" if not device.is_gpu else "launches for CUDA wait for the stream"
    memory = memory_of(device)
    assert isinstance(memory, HipMemory)
    lacks = memory.runtime.missing(_GRAPH_FUNCTIONS)
    if lacks:
        return "skipped", f"this HIP runtime lacks {lacks[0]}"
    graph, (a, b, y) = _sums()
    start, step = np.arange(_SIZE, dtype=np.float32), np.ones(_SIZE, np.float32)
    with contextlib.ExitStack() as stack:
        plan = stack.enter_context(plan_of(FusilliEngine(device, options=options), graph))
        stream = stack.enter_context(stream_of(memory))
        x, middle, last, steps = (stack.enter_context(memory.allocate(4 * _SIZE)) for _ in range(4))
        for buffer, values in ((x, start), (middle, -step), (last, -step), (steps, step)):
            buffer.write(values)
        links = [
            {a.uid: read.address, b.uid: steps.address, y.uid: written.address}
            for read, written in ((x, middle), (middle, last))
        ]
        plan.execute(links[0], stream=stream)  # what a plan makes at its first execution is not for a graph
        memory.synchronize(stream)
        with _captured(memory, stream) as captured:
            for link in links:
                plan.execute(link, stream=stream)
        with captured as launch:
            off = _off(np.frombuffer(last.read(), np.float32), -step)
            if off:
                return "wrong", f"what was captured ran: {off}"
            for number in (5, 9):
                x.write(start + number)
                launch()
                memory.synchronize(stream)
                off = _off(np.frombuffer(last.read(), np.float32), start + number + len(links))
                if off:
                    return "wrong", f"launched from a graph, {off}"
    return "right", f"{len(links)} executions in a graph, launched twice"


@contextlib.contextmanager
def _captured(memory: HipMemory, stream: int) -> Iterator[contextlib.AbstractContextManager[Callable[[], None]]]:
    """Captures what is enqueued on a stream; what is yielded gives, when it is entered, a function that launches it."""
    begin, end, instantiate, run, forget, forget_graph = map(memory.runtime.typed, _GRAPH_FUNCTIONS)

    def check(error: int, name: str) -> None:
        if error:
            raise ExecutionError(f"{name} failed with {memory.runtime.error_name(error)}")

    graph, made = ctypes.c_void_p(), ctypes.c_void_p()

    @contextlib.contextmanager
    def launching() -> Iterator[Callable[[], None]]:
        try:
            check(instantiate(ctypes.byref(made), graph, None, None, 0), "hipGraphInstantiate")
            try:
                yield lambda: check(run(made, stream), "hipGraphLaunch")
            finally:
                forget(made)
        finally:
            forget_graph(graph)

    check(begin(stream, _CAPTURE_OF_THREAD), "hipStreamBeginCapture")
    try:
        yield launching()
    finally:
        error = end(stream, ctypes.byref(graph))
    check(error, "hipStreamEndCapture")


def _sums() -> tuple[Graph, tuple[TensorAttr, TensorAttr, TensorAttr]]:
    g = Graph("sums", io_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(_SIZE,)), g.tensor("b", dim=(_SIZE,))
    y = g.pointwise(PointwiseMode.ADD, a, b).set_output(True)
    return g.validate(), (a, b, y)


def _off(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> str:
    """The first element that differs, "" if none does."""
    off = np.flatnonzero(got != wanted)
    return f"element {off[0]}: {got[off[0]]}, not {wanted[off[0]]}" if off.size else ""


@contextlib.contextmanager
def stream_of(memory: Memory) -> Iterator[int]:
    """A stream, for a while; 0 in host memory."""
    stream = memory.create_stream()
    try:
        yield stream
    finally:
        memory.destroy_stream(stream)


def _round_trips(device: Device, options: Options) -> tuple[str, str]:
    """Plans as bytes, restored by another engine object, and right."""
    names = ("conv 3x3+bias+ReLU FLOAT", "product HALF", "layer norm BFLOAT16", "causal attention HALF")
    engine, memory, size = FusilliEngine(device, options=options), memory_of(device), 0
    for name in names:
        graph = selftest.SMALL[name]()
        with plan_of(engine, graph) as plan:
            data = plan.serialize()
        size += len(data)
        with contextlib.closing(FusilliEngine(device, options=options).restore(data)) as restored:
            wrong = _judged(restored, graph, memory)
        if wrong:
            return "wrong", f"{name}: {wrong}"
    return "right", f"{len(names)} plans, {size} bytes"


def _judged(plan: Plan, graph: Graph, memory: Memory) -> str:
    """Execute a plan; the first result that is off."""
    outputs, _ = graph.arguments()
    inputs = selftest.inputs(graph)
    with contextlib.ExitStack() as stack:
        buffers: dict[TensorAttr, Buffer] = {
            tensor: stack.enter_context(memory.allocate(tensor.nbytes)) for tensor in (*outputs, *inputs)
        }
        for tensor, array in inputs.items():
            buffers[tensor].write(tensor.pack(array))
        workspace = stack.enter_context(memory.allocate(plan.workspace_size))
        plan.execute({tensor.uid: buffer.address for tensor, buffer in buffers.items()}, workspace=workspace.address)
        memory.synchronize()
        raw = {tensor: np.frombuffer(buffers[tensor].read(), np.uint8) for tensor in outputs}
    results: Mapping[Any, Any] = {tensor: tensor.unpack(found) for tensor, found in raw.items()}
    wrong = [found for found in numerics.check(graph, inputs, results) if not found.ok]
    return str(wrong[0]) if wrong else ""


@contextlib.contextmanager
def plan_of(engine: FusilliEngine, graph: Graph) -> Iterator[Any]:
    """A plan of a graph, for a while."""
    plan = engine.build(encode_graph(export_graph(graph)), EngineConfig(engine_id=engine.id))
    try:
        yield plan
    finally:
        plan.close()


def memory_of(device: Device) -> Memory:
    """What plans on a device are given their tensors in."""
    if not device.is_gpu:
        return HostMemory()
    return (CudaMemory if device.kind == "cuda" else HipMemory)(device.index)


_TESTS: Final[dict[str, Callable[[Device, Options], tuple[str, str]]]] = {
    "stream order": _stream_order,
    "stream capture": _capture,
    "several devices": _several_devices,
    "saved plans": _round_trips,
}
