"""How fast a device is beside what it can do: a few graphs, and the time that their bytes and products take at least.

What it can do is measured where it can be: copies between two buffers on every device, products on the CPU with numpy's
own. Of AMD's chips the rate of the matrix instructions is known: operations a cycle (`iree_bridge.static.chips`),
times units and clock of the card. It says nothing about right and wrong, and nothing here fails a self-test.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from fusilli_plugin.checks.device_tests import memory_of, plan_of, stream_of
from fusilli_plugin.engine.engine import FusilliEngine
from graph_api import DataType, FusilliError, Graph, NormFwdPhase, PointwiseMode, ReductionMode
from hipdnn_backend.device.memory import Memory
from iree_bridge import Device, Options
from iree_bridge.devices import hip
from iree_bridge.devices.device import task_threads
from iree_bridge.static.chips import chip_of

__all__ = ["Ceiling", "Roofline", "Timing", "measure", "workloads"]

_COPIED: Final = {True: 256 << 20, False: 64 << 20}  # bytes, on GPUs and on CPUs: more than their caches hold
_BATCHES: Final = 5
_SECONDS: Final = 0.05  # of a batch
_MOST: Final = 1000  # executions in a batch


@dataclass(frozen=True)
class Ceiling:
    """What a device can do.

    Attributes:
        bytes_per_s: of a copy, read and written bytes together.
        products_per_s: type → operations of products; none where nothing is known.
        products_are: ``measured``, ``known`` or ``not known``.
    """

    bytes_per_s: float
    products_per_s: Mapping[str, float]
    products_are: str

    def least(self, nbytes: int, operations: int, data_type: str) -> tuple[float, str]:
        """Seconds that so much takes at least, and what takes them: ``memory`` or ``products``."""
        of_memory = nbytes / self.bytes_per_s
        rate = self.products_per_s.get(data_type)
        of_products = operations / rate if rate else 0.0
        return max((of_memory, "memory"), (of_products, "products"))


@dataclass(frozen=True)
class Timing:
    """A graph's time.

    Attributes:
        name: of the graph, with its type.
        seconds: of an execution, the least of several; 0 if there is none.
        nbytes: of its operands and results.
        operations: of its products; 0 if it has none.
        bound: what its least time follows from, ``memory`` or ``products``.
        share: the least time by the one that was taken, 1 at the roofline; 0 if nothing was timed.
        text: why it was not timed.
    """

    name: str
    seconds: float = 0.0
    nbytes: int = 0
    operations: int = 0
    bound: str = ""
    share: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class Roofline:
    """A ceiling and the times of graphs below it."""

    ceiling: Ceiling
    timings: tuple[Timing, ...]

    def as_json(self) -> dict[str, Any]:
        """For reports."""
        return {**asdict(self.ceiling), "graphs": [asdict(timing) for timing in self.timings]}


def measure(device: Device, options: Options, graphs: Mapping[str, tuple[Graph, int]] | None = None) -> Roofline:
    """Time graphs on a device, by default `workloads`.

    Args:
        device: where.
        options: for compiling; graphs are neither left to other engines nor checked.
        graphs: name → graph and the operations of its products.

    Raises:
        FusilliError: the device's memory cannot be copied.
    """
    memory = memory_of(device)
    ceiling = _ceiling(device, memory)
    found: list[tuple[Timing, str]] = []
    for name, (graph, operations) in (workloads(device) if graphs is None else graphs).items():
        nbytes = sum(tensor.nbytes for part in graph.arguments() for tensor in part)
        try:
            seconds = _timed(graph, FusilliEngine(device, options=options), memory)
        except FusilliError as error:
            found.append((Timing(name, nbytes=nbytes, operations=operations, text=str(error)), ""))
            continue
        data_type = graph.arguments().inputs[0].data_type.name
        found.append((Timing(name, round(seconds, 9), nbytes, operations), data_type))
    ceiling = _best(ceiling, _ceiling(device, memory))
    return Roofline(ceiling, tuple(_placed(timing, ceiling, data_type) for timing, data_type in found))


def _placed(timing: Timing, ceiling: Ceiling, data_type: str) -> Timing:
    """A timing with its part of the roofline."""
    if not timing.seconds:
        return timing
    least, bound = ceiling.least(timing.nbytes, timing.operations, data_type)
    return replace(timing, bound=bound, share=round(least / timing.seconds, 4))


def _ceiling(device: Device, memory: Memory) -> Ceiling:
    return Ceiling(_copies(memory), *_products(device))


def _best(one: Ceiling, other: Ceiling) -> Ceiling:
    """Of two measurements: others may have used the machine during one of them."""
    products = {name: max(rate, other.products_per_s[name]) for name, rate in one.products_per_s.items()}
    return Ceiling(max(one.bytes_per_s, other.bytes_per_s), products, one.products_are)


def workloads(device: Device) -> dict[str, tuple[Graph, int]]:
    """What is timed: name → graph and the operations of its products. Smaller and in FLOAT for the CPU."""
    gpu = device.is_gpu
    dtype = DataType.HALF if gpu else DataType.FLOAT
    rows, columns = (8192 if gpu else 4096), 4096  # more than caches hold, as what is copied
    edge = 4096 if gpu else 1024
    images, channels = (32, 128) if gpu else (2, 64)
    sequences, length = (64, 1024) if gpu else (8, 256)
    made = {
        "sum of two": (_elementwise(rows, columns, DataType.FLOAT), 0),
        "sums of rows": (_rows(rows, columns, DataType.FLOAT), 0),
        "layer norm": (_norm(rows, columns, dtype), 0),
        "product": (_product(edge, dtype), 2 * edge**3),
        "convolution 3x3, channels last": (
            _convolution(images, channels, dtype), 2 * images * 56 * 56 * 9 * channels**2,
        ),
        "attention": (_attention(sequences, length, dtype), 4 * sequences * length**2 * 64),
    }  # fmt: skip
    return {f"{name} {graph.arguments().inputs[0].data_type.name}": (graph, n) for name, (graph, n) in made.items()}


def _timed(graph: Graph, engine: FusilliEngine, memory: Memory) -> float:
    """Seconds of an execution, many of which are enqueued at a time; the least of some batches."""
    outputs, inputs = graph.arguments()
    values = graph.random_inputs(seed=0)
    with contextlib.ExitStack() as stack:
        plan = stack.enter_context(plan_of(engine, graph))
        stream = stack.enter_context(stream_of(memory))
        buffers = {each: stack.enter_context(memory.allocate(each.nbytes)) for each in (*outputs, *inputs)}
        for tensor in inputs:
            buffers[tensor].write(tensor.pack(values[tensor]))
        pack = {tensor.uid: buffer.address for tensor, buffer in buffers.items()}
        workspace = stack.enter_context(memory.allocate(plan.workspace_size))

        def execute() -> None:
            plan.execute(pack, workspace=workspace.address, stream=stream)

        return _least(execute, lambda: memory.synchronize(stream))


def _least(step: Callable[[], object], wait: Callable[[], object]) -> float:
    """Seconds of a step, without what the first ones take."""

    def batch(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return (time.perf_counter() - start) / count

    batch(1)
    count = min(max(int(_SECONDS / max(batch(2), 1e-9)), 1), _MOST)
    return min(batch(count) for _ in range(_BATCHES))


def _copies(memory: Memory) -> float:
    """Bytes a second, read and written together."""
    size = _COPIED[not memory.is_host]
    with contextlib.ExitStack() as stack:
        source, target = (stack.enter_context(memory.allocate(size)) for _ in range(2))
        source.write(np.ones(size, np.uint8))
        if memory.is_host:
            pool, parts = stack.enter_context(ThreadPoolExecutor(task_threads())), task_threads()
            edges = [size * part // parts for part in range(parts + 1)]

            def copy(part: int) -> None:
                at, length = edges[part], edges[part + 1] - edges[part]
                memory.copy_rows(target.address + at, length, source.address + at, length, length, 1)

            seconds = _least(lambda: list(pool.map(copy, range(parts))), lambda: None)
        else:
            stream = stack.enter_context(stream_of(memory))
            seconds = _least(
                lambda: memory.copy_rows(target.address, size, source.address, size, size, 1, stream),
                lambda: memory.synchronize(stream),
            )
    return 2 * size / seconds


def _products(device: Device) -> tuple[dict[str, float], str]:
    """Operations a second by type, and where they are from."""
    if device.kind == "cpu":
        a, c = np.ones((1024, 1024), np.float32), np.empty((1024, 1024), np.float32)
        return {"FLOAT": 2 * 1024**3 / _least(lambda: np.matmul(a, a, out=c), lambda: None)}, "measured"
    chip = chip_of(device.target) if device.kind == "hip" else None
    cycles = hip.cycles_per_s(device.index) if chip is not None else 0
    if chip is None or not cycles:
        return {}, "not known"
    return {dtype.name: float(each * cycles) for dtype, each in chip.generation.matrix.items()}, "known"


def _elementwise(rows: int, columns: int, dtype: DataType) -> Graph:
    g = Graph("sum of two", io_data_type=dtype)
    a, b = g.tensor("a", dim=(rows, columns)), g.tensor("b", dim=(rows, columns))
    g.pointwise(PointwiseMode.ADD, a, b).set_output(True)
    return g.validate()


def _rows(rows: int, columns: int, dtype: DataType) -> Graph:
    g = Graph("sums of rows", io_data_type=dtype)
    g.reduction(g.tensor("x", dim=(rows, columns)), mode=ReductionMode.ADD).set_dim((rows, 1)).set_output(True)
    return g.validate()


def _norm(rows: int, columns: int, dtype: DataType) -> Graph:
    g = Graph("layer norm", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    x, scale, bias = (g.tensor(name, dim=(n, columns)) for name, n in (("x", rows), ("scale", 1), ("bias", 1)))
    y, _, _ = g.layernorm(x, scale, bias, epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE)
    y.set_output(True)
    return g.validate()


def _product(edge: int, dtype: DataType) -> Graph:
    g = Graph("product", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    g.matmul(g.tensor("a", dim=(edge, edge)), g.tensor("b", dim=(edge, edge))).set_output(True)
    return g.validate()


def _convolution(images: int, channels: int, dtype: DataType) -> Graph:
    g = Graph("convolution", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(images, channels, 56, 56), layout="NHWC")
    w = g.tensor("w", dim=(channels, channels, 3, 3), layout="NHWC")
    g.conv_fprop(x, w, padding=1).set_output(True)
    return g.validate()


def _attention(sequences: int, length: int, dtype: DataType) -> Graph:
    g = Graph("attention", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    q, k, v = (g.tensor(name, dim=(1, sequences, length, 64)) for name in "qkv")
    g.sdpa(q, k, v, attn_scale=0.125).o.set_output(True)
    return g.validate()
