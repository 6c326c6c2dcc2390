"""Random valid graphs and engine records, made from the slot tables."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from hipdnn_backend.wire import DataType, Layout, TensorValue, TensorValueType, WireGraph, WireNode, WireTensor, layout
from hipdnn_backend.wire.attributes import ATTRIBUTES, Attributes, is_uid_field
from hipdnn_backend.wire.record import Record

INT64 = st.integers(-(2**63), 2**63 - 1)
# NaN is left out because it is not equal to itself
_FLOATS = {"f": st.floats(width=32, allow_nan=False), "d": st.floats(allow_nan=False)}
_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def scalars(kind: layout.Scalar) -> st.SearchStrategy[Any]:
    if kind.code == "?":
        return st.booleans()
    return st.integers(*kind.bounds) if kind.bounds else _FLOATS[kind.code]


def values(kind: layout.Kind, *, older: bool = False) -> st.SearchStrategy[Any]:
    """Values of a field, absence not among them."""
    match kind:
        case layout.Scalar():
            return scalars(kind)
        case layout.Enumeration():
            limit = 6 if older and kind.cls is DataType else 127
            return st.sampled_from([member for member in kind.cls if member <= limit])
        case layout.Structure(cls=None):
            return st.binary(min_size=kind.size, max_size=kind.size)
        case layout.Structure(cls=cls, item=item):
            assert cls is not None
            return st.builds(cls, **{name: scalars(item) for name in cls.FIELDS})
        case layout.Text():
            return _TEXT
        case layout.Blob():
            return st.binary(max_size=40)
        case layout.Vector(item=item):
            elements = _TEXT if isinstance(item, layout.Text) else scalars(item)
            return st.lists(elements, max_size=4).map(tuple)
        case layout.TableVector(table=table):
            return st.lists(records(table), max_size=3).map(tuple)
        case layout.TableUnion(members=members):
            member = st.sampled_from(list(members.values())).flatmap(records)
            return member.map(lambda record: record.value) if kind.unwrap else member
        case layout.StructUnion():
            return tensor_values(older=older)
    raise AssertionError(kind)


def fields(table: layout.Table, *, older: bool = False) -> dict[str, st.SearchStrategy[Any]]:
    """A strategy per field; optional fields may be absent."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for field in table.fields:
        if older and field.newest_only:
            continue
        strategy = values(field.kind, older=older)
        found[field.name] = st.none() | strategy if field.default is None and field.omit is None else strategy
    return found


def records(table: layout.Table) -> st.SearchStrategy[Any]:
    return st.builds(table.cls, **fields(table))


@st.composite
def tensor_values(draw: st.DrawFn, *, older: bool) -> TensorValue:
    types = [type_ for type_ in layout.TENSOR_VALUES if not older or type_ <= 6]
    type_ = draw(st.sampled_from(types))
    return TensorValue(type=TensorValueType(type_), value=draw(scalars(layout.TENSOR_VALUES[type_])))


