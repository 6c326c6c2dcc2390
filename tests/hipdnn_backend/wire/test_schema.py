"""The slot tables are what `flatc` makes of the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flatbuffers import number_types as _NUMBER  # noqa: N812 - a constant here
from flatbuffers.table import Table as RawTable

from hipdnn_backend.wire import enums, layout
from hipdnn_backend.wire.attributes import ATTRIBUTES, Attributes
from tests.hipdnn_backend.wire import flatc

# reflection.fbs: the base types and the slots that are read here
_BASE = ["NONE", "UTYPE", "bool", "byte", "ubyte", "short", "ushort", "int", "uint", "long", "ulong", "float", "double"]
_STRING, _VECTOR, _OBJECT, _UNION, _ARRAY = 13, 14, 15, 16, 17


class Reflected:
    """A table of a binary schema; slots are numbers of fields in reflection.fbs."""

    def __init__(self, data: bytes, at: int | None = None) -> None:
        self.data = data
        self.raw = RawTable(data, int.from_bytes(data[:4], "little") if at is None else at)

    def _offset(self, slot: int) -> int:
        return self.raw.Offset(4 + 2 * slot)

    def number(self, slot: int, flags: Any, default: Any = 0) -> Any:
        return self.raw.GetSlot(4 + 2 * slot, default, flags)

    def text(self, slot: int) -> str:
        return self.raw.String(self.raw.Pos + self._offset(slot)).decode()

    def child(self, slot: int) -> Reflected | None:
        offset = self._offset(slot)
        return Reflected(self.data, self.raw.Indirect(self.raw.Pos + offset)) if offset else None

    def children(self, slot: int) -> list[Reflected]:
        offset = self._offset(slot)
        start = self.raw.Vector(offset) if offset else 0
        count = self.raw.VectorLen(offset) if offset else 0
        return [Reflected(self.data, self.raw.Indirect(start + 4 * position)) for position in range(count)]


class Schema:
    """Tables, structs and enums of a binary schema by their names without the namespace."""

    def __init__(self, name: str, folder: Path) -> None:
        root = Reflected(flatc.to_reflection(name, folder))
        self.objects = root.children(0)
        self.enums = root.children(1)

    def named(self, name: str) -> Reflected:
        found = [entry for entry in self.objects + self.enums if entry.text(0).rpartition(".")[2] == name]
        # the November 2025 schema sees some names of the newest too; its own are in the inner namespace
        return max(found, key=lambda entry: entry.text(0).count("."))

    def fields(self, name: str) -> list[tuple[str, int, str, object, bool]]:
        """Name, slot, type, default and optionality of each field of a table, in slot order."""
        found = []
        table = self.named(name)
        is_struct = table.number(2, _NUMBER.BoolFlags, False)
        for field in table.children(1):
            slot = field.number(2, _NUMBER.Uint16Flags)
            assert is_struct or field.number(3, _NUMBER.Uint16Flags) == 4 + 2 * slot
            type_ = field.child(1)
            assert type_ is not None
            text = self._type(type_)
            real = text in ("float", "double")
            default = field.number(5, _NUMBER.Float64Flags, 0.0) if real else field.number(4, _NUMBER.Int64Flags)
            # flatc calls whatever lies behind an offset optional; here the word is for numbers without a default
            plain = type_.number(0, _NUMBER.Int8Flags) < _STRING
            optional = plain and bool(field.number(11, _NUMBER.BoolFlags, False))
            found.append((field.text(0), slot, text, default, optional))
        return sorted(found, key=lambda entry: entry[1])

    def _type(self, type_: Reflected) -> str:
        base, element = type_.number(0, _NUMBER.Int8Flags), type_.number(1, _NUMBER.Int8Flags)
        index = type_.number(2, _NUMBER.Int32Flags, -1)
        if base == _VECTOR:
            return f"[{self._name(element, index)}]"
        return self._name(base, index)

    def _name(self, base: int, index: int) -> str:
        if base == _STRING:
            return "string"
        if base == _OBJECT:
            return self.objects[index].text(0).rpartition(".")[2]
        if index >= 0:
            prefix = "tag of " if base == 1 else ""
            return prefix + self.enums[index].text(0).rpartition(".")[2]
        return _BASE[base]

    def values(self, name: str) -> dict[str, int]:
        return {value.text(0): value.number(1, _NUMBER.Int64Flags) for value in self.named(name).children(1)}


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    return Schema("graph", tmp_path_factory.mktemp("schema"))


@pytest.fixture(scope="module")
def november(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    return Schema("graph_november_2025", tmp_path_factory.mktemp("schema"))


def _text(kind: layout.Kind) -> str:
    match kind:
        case layout.Scalar(name=name):
            return name
        case layout.Enumeration(cls=cls):
            return cls.__name__
        case layout.Structure(cls=cls):
            return cls.__name__ if cls else "Uuid"
        case layout.Text():
            return "string"
        case layout.Blob():
            return "[ubyte]"
        case layout.Vector(item=item):
            return f"[{_text(item)}]"
        case layout.TableVector(table=table):
            return f"[{table.name}]"
        case layout.StructUnion():
            return "TensorValue"
        case layout.TableUnion(members=members):
            first = next(iter(members.values())).name
            return {"IntValue": "KnobValue", "IntConstraint": "KnobConstraint"}.get(first, "NodeAttributes")


def _slots(table: layout.Table, *, november: bool = False) -> list[tuple[str, int, str, object, bool]]:
    """The slot table in the form of `Schema.fields`."""
    rows: list[tuple[str, int, str, object, bool]] = []
    for field in table.fields:
        if november and field.newest_only:
            continue
        text, plain = _text(field.kind), isinstance(field.kind, layout.Scalar | layout.Enumeration)
        if field.is_union:
            rows.append((f"{field.name}_type", field.slot - 1, f"tag of {text}", 0, False))
        optional = plain and field.default is None
        default = field.default if plain and not optional else 0.0 if text in ("float", "double") else 0
        rows.append((field.name, field.slot, text, default, optional))
    return rows


@pytest.mark.parametrize("name", ["Graph", "Node", "TensorAttributes", *(cls.__name__ for cls in ATTRIBUTES.values())])
def test_slots_of_the_newest_graph(newest: Schema, name: str) -> None:
    assert _slots(layout.TABLES[name]) == newest.fields(name)


@pytest.mark.parametrize("name", [cls.__name__ for tag, cls in ATTRIBUTES.items() if tag <= 7])
def test_operations_of_november_2025_have_not_changed(november: Schema, name: str) -> None:
    assert _slots(layout.TABLES[name]) == november.fields(name)


def test_slots_of_the_november_2025_graph(november: Schema) -> None:
    assert _slots(layout.NODE_NOVEMBER_2025) == november.fields("Node")
    assert _slots(layout.TABLES["TensorAttributes"], november=True) == november.fields("TensorAttributes")
    # the three types have been renamed since
    renamed = [(name.replace("_data_type", "_type"), *rest) for name, *rest in _slots(layout.GRAPH, november=True)]
    assert renamed == november.fields("Graph")


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ("engine_config", ["EngineConfig", "KnobSetting", "IntValue", "FloatValue", "StringValue"]),
        ("engine_details", ["EngineDetails", "Knob", "IntConstraint", "FloatConstraint", "StringConstraint"]),
        ("plan", ["SerializedExecutionPlan"]),
        ("plan_file", ["SerializedGraphAndPlan"]),
    ],
)
def test_slots_of_engines_and_plans(schema: str, names: list[str], tmp_path: Path) -> None:
    reflected = Schema(schema, tmp_path)
    for name in names:
        assert _slots(layout.TABLES[name]) == reflected.fields(name)


@pytest.mark.parametrize("cls", [cls for cls in enums.WireEnum.__subclasses__() if cls is not enums.TensorValueType])
def test_numbers_of_enums(newest: Schema, cls: type[enums.WireEnum]) -> None:
    assert {member.name: int(member) for member in cls} == newest.values(cls.__name__)


def test_numbers_of_unions(newest: Schema, november: Schema, tmp_path: Path) -> None:
    operations = {"NONE": 0} | {cls.__name__: tag for tag, cls in ATTRIBUTES.items()}
    assert newest.values("NodeAttributes") == operations
    assert november.values("NodeAttributes") == {name: tag for name, tag in operations.items() if tag <= 7}
    values = {member.name: int(member) for member in enums.TensorValueType}
    assert newest.values("TensorValue") == values
    assert november.values("TensorValue") == {name: tag for name, tag in values.items() if tag <= 6}
    assert november.values("DataType") == {member.name: int(member) for member in enums.DataType if member <= 6}
    knobs = Schema("engine_details", tmp_path)
    assert knobs.values("KnobValue") == {"NONE": 0, "IntValue": 1, "FloatValue": 2, "StringValue": 3}
    assert knobs.values("KnobConstraint") == {
        "NONE": 0,
        "IntConstraint": 1,
        "FloatConstraint": 2,
        "StringConstraint": 3,
    }


def test_payloads_of_tensor_values(newest: Schema) -> None:
    for tag, kind in layout.TENSOR_VALUES.items():
        assert newest.fields(enums.TensorValueType(tag).name) == [("value", 0, kind.name, kind.default, False)]


@pytest.mark.parametrize("cls", ATTRIBUTES.values())
def test_every_uid_of_an_operation_is_read_or_written(cls: type[Attributes]) -> None:
    assert set(cls.OUTPUTS) <= set(cls.FIELDS)
    uids = {name for name in cls.FIELDS if "_tensor_uid" in name} - {"axis_tensor_uid"}
    assert set(cls._reads) | set(cls._writes) == uids
    assert set(cls._writes) == set(cls.OUTPUTS)
    assert cls._reads
    assert cls._writes
