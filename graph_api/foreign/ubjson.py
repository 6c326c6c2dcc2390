"""UBJSON, the bytes that cuDNN's front end serialises a graph to, as Python values.

Only what its writer makes is read: no containers with a type or a count in front.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from graph_api.errors import GraphError

__all__ = ["is_ubjson", "loads"]

_NUMBERS: Final = {b"i": "b", b"U": "B", b"I": "h", b"l": "i", b"L": "q", b"d": "f", b"D": "d"}
_CONSTANTS: Final[dict[bytes, object]] = {b"Z": None, b"T": True, b"F": False}
_MAX_DEPTH: Final = 64


def is_ubjson(data: bytes) -> bool:
    """Whether bytes begin as an object of UBJSON: a brace and the type of the first key's length."""
    return data[:1] == b"{" and data[1:2] in (b"i", b"U", b"I", b"l", b"L")


def loads(data: bytes) -> Any:
    """The value in ``data``.

    Raises:
        GraphError: damaged, nested too deep, or with something that cuDNN does not write; the message has the position.
    """
    reader = _Reader(data)
    value = reader.value(reader.take(1), 0)
    if reader.at != len(data):
        raise reader.fail(f"{len(data) - reader.at} bytes behind the graph")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def fail(self, what: str) -> GraphError:
        return GraphError(f"not a graph: invalid UBJSON at byte {self.at}: {what}")

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise self.fail(f"{count} bytes are announced, {len(self.data) - self.at} are left")
        self.at += count
        return self.data[self.at - count : self.at]

    def value(self, marker: bytes, depth: int) -> Any:
        if marker in _NUMBERS:
            return self.number(marker)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        if marker == b"C":
            return self.decoded(self.take(1))
        if marker == b"S":
            return self.text()
        if marker == b"H":
            return self.long_number()
        if marker not in (b"[", b"{"):
            raise self.fail(f"{marker!r} is no type")
        if depth >= _MAX_DEPTH:
            raise self.fail(f"nested more than {_MAX_DEPTH} deep")
        return self.array(depth + 1) if marker == b"[" else self.object(depth + 1)

    def number(self, marker: bytes) -> int | float:
        code = ">" + _NUMBERS[marker]
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def long_number(self) -> int | float:
        """A number in decimal digits, which is how numbers beyond 64 bits are written."""
        text = self.text()
        try:
            return int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            raise self.fail(f"{text[:40]!r} is no number") from None

    def text(self) -> str:
        marker = self.take(1)
        if marker not in (b"i", b"U", b"I", b"l", b"L"):
            raise self.fail(f"{marker!r} is no type of a length")
        return self.decoded(self.take(int(self.number(marker))))

    def decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.fail(f"{data[:40]!r} is no text") from None

    def array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while (marker := self.take(1)) != b"]":
            if marker != b"N":  # says nothing
                items.append(self.value(marker, depth))
        return items

    def object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.data[self.at : self.at + 1] != b"}":
            key = self.text()
            found[key] = self.value(self.take(1), depth)
        self.at += 1
        return found
