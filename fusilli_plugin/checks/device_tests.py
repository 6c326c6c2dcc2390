"""What a device has to do beside computing: keep the order of streams, work beside others, run saved plans."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
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

__all__ = ["DeviceTest", "run_device_tests"]

_CHAIN: Final = 64
_SIZE: Final = 1 << 16
_MANY: Final = 64


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
    g = Graph("sums", io_data_type=DataType.FLOAT)
    a, b = g.tensor("a", dim=(_SIZE,)), g.tensor("b", dim=(_SIZE,))
    y = g.pointwise(PointwiseMode.ADD, a, b).set_output(True)
    graph, engine, memory = g.validate(), FusilliEngine(device, options=options), _memory(device)
    start, step = np.arange(_SIZE, dtype=np.float32), np.ones(_SIZE, np.float32)
    with contextlib.ExitStack() as stack:
        plan = stack.enter_context(_plan(engine, graph))
        streams = [memory.create_stream() for _ in range(2)]
        chains = [[stack.enter_context(memory.allocate(graph.tensors[0].nbytes)) for _ in range(3)] for _ in streams]
        for number, (x, other, steps) in enumerate(chains):
            x.write(start + number)
            other.write(start)
            steps.write(step)
        for link, (number, stream) in itertools.product(range(_CHAIN), enumerate(streams)):
            x, other, steps = chains[number]
            read, written = (x, other) if link % 2 == 0 else (other, x)
            plan.execute({a.uid: read.address, b.uid: steps.address, y.uid: written.address}, stream=stream)
        for stream in streams:
            memory.synchronize(stream)
        results = [np.frombuffer(chain[_CHAIN % 2].read(), np.float32) for chain in chains]
        for stream in streams:
            memory.destroy_stream(stream)
    for number, result in enumerate(results):
        off = np.flatnonzero(result != start + number + _CHAIN)
        if off.size:
            where = int(off[0])
            return "wrong", f"stream {number}, element {where}: {result[where]}, not {start[where] + number + _CHAIN}"
    return "right", f"{len(streams)} streams of {_CHAIN} executions"


def _several_devices(device: Device, options: Options) -> tuple[str, str]:
    """A small graph on each device of the kind, and on the first again."""
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
    for each in (*found, *found[:1]):
        selftest.run(str(each))
    return "right", f"{len(found)} device{'' if len(found) == 1 else 's'}"


def _round_trips(device: Device, options: Options) -> tuple[str, str]:
    """Plans as bytes, restored by another engine object, and right."""
    names = ("conv 3x3+bias+ReLU FLOAT", "product HALF", "layer norm BFLOAT16", "causal attention HALF")
    engine, memory, size = FusilliEngine(device, options=options), _memory(device), 0
    for name in names:
        graph = selftest.SMALL[name]()
        with _plan(engine, graph) as plan:
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
def _plan(engine: FusilliEngine, graph: Graph) -> Iterator[Any]:
    plan = engine.build(encode_graph(export_graph(graph)), EngineConfig(engine_id=engine.id))
    try:
        yield plan
    finally:
        plan.close()


def _memory(device: Device) -> Memory:
    if not device.is_gpu:
        return HostMemory()
    return (CudaMemory if device.kind == "cuda" else HipMemory)(device.index)


_TESTS: Final[dict[str, Callable[[Device, Options], tuple[str, str]]]] = {
    "stream order": _stream_order,
    "several devices": _several_devices,
    "saved plans": _round_trips,
}
