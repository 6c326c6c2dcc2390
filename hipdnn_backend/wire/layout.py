"""Slot tables of the schema: for each table its fields, their slots and their wire types.

They are derived from the records. A record lists its fields in slot order and the text of an annotation names the wire
type: ``I64`` is a long, ``I64 | None`` an optional long, ``tuple[I64, ...]`` a vector of longs, an enum's name one
byte. A union takes two slots, its tag and its value. `tests/hipdnn_backend/wire/test_schema.py` compares the result
with what ``flatc`` makes of `hipdnn_backend/wire/schema`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

from hipdnn_backend.wire import model
from hipdnn_backend.wire.attributes import ATTRIBUTES, UnknownAttributes
from hipdnn_backend.wire.enums import TensorValueType, WireEnum
from hipdnn_backend.wire.record import F64, I64, Record

__all__ = [
    "ENGINE_CONFIG",
    "ENGINE_DETAILS",
    "GRAPH",
    "NEVER",
    "NODE",
    "NODE_NOVEMBER_2025",
    "NOVEMBER_2025_DATA_TYPES",
    "NOVEMBER_2025_OPERATIONS",
    "NOVEMBER_2025_TENSOR_VALUES",
    "PLAN",
    "PLAN_FILE",
    "PLAN_FILE_IDENTIFIER",
    "TABLES",
    "TENSOR_VALUES",
    "Blob",
    "Enumeration",
    "Field",
    "Kind",
    "Scalar",
    "StructUnion",
    "Structure",
    "Table",
    "TableUnion",
    "TableVector",
    "Text",
    "Vector",
]

PLAN_FILE_IDENTIFIER = b"HDGP"
NOVEMBER_2025_OPERATIONS = 7
"""Highest number of the NodeAttributes union in November 2025."""
NOVEMBER_2025_DATA_TYPES = 6
NOVEMBER_2025_TENSOR_VALUES = 6


class Scalar:
    """A number or bool in the table itself. ``code`` is its `struct` format, ``size`` its bytes and its alignment."""

    def __init__(self, name: str, code: str, size: int, bounds: tuple[int, int] | None = None) -> None:
        self.name = name
        self.code = code
        self.size = size
        self.bounds = bounds
        self.default: Any = False if code == "?" else 0.0 if bounds is None else 0


class Enumeration:
    """An enum, one signed byte in the table."""

    size = 1

    def __init__(self, cls: type[WireEnum]) -> None:
        self.cls = cls
        self.default = cls(0)


class Structure:
    """A struct in the table itself, of equal members; its value is a record, or bytes if ``cls`` is None."""

    default = None

    def __init__(self, cls: type[Record] | None, item: Scalar, count: int) -> None:
        self.cls = cls
        self.item = item
        self.count = count
        self.size = item.size * count


class Text:
    """A UTF-8 string behind an offset."""

    size = 4
    default = ""


class Blob:
    """A vector of bytes behind an offset."""

    size = 4
    default = b""


class Vector:
    """A vector of numbers or strings behind an offset."""

    size = 4
    default = ()

    def __init__(self, item: Scalar | Text) -> None:
        self.item = item


class TableVector:
    """A vector of offsets of tables. ``older`` is the November 2025 layout of the table where it differs."""

    size = 4
    default = ()

    def __init__(self, table: Table, older: Table | None = None) -> None:
        self.table = table
        self.older = older


class TableUnion:
    """A union of tables: ``members`` by tag.

    With ``unwrap`` the value is the only field of the table; with ``unknown`` a tag that is not listed becomes a record
    of that class, without it such a tag is an error.
    """

    size = 4
    default = None

    def __init__(self, members: dict[int, Table], *, unwrap: bool = False, unknown: type[Record] | None = None) -> None:
        self.members = members
        self.unwrap = unwrap
        self.unknown = unknown


class StructUnion:
    """The TensorValue union: each member is a struct of one scalar, see `TENSOR_VALUES`."""

    size = 4
    default = None


Kind: TypeAlias = Scalar | Enumeration | Structure | Text | Blob | Vector | TableVector | TableUnion | StructUnion


class Field:
    """One field of a table.

    Attributes:
        name: as in the schema.
        slot: of the field, or of the value of a union, whose tag is in the slot before.
        kind: wire type.
        default: what an absent field means.
        omit: value that is not written, `NEVER` for a field that always is (a union then is required).
        newest_only: the field is not in the November 2025 schema.
    """

    __slots__ = ("default", "kind", "name", "newest_only", "omit", "slot")

    def __init__(self, name: str, slot: int, kind: Kind, default: Any, omit: Any, newest_only: bool) -> None:
        self.name = name
        self.slot = slot
        self.kind = kind
        self.default = default
        self.omit = omit
        self.newest_only = newest_only

    @property
    def is_union(self) -> bool:
        """Whether the field takes two slots."""
        return isinstance(self.kind, TableUnion | StructUnion)


NEVER: Any = object()


class Table:
    """A table of the schema and the record that it becomes.

    Attributes:
        name: as in the schema.
        cls: the record.
        fields: in slot order.
        slots: how many slots the fields take.
        defaults: what each field of the record is when it is absent.
        unions: name and value slot of each union, and whether it must be there.
        skipped: fields of the record that the table does not have.
    """

    def __init__(self, name: str, cls: type[Record], *, skip: frozenset[str] = frozenset()) -> None:
        """Slots follow the record's fields as the schema has them: a union takes two, and newer fields come last."""
        self.name = name
        self.cls = cls
        self.fields: list[Field] = []
        self.slots = 0
        self.defaults: dict[str, Any] = {}
        self.skipped = skip
        november_slots = getattr(cls, "NOVEMBER_2025_SLOTS", 256)
        for attribute in cls.FIELDS:
            kind, optional = _kind(cls.__annotations__[attribute])
            default = getattr(cls, attribute, NEVER)
            absent = None if optional else kind.default if default is NEVER else default
            self.defaults[attribute] = absent
            if attribute in skip:
                continue
            self.slots += isinstance(kind, TableUnion | StructUnion)
            newest_only = self.slots >= november_slots
            omit = _omitted(kind, absent, optional=optional, required=default is NEVER)
            self.fields.append(Field(attribute, self.slots, kind, absent, omit, newest_only))
            self.slots += 1
        self.unions = [(field.name, field.slot, field.omit is NEVER) for field in self.fields if field.is_union]

    def __repr__(self) -> str:
        return f"Table({self.name})"


