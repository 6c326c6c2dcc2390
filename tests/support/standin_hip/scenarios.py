"""What the tests do with a HIP device, each in a process of its own: ``python -m tests.support.standin_hip.scenarios``.

Arguments: name of the scenario, the stand-in library, compiled code for gfx942. A scenario ends well or raises.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_api import Graph
from graph_api.errors import ExecutionError
from iree_bridge.devices import hip as binding
from iree_bridge.devices.device import Device
from iree_bridge.runtime import Executable
from iree_bridge.runtime.program import DirectProgram
from iree_bridge.runtime.recorded import UnrecordableError, launching
from tests.support import vmfb
from tests.support.standin_hip.standin import Event, Standin

STREAM, OTHER = 0xABC0, 0xDEF0
DEVICE = os.environ.get("SCENARIO_DEVICE", "hip")  # hip-iree: launches by IREE's driver


class OnDevice:
    """A DLPack object in the memory of a HIP device; records the streams that it was exported for."""

    def __init__(self, hip: Standin, values: Sequence[float], *, index: int = 0, offset: int = 0) -> None:
        self.pointer = hip.malloc(len(values) * 4 + offset) + offset
        self.view = np.ctypeslib.as_array((ctypes.c_float * len(values)).from_address(self.pointer))
        self.view[:] = values
        self.index = index
        self.streams: list[object] = []
        self._shape = (ctypes.c_int64 * 1)(len(values))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (10, self.index)

    def __dlpack__(self, *, stream: object = None, **_: Any) -> object:
        from fusilli_ground import dlpack

        self.streams.append(stream)
        self.managed = dlpack.ManagedTensor()
        tensor = self.managed.tensor
        tensor.data, tensor.device_type, tensor.device_id = self.pointer, 10, self.index
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = 1, 2, 32, 1
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        return dlpack.new_capsule(ctypes.addressof(self.managed))


def floats(pointer: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * 16).from_address(pointer))


def play_add(name: str, stream: int, arguments: Sequence[int]) -> int:
    """The kernel of vmfb.ADD: inputs first, then the output."""
    a, b, y = map(floats, arguments)
    y[:] = a + b
    return 0


def load(code: Path, device: str = DEVICE, stream: int | None = None) -> Executable:
    return Executable(vmfb.add_arguments(), code.read_bytes(), Device.parse(device, stream=stream))


def pointers(hip: Standin, offset: int = 0) -> tuple[int, int, int]:
    """Device memory for y, a, b; a counts, b is 10."""
    made = [hip.malloc(64 + offset) + offset for _ in range(3)]
    floats(made[0])[:], floats(made[1])[:], floats(made[2])[:] = -1, np.arange(16), 10
    return made[0], made[1], made[2]


def one_library(hip: Standin, library: Path, code: Path) -> None:
    """hip-python and IREE use the file that the host has mapped, under a name that no plain dlopen finds."""
    assert binding.mapped_library() == str(library)
    assert Device.parse("hip").arch == "gfx942"
    load(code, "hip")
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split(None, 5)[5] for line in maps if "amdhip64" in line}
    assert mapped == {str(library)}
    assert hip.take("module_load"), "ours loads code in the same library"
    load(code, "hip-iree")
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert mapped == {line.split(None, 5)[5] for line in maps if "amdhip64" in line}
    assert hip.take("stream_create"), "IREE has opened the device in the same library"


def devices(hip: Standin, library: Path, code: Path) -> None:
    """Each device has its own architecture; opening one leaves the caller's device current."""
    assert binding.device_count() == 2
    assert [Device.parse(name).arch for name in ("hip", "hip:0", "hip:1")] == ["gfx942", "gfx942", "gfx90a"]
    assert str(Device.parse("hip:1").target) == "gfx90a"
    hip.set_device(0)
    hip.take()
    load(code, "hip:1")
    assert binding.current_device() == 0
    assert {event.device for event in hip.take("module_load")} == {1}
    load(code, "hip-iree:1")
    assert binding.current_device() == 0
    assert {event.device for event in hip.take("stream_create")} == {1}
    expect("device 'hip:2' is not there: this machine has 2, hip:0 to hip:1", lambda: Device.parse("hip:2").arch)
    expect("device 'hip:7' is not there: this machine has 2, hip:0", lambda: load(code, "hip:7"))


