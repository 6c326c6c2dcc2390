"""Executables on the CPU: results, strictness, sharing between threads, forks, memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode
from graph_api.errors import ExecutionError
from graph_api.graph import Arguments
from graph_api.tensor import TensorAttr
from iree_bridge import Options, build
from iree_bridge.devices import cuda as cuda_driver
from iree_bridge.devices.device import Device
from iree_bridge.runtime import Executable
from iree_bridge.runtime.program import Program
from tests.support import vmfb

pytestmark = pytest.mark.iree_cpu

ROOT = Path(__file__).resolve().parents[2]
Array = np.ndarray[Any, Any]


def add_executable(device: str = "cpu", arguments: Arguments | None = None) -> Executable:
    code = vmfb.compiled(vmfb.ADD).read_bytes()
    return Executable(arguments or vmfb.add_arguments(), code, Device.parse(device))


def relu_executable(tensor: tuple[TensorAttr, TensorAttr]) -> Executable:
    output, source = tensor
    code = vmfb.compiled(vmfb.relu_ir(tuple(source.physical.shape))).read_bytes()
    return Executable(Arguments((output,), (source,)), code, Device.parse("cpu"))


def filled(arguments: Arguments, seed: int = 0) -> dict[TensorAttr, Array]:
    """Outputs of NaN, inputs of whole numbers."""
    rng = np.random.default_rng(seed)
    pack = {tensor: tensor.empty() for tensor in (*arguments.outputs, *arguments.inputs)}
    for tensor in arguments.outputs:
        pack[tensor][...] = np.nan
    for tensor in arguments.inputs:
        pack[tensor][...] = rng.integers(-9, 9, tensor.dims)
    return pack


def misaligned(array: Array, offset: int = 4) -> Array:
    """The same values at an address that is ``offset`` bytes past a multiple of 64."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    moved = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.mark.parametrize("device", ["cpu", "cpu-sync", "cpu-task"])
def test_run_writes_the_output_in_place(device: str) -> None:
    executable = add_executable(device)
    (y,), (a, b) = executable.outputs, executable.inputs
    pack = filled(vmfb.add_arguments())
    arrays = {tensor.name: array for tensor, array in pack.items()}
    executable.run({y: arrays["y"], "a": arrays["a"], b.uid: arrays["b"]})
    np.testing.assert_array_equal(arrays["y"], arrays["a"] + arrays["b"])
    assert (str(executable.device), executable.workspace_size) == (device, 0)
    assert [tensor.name for tensor in (y, a, b)] == ["y", "a", "b"]


@pytest.mark.parametrize("device", ["cpu-sync", "cpu-task"])
def test_dispatches_that_wait_for_each_other_are_done_when_run_returns(device: str) -> None:
    # On cpu-sync nothing is waited for explicitly: this is what that rests on.
    arguments = vmfb.chain_arguments()
    executable = Executable(arguments, vmfb.compiled(vmfb.CHAIN).read_bytes(), Device.parse(device))
    assert executable.workspace_size >= 2 * 96 * 96 * 4
    for seed in range(20):
        pack = filled(arguments, seed)
        executable.run(pack)
        y, a, b = (pack[tensor].astype(np.float64) for tensor in (*arguments.outputs, *arguments.inputs))
        product = a @ b
        np.testing.assert_allclose(y, product @ b @ product, rtol=0, atol=1e-6 * np.abs(product @ b @ product).max())


def test_every_data_type_and_rank_0() -> None:
    arguments = vmfb.dtype_arguments()
    executable = Executable(arguments, vmfb.compiled(vmfb.dtypes_ir()).read_bytes(), Device.parse("cpu"))
    pack = {tensor: tensor.empty() for tensor in (*arguments.outputs, *arguments.inputs)}
    values = np.arange(6).reshape(2, 3)
    for tensor in arguments.inputs:
        pack[tensor][...] = (values if tensor.dims else 5.0) if tensor.name != "x_BOOLEAN" else values % 2
    executable.run(pack)
    for output, source in zip(*arguments, strict=True):
        got, x = pack[output], pack[source]
        expected = ~x if output.name == "y_BOOLEAN" else x.astype(np.float64) * 2
        np.testing.assert_array_equal(got.astype(expected.dtype), expected, err_msg=output.name)


