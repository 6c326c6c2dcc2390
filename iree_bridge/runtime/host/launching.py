"""Recorded launches on the CPU: code is loaded once, addresses are filled in once per set of buffers."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from fusilli_ground.locks import fork_safe_lock
from graph_api.errors import ExecutionError
from iree_bridge.devices.buffers import aligned_block
from iree_bridge.runtime.host.library import launcher
from iree_bridge.runtime.recorded.recording import (
    CodeFormat,
    Command,
    Copy,
    Fill,
    Kernel,
    Launch,
    Recording,
    UnrecordableError,
    record,
)
from iree_bridge.targets.cpu import host_arch

__all__ = ["HostCode", "load"]

_MOST_TEMPORARY: Final = 64 << 20
"""Bytes beside the workspace that a list may keep between runs; with more, IREE's driver allocates for each run."""
_MESSAGE: Final = 512


class _Image:
    """Compiled code, mapped into this process."""

    def __init__(self, data: bytes) -> None:
        """Maps it.

        Raises:
            UnrecordableError: it is no code of the version that is understood.
        """
        library, message = launcher(), ctypes.create_string_buffer(_MESSAGE)
        aligned = ctypes.create_string_buffer(data, len(data))  # what bytes hold starts where it likes
        self.handle: int = library.launcher_load(aligned, len(data), message, _MESSAGE) or 0
        if not self.handle:
            raise UnrecordableError(message.value.decode("utf-8", "replace"))
        weakref.finalize(self, library.launcher_unload, self.handle).atexit = False

    def kernels(self, image: int) -> list[Kernel]:
        """What it exports, as kernels of image number ``image``.

        Raises:
            UnrecordableError: one asks for what the launcher does not do.
        """
        library, facts, found = launcher(), (ctypes.c_uint64 * 4)(), list[Kernel]()
        for ordinal in range(library.launcher_exports(self.handle)):
            name = library.launcher_export(self.handle, ordinal, facts).decode("utf-8", "replace")
            pointers, numbers, _, flags = facts
            if flags:
                raise UnrecordableError(f"kernel {name} has flags {flags:#x}")
            found.append(Kernel(image, name, (1, 1, 1), pointers, numbers, ordinal))
        return found


def _read(data: memoryview, first: int) -> tuple[list[Any], list[Kernel]]:
    image = _Image(bytes(data))
    return [image], image.kernels(first)


_ARCH: Final = {"x86_64": b"x86_64", "aarch64": b"arm_64"}.get(host_arch(), b"")
_FORMAT: Final = CodeFormat(b"local*", b"embedded-elf-" + _ARCH, _read)


