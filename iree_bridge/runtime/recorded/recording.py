"""What a launch of compiled code does on the device: its host program is run once, with a recorder as the device."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from iree_bridge.runtime.recorded.flatbuffer import Table
from iree_bridge.runtime.recorded.interpreter import Interpreter, UnknownInstructionError
from iree_bridge.runtime.recorded.module import read_module

__all__ = [
    "HIP",
    "ArgumentOffset",
    "CodeFormat",
    "Copy",
    "Fill",
    "Kernel",
    "Launch",
    "Recording",
    "UnrecordableError",
    "record",
]

_INIT: Final = "__init"
_ENTRY: Final = "main$async"
_FILE_HEADER: Final = 64  # bytes before the FlatBuffer of an executable: magic, version, size, reserved
_MAGIC: Final = b"HIP1"
_WIDTHS: Final = (1, 2, 4)
_MAX_TEMPORARIES: Final = 64
_MAX_WORD: Final = 1 << 12  # bytes of a name
_MAX_KERNELS: Final = 1 << 14  # of all executables that are made
_MAX_COMMANDS: Final = 1 << 16  # a command buffer may run any number of times


class UnrecordableError(Exception):
    """The host program does something that is not a list of kernels, fills and copies."""


class ArgumentOffset(NamedTuple):
    """Bytes of an argument: which one (the workspace comes after the tensors), and where in it."""

    argument: int
    offset: int


class Kernel(NamedTuple):
    """A kernel in one of the images: its name, threads of a block, how many pointers and 32-bit numbers it takes.

    ``ordinal`` is its number in an image that is not asked by name.
    """

    image: int
    name: str
    block: tuple[int, int, int]
    pointers: int
    numbers: int
    ordinal: int = 0


class CodeFormat(NamedTuple):
    """Code for a kind of device, as a host program holds it.

    Attributes:
        device: what the program asks whether the device is.
        name: of the format.
        read: from an executable's data and the number of its first image, the images and the kernels in them. Raises
            UnrecordableError, or what reading damaged data raises.
    """

    device: bytes
    name: bytes
    read: Callable[[memoryview, int], tuple[list[Any], list[Kernel]]]


class _Slot(ArgumentOffset):
    """``nbytes`` bytes of whatever buffer is bound to a slot (the ``argument``) when a command buffer is executed.

    It stands in commands until then, and in no finished recording.
    """

    nbytes: int


class Launch(NamedTuple):
    """A kernel runs on ``grid`` blocks; its arguments are pointers, then numbers."""

    kernel: Kernel
    grid: tuple[int, int, int]
    pointers: tuple[ArgumentOffset, ...]
    numbers: tuple[int, ...]


class Fill(NamedTuple):
    """``nbytes`` bytes are set to a pattern of 1, 2 or 4 bytes."""

    target: ArgumentOffset
    nbytes: int
    pattern: int
    width: int


class Copy(NamedTuple):
    """``nbytes`` bytes are copied on the device."""

    source: ArgumentOffset
    target: ArgumentOffset
    nbytes: int


Command = Launch | Fill | Copy


class Recording(NamedTuple):
    """All that a launch does, in order; each command sees what the ones before it wrote.

    Attributes:
        images: code for the device, as its format's ``read`` gave it: bytes of code objects on HIP.
        commands: what is done.
        temporaries: bytes of further memory, each an argument after the workspace. Nobody else may use it until the
            launch is done.
        contents: what some of these hold from the start, by their place among them: constants, which nothing writes.
    """

    images: tuple[Any, ...]
    commands: tuple[Command, ...]
    temporaries: tuple[int, ...] = ()
    contents: Mapping[int, bytes] = MappingProxyType({})

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that run, each once, in the order of their first launch."""
        return tuple(dict.fromkeys(each.kernel for each in self.commands if isinstance(each, Launch)))


