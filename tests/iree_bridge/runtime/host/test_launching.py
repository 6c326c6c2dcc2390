"""CPU code without IREE's driver: fills and copies byte by byte, kernels in any number of threads, what is refused."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.edge.build import c_compiler
from graph_api import DataType, ExecutionError, Graph, PointwiseMode
from iree_bridge import build
from iree_bridge.compile.compiler import compile_code
from iree_bridge.devices import device as device_module
from iree_bridge.devices.device import Device, set_task_threads
from iree_bridge.runtime import Executable
from iree_bridge.runtime.host import launching, library
from iree_bridge.runtime.host.launching import HostCode
from iree_bridge.runtime.program import HostProgram, Program
from iree_bridge.runtime.recorded import ArgumentOffset, Copy, Fill, Recording, UnrecordableError
from iree_bridge.targets.target import Target
from tests.support import vmfb

pytestmark = pytest.mark.iree_cpu

ROOT = Path(__file__).resolve().parents[4]
PIECE = 1 << 18
"""Bytes of a fill or copy that one thread takes at once."""


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "_state", device_module._Process())


def product(rows: int = 96, terms: int = 80, columns: int = 352) -> Graph:
    graph = Graph("product", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    a, b = graph.tensor("a", dim=(1, rows, terms)), graph.tensor("b", dim=(1, terms, columns))
    graph.matmul(a, b, name="c").set_output(True).set_name("c")
    return graph.validate()


def run_bytes(commands: tuple[Any, ...], sizes: tuple[int, ...], threads: int, times: int = 1) -> list[np.ndarray]:
    """What arguments of so many bytes hold after the commands; they begin with bytes counted from 0."""
    arrays = [np.arange(size, dtype=np.uint8) for size in sizes]
    code = HostCode(Recording((), commands), sizes, 1.0)
    call = code.prepare([array.ctypes.data for array in arrays], threads, arrays)
    for _ in range(times):
        call()
    return arrays


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("width", "pattern"), [(1, 0xA5), (2, 0xBEEF), (4, 0x01020304), (4, 0)])
def test_a_fill_of_many_pieces(threads: int, width: int, pattern: int) -> None:
    size, begin, nbytes = 3 * PIECE + 64, 12, 2 * PIECE + 8
    (found,) = run_bytes((Fill(ArgumentOffset(0, begin), nbytes, pattern, width),), (size,), threads)
    expected = np.arange(size, dtype=np.uint8)
    expected[begin : begin + nbytes] = np.frombuffer(pattern.to_bytes(width, "little") * (nbytes // width), np.uint8)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_commands_see_what_earlier_ones_wrote(threads: int) -> None:
    size = 5 * PIECE + 3
    fill = Fill(ArgumentOffset(0, 0), size, 7, 1)
    on, back = (Copy(ArgumentOffset(s, 0), ArgumentOffset(t, 0), size) for s, t in ((0, 1), (1, 2)))
    for found in run_bytes((fill, on, back), (size,) * 3, threads, times=40):
        assert (found == 7).all()


def test_empty_lists_and_commands() -> None:
    run_bytes((), (8,), 2)
    (found,) = run_bytes((Fill(ArgumentOffset(0, 8), 0, 1, 1),), (8,), 2)
    np.testing.assert_array_equal(found, np.arange(8))


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 200])
def test_kernels_in_any_number_of_threads(threads: int) -> None:
    """Forty runs: the tries of both ways, and what is chosen after them."""
    set_task_threads(threads)
    graph = product()
    a, b = (
        np.random.default_rng(n).standard_normal(t.dims, np.float32) for n, t in enumerate(graph.arguments().inputs)
    )
    c = np.full((1, 96, 352), np.nan, np.float32)
    executable = build(graph, "cpu")
    assert isinstance(executable._program, HostProgram)
    call = executable.bind({"a": a, "b": b, "c": c})
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for _ in range(40):
        c[...] = np.nan
        call()
        np.testing.assert_allclose(c, expected, rtol=0, atol=1e-4)


@pytest.mark.thorough
def test_both_ways_are_measured() -> None:
    set_task_threads(2)
    executable = build(product(512, 512, 512), "cpu")
    program = executable._program
    assert isinstance(program, HostProgram)
    pack = {
        tensor.name: np.ones(tensor.dims, np.float32)
        for tensors in (executable.outputs, executable.inputs)
        for tensor in tensors
    }
    for _ in range(8):
        executable.run(pack)
    serial, shared = program.loaded.times
    assert serial > 100_000  # 268 MFLOP
    assert shared > 50_000
    alone = build(product(512, 512, 504), "cpu-sync")
    assert isinstance(alone._program, HostProgram)
    assert alone._program.threads == 1


@pytest.mark.thorough
def test_calls_that_overlap_in_time() -> None:
    set_task_threads(3)
    graphs = [product(96, 80, 32 * n) for n in range(1, 7)]
    failures = list[str]()

    def work(n: int) -> None:
        executable, rng = build(graphs[n], "cpu"), np.random.default_rng(n)
        for _ in range(60):
            a, b = (rng.integers(-3, 4, tensor.dims).astype(np.float32) for tensor in executable.inputs)
            c = np.full((1, 96, 32 * (n + 1)), np.nan, np.float32)
            executable.run({"a": a, "b": b, "c": c})
            if not (c == a @ b).all():
                failures.append(f"graph {n}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_child_that_is_forked_while_others_run() -> None:
    code = """
