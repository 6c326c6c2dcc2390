"""What the tests do with a HIP device, each in a process of its own: ``python -m tests.support.standin_hip.scenarios``.

Arguments: name of the scenario, the stand-in library, compiled code for gfx942. A scenario ends well or raises.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graph_api.errors import ExecutionError
from iree_bridge import _hip
from iree_bridge.device import Device
from iree_bridge.runtime import Executable
from tests.support import vmfb
from tests.support.standin_hip.standin import Standin

STREAM, OTHER = 0xABC0, 0xDEF0


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
        from iree_bridge import buffers

        self.streams.append(stream)
        self.managed = buffers._DLManagedTensor()
        tensor = self.managed.tensor
        tensor.data, tensor.device_type, tensor.device_id = self.pointer, 10, self.index
        tensor.ndim, tensor.code, tensor.bits, tensor.lanes = 1, 2, 32, 1
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        return buffers._capsule_new(ctypes.addressof(self.managed), b"dltensor", None)


def floats(pointer: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * 16).from_address(pointer))


def play_add(name: str, stream: int, arguments: Sequence[int]) -> int:
    """The kernel of vmfb.ADD: inputs first, then the output."""
    a, b, y = map(floats, arguments)
    y[:] = a + b
    return 0


def load(code: Path, device: str = "hip", stream: int | None = None) -> Executable:
    return Executable(vmfb.add_arguments(), code.read_bytes(), Device.parse(device, stream=stream))


def pointers(hip: Standin, offset: int = 0) -> tuple[int, int, int]:
    """Device memory for y, a, b; a counts, b is 10."""
    made = [hip.malloc(64 + offset) + offset for _ in range(3)]
    floats(made[0])[:], floats(made[1])[:], floats(made[2])[:] = -1, np.arange(16), 10
    return made[0], made[1], made[2]


def one_library(hip: Standin, library: Path, code: Path) -> None:
    """hip-python and IREE use the file that the host has mapped, under a name that no plain dlopen finds."""
    assert _hip.mapped_library() == str(library)
    assert Device.parse("hip").arch == "gfx942"
    load(code)
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split(None, 5)[5] for line in maps if "amdhip64" in line}
    assert mapped == {str(library)}
    assert hip.take("stream_create"), "IREE has opened the device in the same library"


def devices(hip: Standin, library: Path, code: Path) -> None:
    """Each device has its own architecture; opening one leaves the caller's device current."""
    assert _hip.device_count() == 2
    assert [Device.parse(name).arch for name in ("hip", "hip:0", "hip:1")] == ["gfx942", "gfx942", "gfx90a"]
    assert str(Device.parse("hip:1").target) == "gfx90a"
    hip.set_device(0)
    hip.take()
    load(code, "hip:1")
    assert _hip.current_device() == 0
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
            assert {event.call for event in events} == {"launch", "event_record"}, events
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
            expect("the launch that computes 'y' failed on hip:0: .*hipErrorLaunchFailure", run)
            hip.take()
            floats(y)[:] = -1
            run()
    hip.take()
    hip.fail("host_malloc", 2)
    expect("device 'hip:0' cannot be opened: .*hipErrorOutOfMemory", lambda: load(code, stream=0x5550))


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


def no_gpu(hip: Standin, library: Path, code: Path) -> None:
    """A HIP runtime without a device."""
    assert _hip.device_count() == 0
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
