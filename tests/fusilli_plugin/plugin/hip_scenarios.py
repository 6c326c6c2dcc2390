"""The plugin on a stand-in HIP runtime, each scenario in a process of its own.

``python -m tests.fusilli_plugin.plugin.hip_scenarios NAME STANDIN PLUGIN``. Nothing here says how code runs on AMD
hardware: kernels are played by Python. What is shown is devices, streams, allocations, arguments and error paths.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_float, c_int64, c_size_t, c_uint32, c_void_p
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fusilli_plugin.errors import BadParamError
from hipdnn_backend.engine import engine_id
from hipdnn_backend.plugins.abi import CALLBACK, ConstData, DeviceBuffer, declare
from hipdnn_backend.plugins.library import const_data
from hipdnn_backend.wire import EngineConfig, KnobSetting, decode_graph, encode_engine_config
from tests.fusilli_plugin.plugin.hosting import GRAPHS
from tests.support.standin_hip.standin import Event, Standin

A, B = 0xABC0, 0xDEF0
OTHERS = 0xA00000  # streams from here on
ENGINE = engine_id("FUSILLI_ENGINE")
ADD = (GRAPHS / "pw_add.bin").read_bytes()
CONV = (GRAPHS / "conv_bias_relu.bin").read_bytes()
COUNT = 32  # elements of pw_add
PINNED = 128 << 20  # bytes that each open device of IREE pins


class Raw:
    """The plugin's functions, called as a C host calls them."""

    def __init__(self, library: Path) -> None:
        self.functions, missing = declare(ctypes.CDLL(str(library)))
        assert not missing

    def status(self, name: str, *arguments: Any) -> int:
        """Call ``hipdnnEnginePlugin<name>``."""
        return self.functions[f"hipdnnEnginePlugin{name}"](*arguments)

    def __call__(self, name: str, *arguments: Any) -> None:
        status = self.status(name, *arguments)
        assert status == 0, f"{name}: {status}: {self.error()}"

    def error(self) -> str:
        """The last error of this thread."""
        text = c_char_p()
        self.functions["hipdnnPluginGetLastErrorString"](byref(text))
        return (text.value or b"").decode()

    def handle(self, stream: int | None = None) -> int:
        """A new handle, on a stream if one is given."""
        made = c_void_p()
        self("Create", byref(made))
        if stream is not None:
            self("SetStream", made.value, stream)
        assert made.value is not None
        return made.value

    def applies(self, handle: int, graph: bytes) -> bool:
        """Whether the graph is claimed."""
        ids, count = c_int64(), c_uint32(9)
        self("GetApplicableEngineIds", handle, byref(const_data(graph)), byref(ids), 1, byref(count))
        return count.value == 1

    def build(self, handle: int, graph: bytes = ADD, *knobs: KnobSetting) -> tuple[int, int]:
        """Context and its workspace size."""
        config = encode_engine_config(EngineConfig(engine_id=ENGINE, knobs=knobs))
        context, size = c_void_p(), c_size_t(77)
        self("GetWorkspaceSize", handle, byref(const_data(config)), byref(const_data(graph)), byref(size))
        self("CreateExecutionContext", handle, byref(const_data(config)), byref(const_data(graph)), byref(context))
        self("GetWorkspaceSizeFromExecutionContext", handle, context, byref(size))
        assert context.value is not None
        return context.value, size.value

    def serialize(self, handle: int, context: int) -> bytes:
        """The plan as bytes."""
        data = ConstData()
        self("SerializeExecutionContext", handle, context, byref(data))
        payload = ctypes.string_at(data.ptr or 0, data.size)
        self("DestroySerializedExecutionContext", handle, byref(data))
        return payload

    def execute(self, handle: int, context: int, pack: dict[int, int], workspace: int | None = None) -> int:
        """The status of one execution."""
        buffers = (DeviceBuffer * len(pack))(*pack.items())
        return self.status("ExecuteOpGraph", handle, context, workspace, buffers, len(pack))


def floats(pointer: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * COUNT).from_address(pointer))


