"""Operation graphs as hipDNN's JSON: what its ``to_json`` and ``HIPDNN_LOG_GRAPH_DIR`` write and ``from_json`` reads.

Writing follows hipDNN's serializer key by key, its spellings of enums included (data types and pointwise modes in lower
case, convolution and attention enums in upper case, pooling enums as numbers). What hipDNN's JSON has no key for gets
the schema's name, which hipDNN skips. Reading is liberal: it takes hipDNN's form, the form that ``flatc -t`` prints
(operation under ``attributes``, its kind in ``attributes_type``) and the November 2025 names of the graph's types; keys
may be missing where the schema has a default. Infinities and NaNs are spelled as Python's `json` does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from fusilli_ground.spelling import did_you_mean
from hipdnn_backend.errors import WireError
from hipdnn_backend.wire.attributes import ATTRIBUTES, Attributes, UnknownAttributes, is_uid_field
from hipdnn_backend.wire.check import check_graph
from hipdnn_backend.wire.enums import (
    DataType,
    MoeGroupedMatmulMode,
    PaddingMode,
    PointwiseMode,
    ReductionMode,
    ResampleMode,
    TensorValueType,
    WireEnum,
)
from hipdnn_backend.wire.layout import (
    GRAPH,
    TABLES,
    TENSOR_VALUES,
    Blob,
    Enumeration,
    Field,
    Kind,
    Scalar,
    Structure,
    Table,
    Text,
    Vector,
)
from hipdnn_backend.wire.model import NodeAttributes, TensorValue, WireGraph, WireNode, WireTensor
from hipdnn_backend.wire.writer import check_scalar

__all__ = ["graph_from_dict", "graph_from_json", "graph_to_dict", "graph_to_json"]

_Json: TypeAlias = "dict[str, Any]"

_MAX_TEXT = 64 << 20
_LOWER_CASE = (DataType, PointwiseMode, ReductionMode)
_NUMBERS = (ResampleMode, PaddingMode, MoeGroupedMatmulMode)
_SPELLED: dict[WireEnum, str] = {ReductionMode.MIN_OP: "min", ReductionMode.MAX_OP: "max"}
_OLD_NAMES = {
    "compute_data_type": "compute_type",
    "intermediate_data_type": "intermediate_type",
    "io_data_type": "io_type",
}
_SECTIONS = ("inputs", "outputs", "parameters", "attributes")


def graph_to_json(graph: WireGraph, *, indent: int | None = None) -> str:
    """The graph as JSON text, one line unless ``indent`` is given.

    Raises:
        WireError: a rule of `check_graph` is broken.
    """
    return json.dumps(graph_to_dict(graph), indent=indent)


def graph_from_json(text: str | bytes) -> WireGraph:
    """The graph in a JSON text.

    Raises:
        WireError: the text is no JSON, too long (64 MiB), or not a graph; the path names the field.
    """
    if len(text) > _MAX_TEXT:
        raise WireError("", f"the text has {len(text)} bytes, more than the {_MAX_TEXT} that are read")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError("", f"not JSON: {error}") from None
    return graph_from_dict(value)


def graph_to_dict(graph: WireGraph) -> _Json:
    """The graph as the objects of `json`.

    Raises:
        WireError: a rule of `check_graph` is broken.
    """
    check_graph(graph)
    out: _Json = {"nodes": [_node_to_dict(node) for node in graph.nodes]}
    for field in GRAPH.fields:
        value = graph.__dict__[field.name]
        if field.name == "tensors":
            out["tensors"] = [_tensor_to_dict(tensor) for tensor in graph.tensors]
        elif field.name == "id" and value is not None:
            out["id"] = _uuid_to_text(value)
        elif field.name != "nodes" and value is not None:
            out[field.name] = _value_to_json(field.kind, value)
    return out


def _tensor_to_dict(tensor: WireTensor) -> _Json:
    out: _Json = {}
    for field in TABLES["TensorAttributes"].fields:
        value = tensor.__dict__[field.name]
        if isinstance(value, TensorValue):
            known = value.type in TENSOR_VALUES
            out |= {"value_type": value.type.name if known else int(value.type), "value": value.value}
        elif value is not None and (value != 1 or field.name != "ragged_offset_multiplier"):
            out[field.name] = _value_to_json(field.kind, value)
    return out


def _node_to_dict(node: WireNode) -> _Json:
    attributes = node.attributes
    out: _Json
    if isinstance(attributes, UnknownAttributes):
        out = {"type": attributes.tag}
    else:
        out = _attributes_to_dict(attributes) | {"type": type(attributes).__name__}
    return out | {"name": node.name, "compute_data_type": _enum_to_json(node.compute_data_type)}


def _attributes_to_dict(attributes: Attributes) -> _Json:
    out: _Json = {}
    for field in TABLES[type(attributes).__name__].fields:
        value = attributes.__dict__[field.name]
        if field.name in attributes.JSON_LEFT_OUT and value == field.default:
            continue
        section = _section(attributes, field.name)
        target = out.setdefault(section, {}) if section else out
        if field.name in attributes.JSON_NUMBERS:
            target[field.name] = int(value)
        else:
            target[field.name] = None if value is None else _value_to_json(field.kind, value)
    return out


def _section(attributes: Attributes, name: str) -> str:
    """Object inside the node that holds a field, "" for the node itself."""
    if not is_uid_field(name):
        return attributes.JSON_SECTION
    if attributes.JSON_FLAT:
        return ""
    return "outputs" if name in attributes.OUTPUTS else "inputs"


def _value_to_json(kind: Kind, value: Any) -> Any:
    if isinstance(kind, Enumeration):
        return _enum_to_json(value)
    if isinstance(kind, Structure):
        return {name: value.__dict__[name] for name in value.FIELDS}
    return list(cast("Sequence[Any]", value)) if isinstance(value, tuple | bytes) else value


def _enum_to_json(member: WireEnum) -> str | int:
    if isinstance(member, _NUMBERS) or not member.known:
        return int(member)
    name = _SPELLED.get(member, member.name) if isinstance(member, ReductionMode) else member.name
    return name.lower() if isinstance(member, _LOWER_CASE) else name


def _uuid_to_text(value: bytes) -> str:
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def graph_from_dict(value: object) -> WireGraph:
    """The graph in the objects of `json`.

    Raises:
        WireError: it is not a graph; the path names the field.
    """
    source = _object(value)
    source = {new: source[old] for new, old in _OLD_NAMES.items() if old in source} | source
    values = {
        field.name: _field(field, source) for field in GRAPH.fields if field.name not in ("tensors", "nodes", "id")
    }
    values["id"] = _at("id", lambda: _uuid_from_json(source.get("id")))
    values["tensors"] = _at("tensors", lambda: _each(source.get("tensors"), _tensor_from_dict))
    values["nodes"] = _at("nodes", lambda: _each(source.get("nodes"), _node_from_dict))
    graph = WireGraph.from_dict(values)
    check_graph(graph)
    return graph


def _tensor_from_dict(value: object) -> WireTensor:
    source = _object(value)
    fields = TABLES["TensorAttributes"].fields
    values = {field.name: _field(field, source) for field in fields if not field.is_union}
    values["value"] = _tensor_value(source.get("value_type"), source.get("value"))
    return WireTensor.from_dict(values)


def _tensor_value(type_: object, value: Any) -> TensorValue | None:
    """The scalar of a tensor; ``flatc`` prints a struct where hipDNN writes the number."""
    kind = _at("value_type", lambda: _enum_from_json(TensorValueType, 0 if type_ is None else type_))
    assert isinstance(kind, TensorValueType)
    if kind is TensorValueType.NONE:
        if value is not None:
            raise WireError("value", "a value without a value_type")
        return None
    payload = TENSOR_VALUES.get(kind)
    number = cast("_Json", value).get("value", 0) if isinstance(value, dict) else value
    parsed = None if payload is None else _at("value", lambda: _scalar_from_json(payload, number))
    return TensorValue(type=kind, value=parsed)


def _node_from_dict(value: object) -> WireNode:
    source = _object(value)
    fields = TABLES["Node"].fields
    values = {field.name: _field(field, source) for field in fields if not field.is_union}
    values["attributes"] = _at("attributes", lambda: _attributes(source))
    return WireNode.from_dict(values)


def _attributes(source: _Json) -> NodeAttributes:
    name = source.get("type", source.get("attributes_type"))
    if isinstance(name, int) and not isinstance(name, bool):
        if not 0 < name < 256:
            raise WireError("", f"{name} is no number of an operation")
        cls = ATTRIBUTES.get(name)
        if cls is None:
            return UnknownAttributes(tag=name)
        name = cls.__name__
    table = TABLES.get(name) if isinstance(name, str) else None
    if table is None or not issubclass(table.cls, Attributes):
        operations = [each.__name__ for each in ATTRIBUTES.values()]
        near = did_you_mean(name, operations)
        raise WireError("", f"{name!r:.60} is no operation{near}; known are {', '.join(operations)}")
    flat = _flatten(source, table)
    attributes = table.cls.from_dict({field.name: _field(field, flat) for field in table.fields})
    assert isinstance(attributes, Attributes)
    return attributes


def _flatten(source: _Json, table: Table) -> _Json:
    """The fields of an operation from wherever a node keeps them."""
    names = {field.name for field in table.fields}
    flat: _Json = {}
    for section in ("", *_SECTIONS):
        values = source.get(section, {}) if section else source
        for name, value in _at(section, lambda values=values: _object({} if values is None else values)).items():
            if name in names:
                if name in flat:
                    raise WireError(name, f"the field is there twice, the second time in {section}")
                flat[name] = value
    return flat


def _field(field: Field, source: _Json) -> Any:
    """The value of a field; absent and null mean the schema's default."""
    value = source.get(field.name)
    if value is None:
        return field.default
    return _at(field.name, lambda: _value_from_json(field.kind, value))


