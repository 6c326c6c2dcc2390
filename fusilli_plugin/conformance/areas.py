"""Buffers whose surroundings are watched: nothing may be written, and on the host nothing read, outside of them."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, Final, Protocol

from fusilli_plugin.conformance.findings import BrokenRule
from hipdnn_backend.device.memory import Memory

__all__ = ["Area", "DeviceArea", "HostArea", "guarded_bytes"]

_CANARY: Final = 0xA5
_PAGE: Final = mmap.PAGESIZE
_AROUND: Final = 256  # bytes on both sides on a device
_NONE, _READ, _READ_WRITE = 0, 1, 3  # PROT_NONE and so on
_FIXED: Final = 0x10  # MAP_FIXED

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Area(Protocol):
    """A buffer.

    Attributes:
        address: of its first byte.
        size: in bytes.
    """

    address: int
    size: int

    def write(self, data: Any) -> None:
        """Fill its beginning."""
        ...

    def read(self) -> bytes:
        """All of it."""
        ...

    def check(self, what: str) -> None:
        """Look at what lies around it.

        Raises:
            BrokenRule: somebody wrote there.
        """
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class HostArea:
    """Host memory that ends, but for what its alignment leaves over, before a page that nobody can touch."""

    def __init__(self, size: int, alignment: int, *, offset: int = 0) -> None:
        """``offset``: bytes by which the address differs from a multiple of the alignment."""
        self.size = size
        pages = -(-(size + alignment) // _PAGE)
        self._length = (pages + 2) * _PAGE
        base = _libc.mmap(None, self._length, _READ_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(os.strerror(ctypes.get_errno()))
        self._base: int = base
        self._first, self._end = base + _PAGE, base + (pages + 1) * _PAGE
        self.address = (self._end - size - offset) // alignment * alignment + offset
        ctypes.memset(self._first, _CANARY, self._end - self._first)
        for edge in (base, self._end):
            _libc.mprotect(edge, _PAGE, _NONE)

    def write(self, data: Any) -> None:
        raw = bytes(data)
        ctypes.memmove(self.address, raw, len(raw))

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.size)

    def check(self, what: str) -> None:
        before = ctypes.string_at(self._first, self.address - self._first)
        after = ctypes.string_at(self.address + self.size, self._end - self.address - self.size)
        _require_canaries(before, after, what)

    def forbid(self) -> None:
        """From now on a touch ends the process; the memory is gone, the addresses are not given to anybody else."""
        fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
        _libc.mmap(self._base, self._length, _NONE, fixed, -1, 0)

    def freeze(self) -> None:
        """From now on a write ends the process."""
        _libc.mprotect(self._first, self._end - self._first, _READ)

    def close(self) -> None:
        _libc.munmap(self._base, self._length)


class DeviceArea:
    """Device memory with a pattern around it."""

    def __init__(self, memory: Memory, size: int, offset: int = 0) -> None:
        self.size, self._before = size, _AROUND + offset
        self._buffer = memory.allocate(size + self._before + _AROUND)
        self._memory = memory
        self._buffer.write(bytes([_CANARY]) * self._buffer.size)
        self.address = self._buffer.address + self._before

    def write(self, data: Any) -> None:
        self._memory.write(self.address, bytes(data))

    def read(self) -> bytes:
        return self._memory.read(self.address, self.size)

    def check(self, what: str) -> None:
        raw = self._buffer.read()
        _require_canaries(raw[: self._before], raw[self._before + self.size :], what)

    def close(self) -> None:
        self._buffer.close()


def guarded_bytes(data: bytes) -> HostArea:
    """Bytes that end before a page that cannot be read, and cannot be written themselves."""
    area = HostArea(len(data), 1)
    area.write(data)
    area.freeze()
    return area


def _require_canaries(before: bytes, after: bytes, what: str) -> None:
    for side, raw in (("before", before), ("behind", after)):
        changed = [index for index, byte in enumerate(raw) if byte != _CANARY]
        if changed:
            distance = len(raw) - changed[-1] if side == "before" else changed[0] + 1
            raise BrokenRule(
                f"wrote outside {what}: a byte {distance} {side} its {'begin' if side == 'before' else 'end'}"
            )
