"""Records → finished FlatBuffers, by the slot tables. Every value is checked against its wire type first."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from hipdnn_backend.errors import WireError
from hipdnn_backend.wire.attributes import UnknownAttributes
from hipdnn_backend.wire.enums import DataType, Layout, TensorValueType
from hipdnn_backend.wire.layout import (
    NEVER,
    NOVEMBER_2025_DATA_TYPES,
    NOVEMBER_2025_OPERATIONS,
    NOVEMBER_2025_TENSOR_VALUES,
    TENSOR_VALUES,
    Blob,
    Enumeration,
    Field,
    Kind,
    Scalar,
    StructUnion,
    Structure,
    Table,
    TableUnion,
    TableVector,
    Text,
    Vector,
)
from hipdnn_backend.wire.model import TensorValue
from hipdnn_backend.wire.record import Record

__all__ = ["check_scalar", "write_root"]


def write_root(
    record: Record, table: Table, *, layout: Layout = Layout.NEWEST, identifier: bytes | None = None
) -> bytes:
    """A finished buffer whose root is the record.

    Args:
        record: of the table's class.
        table: layout of the root.
        layout: for tables that have two.
        identifier: the four bytes of the file identifier, None if the format has none.

    Raises:
        WireError: a value does not fit its field, or the layout has no word for it; the path names it.
    """
    writer = _Writer(older=layout is Layout.NOVEMBER_2025)
    root = writer.table(record, table)
    return writer.finish(root, identifier)


_NO_FIELD = "the layout of November 2025 has no such field"


class _Writer:
    """One buffer being built, from the leaves to the root."""

    def __init__(self, *, older: bool) -> None:
        from flatbuffers.builder import Builder  # pyright: ignore[reportMissingTypeStubs] - here, because it imports numpy and reading needs neither

        self.builder: Any = Builder(1024)
        self.older = older

    def finish(self, root: int, identifier: bytes | None) -> bytes:
        self.builder.Finish(root, file_identifier=identifier)
        return bytes(self.builder.Output())

    def table(self, record: object, table: Table) -> int:
        """Offset of the written table."""
        if type(record) is not table.cls:
            raise WireError("", f"a {type(record).__name__} instead of a {table.cls.__name__}")
        for name in table.skipped:
            if record.__dict__[name] != table.defaults[name]:
                raise WireError(name, _NO_FIELD)
        present = [(field, record.__dict__[field.name]) for field in table.fields]
        present = [(field, value) for field, value in present if not _is_omitted(field, value)]
        offsets: dict[int, tuple[int, int]] = {}
        for field, value in present:
            try:
                if self.older and field.newest_only:
                    raise WireError("", _NO_FIELD)
                offsets[field.slot] = self._leaf(field.kind, value)
            except WireError as error:
                raise error.under(field.name) from None
        return self._slots(table, present, offsets)

    def _leaf(self, kind: Kind, value: Any) -> tuple[int, int]:
        """Write what lies behind an offset; its offset and the union tag, zeros for what lies in the table itself."""
        builder = self.builder
        if isinstance(kind, Scalar):
            check_scalar(kind, value)
        elif isinstance(kind, Enumeration):
            self._check_enumeration(kind, value)
        elif isinstance(kind, Structure):
            _members(kind, value)
        elif isinstance(kind, Text):
            return self._text(value), 0
        elif isinstance(kind, Blob):
            if not isinstance(value, bytes):
                raise WireError("", f"{value!r:.60} is not bytes")
            return builder.CreateByteVector(value), 0
        elif isinstance(kind, Vector):
            return self._vector(kind, value), 0
        elif isinstance(kind, TableVector):
            table = kind.older if self.older and kind.older else kind.table
            return self._offsets(_each(value, partial(self.table, table=table))), 0
        elif isinstance(kind, StructUnion):
            return self._tensor_value(value)
        else:
            return self._table_union(kind, value)
        return 0, 0

    def _check_enumeration(self, kind: Enumeration, value: Any) -> None:
        if type(value) is not kind.cls:
            raise WireError("", f"{value!r} is no {kind.cls.__name__}")
        if self.older and kind.cls is DataType and value > NOVEMBER_2025_DATA_TYPES:
            raise WireError("", f"the layout of November 2025 has no data type {value.name}")

    def _text(self, value: Any) -> int:
        if not isinstance(value, str):
            raise WireError("", f"{value!r:.60} is no string")
        try:
            return self.builder.CreateString(value)
        except UnicodeEncodeError as error:
            raise WireError("", f"{value!r:.60} cannot be written as UTF-8: {error.reason}") from None

    def _vector(self, kind: Vector, values: Any) -> int:
        item = kind.item
        if isinstance(item, Text):
            return self._offsets(_each(values, self._text))
        _each(values, partial(check_scalar, item))
        self.builder.StartVector(item.size, len(values), item.size)
        self._place(struct.pack(f"<{len(values)}{item.code}", *values))
        return self.builder.EndVector()

    def _offsets(self, offsets: list[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def _tensor_value(self, value: Any) -> tuple[int, int]:
        if not isinstance(value, TensorValue):
            raise WireError("", f"{value!r:.60} is no TensorValue")
        payload = TENSOR_VALUES.get(value.type)
        if payload is None:
            raise WireError("type", f"{value.type!r} cannot be written")
        type_ = TensorValueType(value.type)
        if self.older and type_ > NOVEMBER_2025_TENSOR_VALUES:
            raise WireError("type", f"the layout of November 2025 has no {type_.name}")
        try:
            check_scalar(payload, value.value)
        except WireError as error:
            raise error.under("value") from None
        self.builder.Prep(payload.size, 0)
        self._place(struct.pack("<" + payload.code, value.value))
        return self.builder.Offset(), int(value.type)

    def _table_union(self, kind: TableUnion, value: Any) -> tuple[int, int]:
        if value is None:
            raise WireError("", "this is required and missing")
        if isinstance(value, UnknownAttributes):
            raise WireError("", f"an operation of unknown type {value.tag} cannot be written")
        for tag, table in kind.members.items():
            record = table.cls(value=value) if kind.unwrap and _unwrapped_type(table) is type(value) else value
            if type(record) is table.cls:
                if self.older and tag > NOVEMBER_2025_OPERATIONS:
                    raise WireError("", f"the layout of November 2025 has no {table.name}")
                return self.table(record, table), tag
        raise WireError("", f"{value!r:.60} is none of {', '.join(table.name for table in kind.members.values())}")

    def _slots(self, table: Table, present: list[tuple[Field, Any]], offsets: dict[int, tuple[int, int]]) -> int:
        """The table itself, the widest members first so that none needs padding."""
        builder = self.builder
        builder.StartObject(table.slots)
        for field, value in sorted(present, key=lambda entry: _alignment(entry[0].kind), reverse=True):
            kind, (offset, _) = field.kind, offsets[field.slot]
            if isinstance(kind, Scalar):
                builder.Prep(kind.size, 0)
                self._place(struct.pack("<" + kind.code, value))
                builder.Slot(field.slot)
            elif isinstance(kind, Structure):
                builder.Prep(kind.item.size, kind.size)
                self._place(struct.pack(f"<{kind.count}{kind.item.code}", *_members(kind, value)))
                builder.Slot(field.slot)
            elif not isinstance(kind, Enumeration):
                builder.PrependUOffsetTRelative(offset)
                builder.Slot(field.slot)
        for field, value in present:
            if isinstance(field.kind, Enumeration):
                builder.PrependInt8(int(value))
                builder.Slot(field.slot)
            elif field.is_union:
                builder.PrependUint8(offsets[field.slot][1])
                builder.Slot(field.slot - 1)
        return builder.EndObject()

    def _place(self, data: bytes) -> None:
        """Bytes right in front of what is written already, where Prep or StartVector made room and aligned them.

        The builder's own way for what it has no call for is a byte at a time, ten times slower.
        """
        builder = self.builder
        builder.head = builder.head - len(data)
        builder.Bytes[builder.head : builder.head + len(data)] = data


def _is_omitted(field: Field, value: Any) -> bool:
    """Whether the field says nothing; 0 for False is not that but an error to be found."""
    return field.omit is not NEVER and type(value) is type(field.omit) and value == field.omit


def _alignment(kind: Kind) -> int:
    return kind.item.size if isinstance(kind, Structure) else kind.size


def _unwrapped_type(table: Table) -> type:
    """Python type of the only field of a KnobValue member."""
    return {"I64": int, "F64": float, "str": str}[table.cls.__annotations__["value"]]


def _each(values: Any, write: Callable[[Any], Any]) -> list[Any]:
    """``write`` for each element; errors get its position."""
    if not isinstance(values, tuple):
        raise WireError("", f"{values!r:.60} is no tuple")
    results: list[Any] = []  # its length is the position of what fails
    try:
        for value in cast("tuple[Any, ...]", values):
            results.append(write(value))
    except WireError as error:
        raise error.under(f"[{len(results)}]") from None
    return results


def _members(kind: Structure, value: Any) -> tuple[Any, ...]:
    """The checked numbers of a struct."""
    if kind.cls is None:
        if not isinstance(value, bytes) or len(value) != kind.size:
            raise WireError("", f"{value!r:.60} is not {kind.size} bytes")
        return tuple(value)
    if type(value) is not kind.cls:
        raise WireError("", f"{value!r:.60} is no {kind.cls.__name__}")
    for name in kind.cls.FIELDS:
        try:
            check_scalar(kind.item, value.__dict__[name])
        except WireError as error:
            raise error.under(name) from None
    return tuple(value.__dict__[name] for name in kind.cls.FIELDS)


def check_scalar(kind: Scalar, value: Any) -> None:
    """Check that a Python value is what a scalar field can hold.

    Raises:
        WireError: it has another type or is out of range.
    """
    if kind.code == "?":
        if not isinstance(value, bool):
            raise WireError("", f"{value!r:.60} is no bool")
    elif kind.bounds is None:
        if not isinstance(value, float | int) or isinstance(value, bool):
            raise WireError("", f"{value!r:.60} is no number")
        try:
            struct.pack("<" + kind.code, value)
        except (OverflowError, struct.error):
            raise WireError("", f"{value!r:.60} does not fit a {kind.name}") from None
    elif type(value) is not int:
        raise WireError("", f"{value!r:.60} is no integer")
    elif not kind.bounds[0] <= value <= kind.bounds[1]:
        raise WireError("", f"{value} does not fit a {kind.name}")