def _value_from_json(kind: Kind, value: object) -> Any:
    if isinstance(kind, Scalar):
        return _scalar_from_json(kind, value)
    if isinstance(kind, Enumeration):
        return _enum_from_json(kind.cls, value)
    if isinstance(kind, Vector):
        return _each(value, _item_parser(kind.item))
    if isinstance(kind, Blob):
        return bytes(_each(value, lambda number: _scalar_from_json(_BYTE, number)))
    if isinstance(kind, Structure) and kind.cls is not None:
        members, item = _object(value), kind.item
        return kind.cls.from_dict(
            {name: _at(name, lambda name=name: _scalar_from_json(item, members.get(name))) for name in kind.cls.FIELDS}
        )
    return _text(value)


def _item_parser(item: Scalar | Text) -> Callable[[object], Any]:
    return _text if isinstance(item, Text) else lambda number: _scalar_from_json(item, number)


_BYTE = TENSOR_VALUES[TensorValueType.Float8Value]


def _scalar_from_json(kind: Scalar, value: object) -> Any:
    """A number as it would come off the wire: floats rounded to their width."""
    check_scalar(kind, value)
    if kind.bounds is not None or kind.code == "?":
        return value
    return struct.unpack("<" + kind.code, struct.pack("<" + kind.code, value))[0]


