"""Prepared programs: what a run does, and what it does not do any more."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph
from graph_api import DataType, Graph, PointwiseMode
from hipdnn_backend.device.dlpack import share
from hipdnn_backend.device.memory import HostMemory
from hipdnn_backend.offload.program import program as p
from hipdnn_backend.offload.program.runner import InputError, Prepared, prepare
from hipdnn_backend.wire import EngineConfig, encode_graph
from tests.hipdnn_backend.fake_plans import FakePlan, GuardedMemory, wire
from tests.support.standin_hip import standin

ROOT = Path(__file__).resolve().parents[2]
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
W = np.array([[1, 1, -9], [1, 1, 1]], np.float32)


def program(*, workspace: int = 100) -> p.Program:
    """y = relu(x + w) over a temporary, copied to z in columns."""
    dense, columns = ((2, 3), (3, 1)), ((2, 3), (1, 2))
    made = p.Program(
        name="two",
        inputs=(p.Named("x", 0),),
        outputs=(p.Named("y", 2), p.Named("z", 4)),
        constants=(p.Named("w", 1),),
        buffers=(
            p.Buffer(p.Space.INPUT, "x", 24), p.Buffer(p.Space.CONSTANT, "w", 24), p.Buffer(p.Space.OUTPUT, "y", 24),
            p.Buffer(p.Space.TEMPORARY, "t", 24), p.Buffer(p.Space.OUTPUT, "z", 24),
        ),
        views=(
            p.View(0, 0, *dense, "float32"), p.View(1, 0, *dense, "float32"), p.View(2, 0, *dense, "float32"),
            p.View(3, 0, *dense, "float32"), p.View(4, 0, *dense, "float32"), p.View(4, 0, *columns, "float32"),
        ),
        graphs=(
            p.PlannedGraph("add", "FAKE_ENGINE", 0, (1, 2), (100,), workspace),
            p.PlannedGraph("relu", "FAKE_ENGINE", 1, (1,), (100,), 0),
        ),
        steps=(p.Execute(0, (0, 1, 3)), p.Execute(1, (3, 2)), p.Copy(2, 5)),
    )  # fmt: skip
    return p.placed(made)


def plans(*, workspace: int = 100) -> list[FakePlan]:
    data = wire("add", [(2, 3), (2, 3)], (2, 3)), wire("relu", [(2, 3)], (2, 3))
    return [FakePlan(data[0], workspace), FakePlan(data[1])]


Y = np.maximum(X + W, 0)
Z = np.maximum(X + W, 0).T.reshape(2, 3)  # the columns of y, one after the other


def test_a_program_runs() -> None:
    memory = GuardedMemory()
    prepared = prepare(program(), plans(), memory, {"w": W})
    for factor in (1, 2):
        results = prepared.run({"x": X * factor})
        np.testing.assert_array_equal(results["y"], np.maximum(X * factor + W, 0))
        np.testing.assert_array_equal(results["z"], results["y"].T.reshape(2, 3))
    assert list(results) == ["y", "z"]
    memory.check()


def test_results_go_into_the_callers_arrays() -> None:
    y = np.zeros((2, 3), np.float32)
    results = prepare(program(), plans(), GuardedMemory(), {"w": W}).run({"x": X}, {"y": y})
    assert results["y"] is y
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(results["z"], Z)


def test_results_that_share_memory_are_refused() -> None:
    memory = np.zeros(12, np.float32)
    made = plans()
    prepared = prepare(program(), made, GuardedMemory(), {"w": W})
    for y, z in ((slice(0, 6), slice(0, 6)), (slice(5, 11), slice(0, 6))):
        with pytest.raises(InputError, match="outputs '.' and '.' are given memory that overlaps"):
            prepared.run({"x": X}, {"y": memory[y].reshape(2, 3), "z": memory[z].reshape(2, 3)})
    assert made[0].runs == 0
    prepared.run({"x": X}, {"y": memory[:6].reshape(2, 3), "z": memory[6:].reshape(2, 3)})
    np.testing.assert_array_equal(memory, np.concatenate([Y.ravel(), Z.ravel()]))


def test_inputs_in_any_order_of_memory() -> None:
    results = prepare(program(), plans(), GuardedMemory(), {"w": W}).run({"x": np.asfortranarray(X)})
    np.testing.assert_array_equal(results["y"], Y)


class DeviceMemory(GuardedMemory):
    """Host memory that passes for a GPU's."""

    @property
    def name(self) -> str:
        return "HIP device 1"

    @property
    def is_host(self) -> bool:
        return False


