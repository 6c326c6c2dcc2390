"""Checked reading of FlatBuffers: bytes → records, by the slot tables.

Every offset, length, vtable entry and string is checked against the buffer before it is used, so no input reads outside
the buffer. The schema has no recursive table, so no input recurses; offsets may alias, so each read is charged to a
budget, and no input costs more than a fixed multiple of its size. Errors carry the path of the field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from hipdnn_backend.errors import WireError
from hipdnn_backend.wire.enums import TensorValueType
from hipdnn_backend.wire.layout import (
    TENSOR_VALUES,
    Blob,
    Enumeration,
    Field,
    Kind,
    Scalar,
    Structure,
    Table,
    TableUnion,
    TableVector,
    Text,
    Vector,
)
from hipdnn_backend.wire.model import TensorValue
from hipdnn_backend.wire.record import Record

__all__ = ["Source", "read_buffer"]

# Work is counted in bytes read. Honest buffers read each byte about once; sharing of strings, vectors and vtables adds
# little. A table costs more than its bytes because making its record dominates.
_WORK_PER_BYTE = 16
_WORK_FLOOR = 65536
_WORK_CEILING = 1 << 25
_TABLE_COST = 64
_MAX_ITEMS = 16384  # tensors, nodes, knobs
_MAX_NUMBERS = 65536  # elements of a vector of numbers

_u32 = struct.Struct("<I").unpack_from
_i32 = struct.Struct("<i").unpack_from
_u16x2 = struct.Struct("<HH").unpack_from

_Read: TypeAlias = "Callable[[Source, int], Any]"


class Source:
    """The bytes being read, and how much reading is still allowed.

    Attributes:
        older: layouts of the tables met so far that have two: True for November 2025.
    """

    __slots__ = ("budget", "data", "older", "size")

    def __init__(self, data: bytes, max_size: int) -> None:
        self.data = data
        self.size = len(data)
        if self.size > max_size:
            raise WireError("", f"the buffer has {self.size} bytes, more than the {max_size} that are read")
        # bulk payloads are copied in one piece, so large buffers of them need no more than their own size
        self.budget = max(min(_WORK_PER_BYTE * self.size + _WORK_FLOOR, _WORK_CEILING), 2 * self.size)
        self.older: set[bool] = set()

    def spend(self, amount: int) -> None:
        """Charge an amount of work.

        Raises:
            WireError: the budget is used up, which takes offsets that point at the same data over and over.
        """
        self.budget -= amount
        if self.budget < 0:
            raise WireError("", f"reading costs more than its {self.size} bytes can honestly need")

    def follow(self, at: int) -> int:
        """Target of the offset at a checked position."""
        offset = _u32(self.data, at)[0]
        target = at + offset
        if not 0 < offset < 0x80000000 or target & 3 or target + 4 > self.size:
            raise WireError("", f"offset {offset} at byte {at} leads to byte {target} of {self.size}")
        return target

    def vector(self, at: int, item_size: int) -> tuple[int, int]:
        """Start and length of the vector behind the offset at a checked position."""
        target = self.follow(at)
        count = _u32(self.data, target)[0]
        bytes_needed = count * item_size
        if target + 4 + bytes_needed > self.size:
            raise WireError("", f"a vector of {count} x {item_size} bytes at byte {target} ends after byte {self.size}")
        self.spend(4 + bytes_needed)
        return target + 4, count

    def table(self, at: int) -> tuple[tuple[int, ...], int]:
        """Vtable entries and inline size of the table at a position inside the buffer, aligned to 4."""
        data, size = self.data, self.size
        vtable = at - _i32(data, at)[0]
        if vtable < 0 or vtable & 1 or vtable + 4 > size:
            raise WireError("", f"the table at byte {at} has its vtable at byte {vtable} of {size}")
        length, inline = _u16x2(data, vtable)
        if length < 4 or length & 1 or vtable + length > size:
            raise WireError("", f"the vtable at byte {vtable} of {size} has length {length}")
        if inline < 4 or at + inline > size:
            raise WireError("", f"the table at byte {at} of {size} has {inline} bytes")
        self.spend(_TABLE_COST + length + inline)
        return struct.unpack_from(f"<{(length - 4) >> 1}H", data, vtable + 4), inline


def read_buffer(source: Source, table: Table, *, identifier: bytes | None = None) -> Record:
    """The record of the root table of a finished buffer.

    Args:
        source: the whole buffer, without a size prefix.
        table: layout of the root.
        identifier: the four bytes of the file identifier, None if the format has none.

    Raises:
        WireError: the bytes are not a buffer of that table.
    """
    if source.size < (8 if identifier else 4):
        raise WireError("", f"{source.size} bytes are too few for a buffer")
    if identifier and source.data[4:8] != identifier:
        raise WireError("", f"the file identifier is {source.data[4:8]!r} instead of {identifier!r}")
    record = read_table(source, source.follow(0), table)
    if len(source.older) > 1:
        raise WireError("", "some nodes have the layout of November 2025 and some the newest")
    return record


def read_table(source: Source, at: int, table: Table, older: Table | None = None) -> Record:
    """The record of the table at a position; ``older`` is what it is if its vtable ends before the newest layout's."""
    entries, inline = source.table(at)
    if older is not None:
        is_older = len(entries) < table.slots
        source.older.add(is_older)
        table = older if is_older else table
    readers = _readers(table)
    values = table.defaults.copy()
    for slot, entry in enumerate(entries[: len(readers)]):
        if not entry:
            continue
        name, size, misaligned, read, tag_slot = readers[slot]
        if entry < 4 or entry + size > inline or (at + entry) & misaligned:
            raise WireError(name, f"vtable entry {entry} does not fit the table of {inline} bytes at byte {at}")
        try:
            if tag_slot is None:
                values[name] = read(source, at + entry)
            elif tag_slot != slot:
                values[name] = read(source, at + entry, _tag(source, at, entries[tag_slot]))
        except WireError as error:
            raise error.under(name) from None
    for name, slot, required in table.unions:
        _check_union(source, at, entries, name, slot, required)
    return table.cls.from_dict(values)