import os, signal, threading, warnings
import numpy as np
from tests.iree_bridge.runtime.host.test_launching import build, product, set_task_threads
warnings.simplefilter("ignore", DeprecationWarning)
set_task_threads(3)
exe = build(product(256, 256, 256), "cpu")
def pack():
    return {"a": np.ones((1, 256, 256), np.float32), "b": np.ones((1, 256, 256), np.float32),
            "c": np.zeros((1, 256, 256), np.float32)}
stop = threading.Event()
def work():
    mine = pack()
    while not stop.is_set():
        exe.run(mine)
workers = [threading.Thread(target=work) for _ in range(2)]
for worker in workers: worker.start()
for _ in range(12):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        mine = pack()
        for _ in range(20):
            mine["c"][:] = 0
            exe.run(mine)
            assert (mine["c"] == 256).all()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for worker in workers: worker.join()
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.thorough
def test_a_child_that_is_forked_while_another_thread_loads() -> None:
    code = """
import os, signal, threading, warnings
from tests.iree_bridge.runtime.host.test_launching import build, product
warnings.simplefilter("ignore", DeprecationWarning)
graphs = [product(64, 8 * n, 64) for n in range(1, 5)]
for graph in graphs: build(graph, "cpu")
stop = threading.Event()
def work():
    while not stop.is_set():
        for graph in graphs: build(graph, "cpu")
loader = threading.Thread(target=work)
loader.start()
for n in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        build(graphs[n % 4], "cpu")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
loader.join()
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == "done\n", done.stderr


def test_small_numbers_are_kept_and_the_callers_mode_is_left_alone() -> None:
    """1e-38 / 100 is no normal number; a caller that flushes such numbers to zero goes on doing so."""
    torch = pytest.importorskip("torch")
    graph = Graph("small", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x, y = graph.tensor("x", dim=(64,)), graph.tensor("y", dim=(64,))
    graph.pointwise(PointwiseMode.MUL, x, y).set_output(True).set_name("z")
    z = np.zeros(64, np.float32)
    pack = {"x": np.full(64, 1e-38, np.float32), "y": np.full(64, 0.01, np.float32), "z": z}
    executable = build(graph.validate(), "cpu")
    expected = np.float32(np.float64(np.float32(1e-38)) * np.float64(np.float32(0.01)))
    for flushes in (False, True):
        torch.set_flush_denormal(flushes)
        try:
            z[...] = 0
            executable.run(pack)
            assert (
                (z == expected).all() and expected != 0
                if not flushes
                else (z.view(np.uint32) == expected.view(np.uint32)).all()
            )
            tiny = (torch.full((4,), 1e-38) * torch.full((4,), 0.01)).view(torch.int32)
            assert bool((tiny == 0).all()) is flushes
        finally:
            torch.set_flush_denormal(False)


def test_constants_and_memory_between_command_buffers() -> None:
    sizes = (64,)
    recording = Recording(
        (),
        (Copy(ArgumentOffset(1, 0), ArgumentOffset(2, 0), 16), Copy(ArgumentOffset(2, 0), ArgumentOffset(0, 8), 16)),
        temporaries=(16, 32),
        contents={0: bytes(range(100, 116))},
    )
    code = HostCode(recording, sizes, 0.0)
    held = code.temporaries()
    assert all(address % 64 == 0 for address, _ in held)
    y = np.zeros(64, np.uint8)
    code.prepare([y.ctypes.data, *(address for address, _ in held)], 2, held)()
    np.testing.assert_array_equal(y, [0] * 8 + [*range(100, 116)] + [0] * 40)


FAKE = """
#include <stddef.h>
#include <stdint.h>
typedef const char *text;
typedef struct { uint32_t version; text name; uint32_t features, sanitizer; } header;
typedef struct {
  uint64_t flags; uint16_t pages; uint8_t constants, bindings; uint32_t x, y; uint16_t z, n; uint64_t r[5];
} attributes;
typedef struct {
  const header *h;
  struct { uint32_t count; const text *symbols; } imports;
  struct {
    uint32_t count; const void *functions; const attributes *a; const void *p, *o; const text *names; const void *t[4];
  } exports;
  struct { uint32_t count; } constants;
} table;
static int kernel(const void *e, const void *d, const void *w) { return FAILS; }
static const void *const functions[] = {(const void *)kernel};
static const text names[] = {"kernel"};
static const attributes facts[] = {{.flags = FLAGS}};
static const header head = {VERSION, "fake", 0, 0};
static const table all = {
  &head, {IMPORTS, NULL}, {1, functions, facts, NULL, NULL, names, {NULL}}, {CONSTANTS}
};
const table *iree_hal_executable_library_query(uint32_t most, const void *e) { return most >= VERSION ? &all : NULL; }
"""
LINK = ("-shared", "-fPIC", "-w", "-nostdlib", "-Wl,--hash-style=sysv", "-Wl,-z,separate-code")


def fake(tmp_path: Path, **values: int) -> bytes:
    """A library as the compiler makes them, with one kernel that does nothing and returns FAILS."""
    given = {"FAILS": 0, "FLAGS": 0, "VERSION": 6, "IMPORTS": 0, "CONSTANTS": 0} | values
    source, made = tmp_path / "fake.c", tmp_path / "fake.so"
    source.write_text(FAKE)
    defines = [f"-D{name}={value}" for name, value in given.items()]
    subprocess.run([*c_compiler(), *LINK, *defines, str(source), "-o", str(made)], check=True)
    return made.read_bytes()


def test_code_that_fails(tmp_path: Path) -> None:
    images, kernels = launching._read(memoryview(fake(tmp_path, FAILS=3)), 0)
    launch = launching.Launch(kernels[0], (4, 1, 1), (), ())
    code = HostCode(Recording(tuple(images), (launch,)), (), 0.0)
    for threads in (1, 2):
        with pytest.raises(RuntimeError, match="the compiled code reports a failure"):
            code.prepare([], threads, None)()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"VERSION": 5}, "another version"),
        ({"VERSION": 7}, "another version"),
        ({"IMPORTS": 1}, "needs functions"),
        ({"CONSTANTS": 2}, "needs functions"),
        ({"FLAGS": 1}, "kernel kernel has flags 0x1"),
    ],
)
def test_code_that_asks_for_more(values: dict[str, int], said: str, tmp_path: Path) -> None:
    with pytest.raises(UnrecordableError, match=said):
        launching._read(memoryview(fake(tmp_path, **values)), 0)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", bytes(4096), b"no code at all" * 100])
def test_what_is_no_code(data: bytes) -> None:
    with pytest.raises(UnrecordableError, match="cannot be loaded: it is no library"):
        launching._read(memoryview(data), 0)


def test_damaged_headers(tmp_path: Path) -> None:
    """Headers with other bytes, and files that end too early: loaded, or refused."""
    whole = fake(tmp_path)
    refused = 0
    for end in range(0, len(whole), 97):
        try:
            launching._Image(whole[:end])
        except UnrecordableError:
            refused += 1
    assert refused > 10
    for at in range(16, 64):
        for value in (0, 1, 0x7F, 0xFF):
            with contextlib.suppress(UnrecordableError):
                launching._Image(whole[:at] + bytes([value]) + whole[at + 1 :])


def test_relocations_that_lead_out_of_the_code(tmp_path: Path) -> None:
    whole = fake(tmp_path)
    at = whole.index(struct.pack("<QQ", 7, struct.unpack("<Q", whole[whole.index(struct.pack("<Q", 7)) + 8 :][:8])[0]))
    (table,) = struct.unpack_from("<Q", whole, at + 8)
    for field, value in ((0, 1 << 40), (8, 1), (16, 1 << 40)):
        damaged = bytearray(whole)
        struct.pack_into("<Q", damaged, table + field, value)
        with pytest.raises(UnrecordableError, match="a relocation leads out of it|relocations of another kind"):
            launching._Image(bytes(damaged))


def test_a_grid_that_is_too_large(tmp_path: Path) -> None:
    images, kernels = launching._read(memoryview(fake(tmp_path)), 0)
    for grid in ((1 << 16, 1 << 15, 1), (1, 1, 1 << 16)):
        with pytest.raises(UnrecordableError, match="a grid is larger"):
            HostCode(Recording(tuple(images), (launching.Launch(kernels[0], grid, (), ()),)), (), 0.0)


def test_without_the_library_irees_driver_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(library, "PATH", tmp_path / "none.so")
    library.launcher.cache_clear()
    try:
        code = vmfb.compiled(vmfb.ADD).read_bytes()
        executable = Executable(vmfb.add_arguments(), code, Device.parse("cpu"))
        assert isinstance(executable._program, Program)
        assert "CPU code is launched by IREE's driver" in caplog.text
    finally:
        library.launcher.cache_clear()


def test_irees_driver_can_be_asked_for() -> None:
    device = Device.parse("cpu-iree")
    assert (str(device), device.driver) == ("cpu-iree", "local")
    graph = product()
    executable = build(graph, "cpu-iree")
    assert isinstance(executable._program, Program)
    a, b = (np.ones(tensor.dims, np.float32) for tensor in executable.inputs)
    c = np.zeros((1, 96, 352), np.float32)
    executable.run({"a": a, "b": b, "c": c})
    assert (c == 80).all()


def test_code_for_another_device_is_refused() -> None:
    gfx = vmfb.compiled(vmfb.ADD, "gfx942").read_bytes()
    with pytest.raises(UnrecordableError):
        launching.load(gfx, [64] * 3, 0, 0.0)
    with pytest.raises(ExecutionError, match="was it compiled for another target"):
        Executable(vmfb.add_arguments(), gfx, Device.parse("cpu"))


def test_equal_code_is_loaded_once() -> None:
    code = compile_code(product(), Target.parse("cpu")).vmfb
    arguments = product().arguments()
    first, second = (Executable(arguments, code, Device.parse("cpu")) for _ in range(2))
    assert isinstance(first._program, HostProgram)
    assert isinstance(second._program, HostProgram)
    assert first._program.loaded is second._program.loaded


@pytest.mark.slow
def test_the_launcher_under_a_thread_sanitizer(tmp_path: Path) -> None:
    """Four threads with lists of their own, of which one at a time has the pool; each list is looked at after a run."""
    source = Path(library.__file__).with_name("launcher.c")
    main = tmp_path / "main.c"
    main.write_text(f'#include "{source}"\n' + STRESS)
    made = tmp_path / "main"
    built = subprocess.run(
        [*c_compiler(), "-std=gnu11", "-O1", "-g", "-fsanitize=thread", "-pthread", str(main), "-o", str(made)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode:
        pytest.skip(f"no thread sanitizer: {built.stderr.splitlines()[-1:]}")
    done = subprocess.run(
        [str(made)], capture_output=True, text=True, timeout=300, check=False,
        env={"TSAN_OPTIONS": "halt_on_error=1", "PATH": os.defpath},
    )  # fmt: skip
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-3000:]


STRESS = """
enum { SIZE = 6 * COPY_PIECE + 5 };
static void *caller(void *wrong) {
  char *from = malloc(SIZE), *to = malloc(SIZE);
  list *l = launcher_list(2, 3, 0, 10 * WAKE_NS);
  launcher_add_fill(l, (uint64_t[]){0, 0}, SIZE, 9, 1);
  launcher_add_copy(l, (uint64_t[]){1, 0, 0, 0}, SIZE);
  void *memory = malloc(launcher_job_size(l));
  launcher_prepare(l, (uint64_t[]){(uint64_t)from, (uint64_t)to}, memory);
  for (int run = 0; run < 150; ++run) {
    memset(from, 0, SIZE);
    memset(to, 0, SIZE);
    if (launcher_run(memory, 4)) *(int *)wrong = 1;
    for (size_t i = 0; i < SIZE; ++i)
      if (to[i] != 9) *(int *)wrong = 1;
  }
  free(memory), free(from), free(to), launcher_free(l);
  return NULL;
}
int main(void) {
  pthread_t threads[4];
  int wrong[4] = {0};
  for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, caller, &wrong[i]);
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  puts(wrong[0] | wrong[1] | wrong[2] | wrong[3] ? "wrong" : "right");
}
"""