def play_add(name: str, stream: int, arguments: Sequence[int]) -> int:
    """The kernel of pw_add: inputs first, then the output."""
    a, b, y = map(floats, arguments)
    y[:] = a + b
    return 0


def pack_of(hip: Standin) -> dict[int, int]:
    """Device buffers for pw_add: uids 1, 2 are read, 3 is written."""
    pack = {uid: hip.malloc(COUNT * 4) for uid in (3, 1, 2)}
    floats(pack[1])[:], floats(pack[2])[:], floats(pack[3])[:] = np.arange(COUNT), 10, -1
    return pack


def launches(hip: Standin) -> list[Event]:
    return hip.take("launch")


def check(pack: dict[int, int]) -> None:
    np.testing.assert_array_equal(floats(pack[3]), np.arange(COUNT) + 10)
    floats(pack[3])[:] = -1


def streams(hip: Standin, plugin: Raw) -> None:
    """Work goes to the executing handle's stream, which may change, with the caller's pointers."""
    hip.play(play_add)
    first, second = plugin.handle(A), plugin.handle()
    assert plugin.applies(first, ADD)
    context, size = plugin.build(first)
    assert size == 0
    pack = pack_of(hip)
    hip.take()
    for handle, stream in ((first, A), (second, 0), (first, A)):
        assert plugin.execute(handle, context, pack) == 0
        (launch,) = launches(hip)
        assert (launch.stream, launch.arguments) == (stream, (pack[1], pack[2], pack[3]))
        check(pack)
    plugin("SetStream", first, B)
    assert plugin.execute(first, context, pack) == 0
    assert [launch.stream for launch in launches(hip)] == [B]
    plugin("SetStream", first, None)
    assert plugin.execute(first, context, pack) == 0
    assert [launch.stream for launch in launches(hip)] == [0]
    plugin("Destroy", first)
    assert plugin.execute(second, context, pack) == 0
    check(pack)


def no_allocation(hip: Standin, plugin: Raw) -> None:
    """After the first execution nothing is allocated and nothing is waited for, with workspace and without."""
    handle = plugin.handle(A)
    for graph, uids in ((ADD, (1, 2, 3)), (CONV, (1, 2, 3, 6))):
        context, size = plugin.build(handle, graph)
        pack = {uid: hip.malloc(4096) for uid in uids}
        workspace = hip.malloc(size) if size else None
        assert plugin.execute(handle, context, pack, workspace) == 0, plugin.error()
        hip.take()
        for _ in range(3):
            assert plugin.execute(handle, context, pack, workspace) == 0
        calls = {event.call for event in hip.take()}
        assert "launch" in calls
        assert not calls & {"malloc", "free", "host_malloc", "synchronize", "stream_create", "memcpy", "host_func"}, (
            calls
        )


def prepared(hip: Standin, plugin: Raw) -> None:
    """What comes again is launched without the Python code that looks at its arguments; anything else is looked at."""
    hip.play(play_add)
    first, second = plugin.handle(A), plugin.handle(A)
    context, _ = plugin.build(first)
    plan = attached().plugin._contexts.get(context).plan
    looked, launch = 0, plan.launch

    def looking(raw: bytes, workspace: int, place: Any) -> Any:
        nonlocal looked
        looked += 1
        return launch(raw, workspace, place)

    plan.launch = looking
    pack, other = pack_of(hip), pack_of(hip)
    hip.take()
    for handle, given, workspace, new in (
        (first, pack, 0, 1), (first, pack, 0, 0), (first, other, 0, 1), (first, other, 0, 0), (first, pack, 0, 0),
        (second, pack, 0, 1), (second, pack, 0, 0), (first, pack, 1 << 20, 1), (first, pack, 1 << 20, 0),
    ):  # fmt: skip
        before = looked
        assert plugin.execute(handle, context, given, workspace) == 0, plugin.error()
        assert looked - before == new
        check(given)
        (seen,) = launches(hip)
        assert (seen.stream, seen.arguments) == (A, (given[1], given[2], given[3]))
    assert plugin.execute(first, context, {1: pack[1], 2: pack[2]}) == 1
    assert "no buffer for tensor 3" in plugin.error()
    plugin("Destroy", second)
    assert plugin.execute(first, context, pack) == 0, plugin.error()
    check(pack)
    plugin("DestroyExecutionContext", first, context)
    hip.take()
    assert plugin.execute(first, context, pack) == 1
    assert "was destroyed" in plugin.error()
    assert not launches(hip)