def streams(hip: Standin, library: Path, code: Path) -> None:
    """Launches go to the stream of the executable with the caller's pointers; nothing is allocated or waited for."""
    hip.play(play_add)
    y, a, b = pointers(hip)
    first = load(code, stream=STREAM)
    second = first.on_stream(OTHER)
    null = first.on_stream(0)
    assert first.on_stream(STREAM) is first
    assert first.on_stream(OTHER) is second
    for executable, stream in ((first, STREAM), (second, OTHER), (null, 0)):
        executable.run_pointers((y, a, b))
        hip.take()
        for _ in range(3):
            floats(y)[:] = -1
            executable.run_pointers((y, a, b))
            events = hip.take()
            launches = [event for event in events if event.call == "launch"]
            assert [(event.stream, event.arguments) for event in launches] == [(stream, (a, b, y))]
            # IREE's driver asks in a thread of its own when the work is done
            others = {"event_record", "event_query", "event_synchronize"} if DEVICE == "hip-iree" else set()
            assert {event.call for event in events} - others == {"launch"}, events
            np.testing.assert_array_equal(floats(y), np.arange(16) + 10)


def arrays(hip: Standin, library: Path, code: Path) -> None:
    """Host arrays are copied in and out on the stream, misaligned ones too; the result is there after the call."""
    hip.play(play_add)
    for stream in (None, STREAM):
        executable = load(code, stream=stream)
        pack = {name: np.full(16, value, np.float32) for name, value in (("a", 1), ("b", 2), ("y", 0))}
        for _ in range(3):
            pack["a"] += 1
            executable.run(pack)
            np.testing.assert_array_equal(pack["y"], pack["a"] + 2)
        hip.take()
        executable.run(pack)
        events = hip.take("memcpy", "launch", "malloc", "host_malloc")
        assert [event.call for event in events] == ["memcpy", "memcpy", "launch", "memcpy"]
        assert {event.stream for event in events} == {stream or 0}
        call = executable.bind(pack)
        pack["a"][:] = 40
        call()
        np.testing.assert_array_equal(pack["y"], 42)


def dlpack(hip: Standin, library: Path, code: Path) -> None:
    """Objects on the device are used in place; their producers are told the stream; other devices are refused."""
    hip.play(play_add)
    a, b, y = OnDevice(hip, range(16)), OnDevice(hip, [1] * 16), OnDevice(hip, [0] * 16)
    for stream, told in ((STREAM, STREAM), (0, 0), (None, -1)):
        load(code, stream=stream).run({"a": a, "b": b, "y": y})
        assert {given.streams[-1] for given in (a, b, y)} == {told}
        launch = hip.take("launch")[-1]
        assert launch.arguments == (a.pointer, b.pointer, y.pointer)
        np.testing.assert_array_equal(y.view, np.arange(16) + 1)
    host = np.full(16, 5, np.float32)  # a mixed pack
    load(code, stream=STREAM).run({"a": host, "b": b, "y": y})
    np.testing.assert_array_equal(y.view, 6)
    elsewhere = OnDevice(hip, range(16), index=1)
    expect(
        "input 'a': device: expected hip:0, got hip:1; move it to hip:0",
        lambda: load(code).run({"a": elsewhere, "b": b, "y": y}),
    )
    expect("expected cpu, got hip:0", lambda: cpu().run({"a": a, "b": host, "y": host.copy()}))


def cpu() -> Executable:
    return Executable(vmfb.add_arguments(), vmfb.compiled(vmfb.ADD).read_bytes(), Device.parse("cpu"))


def misaligned(hip: Standin, library: Path, code: Path) -> None:
    """Device pointers inside an allocation are served through copies on the stream."""
    hip.play(play_add)
    executable = load(code, stream=STREAM)
    y, a, b = pointers(hip, offset=4)
    for _ in range(2):
        hip.take()
        floats(y)[:] = -1
        executable.run_pointers((y, a, b))
        events = hip.take("memcpy", "launch", "synchronize")
        assert [event.call for event in events] == ["memcpy", "memcpy", "launch", "memcpy"]
        assert {event.stream for event in events} == {STREAM}
        assert (events[0].source, events[1].source, events[3].pointer) == (a, b, y)
        np.testing.assert_array_equal(floats(y), np.arange(16) + 10)
    floats(a - 4)[0] = 123  # what lies before belongs to the caller
    executable.run_pointers((a, a, b))
    np.testing.assert_array_equal(floats(a), np.arange(16) + 10)
    assert floats(a - 4)[0] == 123


