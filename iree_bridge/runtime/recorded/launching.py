"""Recorded launches on a HIP device: code is loaded once per device, arguments are made once per set of addresses."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from fusilli_ground.locks import fork_safe_lock
from graph_api.errors import ExecutionError
from iree_bridge.runtime.recorded.driver import DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE, Hip, Retired
from iree_bridge.runtime.recorded.recording import Command, Copy, Fill, Kernel, Launch, Recording, record

__all__ = ["DeviceMemory", "LoadedCode", "Staged", "load"]

_SETTERS: Final = {1: "hipMemsetD8Async", 2: "hipMemsetD16Async", 4: "hipMemsetD32Async"}
_SCALARS: Final[dict[int, Any]] = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32}

Call = Callable[[], int]
"""Returns an error number of HIP."""


@dataclass(frozen=True)
class Staged:
    """A buffer that kernels use through device memory of ours.

    Attributes:
        address: the caller's buffer.
        scratch: what the kernels get.
        nbytes: of both.
        on_host: True if the caller's buffer is host memory.
        read: it is copied in before the kernels run.
        written: it is copied out after them.
    """

    address: int
    scratch: DeviceMemory
    nbytes: int
    on_host: bool
    read: bool
    written: bool


class LoadedCode:
    """Recorded code that is loaded on a device; its streams share it.

    Attributes:
        index: number of the device.
        recording: what a launch does.
    """

    def __init__(self, recording: Recording, index: int) -> None:
        """Loads.

        Raises:
            ExecutionError: the device does not load the code.
        """
        self.index = index
        self.recording = recording
        self._hip = Hip.get()
        self._functions: dict[Kernel, ctypes.c_void_p] = {}
        self._modules: list[ctypes.c_void_p] = []
        try:
            with self._hip.on_device(index):
                Retired.sweep(self._hip, index)
                for image in recording.images:
                    self._modules.append(self._load(image))
                for kernel in recording.kernels:
                    self._functions[kernel] = self._find(kernel)
        except RuntimeError as error:
            raise ExecutionError(
                f"the compiled code cannot be loaded on hip:{index}: {error}; was it compiled for another target?"
            ) from error

    def _load(self, image: bytes) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        memory = ctypes.create_string_buffer(image, len(image))
        self._hip.check(self._hip.hipModuleLoadData(ctypes.byref(module), memory), "hipModuleLoadData")
        # Not part of the contract, but the runtime may refer to the image as long as the module is loaded.
        weakref.finalize(self, Retired.add, self.index, module, memory).atexit = False
        return module

    def _find(self, kernel: Kernel) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        module, name = self._modules[kernel.image], kernel.name.encode()
        error = self._hip.hipModuleGetFunction(ctypes.byref(function), module, name)
        self._hip.check(error, f"hipModuleGetFunction({kernel.name})")
        return function

    def prepare(
        self,
        addresses: Sequence[int],
        stream: int,
        *,
        staged: Sequence[Staged] = (),
        waits: bool = False,
        kept: object = None,
    ) -> Callable[[], None]:
        """What enqueues the recorded commands on ``stream``; one thread at a time may run it.

        Args:
            addresses: of each argument, of the scratch memory for staged ones; then of the workspace, 0 if it has no
                bytes; then of `Recording.temporaries`.
            stream: the caller's stream, 0 is the null stream of the device.
            staged: what is copied before and after. If any of it is host memory other than a scalar, the result is
                waited for.
            waits: wait until the device has done it.
            kept: what has to live as long as the result.

        Returns:
            A function that raises RuntimeError if HIP fails. It keeps the code loaded, and the scratch memory.
        """
        handle = ctypes.c_void_p(stream)
        calls: list[Call] = []
        for each in staged:
            if each.read:
                calls.extend(self._copies_in(each, handle))
        calls.extend(self._call(command, addresses, handle) for command in self.recording.commands)
        calls.extend(self._copy_out(each, handle) for each in staged if each.written)
        if waits or any(each.on_host and (each.written or not _is_scalar(each.nbytes)) for each in staged):
            calls.append(partial(self._hip.hipStreamSynchronize, handle))
        return _runner(self._hip, self.index, calls, (self, tuple(staged), kept)) if calls else _nothing

    def _copies_in(self, staged: Staged, stream: ctypes.c_void_p) -> list[Call]:
        scratch = staged.scratch.address
        if staged.on_host and _is_scalar(staged.nbytes):
            # A fill takes its value when it is called and needs no host memory that lives until it is done.
            width = min(staged.nbytes, 4)
            offsets = range(0, staged.nbytes, width)
            return [self._set_scalar(scratch + offset, staged.address + offset, width, stream) for offset in offsets]
        kind = HOST_TO_DEVICE if staged.on_host else DEVICE_TO_DEVICE
        return [self._copy(scratch, staged.address, staged.nbytes, kind, stream)]

    def _copy_out(self, staged: Staged, stream: ctypes.c_void_p) -> Call:
        kind = DEVICE_TO_HOST if staged.on_host else DEVICE_TO_DEVICE
        return self._copy(staged.address, staged.scratch.address, staged.nbytes, kind, stream)

    def _set_scalar(self, target: int, source: int, width: int, stream: ctypes.c_void_p) -> Call:
        value = _SCALARS[width].from_address(source)
        fill = getattr(self._hip, _SETTERS[width])
        place, one = ctypes.c_void_p(target), ctypes.c_size_t(1)
        return lambda: fill(place, ctypes.c_uint(value.value), one, stream)

    def _copy(self, target: int, source: int, nbytes: int, kind: int, stream: ctypes.c_void_p) -> Call:
        return partial(
            self._hip.hipMemcpyAsync, ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(nbytes),
            ctypes.c_int(kind), stream,
        )  # fmt: skip

    def _call(self, command: Command, addresses: Sequence[int], stream: ctypes.c_void_p) -> Call:
        if isinstance(command, Launch):
            values = [addresses[place.argument] + place.offset for place in command.pointers]
            function = self._functions[command.kernel]
            sizes = [ctypes.c_uint(size) for size in (*command.grid, *command.kernel.block, 0)]  # no dynamic LDS
            arguments = _kernel_arguments((*values, *command.numbers))
            return partial(self._hip.hipModuleLaunchKernel, function, *sizes, stream, arguments, None)
        if isinstance(command, Fill):
            target = ctypes.c_void_p(addresses[command.target.argument] + command.target.offset)
            count = ctypes.c_size_t(command.nbytes // command.width)
            fill = getattr(self._hip, _SETTERS[command.width])
            return partial(fill, target, ctypes.c_uint(command.pattern), count, stream)
        return self._device_copy(command, addresses, stream)

    def _device_copy(self, command: Copy, addresses: Sequence[int], stream: ctypes.c_void_p) -> Call:
        target, source = (addresses[each.argument] + each.offset for each in (command.target, command.source))
        return self._copy(target, source, command.nbytes, DEVICE_TO_DEVICE, stream)


def _is_scalar(nbytes: int) -> bool:
    return nbytes in (1, 2, 4, 8)


def _kernel_arguments(values: Sequence[int]) -> ctypes.Array[Any]:
    """Pointers to the arguments of a kernel, which take 8 bytes each."""
    memory = (ctypes.c_uint64 * max(len(values), 1))(*values)
    base = ctypes.addressof(memory)
    pointers = (ctypes.c_void_p * max(len(values), 1))(*(base + 8 * index for index in range(len(values))))
    pointers.memory = memory  # type: ignore[attr-defined] - lives as long
    return pointers


def _nothing() -> None:
    """A launch without a command."""


def _runner(hip: Hip, index: int, calls: Sequence[Call], kept: object) -> Callable[[], None]:
    """Makes the calls, with device ``index`` as the current one; ``kept`` lives as long."""
    current = ctypes.c_int(-1)
    get_device = partial(hip.hipGetDevice, ctypes.byref(current))
    first, *others = calls

    def run() -> None:
        if get_device() or current.value != index:
            with hip.on_device(index):
                enqueue()
        else:
            enqueue()

    def enqueue() -> None:
        if error := first():
            fail(first, error)
        for call in others:
            if error := call():
                fail(call, error)

    def fail(call: Call, error: int) -> NoReturn:
        name = getattr(getattr(call, "func", None), "__name__", "a fill")
        raise RuntimeError(f"{name} failed with {hip.error_name(error)}")

    run.kept = kept  # type: ignore[attr-defined]
    return run


class DeviceMemory:
    """Memory of a device, freed with this object; freeing waits for work in flight.

    Attributes:
        address: of its first byte, a multiple of 256; 0 if it has none.
    """

    def __init__(self, index: int, nbytes: int, contents: bytes | None = None) -> None:
        """Allocates; ``contents``, as many bytes, are there when this returns.

        Raises:
            RuntimeError: the device has no memory left.
        """
        self.address = 0
        if nbytes:
            hip = Hip.get()
            memory = ctypes.c_void_p()
            with hip.on_device(index):
                hip.check(hip.hipMalloc(ctypes.byref(memory), ctypes.c_size_t(nbytes)), f"hipMalloc({nbytes})")
            self.address = memory.value or 0
            weakref.finalize(self, _free, hip, index, memory).atexit = False
            if contents is not None:
                with hip.on_device(index):
                    _upload(hip, memory, contents)


def _upload(hip: Hip, memory: ctypes.c_void_p, contents: bytes) -> None:
    size, stream = ctypes.c_size_t(len(contents)), ctypes.c_void_p(0)
    error = hip.hipMemcpyAsync(memory, contents, size, ctypes.c_int(HOST_TO_DEVICE), stream)
    hip.check(error, f"hipMemcpyAsync({len(contents)})")
    hip.check(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")


def _free(hip: Hip, index: int, memory: ctypes.c_void_p) -> None:
    with hip.on_device(index):
        hip.hipFree(memory)


_codes: Final[weakref.WeakValueDictionary[tuple[int, bytes], LoadedCode]] = weakref.WeakValueDictionary()
_lock: Final = fork_safe_lock()


def load(code: bytes, sizes: Sequence[int], workspace: int, index: int) -> LoadedCode:
    """Code on a device, loaded once however many streams use it.

    Args:
        code: VMFB bytes.
        sizes: bytes of each argument, outputs first.
        workspace: bytes.
        index: number of the device.

    Raises:
        UnrecordableError: the code does more than can be recorded.
        ExecutionError: the device does not load it.
    """
    key = (index, code)
    with _lock:
        loaded = _codes.get(key)
        if loaded is None:
            loaded = _codes[key] = LoadedCode(record(code, sizes, workspace), index)
        return loaded