def _tag(source: Source, at: int, entry: int) -> int:
    """The union tag whose vtable entry was checked already (its slot comes first), 0 if it is absent."""
    return source.data[at + entry] if entry else 0


def _check_union(source: Source, at: int, entries: tuple[int, ...], name: str, slot: int, required: bool) -> None:
    """A union is there entirely or not at all."""
    tag = _tag(source, at, entries[slot - 1]) if slot - 1 < len(entries) else 0
    present = slot < len(entries) and entries[slot] != 0
    if present is not (tag != 0):
        raise WireError(name, f"the union has tag {tag} but {'a' if present else 'no'} value")
    if required and not present:
        raise WireError(name, "this is required and missing")


_Reader: TypeAlias = "tuple[str, int, int, Callable[..., Any], int | None]"
_compiled: dict[Table, list[_Reader]] = {}


def _readers(table: Table) -> list[_Reader]:
    """Per slot: field name, inline size, alignment mask, function, slot of the tag for the two slots of a union."""
    found = _compiled.get(table)
    if found is None:
        found: list[Any] | None = []
        for field in table.fields:
            if field.is_union:
                found.append((field.name, 1, 0, _nothing, field.slot - 1))
            found.append(_reader(field))
        _compiled[table] = found
    return found


def _reader(field: Field) -> _Reader:
    kind = field.kind
    size, alignment = (kind.size, kind.item.size) if isinstance(kind, Structure) else (kind.size, kind.size)
    return (field.name, size, alignment - 1, _compile(kind), field.slot - 1 if field.is_union else None)


def _nothing(source: Source, at: int) -> None:
    """For what has no reader: the tag of a union, which its value's reader takes, and values of unknown type."""


def _compile(kind: Kind) -> Callable[..., Any]:
    if isinstance(kind, Scalar):
        return _scalar(kind)
    if isinstance(kind, Enumeration):
        return _enumeration(kind)
    if isinstance(kind, Structure):
        return _structure(kind)
    if isinstance(kind, Text):
        return _text
    if isinstance(kind, Blob):
        return _blob
    if isinstance(kind, Vector):
        return _texts if isinstance(kind.item, Text) else _numbers(kind.item)
    if isinstance(kind, TableVector):
        return _tables(kind)
    return _table_union(kind) if isinstance(kind, TableUnion) else _struct_union