def launches_in_c(hip: Standin, plugin: Raw) -> None:
    """What the shim calls for prepared launches: errors become statuses, references go, the number kept is bounded."""
    handle = plugin.handle(A)
    context, _ = plugin.build(handle)
    edge = attached()
    (serial,) = edge.plugin._places
    pack = {uid: 64 * uid for uid in (1, 2, 3)}  # never read
    buffers = b"".join(struct.pack("=qQ", *pair) for pair in pack.items())

    class Launch:
        def __init__(self, work: Callable[[], object], workspace: int = 0) -> None:
            self.work = work
            edge.link.remember(serial, 0, A, context, workspace, buffers, len(pack), id(self))

        def __call__(self) -> None:
            self.work()

    def fail(error: BaseException) -> Callable[[], object]:
        def work() -> None:
            raise error

        return work

    for error, status in ((RuntimeError("no way"), 3), (BadParamError("no way"), 1), (SystemExit("no way"), 3)):
        Launch(fail(error))
        assert plugin.execute(handle, context, pack) == status
        assert "no way" in plugin.error()
    Launch(fail(KeyboardInterrupt()))
    try:
        plugin.execute(handle, context, pack)
    except KeyboardInterrupt:
        interrupted = True
    else:
        interrupted = False
    assert interrupted, "Ctrl-C did not reach the host"

    calls: list[int] = []
    kept = [weakref.ref(Launch(partial(calls.append, number), 64 * number)) for number in range(3000)]
    alive = [number for number, reference in enumerate(kept) if reference() is not None]
    assert 500 < len(alive) <= 1024
    for number in alive:
        assert plugin.execute(handle, context, pack, 64 * number) == 0
    assert calls == alive

    last = weakref.ref(Launch(lambda: edge.plugin.destroy_context(context)))
    assert plugin.execute(handle, context, pack) == 0
    assert last() is None
    assert not any(reference() for reference in kept)
    assert plugin.execute(handle, context, pack) == 1
    assert "was destroyed" in plugin.error()


class Attached(NamedTuple):
    """The Python side of the plugin."""

    link: Any
    plugin: Any


def attached() -> Attached:
    from fusilli_plugin import attach

    return Attached(*attach._attached[:2])


def workspace(hip: Standin, plugin: Raw) -> None:
    """The caller's workspace is what kernels get; without it the call is refused."""
    handle = plugin.handle(A)
    context, size = plugin.build(handle, CONV)
    if not size:
        return
    pack = {uid: hip.malloc(4096) for uid in (1, 2, 3, 6)}
    assert plugin.execute(handle, context, pack) == 1
    assert f"{size} bytes of workspace" in plugin.error()
    given = hip.malloc(size)
    assert plugin.execute(handle, context, pack, given) == 0
    used = {argument for launch in launches(hip) for argument in launch.arguments}
    assert any(given <= argument < given + size for argument in used)


def devices(hip: Standin, plugin: Raw) -> None:
    """A handle belongs to the device that was current when it was made; its chip decides the target."""
    hip.set_device(1)
    second = plugin.handle(1 << 56)
    hip.set_device(0)
    first = plugin.handle(A)
    for handle, device in ((first, 0), (second, 1)):
        assert plugin.applies(handle, ADD)
        assert [event.device for event in hip.take("module_load")] == [device]
    context, _ = plugin.build(second)
    assert not hip.take("module_load")  # what was loaded for the claim serves
    pack = pack_of(hip)
    assert plugin.execute(second, context, pack) == 0
    hip.take()
    assert plugin.execute(first, context, pack) != 0
    assert "gfx90a" in plugin.error()
    assert "hip:0" in plugin.error()
    assert plugin.status("SetStream", first, 1 << 56) == 1
    assert "another device" in plugin.error()
    number = ctypes.c_int(-1)
    ctypes.CDLL(None)
    assert hip._library.hipGetDevice(byref(number)) == 0
    assert number.value == 0