class Foreign:
    """Another library's array that passes for one on a device."""

    def __init__(self, array: np.ndarray[Any, Any], kind: int = 10, index: int = 1) -> None:
        self.array = array
        self.device = kind, index
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, max_version: Any = None, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__(max_version=max_version)


def test_torch_tensors_are_taken_and_written() -> None:
    import torch

    y, z = torch.zeros(2, 3), torch.zeros(2, 3)
    prepared = prepare(program(), plans(), GuardedMemory(), {"w": W})
    for x in (torch.tensor(X), torch.tensor(np.asfortranarray(X)), torch.tensor(np.repeat(X, 2, 1))[:, ::2]):
        y.zero_()
        results = prepared.run({"x": x}, {"y": y, "z": z})
        assert results["y"] is y
        np.testing.assert_array_equal(y.numpy(), Y)
        np.testing.assert_array_equal(z.numpy(), Z)
    assert isinstance(prepared.run({"x": torch.tensor(X)})["y"], np.ndarray)
    np.testing.assert_array_equal(prepare(program(), plans(), DeviceMemory(), {"w": W}).run({"x": x}, {"y": y})["y"], Y)
    for given, message in [
        (torch.zeros(3, 2), r"input 'x': expected dims \(2, 3\), got \(3, 2\)"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), "input 'x': expected type float32, got bfloat16; convert it"),
        (torch.zeros(2, 3, requires_grad=True), r"input 'x': Tensor refuses to share its memory .*; pass .detach\(\)"),
    ]:
        with pytest.raises(InputError, match=message):
            prepared.run({"x": given})
    with pytest.raises(InputError, match="output 'y': a writable C-contiguous array is needed"):
        prepared.run({"x": x}, {"y": torch.zeros(3, 2).T})


def test_arrays_on_the_device_stay_there() -> None:
    memory = DeviceMemory()
    prepared = prepare(program(), plans(), memory, {"w": W}, stream=7)
    prepared.run({"x": X})
    writes = memory.writes
    x, y = Foreign(X), Foreign(np.zeros((2, 3), np.float32))
    results = prepared.run({"x": x}, {"y": y})
    assert results["y"] is y
    np.testing.assert_array_equal(y.array, Y)
    np.testing.assert_array_equal(results["z"], Z)
    assert memory.writes == writes  # nothing came from the host
    assert (x.streams, y.streams) == ([7], [7])
    for given, message in [
        (Foreign(X, index=0), "input 'x': it lies on HIP device 0, and the program runs on HIP device 1"),
        (Foreign(X, kind=2), "input 'x': it lies on CUDA device 1, and the program runs on HIP device 1"),
        (Foreign(X, kind=14), "input 'x': it lies on DLPack device type 14, device 1, and the program"),
        (Foreign(np.asfortranarray(X)), "input 'x': a dense row-major array is needed on a device"),
        (Foreign(X[:1]), r"input 'x': expected dims \(2, 3\), got \(1, 3\)"),
    ]:
        with pytest.raises(InputError, match=message):
            prepared.run({"x": given})
    with pytest.raises(InputError, match="it lies on HIP device 1, and the program runs on host memory"):
        prepare(program(), plans(), GuardedMemory(), {"w": W}).run({"x": x})


def test_the_default_stream_has_a_number_in_dlpack() -> None:
    for kind, number in ((10, 0), (2, 1)):
        given = Foreign(X, kind)
        share(given, 0)
        assert given.streams == [number]


@pytest.mark.thorough
def test_shared_memory_lives_as_long_as_its_array() -> None:
    for dtype, dims in (("float32", (2, 3)), ("bool", (4,)), ("int64", ()), ("float64", (0, 3))):
        source = np.ones(dims, dtype)
        given = Foreign(source[..., ::-1] if dims else source, kind=1, index=0)
        array = share(given, 0).array()
        np.testing.assert_array_equal(array, source)
        assert array.dtype == source.dtype
    owner = Foreign(np.arange(6.0)[::-1], kind=1, index=0)
    gone = weakref.ref(owner)
    array = share(owner, 0).array()
    del owner
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(array, [5, 4, 3, 2, 1, 0])
    del array
    gc.collect()
    assert gone() is None


