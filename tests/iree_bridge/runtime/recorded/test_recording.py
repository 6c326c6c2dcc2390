"""What a launch does, read out of compiled code. Expected values: written down by hand for graphs of known form."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from iree_bridge.runtime.recorded import ArgumentOffset, Copy, Fill, Kernel, Launch, UnrecordableError, record
from iree_bridge.runtime.recorded import recording as recording_module
from tests.support import vmfb

pytestmark = pytest.mark.iree_cpu

SIZES = (64, 64, 64)
MATRIX = 96 * 96 * 4


@pytest.fixture(scope="module")
def add() -> bytes:
    return vmfb.compiled(vmfb.ADD, "gfx942").read_bytes()


def test_an_elementwise_sum_is_one_launch(add: bytes) -> None:
    made = record(add, SIZES, 0)
    (launch,) = made.commands
    assert isinstance(launch, Launch)
    assert launch.pointers == (ArgumentOffset(1, 0), ArgumentOffset(2, 0), ArgumentOffset(0, 0)), (
        "inputs, then the output"
    )
    assert (launch.grid, launch.kernel.block, launch.numbers) == ((1, 1, 1), (64, 1, 1), ())
    assert launch.kernel.name.startswith("main$async_dispatch_0_elementwise_16")
    (image,) = made.images
    assert image[:4] == b"\x7fELF"
    assert made.kernels == (launch.kernel,)


def test_temporaries_lie_in_the_workspace() -> None:
    code = vmfb.compiled(vmfb.CHAIN, "gfx942").read_bytes()
    made = record(code, (MATRIX,) * 3, 2 * MATRIX)
    assert [type(command) for command in made.commands] == [Launch] * 3
    arguments = [{place.argument for place in each.pointers} for each in made.commands if isinstance(each, Launch)]
    assert arguments[0] == {1, 2, 3}, "p = a b"
    assert arguments[1] == {2, 3}, "q = p b"
    assert arguments[2] == {0, 3}, "y = q p"


def test_places_lie_in_their_buffers(add: bytes) -> None:
    with pytest.raises(UnrecordableError, match="bytes 0 to 64 of a buffer of 60"):
        record(add, (60, 64, 64), 0)


def test_code_for_other_devices_is_not_recorded() -> None:
    with pytest.raises(UnrecordableError, match="local"):
        record(vmfb.compiled(vmfb.ADD).read_bytes(), SIZES, 0)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_code_is_refused_and_nothing_else_happens(add: bytes, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(150):
        data = bytearray(add)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        with contextlib.suppress(UnrecordableError):
            record(bytes(data), SIZES, 0)
    for junk in (b"", b"PK\x03\x04", b"\0" * 200, b"\xff" * 200):
        with pytest.raises(UnrecordableError):
            record(junk, SIZES, 0)


def test_other_versions_of_the_bytecode_are_refused(add: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iree_bridge.runtime.recorded.module.VERSION", 18)
    with pytest.raises(UnrecordableError, match="bytecode version 17, only 18 is read"):
        record(add, SIZES, 0)


class TestTheRecorder:
    """The functions that host programs call, called by hand."""

    @pytest.fixture
    def calls(self) -> Any:
        recorder = recording_module._Recorder((256, 256, 128), 0, recording_module.HIP)
        functions = recorder.functions()

        def call(name: str, *arguments: Any) -> Any:
            return functions[f"hal.{name}"](*arguments)

        call.recorder = recorder  # type: ignore[attr-defined]
        return call

    @staticmethod
    def buffer(argument: int, nbytes: int = 256) -> Any:
        return recording_module._Buffer(argument, 0, nbytes)

    def test_fills_and_copies_of_slots(self, calls: Any) -> None:
        commands = calls("command_buffer.create", None, 0, 0, -1, 2)
        calls("command_buffer.fill_buffer", commands, None, 16, 32, 1, 0x1_2345_6789, 4, 0)
        calls("command_buffer.copy_buffer", commands, 0, 1, None, 8, None, 64, 100, 0)
        calls("command_buffer.execution_barrier", commands, 0, 0, 0)
        table = [(self.buffer(0), 32, 224), (self.buffer(1), 0, 256)]
        calls("device.queue.execute.indirect", None, -1, None, None, commands, 0, table)
        assert calls.recorder.commands == [
            Fill(ArgumentOffset(1, 16), 32, 0x2345_6789, 4),
            Copy(ArgumentOffset(0, 40), ArgumentOffset(1, 64), 100),
        ]

    def test_work_of_the_queue_itself(self, calls: Any) -> None:
        part = calls("buffer.subspan", self.buffer(2, 128), 64, 64)
        calls("device.queue.fill", None, -1, None, None, part, 8, 8, 0xAB, 1, 0)
        calls("device.queue.copy", None, -1, None, None, self.buffer(1), 0, part, 0, 64, 0)
        assert calls.recorder.commands == [
            Fill(ArgumentOffset(2, 72), 8, 0xAB, 1),
            Copy(ArgumentOffset(1, 0), ArgumentOffset(2, 64), 64),
        ]

    def test_memory_that_the_program_allocates_is_a_further_argument(self, calls: Any) -> None:
        fence = calls("fence.create", None, 0)
        first = calls("device.queue.alloca", None, -1, None, fence, 0, 48, 3075, 12, 0)
        second = calls("device.queue.alloca", None, -1, None, fence, 0, 48, 3075, 640, 0)
        calls("device.queue.fill", None, -1, None, None, second, 8, 8, 1, 4, 0)
        assert calls("fence.await", -1, 0, [(fence,)]) == 0
        calls("device.queue.copy", None, -1, None, None, first, 0, self.buffer(0), 0, 12, 0)
        calls("device.queue.dealloca", None, -1, None, None, first, 0)
        assert calls.recorder.temporaries == [12, 640]
        assert calls.recorder.commands == [
            Fill(ArgumentOffset(4, 8), 8, 1, 4),
            Copy(ArgumentOffset(3, 0), ArgumentOffset(0, 0), 12),
        ]
        with pytest.raises(UnrecordableError, match="memory of -1 bytes"):
            calls("device.queue.alloca", None, -1, None, fence, 0, 48, 3075, -1, 0)

    def test_a_command_buffer_may_run_twice(self, calls: Any) -> None:
        kernel = Kernel(0, "k", (64, 1, 1), 1, 1)
        calls.recorder.kernels.append(kernel)
        commands = calls("command_buffer.create", None, 0, 0, -1, 1)
        calls("command_buffer.dispatch", commands, None, 0, 2, 3, 1, 0, [(-1,)], [(0, 0, None, 4, 8)])
        calls("command_buffer.dispatch", commands, None, 0, 2, 0, 1, 0, [(5,)], [(0, 0, None, 4, 8)])  # no blocks
        for argument in (0, 1):
            calls("device.queue.execute.indirect", None, -1, None, None, commands, 0, [(self.buffer(argument), 0, 256)])
        assert calls.recorder.commands == [
            Launch(kernel, (2, 3, 1), (ArgumentOffset(argument, 4),), (0xFFFF_FFFF,)) for argument in (0, 1)
        ]

    def test_what_is_not_understood_is_refused(self, calls: Any) -> None:
        kernel = Kernel(0, "k", (64, 1, 1), 1, 0)
        calls.recorder.kernels.append(kernel)
        commands = calls("command_buffer.create", None, 0, 0, -1, 1)
        refused: list[tuple[str, tuple[Any, ...], str]] = [
            ("command_buffer.dispatch", (commands, None, 0, 1, 1, 1, 4, [], [(0, 0, None, 0, 8)]), "flags 0x4"),
            ("command_buffer.dispatch", (commands, None, 0, 1, 1, 1, 0, [], []), "0 bindings and 0 numbers"),
            ("command_buffer.fill_buffer", (commands, None, 0, 6, 0, 1, 4, 0), "a fill of 6 bytes"),
            ("command_buffer.fill_buffer", (commands, None, 0, 8, 0, 1, 8, 0), "a pattern of 8"),
            ("command_buffer.copy_buffer", (commands, 0, 0, None, 0, None, 0, 8, 1), "flags 0x1"),
            ("device.queue.fill", (None, -1, None, None, self.buffer(0), 250, 8, 0, 1, 0), "bytes 250 to 258"),
            ("devices.get", (1,), "device 1"),
            ("device.query.i64", (None, memoryview(b"hal.device.id"), memoryview(b"cuda")), "cuda"),
            ("buffer.subspan", (self.buffer(0), -8, 16), "bytes -8 to 8"),
        ]
        for name, arguments, text in refused:
            with pytest.raises(UnrecordableError, match=text):
                calls(name, *arguments)