def record(code: bytes, sizes: Sequence[int], workspace: int, form: CodeFormat | None = None) -> Recording:
    """What a launch of compiled code does.

    Args:
        code: VMFB bytes.
        sizes: bytes of each argument of the entry function, outputs first.
        workspace: bytes of its workspace.
        form: of the code in it; default: `HIP`.

    Raises:
        UnrecordableError: more than can be recorded, or the code is not understood.
    """
    recorder = _Recorder((*sizes, workspace), len(code), form or HIP)
    try:
        interpreter = Interpreter(read_module(code), recorder.functions())
        interpreter.call(_INIT)
        views = [_Buffer(index, 0, nbytes) for index, nbytes in enumerate((*sizes, workspace))]
        interpreter.call(_ENTRY, *views, _FENCE, _FENCE)
    except UnknownInstructionError as error:
        raise UnrecordableError(str(error)) from error
    except (struct.error, LookupError, TypeError, ValueError, RecursionError, MemoryError, AttributeError) as error:
        raise UnrecordableError(f"the code is not understood: {type(error).__name__}: {error}") from error
    return Recording(
        tuple(recorder.images), tuple(recorder.commands), tuple(recorder.temporaries), dict(recorder.contents)
    )


_DEVICE: Final = object()
_ALLOCATOR: Final = object()
_FENCE: Final = object()


class _Buffer:
    """An argument, or a part of one. No tuple: the interpreter takes that for several results."""

    def __init__(self, argument: int, offset: int, nbytes: int) -> None:
        self.argument = argument
        self.offset = offset
        self.nbytes = nbytes