def test_memory_is_allocated_once_and_constants_are_placed_once() -> None:
    memory = GuardedMemory()
    prepared = prepare(program(), plans(), memory, {"w": W})
    prepared.run({"x": X})
    count, writes = memory.live_count, memory.writes
    assert count == 5  # arena, w, x, y, z
    for _ in range(3):
        prepared.run({"x": X})
    assert (memory.live_count, memory.writes) == (count, writes)  # inputs are written in place
    prepared.close()
    prepared.close()
    assert memory.live_count == 0
    with pytest.raises(InputError, match="closed"):
        prepared.run({"x": X})


def test_a_program_on_the_callers_addresses() -> None:
    memory = HostMemory()
    prepared = prepare(program(), plans(), memory, {"w": W})
    buffers = [memory.allocate(24) for _ in range(3)]
    x, y, z = buffers
    bound = prepared.bind([buffer.address for buffer in buffers])
    for factor in (1, 3):
        x.write(X * factor)
        bound()
        np.testing.assert_array_equal(np.frombuffer(y.read(), np.float32).reshape(2, 3), np.maximum(X * factor + W, 0))
    assert prepared.bind([buffer.address for buffer in buffers]) is bound
    with pytest.raises(InputError, match="takes 3 addresses, none NULL; got 2"):
        prepared.bind([x.address, y.address])
    with pytest.raises(InputError, match="none NULL"):
        prepared.bind([x.address, 0, z.address])


def test_profiling_says_what_each_step_took_and_wrote() -> None:
    seen: dict[int, np.ndarray[Any, Any]] = {}

    def look(step: int, at: Prepared) -> None:
        seen[step] = at.fetch(at.program.written(at.program.steps[step])[0])

    prepared = prepare(program(), plans(), GuardedMemory(), {"w": W})
    timings = prepared.profile({"x": X}, look)
    assert [(timing.step, timing.name) for timing in timings] == [(0, "add"), (1, "relu"), (2, "copy y to z")]
    assert all(timing.seconds > 0 for timing in timings)
    assert [timing.start for timing in timings] == sorted(timing.start for timing in timings)
    np.testing.assert_array_equal(seen[0], X + W)
    np.testing.assert_array_equal(seen[1], Y)
    np.testing.assert_array_equal(seen[2], Y)
    np.testing.assert_array_equal(prepared.fetch(4, (3, 2), (1, 3)), Z.T)


def test_threads_take_turns() -> None:
    prepared = prepare(program(), plans(), GuardedMemory(), {"w": W})
    wrong: list[int] = []

    def work(factor: int) -> None:
        for _ in range(20):
            if not np.array_equal(prepared.run({"x": X * factor})["y"], np.maximum(X * factor + W, 0)):
                wrong.append(factor)

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, r"no array for 'x'; the inputs are \['x'\]"),
        ({"x": X, "v": X}, "'v' is no input"),
        ({"x": X[:1]}, r"input 'x': expected dims \(2, 3\), got \(1, 3\)"),
        ({"x": X.astype(np.float64)}, "input 'x': expected type float32, got float64; convert it"),
        ([X], "program 'two': feeds are a mapping of names, not list"),
        (None, "program 'two': feeds are a mapping of names, not NoneType"),
        ({"x": X[0, 0]}, r"input 'x': expected dims \(2, 3\), got \(\)"),
        (
            {"x": [[1]]},
            "input 'x': a numpy array, or an object with __dlpack__ such as a torch tensor, is needed, got list",
        ),
    ],
)
def test_wrong_feeds(feeds: Any, message: str) -> None:
    made = plans()
    with pytest.raises(InputError, match=message):
        prepare(program(), made, GuardedMemory(), {"w": W}).run(feeds)
    assert made[0].runs == 0


