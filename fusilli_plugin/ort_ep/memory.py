"""Device memory, copies, streams and events of AMD GPUs for ONNX Runtime, over HIP.

Memory is pooled by stream: what was allocated for work on a stream goes back to the pool of that stream and is handed
out again for work on it only, so that nobody writes into memory that work in flight still uses. What was allocated for
no stream is freed at once, for which HIP waits.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from ctypes import byref, c_void_p, create_string_buffer
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fusilli_plugin.ort_ep.abi import VENDOR_ID, Api, OrtError, address
from hipdnn_backend.device.memory import HipMemory
from hipdnn_backend.errors import DeviceError

__all__ = ["Gpu", "SessionMemory", "can_copy", "copy", "gpu", "on_stream_release", "place_of", "rounded"]

_LOG: Final = logging.getLogger(__name__)
_GPU: Final = 1  # OrtMemoryInfoDeviceType
_DEFAULT: Final = 4  # hipMemcpyDefault: the runtime sees which side is where
_NO_TIMING: Final = 2
_STEP: Final = 256
_FINE: Final = 64 << 10

T = TypeVar("T")


class Gpu(HipMemory):
    """What `HipMemory` lacks for ONNX Runtime: copies on a stream, and events."""

    _USES = (
        *HipMemory._USES, "hipDeviceGetPCIBusId", "hipEventCreateWithFlags", "hipEventDestroy", "hipEventRecord",
        "hipEventSynchronize", "hipStreamWaitEvent",
    )  # fmt: skip

    def pci_place(self) -> str:
        """Where it is on the PCI bus, e.g. ``0000:c1:00.0``.

        Raises:
            DeviceError: HIP does not tell.
        """
        text = create_string_buffer(64)
        self._call("hipDeviceGetPCIBusId", text, len(text), self.device)
        return text.value.decode(errors="replace")

    def take(self, size: int) -> int:
        """The address of new memory, which `free` gives back.

        Raises:
            DeviceError: there is none left.
        """
        found = c_void_p()
        with self._current():
            self._call("hipMalloc", byref(found), max(size, 1))
        return found.value or 0

    def copy(self, target: int, source: int, size: int, stream: int | None) -> None:
        """Copy between host and device, or on the device: enqueued on a stream, or done when this returns."""
        with self._current():
            if stream is None:
                self._call("hipMemcpy", target, source, size, _DEFAULT)
            else:
                self._call("hipMemcpyAsync", target, source, size, _DEFAULT, stream)

    def create_event(self) -> int:
        """An event, which `destroy_event` gives back."""
        event = c_void_p()
        with self._current():
            self._call("hipEventCreateWithFlags", byref(event), _NO_TIMING)
        return event.value or 0

    def record_event(self, event: int, stream: int) -> None:
        """The event is what the stream has been given until now."""
        with self._current():
            self._call("hipEventRecord", event, stream)

    def wait_event(self, event: int, stream: int | None) -> None:
        """Let a stream, or the host, wait for an event."""
        with self._current():
            if stream is None:
                self._call("hipEventSynchronize", event)
            else:
                self._call("hipStreamWaitEvent", stream, event, 0)

    def destroy_event(self, event: int) -> None:
        """Give an event back."""
        self._call("hipEventDestroy", event)


_gpus: dict[int, Gpu] = {}
_gpus_lock = threading.Lock()


def gpu(index: int) -> Gpu:
    """HIP's device of a number; one object per process.

    Raises:
        DeviceError: it is not there.
    """
    with _gpus_lock:
        if index not in _gpus:
            _gpus[index] = Gpu(index)
        return _gpus[index]


def place_of(api: Api, device: Any) -> int | None:
    """The number of the GPU that an OrtMemoryDevice is; None for the host and for what is not AMD's."""
    if api.plain("MemoryDevice_GetDeviceType", device) != _GPU:
        return None
    if api.plain("MemoryDevice_GetVendorId", device) != VENDOR_ID:
        return None
    return int(api.plain("MemoryDevice_GetDeviceId", device))


def _is_host(api: Api, device: Any) -> bool:
    return api.plain("MemoryDevice_GetDeviceType", device) == 0


def can_copy(api: Api, source: Any, target: Any) -> bool:
    """Whether a copy between two OrtMemoryDevices is ours: one is a GPU, the other the same or the host."""
    places = place_of(api, source), place_of(api, target)
    hosts = _is_host(api, source), _is_host(api, target)
    if places[0] is not None:
        return hosts[1] or places[1] == places[0]
    return hosts[0] and places[1] is not None