class _Recorder:
    """What the host program calls, and what it has done so far.

    Args:
        sizes: bytes of each argument.
        code_bytes: how many bytes all images, and all constants, may have: those of the code that holds them.
        form: of the images.
    """

    def __init__(self, sizes: Sequence[int], code_bytes: int, form: CodeFormat) -> None:
        self.arguments = len(sizes)
        self._form = form
        self._image_bytes = self._constant_bytes = code_bytes
        self._exports = 0
        self.temporaries: list[int] = []
        self.contents: dict[int, bytes] = {}
        self.images: list[Any] = []
        self.kernels: list[Kernel] = []
        self.commands: list[Command] = []

    def functions(self) -> dict[str, Callable[..., Any]]:
        """By the names of the imports."""
        return {
            "hal.devices.count": lambda: 1,
            "hal.devices.get": lambda index: _DEVICE if index == 0 else _refuse(f"device {index}"),
            "hal.device.allocator": lambda device: _ALLOCATOR,
            "hal.device.query.i64": self.query,
            "hal.executable.create": self.create_executable,
            "hal.executable.lookup.function": self.lookup,
            # arguments have been checked before a launch
            "hal.buffer_view.assert": lambda *_: None,
            "hal.buffer.assert": lambda *_: None,
            "hal.buffer_view.buffer": lambda view: view,
            "hal.buffer.length": lambda buffer: buffer.nbytes,
            "hal.buffer.subspan": lambda buffer, offset, nbytes: _part(buffer, offset, nbytes),
            "hal.command_buffer.create": lambda device, modes, categories, affinity, slots: [],
            "hal.command_buffer.finalize": lambda commands: None,
            # commands of a stream run one after the other
            "hal.command_buffer.execution_barrier": lambda commands, *_: None,
            "hal.command_buffer.dispatch": self.dispatch,
            "hal.command_buffer.fill_buffer": self.fill,
            "hal.command_buffer.copy_buffer": self.copy,
            "hal.device.queue.execute": self.execute,
            "hal.device.queue.execute.indirect": self.execute,
            "hal.device.queue.fill": self.queue_fill,
            "hal.device.queue.copy": self.queue_copy,
            "hal.device.queue.barrier": lambda *_: None,
            "hal.device.queue.alloca": self.allocate,
            "hal.allocator.import": self.import_constant,
            "hal.device.queue.dealloca": lambda *_: None,
            "hal.fence.create": lambda device, flags: _FENCE,
            "hal.fence.join": lambda *_: _FENCE,
            "hal.fence.await": lambda *_: 0,  # what comes after the wait comes after it on the stream
        }

    def query(self, device: object, category: memoryview, key: memoryview) -> tuple[int, int]:
        """The program asks whether this is a device that it was compiled for."""
        asked = _word(category), _word(key)
        if asked in ((b"hal.device.id", self._form.device), (b"hal.executable.format", self._form.name)):
            return 1, 1
        return _refuse(f"a question about the device: {asked}")

    def create_executable(
        self, device: object, affinity: int, form: memoryview, data: memoryview, constants: object
    ) -> dict[bytes, Kernel]:
        if _word(form) != self._form.name or constants is not None:
            _refuse("an executable of another format")
        self._image_bytes -= len(data)
        if self._image_bytes < 0:
            _refuse("more code for the device than there is")
        base = len(self.images)
        images, kernels = self._form.read(data, base)
        self._exports += len(images) + len(kernels) + 1
        self.images.extend(images)
        if self._exports > _MAX_KERNELS:
            _refuse("more kernels than a graph has")
        if any(not base <= kernel.image < len(self.images) for kernel in kernels):
            _refuse("a kernel without an image")
        return {kernel.name.encode(): kernel for kernel in kernels}

    def lookup(self, executable: dict[bytes, Kernel], name: memoryview) -> int:
        kernel = executable.get(_word(name))
        if kernel is None:
            return _refuse(f"a kernel that is not there: {_word(name)!r}")
        self.kernels.append(kernel)
        return len(self.kernels) - 1

    def dispatch(
        self, commands: list[Command], executable: object, function: int, x: int, y: int, z: int, flags: int,
        numbers: list[tuple[int]], bindings: list[tuple[int, int, _Buffer | None, int, int]],
    ) -> None:  # fmt: skip
        kernel = self.kernels[function]
        if flags:
            _refuse(f"a dispatch with flags {flags:#x}")
        if len(bindings) != kernel.pointers or len(numbers) != kernel.numbers:
            _refuse(f"kernel {kernel.name} with {len(bindings)} bindings and {len(numbers)} numbers")
        if x and y and z:
            places = tuple(_place(slot, buffer, offset, n) for _, slot, buffer, offset, n in bindings)
            commands.append(Launch(kernel, (x, y, z), places, tuple(n & 0xFFFFFFFF for (n,) in numbers)))

    def fill(
        self, commands: list[Command], buffer: _Buffer | None, offset: int, nbytes: int, slot: int, pattern: int,
        width: int, flags: int,
    ) -> None:  # fmt: skip
        commands.append(_fill(_place(slot, buffer, offset, nbytes), nbytes, pattern, width, flags))

    def copy(
        self, commands: list[Command], source_slot: int, target_slot: int, source: _Buffer | None,
        source_offset: int, target: _Buffer | None, target_offset: int, nbytes: int, flags: int,
    ) -> None:  # fmt: skip
        if flags:
            _refuse(f"a copy with flags {flags:#x}")
        commands.append(
            Copy(
                _place(source_slot, source, source_offset, nbytes),
                _place(target_slot, target, target_offset, nbytes),
                nbytes,
            )
        )

    def execute(
        self, device: object, affinity: int, wait: object, signal: object, commands: list[Command], flags: int,
        bindings: Sequence[tuple[_Buffer, int, int]] = (),
    ) -> None:  # fmt: skip
        if len(self.commands) + len(commands) > _MAX_COMMANDS:
            _refuse(f"more than {_MAX_COMMANDS} commands")
        self.commands.extend(_bound(command, bindings) for command in commands)

    def allocate(
        self, device: object, affinity: int, wait: object, signal: object, pool: int, memory: int, usage: int,
        nbytes: int, flags: int,
    ) -> _Buffer:  # fmt: skip
        """Memory for a value between two command buffers; it stays allocated, so that later launches can have it."""
        return self._temporary(nbytes)

    def import_constant(
        self, allocator: object, attempt: int, affinity: int, memory: int, usage: int, source: memoryview, offset: int,
        nbytes: int,
    ) -> _Buffer:  # fmt: skip
        """A constant of the program becomes memory of the device that holds it."""
        if offset < 0 or nbytes < 0 or offset + nbytes > len(source):
            _refuse(f"bytes {offset} to {offset + nbytes} of a constant of {len(source)}")
        self._constant_bytes -= nbytes  # parts of constants may overlap: a small file must not become a large one
        if self._constant_bytes < 0:
            _refuse("more constants than there are bytes of code")
        buffer = self._temporary(nbytes)
        self.contents[buffer.argument - self.arguments] = bytes(source[offset : offset + nbytes])
        return buffer

    def _temporary(self, nbytes: int) -> _Buffer:
        if nbytes < 0 or len(self.temporaries) >= _MAX_TEMPORARIES:
            _refuse(f"memory of {nbytes} bytes, after {len(self.temporaries)} others")
        self.temporaries.append(nbytes)
        return _Buffer(self.arguments + len(self.temporaries) - 1, 0, nbytes)

    def queue_fill(
        self, device: object, affinity: int, wait: object, signal: object, buffer: _Buffer, offset: int, nbytes: int,
        pattern: int, width: int, flags: int,
    ) -> None:  # fmt: skip
        fill = _fill(_place(0, buffer, offset, nbytes), nbytes, pattern, width, flags)
        self.commands.append(_bound(fill, ()))

    def queue_copy(
        self, device: object, affinity: int, wait: object, signal: object, source: _Buffer, source_offset: int,
        target: _Buffer, target_offset: int, nbytes: int, flags: int,
    ) -> None:  # fmt: skip
        if flags:
            _refuse(f"a copy with flags {flags:#x}")
        copy = Copy(_place(0, source, source_offset, nbytes), _place(0, target, target_offset, nbytes), nbytes)
        self.commands.append(_bound(copy, ()))