def _omitted(kind: Kind, absent: Any, *, optional: bool, required: bool) -> Any:
    """The value that a writer leaves out: FlatBuffers omits defaults; readers in C++ want required offsets present."""
    if optional or isinstance(kind, Scalar | Enumeration):
        return absent
    return NEVER if required or isinstance(kind, Text) else absent


_SCALARS = {
    "I64": Scalar("long", "q", 8, (-(2**63), 2**63 - 1)),
    "I32": Scalar("int", "i", 4, (-(2**31), 2**31 - 1)),
    "U32": Scalar("uint", "I", 4, (0, 2**32 - 1)),
    "F32": Scalar("float", "f", 4),
    "F64": Scalar("double", "d", 8),
    "bool": Scalar("bool", "?", 1),
}
_UBYTE = Scalar("ubyte", "B", 1, (0, 255))

TENSOR_VALUES: dict[int, Scalar] = {
    TensorValueType.Float32Value: _SCALARS["F32"],
    TensorValueType.Float16Value: _SCALARS["F32"],
    TensorValueType.BFloat16Value: _SCALARS["F32"],
    TensorValueType.Float8Value: _UBYTE,
    TensorValueType.Int32Value: _SCALARS["I32"],
    TensorValueType.Float64Value: _SCALARS["F64"],
    TensorValueType.Int64Value: _SCALARS["I64"],
    TensorValueType.BoolValue: _SCALARS["bool"],
}
"""Member of the TensorValue union → its payload."""

_KINDS: dict[str, Kind] = {
    **_SCALARS,
    "str": Text(),
    "bytes": Blob(),
    "Uuid": Structure(None, _UBYTE, 16),
    "EngineApiVersion": Structure(model.EngineApiVersion, _SCALARS["U32"], 3),
    "TensorValue": StructUnion(),
    **{cls.__name__: Enumeration(cls) for cls in WireEnum.__subclasses__()},
}


@cache
def _kind(annotation: str) -> tuple[Kind, bool]:
    """Wire type of an annotation, and whether the field is optional."""
    text = annotation.removesuffix(" | None")
    if text.startswith("tuple["):
        item = _KINDS[text.removeprefix("tuple[").removesuffix(", ...]")]
        return Vector(item) if isinstance(item, Scalar | Text) else item, False
    return _KINDS[text], text != annotation


class IntValue(Record):
    """Integer member of the KnobValue union."""

    value: I64


class FloatValue(Record):
    """Floating-point member of the KnobValue union."""

    value: F64


class StringValue(Record):
    """String member of the KnobValue union."""

    value: str


def _table(cls: type[Record]) -> Table:
    return Table(cls.__name__.removeprefix("Wire"), cls)


_KINDS["WireTensor"] = TableVector(Table("TensorAttributes", model.WireTensor))
_KINDS["NodeAttributes"] = TableUnion({tag: _table(cls) for tag, cls in ATTRIBUTES.items()}, unknown=UnknownAttributes)
NODE = _table(model.WireNode)
NODE_NOVEMBER_2025 = Table("Node", model.WireNode, skip=frozenset({"compute_data_type"}))
_KINDS["WireNode"] = TableVector(NODE, older=NODE_NOVEMBER_2025)
GRAPH = _table(model.WireGraph)

_KINDS["KnobValue"] = TableUnion({1: _table(IntValue), 2: _table(FloatValue), 3: _table(StringValue)}, unwrap=True)
_KINDS["KnobConstraint"] = TableUnion(
    {1: _table(model.IntConstraint), 2: _table(model.FloatConstraint), 3: _table(model.StringConstraint)}
)
_KINDS["KnobSetting"] = TableVector(_table(model.KnobSetting))
_KINDS["Knob"] = TableVector(_table(model.Knob))
ENGINE_CONFIG = _table(model.EngineConfig)
ENGINE_DETAILS = _table(model.EngineDetails)
PLAN = _table(model.SerializedExecutionPlan)
PLAN_FILE = _table(model.SerializedGraphAndPlan)


def _all_tables() -> tuple[Table, ...]:
    found = [GRAPH, NODE, ENGINE_CONFIG, ENGINE_DETAILS, PLAN, PLAN_FILE]
    for kind in _KINDS.values():
        if isinstance(kind, TableUnion):
            found += kind.members.values()
        elif isinstance(kind, TableVector) and kind.table not in found:
            found.append(kind.table)
    return tuple(found)


TABLES: dict[str, Table] = {table.name: table for table in _all_tables()}
"""Every table of the newest layout by the schema's name."""
