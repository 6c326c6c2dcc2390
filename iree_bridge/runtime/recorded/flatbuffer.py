"""FlatBuffers, read as far as compiled code needs it. A read outside of the data raises ``struct.error``.

Parts may overlap: a small file can claim any number of large ones. So their number and the length of texts are bounded.
"""

from __future__ import annotations

import struct
from typing import Any, Final

__all__ = ["Table"]

_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U16: Final = struct.Struct("<H")
_MAX_TABLES: Final = 1 << 14  # of a vector; a program of a thousand graphs has fewer
_MAX_TEXT: Final = 1 << 12  # bytes


class Table:
    """A table of a buffer; fields go by their slot in the schema."""

    __slots__ = ("_at", "_data", "_slots", "_vtable")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._vtable = at - self._read(_I32, at)
        self._slots = self._read(_U16, self._vtable) // 2 - 2

    @classmethod
    def root(cls, data: memoryview) -> Table:
        """The root table of a buffer without size prefix."""
        return cls(data, _U32.unpack_from(data, 0)[0])

    def number(self, slot: int, code: str, default: int = 0) -> int:
        """A scalar; ``code`` as in ``struct``."""
        at = self._field(slot)
        return default if at is None else self._read(struct.Struct(f"<{code}"), at)

    def numbers(self, slot: int, codes: str) -> tuple[int, ...]:
        """The members of a struct that lies in the table; empty if it is absent."""
        at = self._field(slot)
        return () if at is None else self._members(struct.Struct(f"<{codes}"), at)

    def table(self, slot: int) -> Table | None:
        """A table that is referred to."""
        at = self._field(slot)
        return None if at is None else Table(self._data, self._target(at))

    def tables(self, slot: int) -> list[Table]:
        """A vector of tables."""
        begin, count = self._vector(slot)
        if count > _MAX_TABLES:
            raise struct.error(f"a vector of {count} tables")
        return [Table(self._data, self._target(begin + 4 * index)) for index in range(count)]

    def structs(self, slot: int, codes: str) -> list[tuple[int, ...]]:
        """A vector of structs."""
        begin, count = self._vector(slot)
        form = struct.Struct(f"<{codes}")
        return [self._members(form, begin + form.size * index) for index in range(count)]

    def length(self, slot: int) -> int:
        """Elements of a vector."""
        return self._vector(slot)[1]

    def data(self, slot: int) -> memoryview:
        """A vector of bytes, or a string."""
        begin, count = self._vector(slot)
        if begin + count > len(self._data):
            raise struct.error("a vector ends outside of the data")
        return self._data[begin : begin + count]

    def text(self, slot: int) -> str:
        """A string."""
        data = self.data(slot)
        if len(data) > _MAX_TEXT:
            raise struct.error(f"a text of {len(data)} bytes")
        return bytes(data).decode("utf-8", "replace")

    def _field(self, slot: int) -> int | None:
        offset = self._read(_U16, self._vtable + 4 + 2 * slot) if slot < self._slots else 0
        return self._at + offset if offset else None

    def _vector(self, slot: int) -> tuple[int, int]:
        at = self._field(slot)
        if at is None:
            return 0, 0
        begin = self._target(at)
        count = self._read(_U32, begin)
        if count > len(self._data):
            raise struct.error("a vector is longer than the data")
        return begin + 4, count

    def _target(self, at: int) -> int:
        return at + self._read(_U32, at)

    def _read(self, form: struct.Struct, at: int) -> Any:
        return self._members(form, at)[0]

    def _members(self, form: struct.Struct, at: int) -> tuple[int, ...]:
        if at < 0:
            raise struct.error("an offset points before the data")
        return form.unpack_from(self._data, at)