def _enum_from_json(cls: type[WireEnum], value: object) -> WireEnum:
    """A member by its name in any case, by hipDNN's spelling or by its number."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not -128 <= value <= 255:
            raise WireError("", f"{value} is no number of a {cls.__name__}")
        return cls(value)
    if isinstance(value, str):
        wanted = value.lower()
        for member in cls:
            if wanted == member.name.lower() or (cls is ReductionMode and wanted == _SPELLED.get(member)):
                return member
    names = [member.name for member in cls]
    near = did_you_mean(value, names)
    raise WireError("", f"{value!r:.60} is no {cls.__name__}{near}; known are {', '.join(names)}")


def _uuid_from_json(value: Any) -> bytes | None:
    """A UUID in its usual spelling or as ``flatc`` prints the struct."""
    if value is None:
        return None
    if isinstance(value, dict):
        digits = bytes(_each(cast("_Json", value).get("bytes"), lambda number: _scalar_from_json(_BYTE, number)))
    else:
        try:
            digits = bytes.fromhex(_text(value).replace("-", ""))
        except ValueError:
            raise WireError("", f"{value!r:.60} is no UUID") from None
    if len(digits) != 16:
        raise WireError("", f"{value!r:.60} is no UUID")
    return digits


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise WireError("", f"{value!r:.60} is no string")
    return value


def _object(value: Any) -> _Json:
    if not isinstance(value, dict):
        raise WireError("", f"{value!r:.60} is no object")
    return cast("_Json", value)


def _each(value: Any, parse: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The elements of an array; null is an empty one."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise WireError("", f"{value!r:.60} is no array")
    items = cast("list[Any]", value)
    return tuple(_at(f"[{position}]", partial(parse, item)) for position, item in enumerate(items))


def _at(path: str, parse: Callable[[], Any]) -> Any:
    """What ``parse`` returns; its errors get the path in front of theirs."""
    try:
        return parse()
    except WireError as error:
        raise (error.under(path) if path else error) from None
