"""What crosses the C edge: Python objects as opaque handles, bytes as addresses."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Generic, TypeVar

from fusilli_ground.locks import fork_safe_lock
from fusilli_plugin.errors import BadParamError

__all__ = ["Buffers", "HandleTable"]

T = TypeVar("T")


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
