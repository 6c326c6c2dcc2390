"""The CUDA driver library: device count, architecture, waiting for a stream or a device.

CUDA devices serve development on NVIDIA machines. IREE's cuda driver takes no stream of the caller's, so the caller's
work is waited for before a launch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from fusilli_ground.gpu_runtime import kernel_module
from fusilli_ground.locks import fork_safe_lock
from graph_api.errors import ExecutionError

__all__ = ["arch", "card", "device_count", "driver_versions", "enter", "synchronize"]

_NO_DEVICE: Final = 100
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
# Code for an older architecture runs on every newer one; these are what the compiler knows, newest first.
_ARCHITECTURES: Final = ((8, 9), (8, 6), (8, 0))
_lock = fork_safe_lock()
_api: ctypes.CDLL | None = None
_contexts: dict[int, int] = {}


def device_count() -> int:
    """Number of CUDA devices; 0 if the driver is there and finds none.

    Raises:
        ExecutionError: there is no CUDA driver, or it fails.
    """
    count = ctypes.c_int()
    error = _load().cuDeviceGetCount(ctypes.byref(count))
    if error != _NO_DEVICE:
        _check("cuDeviceGetCount", error)
    return count.value


def arch(index: int) -> str:
    """The newest architecture that the compiler knows and device ``index`` runs, e.g. ``sm_80``.

    Raises:
        ExecutionError: there is no such device, or it is older than sm_80.
    """
    count = device_count()
    if not 0 <= index < count:
        raise ExecutionError(f"device 'cuda:{index}' is not there: this machine has {count} CUDA devices")
    seen = (_attribute(index, _MAJOR), _attribute(index, _MINOR))
    for known in _ARCHITECTURES:
        # The minor architectures of a generation are for chips of that generation; 8.0 runs on all newer ones.
        if known == (8, 0) <= seen or (known[0] == seen[0] and known <= seen):
            return f"sm_{known[0]}{known[1]}"
    raise ExecutionError(f"device 'cuda:{index}' has compute capability {seen[0]}.{seen[1]}; 8.0 or newer is needed")


@cache
def card(index: int) -> str:
    """Which card device ``index`` is: its UUID and its place on the PCI bus.

    Raises:
        ExecutionError: there is no such device, or the driver does not tell.
    """
    device, uuid, place = ctypes.c_int(), ctypes.create_string_buffer(16), ctypes.create_string_buffer(64)
    _call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
    _call("cuDeviceGetUuid", uuid, device)
    _call("cuDeviceGetPCIBusId", place, ctypes.c_int(len(place)), device)
    return f"{uuid.raw.hex()} {place.value.decode('ascii', 'replace')}"


@cache
def driver_versions() -> str:
    """What the driver library and the kernel's module are, in words that differ for different ones.

    Raises:
        ExecutionError: there is no CUDA driver.
    """
    number = ctypes.c_int()
    _call("cuDriverGetVersion", ctypes.byref(number))
    return f"{number.value} {kernel_module('nvidia')}"


def enter(index: int) -> None:
    """Makes the primary context of a device the calling thread's current one.

    IREE's driver works in whatever context the thread has; it sets one in the thread only that opens the device.
    """
    _call("cuCtxSetCurrent", ctypes.c_void_p(_primary_context(index)))


def synchronize(index: int, stream: int | None = None) -> None:
    """Waits for one stream of device ``index``, or (None) for all work that was given to the device."""
    with _current(index):
        if stream is None:
            _call("cuCtxSynchronize")
        else:
            _call("cuStreamSynchronize", ctypes.c_void_p(stream))


@contextmanager
def memory(index: int, contents: Sequence[bytes]) -> Iterator[list[int]]:
    """Addresses of memory of device ``index`` that holds ``contents``; it is freed in the end.

    Raises:
        ExecutionError: the device has no memory left.
    """
    addresses: list[int] = []
    try:
        with _current(index):
            for data in contents:
                address = ctypes.c_uint64()
                _call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(len(data)))
                addresses.append(address.value)
                _call("cuMemcpyHtoD_v2", address, ctypes.c_char_p(data), ctypes.c_size_t(len(data)))
        yield addresses
    finally:
        with _current(index):
            for address in addresses:
                _call("cuMemFree_v2", ctypes.c_uint64(address))


def _attribute(index: int, attribute: int) -> int:
    device, value = ctypes.c_int(), ctypes.c_int()
    _call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
    _call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), device)
    return value.value


@contextmanager
def _current(index: int) -> Iterator[None]:
    """Makes the primary context of a device, which IREE and PyTorch use too, the calling thread's current one."""
    _call("cuCtxPushCurrent_v2", ctypes.c_void_p(_primary_context(index)))
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _primary_context(index: int) -> int:
    context = _contexts.get(index)
    if context is None:
        device, handle = ctypes.c_int(), ctypes.c_void_p()
        _call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
        context = _contexts.setdefault(index, handle.value or 0)
    return context


def _call(function: str, *arguments: Any) -> None:
    _check(function, getattr(_load(), function)(*arguments))


def _check(function: str, error: int) -> None:
    if error:
        raise ExecutionError(f"{function} failed with CUDA error {error}; `nvidia-smi` shows what the driver sees")


def _load() -> ctypes.CDLL:
    global _api
    with _lock:
        if _api is None:
            try:
                library = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise ExecutionError(
                    f"the CUDA driver cannot be used ({error}); install the NVIDIA driver, or choose --device cpu"
                ) from error
            if library.cuInit(ctypes.c_uint(0)) not in (0, _NO_DEVICE):
                raise ExecutionError("cuInit failed; `nvidia-smi` shows what the driver sees")
            _api = library
    return _api