def copy(api: Api, source: Any, target: Any, stream: int | None) -> None:
    """Copy one OrtValue to another, on a stream of HIP's if one is given.

    Raises:
        OrtError: their sizes differ, or neither is on a GPU.
        DeviceError: HIP failed.
    """
    size, room = (api.get("GetTensorSizeInBytes", "size_t", value) for value in (source, target))
    if size != room:
        raise OrtError(f"a tensor of {size} bytes cannot be copied to one of {room}")
    devices = [api.plain("Value_GetMemoryDevice", value) for value in (source, target)]
    place = next((found for device in devices if (found := place_of(api, device)) is not None), None)
    if place is None:
        raise OrtError("neither side of a copy is on a GPU")
    to = address(api.get("GetTensorMutableData", "void *", target))
    of = address(api.get("GetTensorData", "void *", source))
    if size:
        gpu(place).copy(to, of, size, stream)


def rounded(size: int) -> int:
    """The size of the block that serves ``size`` bytes: at most an eighth too large, so that few sizes occur."""
    if size <= _FINE:
        return max(-(-size // _STEP), 1) * _STEP
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


@dataclass
class _Pool:
    """The memory of one allocator.

    Attributes:
        taken: address → size of the block and stream that it is for.
        free: stream and size → addresses.
    """

    gpu: Gpu
    taken: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    free: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def take(self, size: int, stream: int | None) -> int:
        size = rounded(size)
        kept = self.free.get((stream, size)) if stream is not None else None
        found = kept.pop() if kept else self._new(size)
        self.taken[found] = (size, stream)
        return found

    def _new(self, size: int) -> int:
        try:
            return self.gpu.take(size)
        except DeviceError:
            if not self.drain(None):
                raise
            return self.gpu.take(size)

    def give(self, block: int) -> None:
        size, stream = self.taken.pop(block)
        if stream is None:
            self.gpu.free(block)
        else:
            self.free.setdefault((stream, size), []).append(block)

    def drain(self, stream: int | None) -> int:
        """Free what the pool of a stream keeps, of all streams if None; how many blocks that were."""
        keys = [key for key in self.free if stream is None or key[0] == stream]
        blocks = [block for key in keys for block in self.free.pop(key)]
        for block in blocks:
            self.gpu.free(block)
        return len(blocks)


class SessionMemory:
    """What ONNX Runtime was given, under numbers. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pools: dict[int, _Pool] = {}
        self._streams: dict[int, tuple[Gpu, int]] = {}
        self._events: dict[int, tuple[Gpu, int, int]] = {}

    def allocator(self, place: int | None) -> int:
        """A new allocator of a GPU; 0 for other memory."""
        if place is None:
            return 0
        return self._add(self._pools, _Pool(gpu(place)))

    def release_allocator(self, number: int) -> None:
        """Give back all that an allocator keeps."""
        with self._lock:
            pool = self._pools.pop(number)
            pool.drain(None)
        if pool.taken:
            _LOG.warning("an allocator of %s goes with %d blocks in use", pool.gpu.name, len(pool.taken))

    def allocate(self, number: int, size: int, stream: int | None) -> int:
        """Memory for work on a stream, or for any."""
        with self._lock:
            return self._pools[number].take(size, stream)

    def deallocate(self, number: int, block: int) -> None:
        """Give back what `allocate` gave."""
        with self._lock:
            self._pools[number].give(block)

    def create_stream(self, place: int | None) -> tuple[int, int]:
        """A new stream: its number here and HIP's handle.

        Raises:
            DeviceError: the device is none of ours, or HIP failed.
        """
        if place is None:
            raise DeviceError("a stream is made for AMD GPUs only")
        device = gpu(place)
        handle = device.create_stream()
        return self._add(self._streams, (device, handle)), handle

    def synchronize(self, number: int) -> None:
        """Wait for a stream."""
        device, handle = self._streams[number]
        device.synchronize(handle)

    def release_stream(self, number: int) -> None:
        """Destroy a stream when it has done its work, and free what is kept for it."""
        device, handle = self._streams.pop(number)
        device.synchronize(handle)
        with self._lock:
            for pool in self._pools.values():
                pool.drain(handle)
        for release in list(_on_release):
            release(device.device, handle)
        device.destroy_stream(handle)

    def create_event(self, stream: int) -> int:
        """An event of a stream."""
        device, handle = self._streams[stream]
        return self._add(self._events, (device, device.create_event(), handle))

    def record_event(self, number: int) -> None:
        """Mark where the event's stream is."""
        device, event, stream = self._events[number]
        device.record_event(event, stream)

    def wait_event(self, number: int, stream: int | None) -> None:
        """Let a stream, or the host, wait until the mark is reached."""
        device, event, _ = self._events[number]
        device.wait_event(event, stream)

    def release_event(self, number: int) -> None:
        """Destroy an event."""
        device, event, _ = self._events.pop(number)
        device.destroy_event(event)

    def _add(self, table: dict[int, T], value: T) -> int:
        with self._lock:
            number = next(self._numbers)
            table[number] = value
        return number


_on_release: list[Callable[[int, int], None]] = []


def on_stream_release(function: Callable[[int, int], None]) -> None:
    """Call ``function(device, stream)`` before a stream is destroyed: for those who keep things per stream."""
    _on_release.append(function)
