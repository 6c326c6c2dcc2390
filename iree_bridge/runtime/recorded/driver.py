"""The HIP functions that a launch is made of, called through ctypes in the library that the process has mapped.

hip-python, which asks for devices and their properties, converts the arguments of each call anew; here they are
converted once and kept. ctypes gives the GIL back during a call: a full queue lets a launch wait.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from fusilli_ground.gpu_runtime import HIP, GpuRuntime
from graph_api.errors import ExecutionError
from iree_bridge.devices import hip

__all__ = ["DEVICE_TO_DEVICE", "DEVICE_TO_HOST", "HOST_TO_DEVICE", "Hip", "Retired", "missing_functions"]

_FUNCTIONS: Final = (
    "hipDeviceSynchronize",
    "hipFree",
    "hipGetDevice",
    "hipMalloc",
    "hipMemcpyAsync",
    "hipMemsetD16Async",
    "hipMemsetD32Async",
    "hipMemsetD8Async",
    "hipModuleGetFunction",
    "hipModuleLaunchKernel",
    "hipModuleLoadData",
    "hipModuleUnload",
    "hipSetDevice",
    "hipStreamSynchronize",
)
# hipMemcpyKind
HOST_TO_DEVICE: Final = 1
DEVICE_TO_HOST: Final = 2
DEVICE_TO_DEVICE: Final = 3
_CAPTURE_IMPLICIT: Final = 906  # of the null stream, while another stream of the process is captured


def missing_functions(path: str) -> tuple[str, ...]:
    """The functions that launches take and the HIP runtime at ``path`` does not have."""
    return GpuRuntime(HIP, path).missing((*_FUNCTIONS, "hipGetErrorName"))


class Hip:
    """The functions, without the prefix ``hip``; they take ctypes objects or small integers and return an error number.

    ``Hip.get()`` is the one of this process.
    """

    def __init__(self, path: str) -> None:
        self._runtime = GpuRuntime(HIP, path)
        missing = self._runtime.missing((*_FUNCTIONS, "hipGetErrorName"))
        if missing:
            raise ExecutionError(f"the HIP runtime {path} lacks {', '.join(missing)}; update ROCm")
        for name in _FUNCTIONS:
            setattr(self, name, self._runtime.raw(name))
        is_old = bool(self._runtime.missing(("hipStreamIsCapturing",)))  # it cannot tell
        self._is_capturing: Any = None if is_old else self._runtime.typed("hipStreamIsCapturing")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # tells type checkers that the functions above are attributes

    @staticmethod
    @functools.cache
    def get() -> Hip:
        """The library that this process uses.

        Raises:
            ExecutionError: there is none.
        """
        hip.device_count()  # maps the library if the host has not
        path = hip.mapped_library()
        if path is None:
            raise ExecutionError("the HIP runtime cannot be found among the files that are mapped into this process")
        return Hip(path)

    def check(self, error: int, what: str) -> None:
        """Raise RuntimeError, as IREE does, unless ``error`` is hipSuccess."""
        if error:
            raise RuntimeError(f"{what} failed with {self.error_name(error)}")

    def is_capturing(self, stream: int | None) -> bool:
        """Whether work on a stream would go into a graph that is being captured; None is the null stream."""
        if self._is_capturing is None:
            return False
        status = ctypes.c_int()
        error = self._is_capturing(stream or None, ctypes.byref(status))
        return error == _CAPTURE_IMPLICIT or (error == 0 and status.value != 0)

    def error_name(self, error: int) -> str:
        """HIP's name of an error number."""
        return self._runtime.error_name(error)

    @contextmanager
    def on_device(self, index: int) -> Iterator[None]:
        """Makes a device the current one of this thread for a while."""
        before = ctypes.c_int()
        self.check(self.hipGetDevice(ctypes.byref(before)), "hipGetDevice")
        if before.value == index:
            yield
            return
        self.check(self.hipSetDevice(index), f"hipSetDevice({index})")
        try:
            yield
        finally:
            self.hipSetDevice(before.value)


class Retired:
    """Code on devices that nobody launches any more, but that work in flight may still use.

    It is unloaded in batches, when new code is loaded: that waits for the device, and may happen at no other time.
    """

    _BATCH: Final = 16
    _lock = threading.Lock()
    _waiting: Final[dict[int, list[tuple[Any, object]]]] = {}

    @classmethod
    def add(cls, index: int, module: Any, image: object) -> None:
        """A module of device ``index`` is not used any more; ``image`` is kept until it is unloaded."""
        cls._waiting.setdefault(index, []).append((module, image))

    @classmethod
    def sweep(cls, hip: Hip, index: int) -> None:
        """Unloads what has gathered, if that is much. The device is current."""
        with cls._lock:
            waiting = cls._waiting.get(index, [])
            count = len(waiting)
            if count < cls._BATCH or hip.hipDeviceSynchronize():
                return  # a stream may be recording a graph, which forbids waiting: later
            for module, _ in waiting[:count]:
                hip.hipModuleUnload(module)
            del waiting[:count]