class _Uids:
    """Hands out uids so that the graph stays in topological order."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.first: int = draw(INT64)
        self.used: list[int] = []

    def fresh(self) -> int:
        # an odd stride visits every 64-bit number once
        spread = (self.first + len(self.used) * 0x9E3779B97F4A7C15) % 2**64
        self.used.append(spread - 2**63)
        return self.used[-1]

    def read(self) -> int:
        return self.draw(st.sampled_from(self.used)) if self.used and self.draw(st.booleans()) else self.fresh()


def _attributes(draw: st.DrawFn, cls: type[Attributes], uids: _Uids) -> Attributes:
    table = layout.TABLES[cls.__name__]
    found = {name: draw(strategy) for name, strategy in fields(table).items()}
    # what the node reads comes first: it must not read what it writes
    for name in sorted((name for name in found if is_uid_field(name)), key=lambda name: name in cls.OUTPUTS):
        take = uids.fresh if name in cls.OUTPUTS else uids.read
        if isinstance(found[name], tuple):
            found[name] = tuple(take() for _ in found[name])
        elif found[name] is not None:
            found[name] = take()
    return cls(**found)


@st.composite
def graphs(draw: st.DrawFn, which: Layout = Layout.NEWEST) -> WireGraph:
    """Graphs that the layout can say."""
    older = which is Layout.NOVEMBER_2025
    kinds = [cls for tag, cls in ATTRIBUTES.items() if not older or tag <= 7]
    uids = _Uids(draw)
    nodes = []
    for cls in draw(st.lists(st.sampled_from(kinds), max_size=3)):
        compute = DataType.UNSET if older else draw(st.sampled_from(list(DataType)))
        nodes.append(WireNode(name=draw(_TEXT), compute_data_type=compute, attributes=_attributes(draw, cls, uids)))
    tensors = tuple(draw(_tensors(uid, uids.used, older=older)) for uid in uids.used)
    rest = {
        name: draw(strategy)
        for name, strategy in fields(layout.GRAPH, older=older).items()
        if name not in ("nodes", "tensors")
    }
    return WireGraph(nodes=tuple(nodes), tensors=tensors, **rest)


@st.composite
def _tensors(draw: st.DrawFn, uid: int, known: list[int], *, older: bool) -> WireTensor:
    found: dict[str, Any] = {
        name: draw(strategy) for name, strategy in fields(layout.TABLES["TensorAttributes"], older=older).items()
    }
    rank = min(len(found["dims"]), len(found["strides"]))
    found |= {"uid": uid, "dims": found["dims"][:rank], "strides": found["strides"][:rank]}
    if found.get("ragged_offset_tensor_uid") is not None:
        found["ragged_offset_tensor_uid"] = draw(st.sampled_from(known))
    return WireTensor(**found)


def one_of_each_operation() -> WireGraph:
    """A graph with every operation once, each option and operand present."""
    nodes: list[WireNode] = []
    tensors: list[WireTensor] = []
    for cls in ATTRIBUTES.values():
        found: dict[str, Any] = {}
        for position, field in enumerate(layout.TABLES[cls.__name__].fields):
            found[field.name] = _example(field, position, tensors)
        nodes.append(WireNode(name=cls.__name__, attributes=cls(**found)))
    return WireGraph(
        name="all",
        compute_data_type=DataType.FLOAT,
        intermediate_data_type=DataType.HALF,
        io_data_type=DataType.BFLOAT16,
        tensors=tuple(tensors),
        nodes=tuple(nodes),
    )


def _example(field: layout.Field, position: int, tensors: list[WireTensor]) -> Any:
    """A value that is no default and differs from that of the neighbours; uids get a tensor."""

    def uid() -> int:
        tensors.append(
            WireTensor(uid=1000 + len(tensors), data_type=DataType.FLOAT, dims=(2, 3), strides=(3, 1), virtual=True)
        )
        return tensors[-1].uid

    kind = field.kind
    match kind:
        case layout.Scalar(code="?"):
            return True
        case layout.Scalar(code="f"):
            return position + 0.5
        case layout.Scalar():
            return uid() if is_uid_field(field.name) else position + 1
        case layout.Enumeration(cls=cls):
            return list(cls)[1]
        case layout.Text():
            return f"text {position}"
        case layout.Blob():
            return bytes(range(position, position + 5))
        case layout.Vector():
            return (uid(), uid()) if is_uid_field(field.name) else (position, position + 1)
    raise AssertionError(kind)


def as_flatc_prints(record: Record, table: layout.Table, *, older: bool = False) -> dict[str, Any]:
    """The record as ``flatc -t`` prints its table: what equals the schema's default is left out."""
    renamed = {name: name.replace("_data_type", "_type") for name in layout.GRAPH.defaults if older}
    out: dict[str, Any] = {}
    for field in table.fields:
        value = getattr(record, field.name)
        if value is None or (field.omit is not layout.NEVER and value == field.omit):
            continue
        name = renamed.get(field.name, field.name) if table is layout.GRAPH else field.name
        match field.kind:
            case layout.Enumeration():
                out[name] = value.name
            case layout.Structure(cls=None):
                out[name] = {"bytes": list(value)}
            case layout.Structure():
                out[name] = {member: getattr(value, member) for member in value.FIELDS}
            case layout.StructUnion():
                out |= {f"{name}_type": value.type.name, name: {"value": value.value}}
            case layout.TableVector(table=inner, older=other):
                inner = other if older and other else inner
                out[name] = [as_flatc_prints(item, inner, older=older) for item in value]
            case layout.TableUnion(members=members):
                member, wrapped = _member(members, value)
                out |= {f"{name}_type": member.name, name: as_flatc_prints(wrapped, member)}
            case layout.Vector() | layout.Blob():
                out[name] = list(value)
            case _:
                out[name] = value
    return out


def _member(members: dict[int, layout.Table], value: Any) -> tuple[layout.Table, Record]:
    plain = {int: "IntValue", float: "FloatValue", str: "StringValue"}.get(type(value))
    for member in members.values():
        if member.name == plain:
            return member, member.cls(value=value)
        if type(value) is member.cls:
            return member, value
    raise AssertionError(value)