def unknown_chip(hip: Standin, plugin: Raw) -> None:
    """A chip that the compiler does not know is declined."""
    assert not plugin.applies(plugin.handle(), ADD)


def failures(hip: Standin, plugin: Raw) -> None:
    """A failing driver is an error with its name, memory that ran out has its own status; the next call works."""
    hip.play(play_add)
    handle = plugin.handle(A)
    context, _ = plugin.build(handle)
    pack = pack_of(hip)
    assert plugin.execute(handle, context, pack) == 0
    check(pack)
    hip.take()
    hip.fail("launch", 719)
    assert plugin.execute(handle, context, pack) == 3
    assert "hipErrorLaunchFailure" in plugin.error()
    hip.take()
    assert plugin.execute(handle, context, pack) == 0
    check(pack)
    hip.take()
    other = plugin.handle(B)
    misaligned = {uid: hip.malloc(COUNT * 4 + 4) + 4 for uid in pack}  # goes through memory of ours
    hip.take()
    hip.fail("malloc", 2)
    assert plugin.execute(other, context, misaligned) == 4
    assert "hipErrorOutOfMemory" in plugin.error()
    hip.take()
    assert plugin.execute(other, context, misaligned) == 0
    assert plugin.execute(other, context, pack) == 0
    check(pack)


def bounded(hip: Standin, plugin: Raw) -> None:
    """Streams take no memory, and what was loaded for them goes with their handles."""
    handle = plugin.handle(A)
    context, _ = plugin.build(handle)
    pack = pack_of(hip)
    before = hip.live_bytes
    for number in range(1, 40):
        plugin("SetStream", handle, OTHERS + number)
        assert plugin.execute(handle, context, pack) == 0
    assert hip.live_bytes == before
    plugin("DestroyExecutionContext", handle, context)
    plugin("Destroy", handle)
    assert hip.live_bytes == before
    for number in range(20):
        each = plugin.handle(OTHERS + number)
        context, _ = plugin.build(each)
        assert plugin.execute(each, context, pack) == 0
        plugin("DestroyExecutionContext", each, context)
        plugin("Destroy", each)
    assert hip.live_bytes == before
    events = hip.take("stream_create", "stream_destroy", "module_load", "module_unload")
    assert {event.call for event in events} == {"module_load", "module_unload"}
    calls = [event.call for event in events]
    assert calls.count("module_load") - calls.count("module_unload") <= 17  # 16 wait for being unloaded together


def claims(hip: Standin, plugin: Raw) -> None:
    """Until the self-test has passed on a device, graphs that others take are left to them."""
    from fusilli_plugin.engine import quarantine
    from iree_bridge import Device, Options

    others = ctypes.CDLL(os.environ["OTHER_PLUGIN"])
    assert others
    handle = plugin.handle(A)
    assert not plugin.applies(handle, ADD)
    quarantine.record_selftest(Device.parse("hip"), Options.from_env())
    assert not plugin.applies(handle, ADD), "decided once for a process"


def claims_alone(hip: Standin, plugin: Raw) -> None:
    """Where no other engine plugin is loaded, nobody else could take them."""
    assert plugin.applies(plugin.handle(A), ADD)


def claims_load(hip: Standin, plugin: Raw) -> None:
    """What the driver does not load is declined; what was loaded for a claim goes with the handle at the latest."""
    hip.fail("module_load", 209)
    handle = plugin.handle(A)
    assert not plugin.applies(handle, ADD)
    hip.take()  # the driver can load again
    assert plugin.applies(handle, ADD)
    assert plugin.applies(handle, ADD)
    assert len(hip.take("module_load")) == 1
    plugin("Destroy", handle)
    second = plugin.handle(A)
    plugin.build(second)
    assert len(hip.take("module_load")) == 1, "it was kept for a stream that may be gone"


