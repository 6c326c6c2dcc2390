"""Memory and streams for those who run engines: HIP's, CUDA's for development, and a twin of them in host memory.

Example:
    memory = HipMemory()
    with memory.allocate(x.nbytes) as buffer:
        buffer.write(x)
        plan.execute({1: buffer, 3: y})
        memory.synchronize()
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_void_p
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias

import numpy as np

from fusilli_ground.gpu_runtime import CUDA, HIP, Family, GpuRuntime
from hipdnn_backend.errors import DeviceError

__all__ = ["ALIGNMENT", "Buffer", "CudaMemory", "Data", "HipMemory", "HostMemory", "Memory"]

Data: TypeAlias = "bytes | bytearray | memoryview | np.ndarray[Any, Any]"

ALIGNMENT: Final = 256
"""Bytes to which allocations are aligned."""
_HOST_TO_DEVICE: Final = 1
_DEVICE_TO_HOST: Final = 2
_DEVICE_TO_DEVICE: Final = 3
_NON_BLOCKING: Final = 1


class Memory(Protocol):
    """Where buffers live. Methods may be called from any thread."""

    @property
    def name(self) -> str:
        """E.g. ``host memory``."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether Python can read it directly."""
        ...

    def allocate(self, size: int) -> Buffer:
        """A buffer of that many bytes, its content undefined; one of 0 bytes has an address, too.

        Raises:
            DeviceError: there is no memory left, or no device.
        """
        ...

    def free(self, address: int) -> None:
        """Give back what `allocate` gave.

        Raises:
            DeviceError: it did not, or not any more.
        """
        ...

    def write(self, address: int, data: Data) -> None:
        """Copy bytes to an address, and wait for it. The caller answers for the address."""
        ...

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from an address, after all work that was enqueued before."""
        ...

    def copy_rows(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int = 0
    ) -> None:
        """Enqueue a copy of rows of bytes within this memory; the pitches are bytes from row to row."""
        ...

    def create_stream(self) -> int:
        """A stream of its own order, 0 where there are none."""
        ...

    def destroy_stream(self, stream: int) -> None:
        """Destroy what `create_stream` made."""
        ...

    def synchronize(self, stream: int = 0) -> None:
        """Wait until a stream has done what it was given.

        Raises:
            DeviceError: some of it failed.
        """
        ...


class Buffer:
    """Memory that is freed by `close`, at the end of a ``with`` block or when the object is collected.

    Attributes:
        memory: where it lives.
        address: of its first byte.
        size: in bytes.
    """

    def __init__(self, memory: Memory, address: int, size: int) -> None:
        self.memory = memory
        self.address = address
        self.size = size
        self._is_open = True

    def write(self, data: Data) -> Buffer:
        """Copy the bytes of an array, in the order of its memory, to the start of the buffer.

        Raises:
            ValueError: they do not fit.
            DeviceError: the buffer is closed, or the copy failed.
        """
        raw = _raw(data)
        if len(raw) > self.size:
            raise ValueError(f"{len(raw)} bytes do not fit into a buffer of {self.size}")
        self._check_open()
        self.memory.write(self.address, raw)
        return self

    def read(self, size: int | None = None) -> bytes:
        """Copy bytes from the start of the buffer; default: all.

        Raises:
            ValueError: it does not have that many.
            DeviceError: the buffer is closed, or the copy failed.
        """
        size = self.size if size is None else size
        if not 0 <= size <= self.size:
            raise ValueError(f"{size} bytes of a buffer of {self.size}")
        self._check_open()
        return self.memory.read(self.address, size)

    def close(self) -> None:
        """Free it; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self.memory.free(self.address)

    @property
    def is_open(self) -> bool:
        """False after `close`."""
        return self._is_open

    def _check_open(self) -> None:
        if not self._is_open:
            raise DeviceError(f"the buffer of {self.size} bytes is closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the runtime may be gone by now, and there is nobody to tell
            return

    def __repr__(self) -> str:
        return f"Buffer({self.size} bytes of {self.memory.name} at {self.address:#x})"


class HostMemory:
    """The twin: host memory with the same calls; streams are all the null stream, and everything is done at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, np.ndarray[Any, Any]] = {}

    @property
    def name(self) -> str:
        """``host memory``."""
        return "host memory"

    @property
    def is_host(self) -> bool:
        """True."""
        return True

    def allocate(self, size: int) -> Buffer:
        _check_size(size)
        try:
            block = np.empty(size + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError) as error:
            raise DeviceError(f"{size} bytes of host memory cannot be had: {error}") from None
        address = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        with self._lock:
            self._live[address] = block
        return Buffer(self, address, size)

    def free(self, address: int) -> None:
        with self._lock:
            if self._live.pop(address, None) is None:
                raise DeviceError(f"{address:#x} is no allocation of this memory, or it is freed already")

    def write(self, address: int, data: Data) -> None:
        raw = _raw(data)
        ctypes.memmove(address, _as_pointer(raw), len(raw))

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(address, size) if size else b""

    def copy_rows(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int = 0
    ) -> None:
        for row in range(rows):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, width)

    def create_stream(self) -> int:
        return 0

    def destroy_stream(self, stream: int) -> None:
        if stream:
            raise DeviceError(f"host memory has no stream {stream:#x}")

    def synchronize(self, stream: int = 0) -> None:
        """Does nothing: everything is done when its call returns."""

    @property
    def live_count(self) -> int:
        """Number of allocations that are not freed."""
        return len(self._live)


class HipMemory:
    """Memory of a HIP device.

    Attributes:
        device: its number.
        runtime: the library that it is asked through.
    """

    _FAMILY: Family = HIP
    _USES: tuple[str, ...] = (
        "hipGetDeviceCount", "hipDeviceSynchronize", "hipFree", "hipGetDevice", "hipGetLastError", "hipMalloc",
        "hipMemcpy", "hipMemcpy2DAsync", "hipMemcpyAsync", "hipSetDevice", "hipStreamCreateWithFlags",
        "hipStreamDestroy", "hipStreamSynchronize",
    )  # fmt: skip

    def __init__(self, device: int | None = None, *, library: str | None = None) -> None:
        """Find the HIP runtime.

        Args:
            device: default: the calling thread's current one.
            library: path of the runtime; default: the one that is mapped, otherwise what the loader finds.

        Raises:
            DeviceError: there is no runtime, or no such device.
        """
        try:
            self.runtime = GpuRuntime(self._FAMILY, library)
            self._functions = {name: self.runtime.typed(name) for name in self._USES}
        except (OSError, AttributeError) as error:
            raise DeviceError(
                f"the {self._FAMILY.kind} runtime cannot be used: {error}; put the folder of "
                f"{self._FAMILY.libraries[0]} on LD_LIBRARY_PATH, or use host memory: --device cpu on the command line"
            ) from None
        count, current = c_int(0), c_int(0)
        self._call("hipGetDeviceCount", byref(count))
        if device is None and count.value:
            self._call("hipGetDevice", byref(current))
        self.device = current.value if device is None else device
        if not 0 <= self.device < count.value:
            raise DeviceError(f"there is no {self._FAMILY.kind} device {self.device}; there are {count.value}")

    @property
    def name(self) -> str:
        """With the number of the device."""
        return f"{self._FAMILY.kind} device {self.device}"

    @property
    def is_host(self) -> bool:
        """False."""
        return False

    def allocate(self, size: int) -> Buffer:
        _check_size(size)
        address = c_void_p()
        with self._current():
            self._call("hipMalloc", byref(address), max(size, 1))  # 0 bytes have no address in HIP
        if not address.value:
            raise DeviceError(f"{self._FAMILY.prefix}Malloc: success without memory")
        return Buffer(self, address.value, size)

    def free(self, address: int) -> None:
        self._call("hipFree", address)

    def write(self, address: int, data: Data) -> None:
        raw = _raw(data)
        with self._current():
            self._call("hipMemcpy", address, _as_pointer(raw), len(raw), _HOST_TO_DEVICE)

    def read(self, address: int, size: int) -> bytes:
        target = ctypes.create_string_buffer(size)
        with self._current():
            # a blocking copy waits for the null stream only
            self._call("hipDeviceSynchronize")
            self._call("hipMemcpy", target, address, size, _DEVICE_TO_HOST)
        return target.raw

    def copy_rows(
        self, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int, stream: int = 0
    ) -> None:
        kind = _DEVICE_TO_DEVICE
        with self._current():
            if rows == 1:
                self._call("hipMemcpyAsync", target, source, width, kind, stream or None)
            else:
                self._call(
                    "hipMemcpy2DAsync", target, target_pitch, source, source_pitch, width, rows, kind, stream or None
                )

    def create_stream(self) -> int:
        stream = c_void_p()
        with self._current():
            self._call("hipStreamCreateWithFlags", byref(stream), _NON_BLOCKING)
        if not stream.value:
            raise DeviceError(f"{self._FAMILY.prefix}StreamCreateWithFlags: success without a stream")
        return stream.value

    def destroy_stream(self, stream: int) -> None:
        self._call("hipStreamDestroy", stream)

    def synchronize(self, stream: int = 0) -> None:
        with self._current():
            self._call("hipStreamSynchronize", stream or None)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Makes the device the thread's current one, and restores what was."""
        before = c_int(0)
        self._call("hipGetDevice", byref(before))
        if before.value == self.device:
            yield
            return
        self._call("hipSetDevice", self.device)
        try:
            yield
        finally:
            self._call("hipSetDevice", before.value)

    def _call(self, name: str, *arguments: Any) -> None:
        error = self._functions[name](*arguments)
        if error:
            # errors stick otherwise, and the next caller would see this one
            self._functions["hipGetLastError"]()
            raise DeviceError(f"{self.runtime.name_of(name)}: error {error} ({self.runtime.error_text(error)})")


class CudaMemory(HipMemory):
    """Memory of a CUDA device, for development on NVIDIA machines."""

    _FAMILY = CUDA


def _raw(data: Data) -> memoryview:
    """The bytes of an object in the order of its memory.

    Raises:
        ValueError: an array has gaps between its elements.
    """
    if isinstance(data, np.ndarray):
        # memory order: a transposed array is dense, too
        dense = data.transpose(sorted(range(data.ndim), key=lambda axis: -data.strides[axis]))
        if not dense.flags.c_contiguous:
            raise ValueError(f"an array of shape {data.shape} and strides {data.strides} has gaps; copy it first")
        return dense.reshape(-1).view(np.uint8).data
    return memoryview(data).cast("B")


def _as_pointer(raw: memoryview) -> c_void_p:
    """The address of bytes for a C call that only reads them; the view must outlive the call."""
    return c_void_p(np.frombuffer(raw, np.uint8).ctypes.data) if len(raw) else c_void_p()


def _check_size(size: int) -> None:
    if size < 0:
        raise DeviceError(f"{size} bytes cannot be allocated")