@pytest.mark.parametrize("where", ["a", "b", "y", "all"])
@pytest.mark.parametrize("device", ["cpu-sync", "cpu-task"])
def test_misaligned_buffers_are_served_through_a_copy(where: str, device: str) -> None:
    executable = add_executable(device)
    pack = {tensor.name: array for tensor, array in filled(vmfb.add_arguments()).items()}
    for offset in (4, 16, 32):
        for name in ("y", "a", "b") if where == "all" else (where,):
            pack[name] = misaligned(pack[name], offset)
        pack["y"][...] = np.nan
        executable.run(pack)
        np.testing.assert_array_equal(pack["y"], pack["a"] + pack["b"])


def test_permuted_strides_and_any_stride_of_size_1_dims() -> None:
    dims, strides = (1, 3, 4, 5), (60, 1, 15, 3)  # NHWC; physical shape 1x4x5x3
    executable = relu_executable(
        (vmfb.tensor("y", 0, dims, strides=strides), vmfb.tensor("x", 1, dims, strides=strides))
    )
    x = np.arange(-30, 30, dtype=np.float32).reshape(1, 4, 5, 3).transpose(0, 3, 1, 2)
    y = np.full((4, 5, 3), np.nan, np.float32).transpose(2, 0, 1)
    odd = np.lib.stride_tricks.as_strided(y, dims, (7 * 4, *y.strides))
    executable.run({"x": x, "y": odd})
    np.testing.assert_array_equal(y, np.maximum(x[0], 0))
    with pytest.raises(
        ExecutionError, match=r"input 'x': strides: expected \(60, 1, 15, 3\), got \(60, 20, 5, 1\); copy"
    ):
        executable.run({"x": np.ascontiguousarray(x), "y": odd})


def test_stride_0_inputs_are_read_as_they_lie() -> None:
    x = vmfb.tensor("x", 1, (4, 3), strides=(0, 1))
    assert x.physical.shape == (1, 3)
    executable = relu_executable((vmfb.tensor("y", 0, (1, 3)), x))
    row = np.array([-1, 0, 2], np.float32)
    y = np.empty((1, 3), np.float32)
    executable.run({"x": np.broadcast_to(row, (4, 3)), "y": y})  # read-only, as inputs may be
    np.testing.assert_array_equal(y, [[0, 0, 2]])


@pytest.mark.parametrize("offset", [0, 4])
def test_padded_tensors_are_flat_views_and_a_copy_keeps_what_lies_behind_them(offset: int) -> None:
    dims, strides = (2, 3), (8, 1)
    executable = relu_executable(
        (vmfb.tensor("y", 0, dims, strides=strides), vmfb.tensor("x", 1, dims, strides=strides))
    )
    store = misaligned(np.full(32, 7, np.float32), offset)
    y = np.lib.stride_tricks.as_strided(store, dims, (32, 4))
    x = np.zeros((2, 8), np.float32)
    x[:, :3] = [[-1, 2, -3], [4, -5, 6]]
    executable.run({"x": x[:, :3], "y": y})
    np.testing.assert_array_equal(y, [[0, 2, 0], [4, 0, 6]])
    np.testing.assert_array_equal(store[11:], 7)  # one past the last element is at 8 + 3


def test_an_output_may_be_an_input_and_two_outputs_may_not_overlap() -> None:
    executable = add_executable()
    a, b = np.arange(16, dtype=np.float32), np.ones(16, np.float32)
    executable.run({"a": a, "b": b, "y": a})
    np.testing.assert_array_equal(a, np.arange(16) + 1)
    block = np.arange(20, dtype=np.float32)
    executable.run({"a": block[:16], "b": b, "y": block[4:]})  # partly: as if the input had been copied first
    np.testing.assert_array_equal(block[4:], np.arange(16) + 1)

    arguments = vmfb.dtype_arguments()
    many = Executable(arguments, vmfb.compiled(vmfb.dtypes_ir()).read_bytes(), Device.parse("cpu"))
    pack: dict[TensorAttr, Array] = {tensor: tensor.empty() for tensor in (*arguments.outputs, *arguments.inputs)}
    first, third = arguments.outputs[0], arguments.outputs[6]
    pack[third] = pack[first].view(np.int32)
    with pytest.raises(
        ExecutionError, match="outputs 'y_FLOAT' and 'y_INT32' overlap in memory at 0x[0-9a-f]+; give each"
    ):
        many.run(pack)


