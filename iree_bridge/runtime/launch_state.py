"""Lanes: what one launch at a time needs - workspace, scratch memory, prepared argument lists - and how it is launched.

A lane belongs to one thread while it is in use; a pool keeps idle ones in a list, whose ``pop`` and ``append`` are
atomic, so that launches need no lock. Lanes of one program never share memory.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from iree_bridge.devices.buffers import ALIGNMENT, aligned_block, import_pointer
from iree_bridge.devices.iree_runtime import (
    BufferUsage,
    HalBuffer,
    HalBufferView,
    HalCommandBuffer,
    HalFence,
    MemoryType,
    VmVariantList,
)
from iree_bridge.runtime.arguments import Argument, check_outputs_apart
from iree_bridge.runtime.program import DirectProgram, HostProgram, Program

if TYPE_CHECKING:
    from iree_bridge.runtime.recorded.launching import DeviceMemory, Staged

__all__ = ["DirectLane", "DriverLane", "GpuLane", "HostLane", "Key", "Lane", "LanePool"]

Key = tuple[int, ...]
"""The pointer of each argument; after them, unless both are 0: workspace pointer, bit mask of host memory on a GPU."""

_MAX_FRAMES: Final = 64
_PINNED: Final = MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE
_NO_RESULTS: Final = VmVariantList(0)


class _HostCopy(NamedTuple):
    """A buffer that goes through scratch memory: the scratch in its block, the caller's memory, bytes, directions."""

    block: np.ndarray
    scratch: int
    memory: int
    nbytes: int
    read: bool
    written: bool


class _DeviceCopy(NamedTuple):
    """The same on a GPU; ``source`` is an imported buffer, or host memory at ``pinned`` that mirrors ``memory``.

    ``mapping`` keeps the pinned memory mapped.
    """

    scratch: HalBuffer
    source: HalBuffer
    offset: int
    pinned: int
    memory: int
    nbytes: int
    read: bool
    written: bool
    mapping: object


class Lane:
    """What all lanes share: they make frames, and keep them."""

    def __init__(self, arguments: tuple[Argument, ...], alignment: int = ALIGNMENT) -> None:
        self._arguments = arguments
        self._alignment = alignment
        self._frames: dict[Key, Callable[[], None]] = {}

    def launch(self, key: Key) -> None:
        """Runs the function on the buffers of ``key``; the frame for it is made once."""
        frame = self._frames.get(key)
        if frame is None:
            frame = self._remember(key)
        frame()

    def _remember(self, key: Key) -> Callable[[], None]:
        frame = self.prepare(key)
        # The oldest goes first. One that is in use comes back at the price of one miss among many.
        if len(self._frames) >= _MAX_FRAMES:
            del self._frames[next(iter(self._frames))]
        self._frames[key] = frame
        return frame

    def prepare(self, key: Key) -> Callable[[], None]:
        """What launches the function on the buffers of ``key``.

        Raises:
            ExecutionError: the buffers overlap, or the device refuses one.
        """
        raise NotImplementedError

    def _staged(self, pointers: Sequence[int]) -> tuple[bool, ...]:
        """Which arguments go through scratch memory: misaligned ones, and outputs whose memory is an input's too."""
        shared = check_outputs_apart(self._arguments, pointers)
        return tuple(both or pointer % self._alignment != 0 for both, pointer in zip(shared, pointers, strict=True))

    def _parts(self, key: Key) -> tuple[list[int], int, int]:
        """Pointers, workspace pointer, mask."""
        count = len(self._arguments)
        workspace, mask = key[count:] or (0, 0)
        return list(key[:count]), workspace, mask


