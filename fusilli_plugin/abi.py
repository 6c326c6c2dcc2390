"""What crosses the C edge: exceptions as statuses and texts, Python objects as opaque handles, bytes as addresses."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Final, Generic, TypeVar

from fusilli_ground.locks import fork_safe_lock
from fusilli_plugin.errors import BadParamError, QuarantinedError
from fusilli_plugin.texts import host_text
from graph_api import CompileError, ExecutionError, GraphError, NotSupportedError
from hipdnn_backend.errors import EngineError, WireError
from hipdnn_backend.plugins.abi import Status

__all__ = ["STATUS_OF", "Buffers", "HandleTable", "error_text", "status_of"]

STATUS_OF: Final[dict[type[BaseException], Status]] = {
    BadParamError: Status.BAD_PARAM,
    WireError: Status.INVALID_VALUE,
    GraphError: Status.INVALID_VALUE,
    NotSupportedError: Status.INVALID_VALUE,
    QuarantinedError: Status.INVALID_VALUE,
    CompileError: Status.INTERNAL_ERROR,
    ExecutionError: Status.INTERNAL_ERROR,
    MemoryError: Status.ALLOC_FAILED,
}
"""The status of each exception; of the first base class that is listed. Everything else is an internal error."""

# As drivers and IREE put it.
_NO_MEMORY: Final = ("RESOURCE_EXHAUSTED", "hipErrorOutOfMemory", "CUDA_ERROR_OUT_OF_MEMORY")
_MAX_TEXT: Final = 2047

T = TypeVar("T")


def status_of(error: BaseException) -> Status:
    """The status that tells a host of an exception."""
    if isinstance(error, EngineError) and error.status in list(Status):
        return Status(error.status) or Status.INTERNAL_ERROR
    if isinstance(error, ExecutionError) and any(sign in str(error) for sign in _NO_MEMORY):
        return Status.ALLOC_FAILED
    listed = (STATUS_OF[base] for base in type(error).__mro__ if base in STATUS_OF)
    return next(listed, Status.INTERNAL_ERROR)


def error_text(error: BaseException) -> bytes:
    """The text of an exception for a host: UTF-8, never empty, at most 2047 bytes, no NUL in it."""
    known = isinstance(error, EngineError) or any(base in STATUS_OF for base in type(error).__mro__)
    text = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
    data = host_text(text).encode(errors="replace")
    return data if len(data) <= _MAX_TEXT else data[:_MAX_TEXT].decode(errors="ignore").encode()


class HandleTable(Generic[T]):
    """Objects under numbers that C keeps as opaque pointers; a number is never used again.

    Lookups take no lock: adding and removing a key of a dict are atomic.
    """

    def __init__(self) -> None:
        # C sees pointers, so the numbers look like some: multiples of 16, not 0
        self._numbers = itertools.count(16, 16)
        self.objects: dict[int, T] = {}

    def add(self, value: T) -> int:
        """A number for ``value``, which stays referenced until it is removed."""
        number = next(self._numbers)
        self.objects[number] = value
        return number

    def get(self, number: int) -> T:
        """The object of a number.

        Raises:
            BadParamError: the number was never handed out, or its object was removed.
        """
        try:
            return self.objects[number]
        except KeyError:
            raise BadParamError(f"the execution context {number:#x} does not exist or was destroyed") from None

    def remove(self, number: int) -> T:
        """Forgets a number and returns its object.

        Raises:
            BadParamError: as for `get`.
        """
        value = self.get(number)
        del self.objects[number]
        return value


class Buffers:
    """Bytes that the host may read until it hands their address back."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._kept: dict[int, ctypes.Array[Any]] = {}

    def keep(self, data: bytes) -> tuple[int, int]:
        """Address and size of a copy of ``data`` that stays valid until `free`."""
        buffer = ctypes.create_string_buffer(data, len(data))
        address = ctypes.addressof(buffer)
        with self._lock:
            self._kept[address] = buffer
        return address, len(data)

    def free(self, address: int) -> None:
        """Forget a copy.

        Raises:
            BadParamError: there is none at this address.
        """
        with self._lock:
            if self._kept.pop(address, None) is None:
                raise BadParamError(f"the bytes at {address:#x} are not of this plugin, or were destroyed")

    def __len__(self) -> int:
        return len(self._kept)
