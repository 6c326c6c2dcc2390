"""The HIP runtime: which library, which devices, which architecture.

One process must have one HIP runtime. A host that uses HIP has libamdhip64 mapped already, often under a name that a
plain ``dlopen`` would not find again; so the mapped file comes first, for hip-python and for IREE's driver alike.
Nothing here is imported, and no library is loaded, before the first call.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from fusilli_ground import mapped
from fusilli_ground.gpu_runtime import HIP, GpuRuntime, kernel_module
from graph_api.errors import ExecutionError

__all__ = [
    "arch",
    "card",
    "current_device",
    "cycles_per_s",
    "device_count",
    "driver_flags",
    "driver_versions",
    "keep_current_device",
    "mapped_library",
    "synchronize",
    "total_memory",
]

_LOG: Final = logging.getLogger(__name__)
_LIBRARY: Final = "libamdhip64.so"
_FIX: Final = (
    "install ROCm (https://rocm.docs.amd.com) or put the folder of libamdhip64.so on LD_LIBRARY_PATH, "
    "or choose the CPU: --device cpu on the command line, device='cpu' in Python, or FUSILLI_DEVICE=cpu"
)
_lock = threading.RLock()
_api: Any = None


def mapped_library() -> str | None:
    """Path of the libamdhip64 that is mapped into this process, None if there is none."""
    return mapped.mapped_library(_LIBRARY)


def release() -> str:
    """The release of the runtime in this process, as the real name of its library has it; "" if there is none."""
    return os.path.basename(os.path.realpath(mapped_library() or ""))


def device_count() -> int:
    """Number of HIP devices; 0 if the runtime is there and finds none.

    Raises:
        ExecutionError: there is no HIP runtime, or it fails.
    """
    api = _load()
    error, count = _call(api.hipGetDeviceCount)
    if error == api.hipError_t.hipErrorNoDevice:
        return 0
    _check(error, "hipGetDeviceCount")
    return int(count)


def arch(index: int) -> str:
    """The chip of device ``index`` without its feature suffixes, e.g. ``gfx942``.

    Raises:
        ExecutionError: there is no such device.
    """
    name = _properties(index).gcnArchName
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    chip = text.split(":", 1)[0].strip("\0 ")
    if not chip:
        raise ExecutionError(f"HIP device {index} reports no gcnArchName; update ROCm, or choose another device")
    return chip


@cache
def card(index: int) -> str:
    """Which card device ``index`` is: its UUID and its place on the PCI bus. Partitions of a card may have one of both.

    Raises:
        ExecutionError: there is no such device, or HIP tells neither.
    """
    arch(index)  # the library is loaded then, and the device is there
    runtime, found = GpuRuntime(HIP), list[str]()
    uuid, place = ctypes.create_string_buffer(16), ctypes.create_string_buffer(64)
    if not runtime.missing(["hipDeviceGetUuid"]) and runtime.typed("hipDeviceGetUuid")(uuid, index) == 0:
        found += [uuid.raw.hex()] if any(uuid.raw) else []
    if runtime.typed("hipDeviceGetPCIBusId")(place, len(place), index) == 0:
        found += [place.value.decode("ascii", "replace")] if place.value else []
    if not found:
        raise ExecutionError(f"HIP device {index} has neither a UUID nor a place on the PCI bus; update ROCm")
    return " ".join(found)


@cache
def driver_versions() -> str:
    """What the runtime in this process and the kernel's driver are, in words that differ for different ones.

    Raises:
        ExecutionError: there is no HIP runtime.
    """
    device_count()  # the library is loaded then
    number = ctypes.c_int()
    GpuRuntime(HIP).typed("hipRuntimeGetVersion")(ctypes.byref(number))
    return f"{release()} {number.value} {kernel_module('amdgpu')}"


def total_memory(index: int) -> int:
    """Bytes of memory of device ``index``.

    Raises:
        ExecutionError: there is no such device.
    """
    return int(_properties(index).totalGlobalMem)


def cycles_per_s(index: int) -> float:
    """Cycles of all compute units of device ``index`` in a second at its highest clock; 0 where HIP does not tell.

    Raises:
        ExecutionError: there is no such device.
    """
    properties = _properties(index)
    return 1e3 * properties.clockRate * properties.multiProcessorCount


def _properties(index: int) -> Any:
    count = device_count()
    if not 0 <= index < count:
        raise ExecutionError(_missing_device(index, count))
    error, properties = _call(_load().hipGetDeviceProperties, index)
    _check(error, f"hipGetDeviceProperties({index})")
    return properties


def current_device() -> int:
    """The device that HIP calls of this thread go to.

    Raises:
        ExecutionError: there is no HIP runtime or no device.
    """
    error, index = _call(_load().hipGetDevice)
    _check(error, "hipGetDevice")
    return int(index)


def synchronize(index: int) -> None:
    """Waits until all work that was given to device ``index`` is done."""
    with keep_current_device():
        api = _load()
        _check(_call(api.hipSetDevice, index)[0], f"hipSetDevice({index})")
        _check(_call(api.hipDeviceSynchronize)[0], "hipDeviceSynchronize")


@contextmanager
def keep_current_device() -> Iterator[None]:
    """Restores the calling thread's current device: opening a device in IREE makes that one current."""
    before = current_device()
    try:
        yield
    finally:
        error = _call(_load().hipSetDevice, before)[0]
        if int(error) != 0:
            _LOG.warning("hipSetDevice(%d) failed with %s", before, error)