class DirectLane(Lane):
    """A lane of a HIP device that makes recorded launches, in the calling thread."""

    def __init__(self, program: DirectProgram) -> None:
        super().__init__(program.arguments)
        self.program = program
        self._workspace: DeviceMemory | None = None
        self._scratch: dict[int, DeviceMemory] = {}
        self._temporaries: list[DeviceMemory] | None = None

    def prepare(self, key: Key) -> Callable[[], None]:
        """See ``Lane``."""
        program = self.program
        pointers, workspace, mask = self._parts(key)
        staged = []
        for index, through_scratch in enumerate(self._staged(pointers)):
            on_host = bool(mask >> index & 1)
            if on_host or through_scratch:
                copy = self._copy(index, pointers[index], on_host)
                staged.append(copy)
                pointers[index] = copy.scratch.address
        if self._temporaries is None:
            recording = program.loaded.recording
            self._temporaries = [
                self._allocate(nbytes, recording.contents.get(place))
                for place, nbytes in enumerate(recording.temporaries)
            ]
        own = [self._workspace_address(workspace), *(memory.address for memory in self._temporaries)]
        stream, kept = program.device.stream or 0, (self._workspace, self._temporaries)
        return program.loaded.prepare((*pointers, *own), stream, staged=staged, waits=program.waits, kept=kept)

    def _copy(self, index: int, pointer: int, on_host: bool) -> Staged:
        from iree_bridge.runtime.recorded.launching import Staged

        argument = self._arguments[index]
        if index not in self._scratch:
            self._scratch[index] = self._allocate(argument.nbytes)
        read, written = not argument.is_output or argument.has_gaps, argument.is_output
        return Staged(pointer, self._scratch[index], argument.nbytes, on_host, read, written)

    def _workspace_address(self, given: int) -> int:
        size = self.program.workspace_size
        if not size or (given and given % ALIGNMENT == 0):
            return given
        if self._workspace is None:
            self._workspace = self._allocate(size)
        return self._workspace.address

    def _allocate(self, nbytes: int, contents: bytes | None = None) -> DeviceMemory:
        from iree_bridge.runtime.recorded.launching import DeviceMemory

        return DeviceMemory(self.program.device.index, nbytes, contents)


class _HalLane(Lane):
    """The parts that CPU and GPU lanes of IREE's drivers share."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.arguments)
        self.program = program
        self._workspace: HalBuffer | None = None

    def __del__(self) -> None:
        # Buffers and semaphores do not keep their device open, and closing it first is a crash: so they go before
        # ``program`` does.
        for name in ("_frames", "_workspace", "_scratch", "_pinned", "_timeline"):
            self.__dict__.pop(name, None)

    def _argument_list(self, buffers: list[HalBuffer], workspace: int, *fences: HalFence) -> VmVariantList:
        items: Any = VmVariantList(len(buffers) + 1 + len(fences))  # its stub knows one of the types it takes
        for argument, buffer in zip(self.program.arguments, buffers, strict=True):
            items.push_ref(HalBufferView(buffer, argument.shape, argument.element_type))
        items.push_ref(self._workspace_buffer(workspace))
        for fence in fences:
            items.push_ref(fence)
        return items

    def _workspace_buffer(self, pointer: int) -> HalBuffer:
        size = self.program.workspace_size
        if pointer and size and pointer % ALIGNMENT == 0:
            return import_pointer(self.program.hal, pointer, size, on_gpu=self.program.device.is_gpu)
        if self._workspace is None:
            self._workspace = self._allocate(max(size, ALIGNMENT))
        return self._workspace

    def _allocate(
        self, nbytes: int, memory: int = MemoryType.DEVICE_LOCAL, usage: int = BufferUsage.DEFAULT
    ) -> HalBuffer:
        return self.program.hal.allocator.allocate_buffer(memory, usage, nbytes)


class _HostScratch:
    """Scratch memory of a lane of the CPU, for buffers that cannot be used as they are."""

    def __init__(self, arguments: tuple[Argument, ...]) -> None:
        self._arguments = arguments
        self._blocks: dict[int, tuple[int, np.ndarray]] = {}

    def stage(self, pointers: list[int], staged: Sequence[bool]) -> tuple[_HostCopy, ...]:
        """The copies of the buffers that are ``staged``, which get the addresses of scratch memory in ``pointers``."""
        copies = []
        for index, argument in enumerate(self._arguments):
            if staged[index]:
                if index not in self._blocks:
                    self._blocks[index] = aligned_block(argument.nbytes)
                scratch, block = self._blocks[index]
                read, written = not argument.is_output or argument.has_gaps, argument.is_output
                copies.append(_HostCopy(block, scratch, pointers[index], argument.nbytes, read, written))
                pointers[index] = scratch
        return tuple(copies)


class HostLane(Lane):
    """A lane of the CPU that runs recorded commands."""

    def __init__(self, program: HostProgram) -> None:
        super().__init__(program.arguments, program.alignment)
        self.program = program
        self._scratch = _HostScratch(program.arguments)
        self._workspace: tuple[int, np.ndarray] | None = None
        self._temporaries: list[tuple[int, object]] | None = None

    def prepare(self, key: Key) -> Callable[[], None]:
        """See ``Lane``."""
        program = self.program
        pointers, workspace, _ = self._parts(key)
        copies = self._scratch.stage(pointers, self._staged(pointers))
        if self._temporaries is None:
            self._temporaries = program.loaded.temporaries()
        own = [self._workspace_address(workspace), *(address for address, _ in self._temporaries)]
        kept = self._workspace, self._temporaries
        return _with_copies(program.loaded.prepare((*pointers, *own), program.threads, kept), copies)

    def _workspace_address(self, given: int) -> int:
        size = self.program.workspace_size
        if not size or (given and given % ALIGNMENT == 0):
            return given
        if self._workspace is None:
            self._workspace = aligned_block(size)
        return self._workspace[0]


class DriverLane(_HalLane):
    """A lane of a CPU driver of IREE."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._scratch = _HostScratch(program.arguments)

    def prepare(self, key: Key) -> Callable[[], None]:
        """See ``Lane``."""
        program = self.program
        pointers, workspace, _ = self._parts(key)
        copies = self._scratch.stage(pointers, self._staged(pointers))
        buffers = [
            import_pointer(program.hal, pointer, argument.nbytes, on_gpu=False)
            for pointer, argument in zip(pointers, program.arguments, strict=True)
        ]
        if program.synchronous:
            # This driver does all work before the call returns, so the asynchronous entry with nothing to wait for and
            # nothing to signal is complete when it returns, and saves the making of a semaphore.
            items = self._argument_list(buffers, workspace, HalFence(0), HalFence(0))
            function = program.async_function
        else:
            items = self._argument_list(buffers, workspace)
            function = program.function
        return _with_copies(partial(program.context.invoke, function, items, _NO_RESULTS), copies)


