"""Code that would keep the reader busy: it is refused after bounded work. The programs are written by hand."""

from __future__ import annotations

import struct
from typing import Any

import flatbuffers
import pytest

from iree_bridge.runtime.recorded import UnrecordableError
from iree_bridge.runtime.recorded import recording as recording_module
from iree_bridge.runtime.recorded.flatbuffer import Table
from iree_bridge.runtime.recorded.interpreter import Interpreter, UnknownInstructionError
from iree_bridge.runtime.recorded.module import Function, Import, Module, read_module
from tests.support import vmfb

BRANCH, CALL, CALL_VARIADIC, DISCARD = 0x56, 0x58, 0x59, 0x85
_IMPORT = 0x80000000
MOST = 0xFFFF


def u16(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}H", *values)


def branch(at: int, target: int) -> bytes:
    """A jump that moves nothing, as an instruction at byte ``at``."""
    return bytes([BRANCH]) + struct.pack("<I", target) + bytes((at + 5) % 2) + u16(0)


def run(code: bytes, imports: tuple[Import, ...] = (), host: dict[str, Any] | None = None) -> Interpreter:
    function = Function(memoryview(code), registers=4, references=4)
    interpreter = Interpreter(Module(imports, (function,), {"f": 0}, (), 0, 0), host or {})
    interpreter.call("f")
    return interpreter


def test_a_loop_without_end() -> None:
    with pytest.raises(UnknownInstructionError, match="more than 500000 steps"):
        run(branch(0, 0))


def test_a_loop_over_long_lists() -> None:
    """Each round reads 65,535 registers, so few rounds are made."""
    body = bytes([DISCARD]) + bytes(1) + u16(MOST, *[0] * MOST)
    reader = Function(memoryview(body + branch(len(body), 0)), registers=4, references=4)
    interpreter = Interpreter(Module((), (reader,), {"f": 0}, (), 0, 0), {})
    with pytest.raises(UnknownInstructionError, match="more than 500000 steps"):
        interpreter.call("f")
    assert interpreter.steps < 500_000 + 2 * MOST


def test_a_loop_over_calls_with_many_empty_parts() -> None:
    calls: list[int] = []
    body = bytes([CALL_VARIADIC]) + struct.pack("<I", _IMPORT) + bytes(1) + u16(1, MOST) + u16(0) + u16(0)
    with pytest.raises(UnknownInstructionError, match="more than 500000 steps"):
        run(
            body + branch(len(body), 0),
            (Import("host.take", "CD", "v"),),
            {"host.take": lambda parts: calls.append(len(parts))},
        )
    assert 1 <= len(calls) < 10
    assert set(calls) == {MOST}


def test_a_function_that_calls_itself() -> None:
    with pytest.raises(UnknownInstructionError, match="nested too deeply"):
        run(bytes([CALL]) + struct.pack("<I", 0) + bytes(1) + u16(0) + u16(0))


def test_a_command_buffer_that_is_run_again_and_again() -> None:
    functions = recording_module._Recorder((256, 0), 0, recording_module.HIP).functions()
    commands = functions["hal.command_buffer.create"](None, 0, 0, -1, 0)
    buffer = recording_module._Buffer(0, 0, 256)
    for _ in range(1000):
        functions["hal.command_buffer.fill_buffer"](commands, buffer, 0, 16, 0, 1, 4, 0)
    execute = functions["hal.device.queue.execute"]
    for _ in range(65):
        execute(None, -1, None, None, commands, 0)
    with pytest.raises(UnrecordableError, match="more than 65536 commands"):
        execute(None, -1, None, None, commands, 0)


@pytest.mark.iree_cpu
def test_device_code_that_is_made_twice() -> None:
    """Images are copied out of the code, so together they cannot be larger; here the code of one is made for ever."""
    code = vmfb.compiled(vmfb.ADD, "gfx942").read_bytes()
    recorder = recording_module._Recorder((64, 64, 64, 0), len(code), recording_module.HIP)
    functions = recorder.functions()
    create = functions["hal.executable.create"]

    def again(*arguments: Any) -> Any:
        while True:
            create(*arguments)

    with pytest.raises(UnrecordableError, match="more code for the device than there is"):
        Interpreter(read_module(code), {**functions, "hal.executable.create": again}).call("__init")
    assert 0 < sum(map(len, recorder.images)) <= len(code)


def test_names_are_short() -> None:
    functions = recording_module._Recorder((), 0, recording_module.HIP).functions()
    with pytest.raises(UnrecordableError, match="a name of 5000 bytes"):
        functions["hal.device.query.i64"](None, memoryview(bytes(5000)), memoryview(b"x"))


def _table(count: int, text: str) -> Table:
    """Slot 0: ``count`` times one table that holds a text in slot 0."""
    builder = flatbuffers.Builder()
    name = builder.CreateString(text)
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    inner = builder.EndObject()
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(inner)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return Table.root(memoryview(bytes(builder.Output())))


def test_one_large_part_that_is_claimed_many_times() -> None:
    names = [table.text(0) for table in _table(3, "x" * 4096).tables(0)]
    assert names == ["x" * 4096] * 3
    with pytest.raises(struct.error, match="a text of 4097 bytes"):
        _table(1, "x" * 4097).tables(0)[0].text(0)
    with pytest.raises(struct.error, match="a vector of 16385 tables"):
        _table(16385, "x").tables(0)