def _word(data: memoryview) -> bytes:
    """A name that the program holds as data."""
    if len(data) > _MAX_WORD:
        _refuse(f"a name of {len(data)} bytes")
    return bytes(data)


def _read_hip(data: memoryview, first: int) -> tuple[list[Any], list[Kernel]]:
    if bytes(data[:4]) != _MAGIC:
        _refuse("an executable of another format")
    table = Table.root(data[_FILE_HEADER:])
    modules = table.tables(1)
    if sum(module.length(0) for module in modules) > len(data) or len(modules) > _MAX_KERNELS:
        _refuse("more code for the device than there is")
    images = [bytes(module.data(0)) for module in modules]
    return images, [_kernel(export, first) for export in table.tables(0)]


def _kernel(export: Table, base: int) -> Kernel:
    block = export.numbers(2, "III")
    if len(block) != 3 or export.number(3, "I"):
        _refuse("a kernel without block size, or with shared memory that a launch has to give")
    return Kernel(
        image=base + export.number(0, "I"),
        name=export.text(1),
        block=(block[0], block[1], block[2]),
        pointers=export.length(5),
        numbers=export.number(4, "I"),
    )


HIP: Final = CodeFormat(b"hip", b"rocm-hsaco-fb", _read_hip)
"""Code for AMD GPUs."""


def _part(buffer: _Buffer, offset: int, nbytes: int) -> _Buffer:
    if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
        _refuse(f"bytes {offset} to {offset + nbytes} of a buffer of {buffer.nbytes}")
    return _Buffer(buffer.argument, buffer.offset + offset, nbytes)


def _place(slot: int, buffer: _Buffer | None, offset: int, nbytes: int) -> ArgumentOffset:
    if buffer is None:
        bound_later = _Slot(slot, offset)
        bound_later.nbytes = nbytes
        return bound_later
    part = _part(buffer, offset, nbytes)
    return ArgumentOffset(part.argument, part.offset)


def _fill(target: ArgumentOffset, nbytes: int, pattern: int, width: int, flags: int) -> Fill:
    if flags or width not in _WIDTHS or nbytes % width:
        _refuse(f"a fill of {nbytes} bytes with a pattern of {width}, flags {flags:#x}")
    return Fill(target, nbytes, pattern & (1 << 8 * width) - 1, width)


def _bound(command: Command, bindings: Sequence[tuple[_Buffer, int, int]]) -> Command:
    """A command with buffers in place of slots."""

    def place(each: ArgumentOffset) -> ArgumentOffset:
        if isinstance(each, _Slot):
            buffer, offset, nbytes = bindings[each.argument]
            part = _part(_part(buffer, offset, nbytes), each.offset, each.nbytes)
            return ArgumentOffset(part.argument, part.offset)
        return each

    if isinstance(command, Launch):
        return Launch(command.kernel, command.grid, tuple(map(place, command.pointers)), command.numbers)
    if isinstance(command, Fill):
        return Fill(place(command.target), command.nbytes, command.pattern, command.width)
    return Copy(place(command.source), place(command.target), command.nbytes)


def _refuse(what: str) -> NoReturn:
    raise UnrecordableError(what)