def driver_flags() -> tuple[str, ...]:
    """The flags that make IREE's hip driver use the HIP runtime of this process; give them before the driver exists.

    Raises:
        ExecutionError: there is no HIP runtime, or no device.
    """
    if device_count() == 0:
        raise ExecutionError(_missing_device(0, 0))
    path = mapped_library()
    return (f"--hip_dylib_path=file:{path}",) if path else ()


def _missing_device(index: int, count: int) -> str:
    if count == 0:
        return (
            f"device 'hip:{index}': the HIP runtime finds no GPU; check `rocminfo`, that this user may open /dev/kfd "
            "(groups video, render), and HIP_VISIBLE_DEVICES; or choose the CPU: --device cpu"
        )
    return f"device 'hip:{index}' is not there: this machine has {count}, hip:0 to hip:{count - 1}"


def _load() -> Any:
    """hip-python's module of HIP functions, tied to the mapped library."""
    global _api
    if _api is not None:
        return _api
    with _lock:
        if _api is None:
            try:
                package = importlib.import_module("hip")
                _prefer_mapped_library(package)
                _api = package.hip
            except ImportError as error:
                raise ExecutionError(f"hip-python cannot be imported ({error}); run: pip install hip-python") from error
    return _api


def _prefer_mapped_library(package: Any) -> None:
    """hip-python resolves its library at the first call; from here on the mapped file is what it finds."""
    try:
        paths: Any = importlib.import_module(f"{package._util.__name__}.paths")
    except ImportError:
        return  # before 7.14 the library was always looked up by its plain name
    original = paths.get_library_path

    def get_library_path(shortname: str, *args: Any, **kwargs: Any) -> bytes:
        path = mapped_library() if shortname == "amdhip64" else None
        return path.encode("utf-8", "surrogateescape") if path else original(shortname, *args, **kwargs)

    paths.get_library_path = get_library_path


def _call(function: Any, *arguments: int) -> tuple[Any, ...]:
    """Calls HIP; hip-python raises RuntimeError where the library or a symbol is missing."""
    try:
        return function(*arguments)
    except (RuntimeError, TypeError) as error:
        name = getattr(function, "__name__", "a HIP function")
        text = re.sub(r"b'([^']*)'", r"\1", str(error))  # hip-python shows bytes as Python would
        raise ExecutionError(f"the HIP runtime cannot be used ({name}: {text}); {_FIX}") from error


def _check(error: Any, what: str) -> None:
    if int(error) != 0:
        name = getattr(error, "name", error)
        raise ExecutionError(f"{what} failed with {name}; `rocminfo` shows what the driver sees")