def wrong(**changes: object) -> dict[object, object]:
    pack: dict[object, object] = {name: np.zeros(16, np.float32) for name in ("y", "a", "b")}
    pack.update(changes)
    return {name: value for name, value in pack.items() if value is not None}


def readonly() -> Array:
    array = np.zeros(16, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (wrong(a=None), "no buffer for 'a'; add"),
        (wrong(a=None, y=None), "no buffer for 'y', 'a'; add"),
        (wrong(c=np.zeros(1)), "'?c'? is no input or output; there are 'y', 'a', 'b'"),
        ({**wrong(), 17: 0}, "17 is no input or output"),
        ({**wrong(), 1: np.zeros(16, np.float32)}, "tensor 'b' is given twice: as 'b' and as 1"),
        ({**wrong(), vmfb.tensor("a", 0, (16,)): 0}, "tensor 'a', of another graph or without a buffer, is no input"),
        ({**wrong(b=None), True: np.zeros(16, np.float32)}, "True is no input or output"),
        (wrong(a=np.zeros((1, 16), np.float32)), r"input 'a': rank: expected 1, got 2 \(dims \(1, 16\)\); reshape"),
        (wrong(a=np.zeros(15, np.float32)), r"input 'a': dims: expected \(16,\), got \(15,\)"),
        (wrong(a=np.zeros(16)), "input 'a': dtype: expected float32, got float64; convert it"),
        (wrong(a=np.zeros(16, ">f4")), "input 'a': dtype: expected float32, got >f4"),
        (wrong(a=np.zeros(32, np.float32)[::2]), r"input 'a': strides: expected \(1,\), got \(2,\); copy it into"),
        (wrong(a=np.zeros(16, np.float32)[::-1]), r"input 'a': strides: expected \(1,\), got \(-1,\)"),
        (wrong(y=readonly()), "output 'y': an output: expected writable memory, got read-only memory; pass a copy"),
        (
            wrong(a=[0.0] * 16),
            "tensor 'a': expected a numpy array or an object with __dlpack__, such as a torch tensor, got",
        ),
        (wrong(a=1.0), "got float; scalars"),
        ([np.zeros(16)], "buffers must be given as {tensor: buffer}, got list"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_launch(pack: Any, message: str) -> None:
    executable = add_executable()
    executable.run(wrong())
    for entry in (executable.run, executable.bind):
        with pytest.raises(ExecutionError, match=message):
            entry(pack)


def test_checks_hold_on_every_run_and_for_arrays_that_change_in_place() -> None:
    executable = add_executable()
    a = np.zeros((16, 1), np.float32)[:, 0]
    pack = {"a": a, "b": np.zeros(16, np.float32), "y": np.zeros(16, np.float32)}
    executable.run(pack)
    pack["y"].flags.writeable = False
    with pytest.raises(ExecutionError, match="writable"):
        executable.run(pack)
    pack["y"] = np.zeros(16, np.float32)
    pack["a"] = np.zeros(16, np.int32)
    with pytest.raises(ExecutionError, match="dtype"):
        executable.run(pack)


def _light(dims: list[int]) -> Graph:
    g = Graph(io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=dims)
    g.pointwise(PointwiseMode.ADD, x, x, name="twice").set_output(True).set_name("y")
    return g


def _heavy(dims: list[int]) -> Graph:
    g = Graph(io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=dims)
    g.matmul(x, x).set_output(True).set_name("y")
    return g


@pytest.mark.parametrize("device", ["cpu", "cpu-sync", "cpu-iree"])
@pytest.mark.parametrize("make", [_light, _heavy])
def test_arrays_at_addresses_that_hipdnn_promises(make: Any, device: str) -> None:
    g = make([96, 96])
    executable = build(g, device)
    x = np.random.default_rng(5).integers(-4, 5, (96, 96)).astype(np.float32)
    expected = x + x if make is _light else x.astype(np.float64) @ x.astype(np.float64)
    for read in (0, 4, 16, 48):
        for written in (0, 8, 16, 32):
            pack = {"x": misaligned(x, read), "y": misaligned(np.zeros_like(x), written)}
            executable.run(pack)
            np.testing.assert_array_equal(pack["y"], expected)


@pytest.mark.thorough
def test_what_is_copied_for_its_address() -> None:
    """What reads its buffers once takes them at multiples of 16; what reads them often, or expects more, copies."""
    for make, options, copied in (
        (_light, Options.from_env(), False),
        (_heavy, Options.from_env(), True),
        (_light, replace(Options.from_env(), extra_flags=("--iree-stream-resource-min-offset-alignment=64",)), True),
    ):
        g = make([256, 256])
        executable = build(g, "cpu", options=options)
        x = misaligned(np.ones((256, 256), np.float32), 16)
        y = misaligned(np.zeros((256, 256), np.float32), 32)
        addresses = [y.__array_interface__["data"][0], x.__array_interface__["data"][0]]
        lane = executable._pool.new_lane()
        assert lane._staged(addresses) == (copied, copied)


def test_an_array_that_moves_in_memory_is_found_again() -> None:
    executable = add_executable()
    a, b, y = np.ones(16, np.float32), np.ones(16, np.float32), np.zeros(16, np.float32)
    executable.run({"a": a, "b": b, "y": y})
    a.resize(1 << 20, refcheck=False)
    keep = [np.zeros(16, np.float32) for _ in range(64)]  # takes the old place
    a.resize(16, refcheck=False)
    a[:] = 5
    executable.run({"a": a, "b": b, "y": y})
    np.testing.assert_array_equal(y, 6)
    assert len(keep) == 64


def test_read_only_inputs_and_subclasses_are_fine() -> None:
    executable = add_executable()
    y = np.zeros(16, np.float32)
    executable.run({"a": readonly(), "b": np.ones(16, np.float32).view(np.memmap), "y": y})
    np.testing.assert_array_equal(y, 1)


class Exporter:
    """A DLPack object that is no numpy array; ``versioned`` chooses the protocol."""

    def __init__(self, array: Array, versioned: bool = True) -> None:
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **arguments: Any) -> object:
        if not self.versioned and "max_version" in arguments:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.array.__dlpack__(**arguments)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_objects_are_read_and_written_in_place(versioned: bool) -> None:
    executable = add_executable()
    a, b, y = (np.full(16, value, np.float32) for value in (2, 3, 0))
    pack = {name: Exporter(array, versioned) for name, array in (("a", a), ("b", b), ("y", y))}
    executable.run(pack)
    np.testing.assert_array_equal(y, 5)
    a[:] = 4
    executable.bind(pack)()
    np.testing.assert_array_equal(y, 7)


def test_a_read_only_dlpack_output_is_refused() -> None:
    with pytest.raises(ExecutionError, match=r"output 'y'.*read-only|refuses to share"):
        add_executable().run({**wrong(), "y": Exporter(readonly())})


def test_bound_calls_see_new_contents_and_keep_the_arrays_alive() -> None:
    executable = add_executable()
    (y,), (a, b) = executable.outputs, executable.inputs
    first, second, out = a.empty(), b.empty(), y.empty()
    call = executable.bind({a: first, b: second, y: out}, constants=[b, "a"])
    for value in (1, 2):
        first[:], second[:] = value, 10
        call()
        np.testing.assert_array_equal(out, value + 10)
    gone = weakref.ref(first)
    del first
    gc.collect()
    junk = [np.full(16, 99, np.float32) for _ in range(100)]
    call()
    np.testing.assert_array_equal(out, 12)
    assert junk
    assert gone() is not None
    del call
    gc.collect()
    assert gone() is None


def test_constants_must_be_inputs() -> None:
    executable = add_executable()
    with pytest.raises(ExecutionError, match="'y' is an output and cannot be constant"):
        executable.bind(wrong(), constants=["y"])
    with pytest.raises(ExecutionError, match="zz is no input or output"):
        executable.bind(wrong(), constants=["zz"])


def test_run_does_not_keep_arrays_alive() -> None:
    executable = add_executable()
    pack = {name: np.zeros(16, np.float32) for name in ("a", "b", "y")}
    refs = [weakref.ref(array) for array in pack.values()]
    executable.run(pack)
    del pack
    assert [ref() for ref in refs] == [None] * 3


def test_run_pointers() -> None:
    arguments = vmfb.chain_arguments()
    executable = Executable(arguments, vmfb.compiled(vmfb.CHAIN).read_bytes(), Device.parse("cpu"))
    pack = filled(arguments)
    arrays = [pack[tensor] for tensor in (*executable.outputs, *executable.inputs)]
    pointers = [array.ctypes.data for array in arrays]
    y, a, b = arrays
    expected = (a.astype(np.float64) @ b) @ b @ (a.astype(np.float64) @ b)
    block = np.full(executable.workspace_size + 128, 0xFF, np.uint8)
    start = -block.ctypes.data % 64
    for workspace in (0, block.ctypes.data + start, block.ctypes.data + start + 4):
        y[...] = np.nan
        executable.run_pointers(pointers, workspace)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert not (block[start : start + executable.workspace_size] == 0xFF).all()
    np.testing.assert_array_equal(block[start + executable.workspace_size :], 0xFF)
    with pytest.raises(ExecutionError, match="the address of 'a' is NULL"):
        executable.run_pointers([pointers[0], 0, pointers[2]])
    with pytest.raises(ExecutionError, match="got 2 addresses for 3 arguments"):
        executable.run_pointers(pointers[:2])


@pytest.mark.parametrize("device", ["cpu-sync", "cpu-task"])
def test_threads_share_an_executable(device: str) -> None:
    arguments = vmfb.chain_arguments()
    executable = Executable(arguments, vmfb.compiled(vmfb.CHAIN).read_bytes(), Device.parse(device))
    failures: list[object] = []

    def work(seed: int) -> None:
        pack = filled(arguments, seed)
        y, a, b = (pack[tensor] for tensor in (*arguments.outputs, *arguments.inputs))
        expected = (a.astype(np.float64) @ b) @ b @ (a.astype(np.float64) @ b)
        for _ in range(100):
            y[...] = np.nan
            executable.run(pack)
            if not np.allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max()):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_threads_share_a_bound_call() -> None:
    arguments = vmfb.chain_arguments()
    executable = Executable(arguments, vmfb.compiled(vmfb.CHAIN).read_bytes(), Device.parse("cpu-sync"))
    pack = filled(arguments)
    call = executable.bind(pack)
    threads = [threading.Thread(target=lambda: [call() for _ in range(100)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    y, a, b = (pack[tensor].astype(np.float64) for tensor in (*arguments.outputs, *arguments.inputs))
    np.testing.assert_allclose(y, (a @ b) @ b @ (a @ b), rtol=0, atol=1e-6 * np.abs(y).max())


@pytest.mark.parametrize(
    ("flops", "nbytes", "driver"),
    [(None, 64, "local-sync"), (10**6, 64, "local-sync"), (10**8, 64, "local-task"), (None, 1 << 24, "local-task")],
)
def test_small_work_does_not_go_to_irees_thread_pool(
    flops: int | None, nbytes: int, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    count = nbytes // 4
    arguments = Arguments((vmfb.tensor("y", 0, (count,)),), (vmfb.tensor("x", 1, (count,)),))
    code = vmfb.compiled(vmfb.ADD).read_bytes()

    def chosen() -> str | None:
        program = Executable(arguments, code, Device.parse("cpu-iree"), flops=flops)._program
        assert isinstance(program, Program)
        return program.driver

    assert chosen() == driver
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert chosen() == "local-sync"


def test_code_that_is_none_is_refused() -> None:
    for code in (b"", b"not code", vmfb.compiled(vmfb.ADD).read_bytes()[:2000]):
        with pytest.raises(ExecutionError, match="the code cannot be loaded"):
            Executable(vmfb.add_arguments(), code, Device.parse("cpu"))
    with pytest.raises(ExecutionError, match="cannot be loaded on cpu: .*; was it compiled for another target"):
        Executable(vmfb.add_arguments(), vmfb.compiled(vmfb.ADD, "gfx942").read_bytes(), Device.parse("cpu"))


def test_code_of_another_signature_fails_at_the_launch() -> None:
    arguments = vmfb.add_arguments()
    executable = Executable(Arguments(arguments.outputs, arguments.inputs[:1]), vmfb.compiled(vmfb.ADD).read_bytes(),
                            Device.parse("cpu"))  # fmt: skip
    with pytest.raises(ExecutionError, match="the launch that computes 'y' failed on cpu"):
        executable.run({"y": np.zeros(16, np.float32), "a": np.zeros(16, np.float32)})


SCRIPT = """
import sys
import numpy as np
from iree_bridge.devices.device import Device
from iree_bridge.runtime import Executable
from tests.support import vmfb
code = open(sys.argv[1], "rb").read()
arguments = vmfb.add_arguments()
def make(device="cpu-sync"):
    return Executable(arguments, code, Device.parse(device))
def arrays():
    return {"a": np.ones(16, np.float32), "b": np.full(16, 2, np.float32), "y": np.zeros(16, np.float32)}
"""


def python(script: str, **environment: str) -> str:
    """The output of a script in a process of its own, which must end well."""
    command = [sys.executable, "-c", SCRIPT + script, str(vmfb.compiled(vmfb.ADD))]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not done.stderr, done.stderr
    return done.stdout


ROTATE = """
import resource
exe, ring = make(), [arrays() for _ in range(200)]
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
def spin(count):
    for i in range(count):
        exe.run(ring[i % 200])
    call = exe.bind(arrays())
    for i in range(count // 100):
        exe.bind(ring[i % 200])()
    call()
spin(COUNT // 4)
before = rss()
spin(COUNT)
print(rss() - before)
"""


@pytest.mark.a_few("0-8000")
@pytest.mark.parametrize("count", [8_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("perturb", ["0", "165"])
def test_memory_stays_flat_when_arrays_rotate_through_the_view_cache(count: int, perturb: str) -> None:
    # 200 packs overflow the cache of prepared launches: each run drops one, which is what crashes when an imported
    # buffer outlives what it was imported from. MALLOC_PERTURB_ makes that certain.
    grown = int(python(ROTATE.replace("COUNT", str(count)), MALLOC_PERTURB_=perturb))
    assert grown < 1 << 20


@pytest.mark.parametrize("device", ["cpu-sync", "cpu-task"])
def test_a_forked_child_computes_and_the_parent_goes_on(device: str) -> None:
    out = python(
        f"""
import os, signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: the point of the test
exe, pack = make("{device}"), arrays()
exe.run(pack)
call = exe.bind(pack)
call()
child = os.fork()
if child == 0:
    signal.alarm(20)
    for compute in (lambda: exe.run(pack), call, lambda: make("{device}").run(pack)):
        pack["a"] += 1
        compute()
        assert (pack["y"] == pack["a"] + 2).all()
    print("child", flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
pack["a"][:] = 7
call()
exe.run(pack)
assert (pack["y"] == 9).all()
print("parent")
"""
    )
    assert out.split() == ["child", "parent"]


@pytest.mark.thorough
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a thread keeps its last processor")
def test_the_thread_that_calls_keeps_its_processors() -> None:
    """The launcher moves its own threads away from the caller's processor, by numbers that new ones do not have yet."""
    out = python(
        """
import os, warnings
from graph_api import DataType, Graph
from iree_bridge import build
from iree_bridge.devices.device import set_task_threads
warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: the point of the test
set_task_threads(8)
g = Graph("product", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
g.matmul(g.tensor("a", dim=(1, 512, 256)), g.tensor("b", dim=(1, 256, 512))).set_output(True)
exe = build(g.validate(), "cpu")
a, b = np.ones((1, 512, 256), np.float32), np.ones((1, 256, 512), np.float32)
before, losses = os.sched_getaffinity(0), 0
for _ in range(60):
    child = os.fork()
    if not child:
        for _ in range(3):
            exe(a, b)
        os._exit(os.sched_getaffinity(0) != before)
    losses += os.waitpid(child, 0)[1] != 0
print(losses)
"""
    )
    assert out.split() == ["0"]


def test_objects_that_live_until_the_interpreter_ends_do_no_harm() -> None:
    out = python(
        """
import builtins
exe = make("cpu-task")
builtins.kept = (exe, exe.bind(arrays()), make(), make().bind(arrays()))
builtins.kept[1](); builtins.kept[3]()
print("done")
""",
        MALLOC_PERTURB_="165",
    )
    assert out == "done\n"


@pytest.fixture
def cuda() -> Device:
    try:
        count = cuda_driver.device_count()
    except ExecutionError as error:
        pytest.skip(str(error))
    if not count:
        pytest.skip("no CUDA device")
    return Device.parse("cuda:0")


@pytest.mark.gpu
def test_cuda_with_host_arrays(cuda: Device) -> None:
    arguments = vmfb.chain_arguments()
    executable = Executable(arguments, vmfb.compiled(vmfb.CHAIN, "sm_80").read_bytes(), cuda)
    for seed in range(5):
        pack = filled(arguments, seed)
        y, a, b = (pack[tensor] for tensor in (*arguments.outputs, *arguments.inputs))
        expected = (a.astype(np.float64) @ b) @ b @ (a.astype(np.float64) @ b)
        for compute in (lambda pack=pack: executable.run(pack), executable.bind(pack)):
            y[...] = np.nan
            compute()
            np.testing.assert_allclose(y, expected, rtol=0, atol=1e-3 * np.abs(expected).max())
    misplaced = {tensor: misaligned(array) for tensor, array in filled(arguments).items()}
    executable.run(misplaced)
    assert np.isfinite(misplaced[arguments.outputs[0]]).all()


@pytest.mark.gpu
@pytest.mark.parametrize("streams", ["none", "caller"])
def test_cuda_sees_what_torch_has_enqueued(cuda: Device, streams: str) -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream() if streams == "caller" else None
    executable = Executable(vmfb.add_arguments(), vmfb.compiled(vmfb.ADD, "sm_80").read_bytes(), cuda)
    executable = executable.on_stream(stream.cuda_stream if stream else None)
    block = torch.zeros(17, device="cuda")
    for y in (torch.zeros(16, device="cuda"), block[1:]):  # the second is misaligned
        for value in range(20):
            with torch.cuda.stream(stream):
                slow = torch.randn(2048, 2048, device="cuda")
                for _ in range(4):
                    slow = slow @ slow * 1e-3
                a = torch.full((16,), float(value), device="cuda") + 0 * slow.nan_to_num(0, 0, 0)[0, :16]
                b = torch.ones(16, device="cuda")
            executable.run({"a": a, "b": b, "y": y})
            assert (y == value + 1).all(), value


def test_a_call_takes_arrays_and_returns_new_ones() -> None:
    executable = add_executable()
    _, a, b = filled(vmfb.add_arguments()).values()
    first, second = executable(a, b), executable(a, b=b)
    np.testing.assert_array_equal(first, a + b)
    np.testing.assert_array_equal(executable(b=b, a=a), second)
    assert first is not second
    assert isinstance(first, np.ndarray)


@pytest.mark.parametrize(
    ("inputs", "named", "message"),
    [
        ((), {}, "no array for 'a', 'b'; inputs are a, b"),
        ((0,), {"a": 0}, "input 'a' is given by position and by name"),
        ((0,), {"c": 0}, r"has no input 'c'.*; it has a, b"),
        ((0, 0, 0), {}, "takes 2 inputs, a, b; got 3"),
    ],
)
def test_a_call_names_what_is_wrong(inputs: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        add_executable()(*inputs, **named)