def failures(hip: Standin, library: Path, code: Path) -> None:
    """A failing launch is an ExecutionError with HIP's name of it; the next one works."""
    hip.play(play_add)
    y, a, b = pointers(hip)
    for stream in (STREAM, None):
        executable = load(code, stream=stream)
        on_device = {"a": OnDevice(hip, range(16)), "b": OnDevice(hip, range(16)), "y": OnDevice(hip, [0] * 16)}
        call = executable.bind(on_device)
        by_pointer = functools.partial(executable.run_pointers, (y, a, b))
        for run in (by_pointer, call, functools.partial(executable.run, on_device)):
            run()
            hip.take()
            hip.fail("launch", 719)
            expect("the launch that computes 'y' failed on hip(-iree)?:0: .*hipErrorLaunchFailure", run)
            hip.take()
            floats(y)[:] = -1
            run()
    hip.take()
    hip.fail("host_malloc", 2)
    expect(
        "device 'hip:0' cannot be opened: .*hipErrorOutOfMemory", lambda: load(code, device="hip-iree", stream=0x5550)
    )
    hip.take()
    del executable, call, run, by_pointer
    hip.fail("module_load", 209)
    expect("the compiled code cannot be loaded on hip:0: hipModuleLoadData failed", lambda: load(code, "hip"))


def bounded(hip: Standin, library: Path, code: Path) -> None:
    """Devices for streams are few, and go when they are closed."""
    executable = load(code)
    one = hip.live_bytes
    for stream in range(1, 30):
        executable.on_stream(stream * 16)
    assert hip.live_bytes <= 17 * one  # 8 in the executable, 8 in the cache of devices, the first
    for stream in range(1, 30):
        executable.forget_stream(stream * 16)
        executable.device.on_stream(stream * 16).close()
    assert hip.live_bytes <= 2 * one
    assert not [event for event in hip.take("stream_destroy") if event.stream in range(16, 480, 16)]


def forked(hip: Standin, library: Path, code: Path) -> None:
    """A child of a process that has used the GPU is told so; the parent goes on."""
    hip.play(play_add)
    executable = load(code, stream=STREAM)
    y, a, b = pointers(hip)
    executable.run_pointers((y, a, b))
    child = os.fork()
    if child == 0:
        text = "used before this process was forked.*'spawn'"
        expect(text, lambda: executable.run_pointers((y, a, b)))
        expect(text, lambda: load(code))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    executable.run_pointers((y, a, b))


def same_calls(hip: Standin, library: Path, code: Path) -> None:
    """Recorded launches are those of IREE's driver: kernels, grids, arguments, fills and copies, in the same order.

    ``code`` is a folder of pairs: NAME.json, a graph, and NAME.vmfb. Pairs that cannot be recorded are listed.
    """
    unrecordable, kinds = [], set()
    for path in sorted(code.glob("*.vmfb")):
        arguments = Graph.from_json(path.with_suffix(".json").read_text()).arguments()
        direct, by_iree = (
            Executable(arguments, path.read_bytes(), Device.parse(name, stream=STREAM)) for name in ("hip", "hip-iree")
        )
        program = direct._program
        if not isinstance(program, DirectProgram):
            unrecordable.append(path.stem)
            continue
        addresses = [hip.malloc(tensor.nbytes) for tensors in arguments for tensor in tensors]
        workspace = hip.malloc(direct.workspace_size) if direct.workspace_size else 0
        given = [*addresses, workspace]
        sizes = [*(tensor.nbytes for tensors in arguments for tensor in tensors), direct.workspace_size]
        seen = []
        for executable in (direct, by_iree):
            executable.run_pointers(addresses, workspace)
            hip.take()
            executable.run_pointers(addresses, workspace)
            events = hip.take()
            if executable is direct:
                assert {event.call for event in events} <= {"launch", "memset", "memcpy"}, path.stem
            events = [event for event in events if event.call in ("launch", "memset", "memcpy")]
            # IREE's driver computes constants when it loads; a recording does in each launch
            events = [event for event in events if not event.kernel.startswith("_initializer_")]
            named = Names(list(zip(given, sizes, strict=True)))
            seen.append([comparable(event, program, named) for event in events])
        assert seen[0] == seen[1], path.stem
        assert seen[0], path.stem
        kinds |= {event.call for event in events}
    print(f"unrecordable {unrecordable} kinds {sorted(kinds)}")


class Names:
    """Names for addresses: those of the caller's buffers are themselves, others go by their order of appearance."""

    def __init__(self, given: Sequence[tuple[int, int]]) -> None:
        self._given = given
        self._others: dict[int, int] = {}

    def __call__(self, address: int) -> object:
        if not address or any(begin <= address < begin + size for begin, size in self._given):
            return address
        return "other", self._others.setdefault(address, len(self._others))