def small(hip: Standin, plugin: Raw) -> None:
    """What the device could not hold were it empty is declined."""
    assert not plugin.applies(plugin.handle(A), ADD)
    assert not hip.take("module_load")


def captured(hip: Standin, plugin: Raw) -> None:
    """After its first execution a plan can be captured into a HIP graph. Making one during a capture is refused."""
    hip.play(play_add)
    handle, null = plugin.handle(A), plugin.handle()
    context, _ = plugin.build(handle)
    payload = plugin.serialize(handle, context)
    pack = pack_of(hip)
    assert plugin.execute(handle, context, pack) == 0
    check(pack)
    hip.take()
    with hip.capture(A):
        for _ in range(3):
            assert plugin.execute(handle, context, pack) == 0, plugin.error()
    events = hip.take()
    assert {event.call for event in events} == {"launch"}, events
    assert {event.stream for event in events} == {A}
    for launch in events:  # what a replay does
        floats(pack[3])[:] = -1
        play_add(launch.kernel, launch.stream, launch.arguments)
        check(pack)
    made = c_void_p()
    config = encode_engine_config(EngineConfig(engine_id=ENGINE))
    calls = (("CreateExecutionContext", config, ADD), ("CreateExecutionContextFromSerialized", payload))
    with hip.capture(A):
        for each in (handle, null):
            for name, *data in calls:
                assert plugin.status(name, each, *(byref(const_data(part)) for part in data), byref(made)) == 1
                assert "captured into a HIP graph" in plugin.error()
            assert not plugin.applies(each, ADD)
    assert not hip.take(), "the refused calls reached the driver"
    assert plugin.execute(handle, context, pack) == 0


def host_scalars(hip: Standin, plugin: Raw) -> None:
    """Scalars that come with each execution are read from host memory, at the time of the call, on the stream."""
    graph = scale_graph()

    def play(name: str, stream: int, arguments: Sequence[int]) -> int:
        x, factor, y = map(floats, arguments)
        y[:] = x * factor[0]
        return 0

    hip.play(play)
    handle = plugin.handle(A)
    context, _ = plugin.build(handle, graph)
    factor = np.zeros(1, np.float32)
    pack = {1: hip.malloc(COUNT * 4), 2: factor.ctypes.data, 3: hip.malloc(COUNT * 4)}
    floats(pack[1])[:] = np.arange(COUNT)
    for value in (2.0, -3.0, 0.5):
        factor[0] = value
        assert plugin.execute(handle, context, pack) == 0, plugin.error()
        np.testing.assert_array_equal(floats(pack[3]), np.arange(COUNT) * np.float32(value))
    hip.take()
    other = np.full(1, 7, np.float32)  # a host may use another variable each time
    assert plugin.execute(handle, context, {**pack, 2: other.ctypes.data}) == 0
    np.testing.assert_array_equal(floats(pack[3]), np.arange(COUNT) * 7)
    assert {event.stream for event in hip.take("memcpy", "launch")} == {A}