class HostCode:
    """Recorded code, ready to run in this process.

    Attributes:
        recording: what a run does.
    """

    def __init__(self, recording: Recording, sizes: Sequence[int], expected: float) -> None:
        """Makes the launcher's list of commands.

        Args:
            recording: what a run does.
            sizes: bytes of each argument, the workspace last.
            expected: seconds that a run may take in one thread.

        Raises:
            UnrecordableError: a list cannot hold it.
            ExecutionError: there is no memory.
        """
        self.recording = recording
        self._library = library = launcher()
        sizes = (*sizes, *recording.temporaries)
        launches = [each for each in recording.commands if isinstance(each, Launch)]
        if any(x * y * z >= 1 << 31 or z >= 1 << 16 for x, y, z in (each.grid for each in launches)):
            raise UnrecordableError("a grid is larger than the launcher counts")
        places = sum(map(_places, recording.commands))
        numbers = sum(len(each.numbers) for each in launches)
        self._list = library.launcher_list(len(recording.commands), places, numbers, int(expected * 1e9))
        if not self._list:
            raise ExecutionError("there is no memory for a list of commands")
        weakref.finalize(self, library.launcher_free, self._list).atexit = False
        self._fill(sizes)
        self._size: int = library.launcher_job_size(self._list)
        self._constants = {number: _constant(data) for number, data in recording.contents.items()}

    def _fill(self, sizes: Sequence[int]) -> None:
        library = self._library
        for command in self.recording.commands:
            if isinstance(command, Launch):
                kernel = command.kernel
                image: Any = self.recording.images[kernel.image]
                places = [
                    part
                    for place in command.pointers
                    for part in (place.argument, place.offset, sizes[place.argument] - place.offset)
                ]
                library.launcher_add_kernel(
                    self._list, image.handle, kernel.ordinal, (ctypes.c_uint32 * 3)(*command.grid), _words(places),
                    (ctypes.c_uint32 * max(len(command.numbers), 1))(*command.numbers),
                )  # fmt: skip
            elif isinstance(command, Fill):
                target = _words((command.target.argument, command.target.offset))
                library.launcher_add_fill(self._list, target, command.nbytes, command.pattern, command.width)
            else:
                ends = (command.target, command.source)
                places = [part for place in ends for part in (place.argument, place.offset)]
                library.launcher_add_copy(self._list, _words(places), command.nbytes)

    def temporaries(self) -> list[tuple[int, object]]:
        """Memory for `Recording.temporaries`: the address of each, and what keeps it. Constants are shared."""
        sizes = self.recording.temporaries
        return [self._constants.get(number) or aligned_block(nbytes) for number, nbytes in enumerate(sizes)]

    def prepare(self, addresses: Sequence[int], threads: int, kept: object) -> Callable[[], None]:
        """What runs the commands; one thread at a time may call it.

        Args:
            addresses: of each argument; then of the workspace, and of `temporaries`.
            threads: that it may use at most.
            kept: what has to live as long as the result.

        Returns:
            A function that raises RuntimeError if the code reports a failure.
        """
        memory = ctypes.create_string_buffer(self._size)
        self._library.launcher_prepare(self._list, _words(addresses), memory)
        return _runner(self._library.launcher_run, memory, threads, (self, kept))

    @property
    def times(self) -> tuple[int, int]:
        """Nanoseconds that a run was seen to take in one thread, and in several; 0: not measured."""
        times = (ctypes.c_uint64 * 2)()
        self._library.launcher_times(self._list, times)
        return times[0], times[1]


def _runner(run: Callable[[object, int], int], memory: object, threads: int, kept: object) -> Callable[[], None]:
    def launch() -> None:
        if run(memory, threads):
            raise RuntimeError("the compiled code reports a failure")

    launch.kept = kept  # type: ignore[attr-defined] - lives as long
    return launch


def _places(command: Command) -> int:
    """How many places in memory it has."""
    return len(command.pointers) if isinstance(command, Launch) else 1 + isinstance(command, Copy)


def _constant(data: bytes) -> tuple[int, object]:
    address, block = aligned_block(len(data))
    ctypes.memmove(address, data, len(data))
    return address, block


def _words(values: Sequence[int]) -> Any:
    return (ctypes.c_uint64 * max(len(values), 1))(*values)


_codes: Final[weakref.WeakValueDictionary[tuple[bytes, tuple[int, ...]], HostCode]] = weakref.WeakValueDictionary()
_lock: Final = fork_safe_lock()


def load(code: bytes, sizes: Sequence[int], workspace: int, expected: float) -> HostCode:
    """Code of a graph, loaded once however many executables have it.

    Args:
        code: VMFB bytes.
        sizes: bytes of each argument, outputs first.
        workspace: bytes.
        expected: seconds that a run may take in one thread.

    Raises:
        UnrecordableError: the code does more than can be recorded, or there is no launcher.
        ExecutionError: there is no memory.
    """
    if launcher() is None:
        raise UnrecordableError("there is no launcher")
    key = code, tuple(sizes)
    with _lock:
        loaded = _codes.get(key)
        if loaded is None:
            recording = record(code, sizes, workspace, _FORMAT)
            if sum(recording.temporaries) - sum(map(len, recording.contents.values())) > _MOST_TEMPORARY:
                raise UnrecordableError("it takes more memory for a while than should be kept")
            loaded = _codes[key] = HostCode(recording, (*sizes, workspace), expected)
        return loaded