def comparable(event: Event, program: DirectProgram, named: Names) -> tuple[object, ...]:
    """What has to be equal. IREE leaves the upper halves of 32-bit kernel arguments as it finds them."""
    kernels = {each.name: each for each in program.loaded.recording.kernels}
    arguments: list[object] = []
    if event.call == "launch":
        pointers = kernels[event.kernel].pointers
        arguments += [named(value) for value in event.arguments[:pointers]]
        arguments += [value & 0xFFFFFFFF for value in event.arguments[pointers:]]
    memory = named(event.pointer), named(event.source)
    return (event.call, event.kernel, event.stream, event.size, *memory, event.grid, event.block, *arguments)


def unrecordable(hip: Standin, library: Path, code: Path) -> None:
    """Code that does more than can be recorded is launched by IREE's driver, which is said in the log."""
    hip.play(play_add)
    y, a, b = pointers(hip)

    def refuse(*_: object) -> object:
        raise UnrecordableError("a call of hal.device.queue.alloca")

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger("iree_bridge").addHandler(handler)
    logging.getLogger("iree_bridge").setLevel(logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launching, "record", refuse)
        executable = load(code, "hip", STREAM)
    assert any("hal.device.queue.alloca" in record.getMessage() for record in records)
    executable.run_pointers((y, a, b))
    np.testing.assert_array_equal(floats(y), np.arange(16) + 10)
    assert {event.stream for event in hip.take("launch")} == {STREAM}


def captured_driver(hip: Standin, library: Path, code: Path) -> None:
    """What IREE's driver would launch is refused while its stream is captured, and works before and after."""
    hip.play(play_add)
    y, a, b = pointers(hip)
    executable = load(code, "hip-iree", STREAM)
    bound = executable.bind_pointers((y, a, b))
    bound()
    while hip.take():  # a thread of the driver cleans up behind a launch
        time.sleep(0.2)
    message = "computes 'y' cannot be captured into a HIP graph: IREE's driver makes it"
    with hip.capture(STREAM):
        expect(message, lambda: executable.run_pointers((y, a, b)))
        expect(message, bound)
        expect(message, lambda: load(code, "hip-iree", STREAM))
        expect(message, lambda: executable.on_stream(None).run_pointers((y, a, b)))
    assert not hip.take("launch", "event_record", "event_query", "module_load"), "it reached the driver"
    for launch in (bound, lambda: executable.run_pointers((y, a, b))):
        floats(y)[:] = -1
        launch()
        np.testing.assert_array_equal(floats(y), np.arange(16) + 10)


def threads(hip: Standin, library: Path, code: Path) -> None:
    """Launches that overlap have workspaces of their own, so that one never sees the temporaries of another."""
    chain = Path(os.environ["SCENARIO_CHAIN"])
    executable = Executable(vmfb.chain_arguments(), chain.read_bytes(), Device.parse("hip", stream=STREAM))
    assert executable.workspace_size
    buffers = [tuple(hip.malloc(96 * 96 * 4) for _ in range(3)) for _ in range(4)]
    hip.take()

    def work(addresses: tuple[int, ...]) -> None:
        for _ in range(200):
            executable.run_pointers(addresses)

    workers = [threading.Thread(target=work, args=(addresses,)) for addresses in buffers]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    events = hip.take("launch", "malloc")
    size = executable.workspace_size
    bases = [event.pointer for event in events if event.call == "malloc" and event.size == size]
    steps: dict[int, list[str]] = {base: [] for base in bases}
    for event in events:
        if event.call == "launch":
            (used,) = {base for base in bases for argument in event.arguments if base <= argument < base + size}
            steps[used].append(event.kernel)
    assert sum(map(len, steps.values())) == 3 * 4 * 200
    for kernels in steps.values():
        assert kernels == kernels[:3] * (len(kernels) // 3)


def no_gpu(hip: Standin, library: Path, code: Path) -> None:
    """A HIP runtime without a device."""
    assert binding.device_count() == 0
    expect("the HIP runtime finds no GPU; check `rocminfo`", lambda: Device.parse("hip").arch)
    expect("device 'hip:0': the HIP runtime finds no GPU", lambda: load(code))


def expect(pattern: str, action: Any) -> None:
    """``action`` raises an ExecutionError that matches."""
    with pytest.raises(ExecutionError, match=pattern):
        action()


def main() -> None:
    """Runs the scenario that the command line names."""
    name, library, code = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    globals()[name](Standin(library), library, code)
    print("fine")


if __name__ == "__main__":
    main()