def scale_graph() -> bytes:
    """y = x s, s a scalar that comes with the execution."""
    from graph_api import DataType, Graph, PointwiseMode
    from tests.fusilli_plugin.plugin.shapes import wire_bytes

    g = Graph("scale", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, COUNT // 2), uid=1)
    s = g.tensor("s", dim=(1, 1), uid=2, is_pass_by_value=True)
    g.pointwise(PointwiseMode.MUL, x, s).set_output(True).set_uid(3)
    return wire_bytes(g)


def wrong_code(hip: Standin, plugin: Raw) -> None:
    """Code that computes something else on a device never serves; its graph is declined."""

    def play(name: str, stream: int, arguments: Sequence[int]) -> int:
        a, b, y = map(floats, arguments)
        y[:] = a - b
        return 0

    hip.play(play)
    handle = plugin.handle(A)
    assert not plugin.applies(handle, ADD)
    assert launches(hip), "it was not tried"
    made = c_void_p()
    config = encode_engine_config(EngineConfig(engine_id=ENGINE))
    arguments = (byref(const_data(config)), byref(const_data(ADD)), byref(made))
    assert plugin.status("CreateExecutionContext", handle, *arguments) == 2
    assert "wrong results" in plugin.error()
    assert not plugin.applies(plugin.handle(B), ADD)
    hip.play(play_add)  # mended, but nobody has released it
    assert plugin.status("CreateExecutionContext", handle, *arguments) == 2
    assert "quarantine" in plugin.error()


def right_code(hip: Standin, plugin: Raw) -> None:
    """Code that is right serves, and is not checked again."""
    hip.play(play_add)
    handle = plugin.handle(A)
    for number in range(2):
        context, _ = plugin.build(handle)
        checks = launches(hip)
        assert bool(checks) is (number == 0)
        pack = pack_of(hip)
        assert plugin.execute(handle, context, pack) == 0
        check(pack)
        plugin("DestroyExecutionContext", handle, context)
        hip.take()


def checked_before(hip: Standin, plugin: Raw) -> None:
    """Code that another process has checked on this device is not checked again."""
    hip.play(play_add)
    assert plugin.applies(plugin.handle(A), ADD)
    assert not launches(hip)


def checked_one_card(hip: Standin, plugin: Raw) -> None:
    """What another process has checked on the first of two cards costs little there, and is checked on the second."""
    from fusilli_plugin.engine import quarantine

    hip.play(play_add)
    assert plugin.applies(plugin.handle(A), ADD)
    assert not launches(hip)
    first, second = (attached().plugin._engine(index) for index in range(2))
    built = first._built(ADD, EngineConfig(engine_id=ENGINE))
    executable = built.executable(first.device)
    seconds: list[float] = []
    for _ in range(21):
        quarantine._right_in_this_process.clear()  # as another process has it
        start = time.perf_counter()
        assert not quarantine.is_quarantined(built.graph, built.target, first.device, first.options)
        quarantine.verify(built.graph, built.code, executable, first.options)
        seconds.append(time.perf_counter() - start)
    assert sorted(seconds)[10] < 0.005, seconds
    assert second.claims(ADD, (1, None))
    assert launches(hip), "it was not tried on the second card"
    quarantine.record_selftest(first.device, first.options)
    assert quarantine.has_passed_selftest(first.device, first.options)
    assert not quarantine.has_passed_selftest(second.device, second.options)


def device_tests(hip: Standin, plugin: Raw) -> None:
    """The self-test's streams, captured graphs and devices, where launches do what they should and where not."""
    from fusilli_plugin.checks import device_tests as tests
    from iree_bridge import Device, Options

    def numbers(address: int) -> Any:
        return np.ctypeslib.as_array((c_float * tests._SIZE).from_address(address))

    def play(name: str, stream: int, arguments: Sequence[int]) -> int:
        a, b, y = map(numbers, arguments)
        y[:] = a + b
        return 0

    def late(name: str, stream: int, arguments: Sequence[int]) -> int:
        return 0 if hip.take("graph_launch") else play(name, stream, arguments)

    device, options = Device.parse("hip"), Options.from_env()
    for handler, outcome in ((play, "right"), (late, "wrong")):
        hip.play(handler)
        hip.take()
        seen = tests._stream_order(device, options)
        assert seen == ("right", "2 streams of 64 executions"), seen
        seen, text = tests._capture(device, options)
        assert seen == outcome, text
    hip.play(play)
    events: list[Event] = []

    def counting(name: str, stream: int, arguments: Sequence[int]) -> int:
        events.extend(hip.take("launch"))
        return play(name, stream, arguments)

    hip.play(counting)
    tests.selftest.run = lambda name: name  # what it compiles is not played
    assert tests._several_devices(device, options) == ("right", "2 devices at once")
    order = [event.device for event in events]
    assert order == [0, 1] * 64, "in turns"


def unaffordable(hip: Standin, plugin: Raw) -> None:
    """What would take too long to check is declined before it is compiled, until the self-test has passed."""
    from tests.fusilli_plugin.plugin.shapes import conv, wire_bytes

    graph = wire_bytes(conv((32, 256, 56, 56), (256, 256, 3, 3), direction="wgrad", padding=1))
    assert not plugin.applies(plugin.handle(A), graph)
    engine = attached().plugin._engine(0)
    answer = engine.support(graph)
    assert answer.rule == "unverified", answer
    assert "`fusilli selftest --device hip:0` has not passed there" in answer.reason
    assert not hip.take("module_load")


def proven(hip: Standin, plugin: Raw) -> None:
    """Where the self-test has passed nothing is checked, and all is claimed."""
    from fusilli_plugin.engine import quarantine
    from iree_bridge import Device, Options

    quarantine.record_selftest(Device.parse("hip"), Options.from_env())
    assert plugin.applies(plugin.handle(A), ADD)
    assert not launches(hip)


def claimed_is_served(hip: Standin, plugin: Raw) -> None:
    """Whatever the environment is, a graph that is claimed is built, executed and right; else the reason is told.

    SWEEP has the condition: variables, a limit of file sizes, what is done to the cache behind the claim.
    """
    condition = json.loads(os.environ["SWEEP"])
    for name, value in condition.get("variables", {}).items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    if "file_size" in condition:
        resource.setrlimit(resource.RLIMIT_FSIZE, (condition["file_size"],) * 2)
    lines: list[str] = []
    callback = CALLBACK(lambda severity, message: lines.append((message or b"").decode()))
    plugin.functions["hipdnnPluginSetLoggingCallback"](callback)
    hip.play(play_add)
    handle = plugin.handle(A)
    served = plugin.applies(handle, ADD)
    if not served:
        declined = [line for line in lines if "declined" in line or "serves no graph in this process" in line]
        assert declined, lines
        sys.stdout.write(f"declined {declined[0]}\n")
        return
    if "spoil" in condition:
        shutil.rmtree(condition["spoil"])
        os.mkdir(condition["spoil"])
        os.chmod(condition["spoil"], 0o777)
    for each in (handle, plugin.handle(B)):
        context, _ = plugin.build(each)
        pack = pack_of(hip)
        assert plugin.execute(each, context, pack) == 0, plugin.error()
        check(pack)
    sys.stdout.write("served\n")


def warmed(hip: Standin, plugin: Raw) -> None:
    """FUSILLI_COMPILE=never: a cache that was filled for this chip without a GPU serves; other graphs are declined."""
    hip.play(play_add)
    handle = plugin.handle(A)
    assert plugin.applies(handle, ADD)
    assert not plugin.applies(handle, CONV)
    context, _ = plugin.build(handle)
    pack = pack_of(hip)
    assert plugin.execute(handle, context, pack) == 0
    check(pack)
    assert "iree.compiler" not in sys.modules


def injected(hip: Standin, plugin: Raw) -> None:
    """Each call that an execution makes fails from its first, second or third time on: an error, and later no trace.

    IREE's own driver, which has no part in these launches, ends the process where hipStreamCreate or
    hipEventSynchronize fails.
    """
    hip.play(play_add)
    reference = plugin.handle(A)
    context, _ = plugin.build(reference)
    pack = pack_of(hip)
    assert plugin.execute(reference, context, pack) == 0
    calls = ("launch", "event_record", "event_query", "module_load", "host_malloc", "malloc", "memcpy", "synchronize",
             "stream_create", "event_synchronize")  # fmt: skip
    stream = OTHERS
    for call in calls:
        for after in range(3):
            stream += 0x100
            hip.take()
            hip.fail(call, 2 if "malloc" in call else 719, after)
            handle = plugin.handle(stream)
            seen = [plugin.execute(handle, context, pack) for _ in range(4)]
            assert set(seen) <= {0, 3, 4}, (call, after, seen)
            if any(seen):
                assert plugin.error()
            hip.take()
            assert plugin.execute(handle, context, pack) == 0, (call, after, plugin.error())
            check(pack)
            plugin("Destroy", handle)
    assert hip.live_bytes < 3 * PINNED


def threads(hip: Standin, plugin: Raw) -> None:
    """Handles of several threads, devices and streams: each launch has the stream, device and buffers of its own."""
    hip.play(play_add)
    hip.set_device(0)
    failures: list[str] = []
    packs: dict[int, dict[int, int]] = {}

    def work(number: int) -> None:
        device = number % 2
        hip.set_device(device)
        stream = (device << 56) + OTHERS + number * 16
        handle = plugin.handle(stream)
        context, _ = plugin.build(handle)
        pack = packs[stream] = pack_of(hip)
        for _ in range(50):
            if plugin.execute(handle, context, pack):
                failures.append(plugin.error())
            check(pack)
        plugin("DestroyExecutionContext", handle, context)
        plugin("Destroy", handle)

    workers = [threading.Thread(target=guarded, args=(work, number, failures)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert not failures, failures[0]
    seen = launches(hip)
    assert len(seen) == 300
    for launch in seen:
        pack = packs[launch.stream]
        assert launch.arguments == (pack[1], pack[2], pack[3])
        assert launch.device == launch.stream >> 56


def guarded(work: Callable[[int], None], number: int, failures: list[str]) -> None:
    try:
        work(number)
    except BaseException as error:
        failures.append(f"thread {number}: {type(error).__name__}: {error}")


def large(hip: Standin, plugin: Raw) -> None:
    """The predecessor's matrix: a 1x1 convolution on default and own streams of two devices."""
    from tests.fusilli_plugin.plugin.shapes import conv, wire_bytes

    graph = wire_bytes(conv((16, 128, 64, 64), (256, 128, 1, 1), bias=True, relu=True))
    for device in (0, 1):
        hip.set_device(device)
        for stream in (None, (device << 56) + OTHERS):
            handle = plugin.handle(stream)
            context, size = plugin.build(handle, graph)
            uids = [tensor.uid for tensor in decode_graph(graph).tensors if not tensor.virtual]
            pack = {uid: hip.malloc(1 << 27) for uid in uids}
            workspace = hip.malloc(size) if size else None
            hip.take()
            assert plugin.execute(handle, context, pack, workspace) == 0, plugin.error()
            seen = launches(hip)
            assert seen
            assert {(launch.stream, launch.device) for launch in seen} == {(stream or 0, device)}
            plugin("Destroy", handle)


def forked(hip: Standin, plugin: Raw) -> None:
    """A child of a process that has used the GPU gets an error, not a hang; the parent goes on."""
    hip.play(play_add)
    handle = plugin.handle(A)
    context, _ = plugin.build(handle)
    pack = pack_of(hip)
    assert plugin.execute(handle, context, pack) == 0
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = plugin.execute(handle, context, pack)
        os._exit(0 if status == 3 and "forked" in plugin.error() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert plugin.execute(handle, context, pack) == 0
    check(pack)


def misaligned(hip: Standin, plugin: Raw) -> None:
    """Pointers inside an allocation go through copies on the stream."""
    hip.play(play_add)
    handle = plugin.handle(A)
    context, _ = plugin.build(handle)
    pack = {uid: hip.malloc(COUNT * 4 + 4) + 4 for uid in (1, 2, 3)}
    floats(pack[1])[:], floats(pack[2])[:] = np.arange(COUNT), 10
    for _ in range(3):
        assert plugin.execute(handle, context, pack) == 0, plugin.error()
        check(pack)
    assert {event.stream for event in hip.take("memcpy", "launch")} == {A}


def main() -> None:
    """Runs the scenario that the command line names."""
    name, standin, library = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    hip = Standin(standin)
    globals()[name](hip, Raw(library))
    print("fine", flush=True)
    os._exit(0)  # the stand-in is not made for being unloaded before what uses it


if __name__ == "__main__":
    main()
