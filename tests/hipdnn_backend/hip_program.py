"""Programs and models with their operands on HIP: ``python -m tests.hipdnn_backend.hip_program SCENARIO STANDIN``.

Kernels are played by Python: what is shown is which memory they get, on which stream, and what is allocated.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.device.memory import HipMemory
from hipdnn_backend.offload import load
from hipdnn_backend.offload.program import program as p
from hipdnn_backend.offload.program.runner import prepare
from hipdnn_backend.wire import EngineConfig
from tests.hipdnn_backend.test_interpreter import chain
from tests.support import onnx_models
from tests.support.standin_hip.standin import Standin


def _floats(pointer: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * 128).from_address(pointer))


def _play(name: str, stream: int, arguments: Sequence[int]) -> int:
    """The kernel of the chain's graph: the input first, then the output."""
    x, y = map(_floats, arguments)
    y[:] = np.maximum(x + x, 0)
    return 0


def _with_copies(made: p.Program) -> p.Program:
    """The chain, then its result in another buffer, and in columns in a third."""
    end = len(made.views) - 1
    last = made.views[end]
    buffers = (*made.buffers, p.Buffer(p.Space.OUTPUT, "same", 512), p.Buffer(p.Space.OUTPUT, "columns", 1024))
    views = (
        *made.views,
        replace(last, buffer=end + 1),
        replace(last, buffer=end + 2, strides=(32, 1)),
        p.View(end + 2, 0, (8, 32), (32, 1), "float32"),
    )
    steps = (*made.steps, p.Copy(end, end + 1), p.Copy(end, end + 2))
    outputs = (*made.outputs, p.Named("same", end + 1), p.Named("columns", end + 3))
    return p.placed(replace(made, buffers=buffers, views=views, steps=steps, outputs=outputs))


def program(hip: Standin) -> None:
    """The values are right, and all work goes to the stream without waiting in between."""
    hip.play(_play)
    memory = HipMemory(0)
    made, data = chain(3)
    extended = _with_copies(made)
    engine = FusilliEngine("hip")
    plan = engine.build(data, EngineConfig(engine_id=engine.id))
    stream = memory.create_stream()
    prepared = prepare(extended, [plan], memory, {}, stream=stream)
    x = np.random.default_rng(0).standard_normal((8, 16), np.float32)
    for factor in (1, 2):
        results = prepared.run({"x": x * factor})
        expected = np.maximum(x * factor, 0) * 8
        np.testing.assert_array_equal(results["y"], expected)
        np.testing.assert_array_equal(results["same"], expected)
        np.testing.assert_array_equal(results["columns"][:, :16], expected)
    hip.take()
    prepared.run({"x": x})
    events = [event for event in hip.take() if event.call not in ("event_record", "memcpy_sync")]
    assert [event.call for event in events] == [
        "memcpy", "launch", "launch", "launch", "memcpy", "memcpy2d", *["synchronize", "memcpy"] * 3,
    ], events  # fmt: skip
    assert {event.stream for event in events[1:6]} == {stream}
    buffers = [memory.allocate(1024) for _ in range(4)]
    bound = prepared.bind([buffer.address for buffer in buffers])
    bound()
    hip.take()
    bound()
    assert {event.call for event in hip.take()} <= {"launch", "memcpy", "memcpy2d", "event_record"}
    prepared.close()


def model(hip: Standin) -> None:
    """A model from ONNX to launches on a stream of its own: nothing is allocated from the second run on."""
    launches: list[int] = []
    hip.play(lambda name, stream, arguments: launches.append(stream) or 0)
    proto = onnx_models.mlp()
    feeds = onnx_models.feeds(proto)
    loaded = load(proto, device="hip", engines=[FusilliEngine("hip").for_device("hip")])
    assert loaded.target == "gfx942"
    assert loaded.program.alignment == 256
    loaded.run(feeds)
    count = len(launches)
    assert count >= len(loaded.program.steps)
    assert len(set(launches)) == 1
    assert launches[0] != 0
    hip.take()
    before = hip.live_bytes
    loaded.run(feeds)
    assert len(launches) == 2 * count
    assert not hip.take("malloc", "host_malloc", "free", "stream_create")
    assert hip.live_bytes == before
    loaded.close()
    assert [event.stream for event in hip.take("stream_destroy")] == launches[:1]
    assert hip.live_bytes < before
    memory = HipMemory(0)
    stream = memory.create_stream()
    launches.clear()
    with load(proto, device="hip", engines=[FusilliEngine("hip").for_device("hip")], stream=stream) as loaded:
        loaded.run(feeds)
    assert launches == [stream] * count
    assert not hip.take("stream_destroy")  # it is the caller's


if __name__ == "__main__":
    {"program": program, "model": model}[sys.argv[1]](Standin(sys.argv[2]))
    print("fine")