def _with_copies(invoke: Callable[[], None], copies: tuple[_HostCopy, ...]) -> Callable[[], None]:
    return partial(_run_staged, invoke, copies) if copies else invoke


def _run_staged(invoke: Callable[[], None], copies: tuple[_HostCopy, ...]) -> None:
    for copy in copies:
        if copy.read:
            ctypes.memmove(copy.scratch, copy.memory, copy.nbytes)
    invoke()
    for copy in copies:
        if copy.written:
            ctypes.memmove(copy.memory, copy.scratch, copy.nbytes)


class _Timeline:
    """The order of a GPU lane's work: a semaphore that each launch and copy moves on by one.

    Frames refer to this and not to their lane: a lane that nobody uses must go at once, because an open HIP device that
    it would keep alive holds 128 MiB. The fences are made once. A fence keeps the larger value when a semaphore is
    inserted again, so moving it on is one call, where a new fence would need a new argument list.
    """

    def __init__(self, program: Program) -> None:
        self.at_once = HalFence(0)
        self.wait = HalFence(1)
        self.signal = HalFence(1)
        self._semaphore = program.hal.create_semaphore(0)
        self._hal = program.hal  # attributes go in the order in which they came: the device last
        self._waits = program.waits
        self._time = 0

    def run(self, invoke: Callable[[], None]) -> None:
        self._time += 1
        self.signal.insert(self._semaphore, self._time)
        invoke()
        if self._waits:
            self._semaphore.wait(self._time)
        else:
            self._semaphore.query()  # raises if the launch failed

    def run_staged(self, invoke: Callable[[], None], copies: tuple[_DeviceCopy, ...]) -> None:
        # Pinned memory is overwritten next; the launch before this one may still be reading it.
        self._semaphore.wait(self._time)
        for copy in copies:
            if copy.read:
                if copy.pinned:
                    ctypes.memmove(copy.pinned, copy.memory, copy.nbytes)
                self._enqueue_copy(copy.source, copy.offset, copy.scratch, 0, copy.nbytes)
        self.wait.insert(self._semaphore, self._time)
        self._time += 1
        self.signal.insert(self._semaphore, self._time)
        invoke()
        on_host = False
        for copy in copies:
            if copy.written:
                self._enqueue_copy(copy.scratch, 0, copy.source, copy.offset, copy.nbytes)
                on_host = on_host or bool(copy.pinned)
        if on_host or self._waits:
            self._semaphore.wait(self._time)
        else:
            self._semaphore.query()
        for copy in copies:
            if copy.written and copy.pinned:
                ctypes.memmove(copy.memory, copy.pinned, copy.nbytes)

    def _enqueue_copy(
        self, source: HalBuffer, source_offset: int, target: HalBuffer, target_offset: int, n: int
    ) -> None:
        commands = HalCommandBuffer(self._hal)
        commands.copy(source, target, source_offset, target_offset, n, end=True)
        before, self._time = self._time, self._time + 1
        wait, signal = [(self._semaphore, before)], [(self._semaphore, self._time)]
        self._hal.queue_execute(commands, wait, signal)