def _scalar(kind: Scalar) -> _Read:
    if kind.code == "?":
        return lambda source, at: source.data[at] != 0
    unpack = struct.Struct("<" + kind.code).unpack_from
    return lambda source, at: unpack(source.data, at)[0]


def _enumeration(kind: Enumeration) -> _Read:
    members = {int(member) & 0xFF: member for member in kind.cls}
    cls = kind.cls

    def read(source: Source, at: int) -> Any:
        byte = source.data[at]
        member = members.get(byte)
        return member if member is not None else cls(byte - 256 if byte > 127 else byte)

    return read


def _structure(kind: Structure) -> _Read:
    cls, size = kind.cls, kind.size
    if cls is None:
        return lambda source, at: source.data[at : at + size]
    fields, unpack = cls.FIELDS, struct.Struct(f"<{kind.count}{kind.item.code}").unpack_from
    return lambda source, at: cls.from_dict(dict(zip(fields, unpack(source.data, at), strict=True)))


def _text(source: Source, at: int) -> str:
    start, count = source.vector(at, 1)
    end = start + count
    if end >= source.size or source.data[end]:
        raise WireError("", f"the string of {count} bytes at byte {start} has no terminating zero")
    try:
        return source.data[start:end].decode()
    except UnicodeDecodeError as error:
        raise WireError("", f"the string at byte {start} is not UTF-8: {error.reason}") from None


def _blob(source: Source, at: int) -> bytes:
    start, count = source.vector(at, 1)
    return source.data[start : start + count]


def _numbers(item: Scalar) -> _Read:
    size, code = item.size, item.code

    def read(source: Source, at: int) -> tuple[Any, ...]:
        start, count = source.vector(at, size)
        if count > _MAX_NUMBERS:
            raise WireError("", f"{count} elements, more than the {_MAX_NUMBERS} that are read")
        return struct.unpack_from(f"<{count}{code}", source.data, start)

    return read


def _items(source: Source, at: int) -> range:
    """Positions of the offsets in a vector of tables or strings."""
    start, count = source.vector(at, 4)
    if count > _MAX_ITEMS:
        raise WireError("", f"{count} elements, more than the {_MAX_ITEMS} that are read")
    return range(start, start + 4 * count, 4)


def _texts(source: Source, at: int) -> tuple[str, ...]:
    return _each(_text, source, _items(source, at))


def _tables(kind: TableVector) -> _Read:
    table, older = kind.table, kind.older

    def read_item(source: Source, at: int) -> Record:
        return read_table(source, source.follow(at), table, older)

    return lambda source, at: _each(read_item, source, _items(source, at))


def _each(read: _Read, source: Source, positions: range) -> tuple[Any, ...]:
    values: list[Any] = []  # its length is the position of what fails
    try:
        for position in positions:
            values.append(read(source, position))
    except WireError as error:
        raise error.under(f"[{len(values)}]") from None
    return tuple(values)


def _table_union(kind: TableUnion) -> Callable[[Source, int, int], Any]:
    members, unwrap, unknown = kind.members, kind.unwrap, kind.unknown

    def read(source: Source, at: int, tag: int) -> Any:
        table = members.get(tag)
        if table is not None:
            record = read_table(source, source.follow(at), table)
            return record.__dict__["value"] if unwrap else record
        if tag == 0 or unknown is None:
            raise WireError("", f"union tag {tag} is not one of {sorted(members)}")
        source.follow(at)
        return unknown(tag=tag)

    return read


def _struct_union(source: Source, at: int, tag: int) -> TensorValue:
    if tag == 0:
        raise WireError("", "a value without a type")
    size, read = _PAYLOADS.get(tag, (1, _nothing))
    # unlike tables and vectors a struct may be a single byte, at any address
    offset = _u32(source.data, at)[0]
    target = at + offset
    if not 0 < offset < 0x80000000 or target & (size - 1) or target + size > source.size:
        raise WireError("", f"offset {offset} at byte {at} leads to byte {target} of {source.size}")
    return TensorValue(type=TensorValueType(tag), value=read(source, target))


_PAYLOADS: dict[int, tuple[int, _Read]] = {tag: (kind.size, _scalar(kind)) for tag, kind in TENSOR_VALUES.items()}