@pytest.mark.parametrize("results", [[X], [], "y", "", 0, ("y", X)])
def test_results_that_are_no_mapping(results: Any) -> None:
    made = plans()
    kind = type(results).__name__
    with pytest.raises(InputError, match=f"program 'two': results are a mapping of names, not {kind}"):
        prepare(program(), made, GuardedMemory(), {"w": W}).run({"x": X}, results)
    assert made[0].runs == 0


def test_wrong_results_constants_and_plans() -> None:
    with pytest.raises(InputError, match="output 'y': a writable C-contiguous"):
        prepare(program(), plans(), GuardedMemory(), {"w": W}).run({"x": X}, {"y": np.asfortranarray(X)})
    with pytest.raises(InputError, match=r"'q' is no output; the outputs are \['y', 'z'\]"):
        prepare(program(), plans(), GuardedMemory(), {"w": W}).run({"x": X}, {"q": X})
    with pytest.raises(InputError, match="the constant 'w' is missing"):
        prepare(program(), plans(), GuardedMemory(), {})
    with pytest.raises(InputError, match=r"constant 'w': expected dims \(2, 3\), got \(3, 2\)"):
        prepare(program(), plans(), GuardedMemory(), {"w": W.T})
    with pytest.raises(InputError, match="needs 2 plans, got 1"):
        prepare(program(), plans()[:1], GuardedMemory(), {"w": W})
    with pytest.raises(InputError, match="graph 'add': its plan needs 101 bytes of workspace, the program has 100"):
        prepare(program(), plans(workspace=101), GuardedMemory(), {"w": W})


def chain(length: int = 12) -> tuple[p.Program, bytes]:
    """A chain of one graph, y = relu(x + x), for Fusilli's engine."""
    graph = Graph("step", io_data_type=DataType.FLOAT)
    x = graph.tensor("x", dim=(8, 16))
    y = graph.pointwise(PointwiseMode.RELU_FWD, graph.pointwise(PointwiseMode.ADD, x, x)).set_output(True)
    graph.validate()
    view = ((8, 16), (16, 1), "float32")
    spaces = [p.Space.INPUT, *[p.Space.TEMPORARY] * (length - 1), p.Space.OUTPUT]
    made = p.Program(
        name="chain",
        inputs=(p.Named("x", 0),),
        outputs=(p.Named("y", length),),
        constants=(),
        buffers=tuple(p.Buffer(space, f"b{n}", 512) for n, space in enumerate(spaces)),
        views=tuple(p.View(n, 0, *view) for n in range(length + 1)),
        graphs=(p.PlannedGraph("step", "FUSILLI_ENGINE", 0, (x.uid,), (y.uid,), 0),),
        steps=tuple(p.Execute(0, (n, n + 1)) for n in range(length)),
    )
    return p.placed(made), encode_graph(export_graph(graph))


@pytest.mark.iree_cpu
def test_fusillis_plans_run_without_allocating() -> None:
    """The bound calls of a run leave no Python object and take no memory from the second run on."""
    made, data = chain()
    assert made.arena == 1024
    engine = FusilliEngine("cpu")
    plan = engine.build(data, EngineConfig(engine_id=engine.id))
    prepared = prepare(made, [plan], HostMemory(), {})
    x = np.random.default_rng(0).standard_normal((8, 16), np.float32)
    np.testing.assert_allclose(prepared.run({"x": x})["y"], np.maximum(x, 0) * 2**12, rtol=1e-6)
    memory = HostMemory()
    given, y = memory.allocate(512).write(x), memory.allocate(512)
    bound = prepared.bind([given.address, y.address])
    bound()
    bound()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(100):
        bound()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1024
    np.testing.assert_allclose(np.frombuffer(y.read(), np.float32).reshape(8, 16), np.maximum(x, 0) * 2**12, rtol=1e-6)


@pytest.mark.a_few("program")
@pytest.mark.mlir
@pytest.mark.parametrize("scenario", ["program", "model"])
def test_on_a_stand_in_for_hip(tmp_path: Path, scenario: str) -> None:
    library = standin.build(tmp_path / "hip")
    command = [sys.executable, "-m", "tests.hipdnn_backend.hip_program", scenario, str(library)]
    variables = {
        "PATH": os.defpath,
        "FUSILLI_CACHE_DIR": os.environ["FUSILLI_CACHE_DIR"],
        "FUSILLI_CLAIM": "all",
    }
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.endswith("fine\n")