class GpuLane(_HalLane):
    """A lane of a GPU driver: launches are ordered by a timeline, copies for staged buffers included."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._scratch: dict[int, HalBuffer] = {}
        self._pinned: dict[int, tuple[HalBuffer, np.ndarray]] = {}
        self._timeline = _Timeline(program)

    def prepare(self, key: Key) -> Callable[[], None]:
        """See ``Lane``."""
        program = self.program
        pointers, workspace, mask = self._parts(key)
        buffers: list[HalBuffer] = []
        copies: list[_DeviceCopy] = []
        for index, staged in enumerate(self._staged(pointers)):
            on_host = bool(mask >> index & 1)
            if on_host or staged:
                copy = self._copy(index, pointers[index], on_host)
                copies.append(copy)
                buffers.append(copy.scratch)
            else:
                buffers.append(
                    import_pointer(program.hal, pointers[index], program.arguments[index].nbytes, on_gpu=True)
                )
        timeline = self._timeline
        wait = timeline.wait if copies else timeline.at_once
        items = self._argument_list(buffers, workspace, wait, timeline.signal)
        # Arguments of a partial go last one first: the buffers before the context, which keeps their device open.
        invoke: Any = partial(operator.call, program.context.invoke, program.async_function, items, _NO_RESULTS)
        return partial(timeline.run_staged, invoke, tuple(copies)) if copies else partial(timeline.run, invoke)

    def _copy(self, index: int, pointer: int, on_host: bool) -> _DeviceCopy:
        """How the buffer of argument ``index`` gets to and from scratch memory on the device."""
        argument = self.program.arguments[index]
        nbytes = argument.nbytes
        if index not in self._scratch:
            self._scratch[index] = self._allocate(nbytes)
        read, written = not argument.is_output or argument.has_gaps, argument.is_output
        if not on_host:
            # Allocations start at multiples of 256, so the aligned address below lies in the same one.
            offset = pointer % ALIGNMENT
            source = import_pointer(self.program.hal, pointer - offset, nbytes + offset, on_gpu=True)
            return _DeviceCopy(self._scratch[index], source, offset, 0, 0, nbytes, read, written, None)
        if index not in self._pinned:
            source = self._allocate(nbytes, _PINNED, BufferUsage.TRANSFER | BufferUsage.MAPPING)
            self._pinned[index] = (source, source.map().asarray((nbytes,), np.dtype(np.uint8)))
        source, mapped = self._pinned[index]
        return _DeviceCopy(self._scratch[index], source, 0, mapped.ctypes.data, pointer, nbytes, read, written, mapped)


class LanePool:
    """The lanes of one program: as many as launches have overlapped in time.

    Attributes:
        idle: lanes that no launch uses. ``pop`` one (or make a new one), ``append`` it when its launch has succeeded.
    """

    def __init__(self, program: Program | DirectProgram | HostProgram) -> None:
        self._program = program
        self.idle: list[Lane] = []

    def new_lane(self) -> Lane:
        """A lane that is in no pool."""
        if isinstance(self._program, DirectProgram):
            return DirectLane(self._program)
        if isinstance(self._program, HostProgram):
            return HostLane(self._program)
        return GpuLane(self._program) if self._program.device.is_gpu else DriverLane(self._program)
