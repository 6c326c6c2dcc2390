"""Graph <-> JSON, and the canonical form that cache keys are made of."""

# What comes out of JSON has no type until it is checked.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import json
import math
from reprlib import repr as _shown  # of values from outside, which may be long
from typing import TYPE_CHECKING, Any, TypeVar

from fusilli_ground.spelling import did_you_mean
from graph_api.dtypes import DataType
from graph_api.errors import GraphError, naming
from graph_api.node import OPS
from graph_api.tensor import Scalar, TensorAttr

if TYPE_CHECKING:
    from graph_api.graph import Graph

__all__ = ["FORMAT", "VERSION", "canonical_json", "from_json", "to_json"]

FORMAT = "fusilli-graph"
VERSION = 1

G = TypeVar("G", bound="Graph")


def to_json(graph: Graph) -> str:
    """A validated graph as JSON text: stable order, one trailing newline."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "io_data_type": _name(graph.io_data_type),
        "intermediate_data_type": _name(graph.intermediate_data_type),
        "compute_data_type": _name(graph.compute_data_type),
        "tensors": [_tensor_to_json(tensor) for tensor in graph.tensors],
        "nodes": [
            {
                "op": node.op,
                "name": node.name,
                "compute_data_type": node.compute.name,
                "inputs": {port: tensor.uid for port, tensor in node.inputs.items()},
                "outputs": {port: tensor.uid for port, tensor in node.outputs.items()},
                "attributes": node.attributes.to_json(),
            }
            for node in graph.nodes
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def canonical_json(graph: Graph) -> str:
    """What decides the compiled code, and nothing else: no names, uids replaced by positions of first use."""
    numbers: dict[TensorAttr, int] = {}
    nodes: list[Any] = []
    for node in graph.nodes:
        for tensor in (*node.inputs.values(), *node.outputs.values()):
            numbers.setdefault(tensor, len(numbers))
        ports = [{port: numbers[tensor] for port, tensor in side.items()} for side in (node.inputs, node.outputs)]
        nodes.append([node.op, node.compute.name, *ports, node.attributes.to_json()])
    tensors = [
        [
            tensor.data_type.name,
            list(tensor.dims),
            [0 if dim == 1 else stride for dim, stride in zip(tensor.dims, tensor.strides, strict=True)],
            tensor.is_virtual,
            tensor.is_pass_by_value,
            _plain_scalar(tensor.value),
        ]
        for tensor in numbers
    ]
    return json.dumps([FORMAT, VERSION, tensors, nodes], separators=(",", ":"), allow_nan=False)


def from_json(graph_type: type[G], text: str | bytes) -> G:
    """A graph, not yet validated, from what ``to_json`` wrote.

    Raises:
        GraphError: the text is no such graph; the message says where.
    """
    try:
        document = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise GraphError(f"not a graph: invalid JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise GraphError(f'not a graph: the JSON has no "format": "{FORMAT}"')
    if type(document.get("version")) is not int or document["version"] != VERSION:
        raise GraphError(
            f"graph version {_shown(document.get('version'))} is not readable here; this is version {VERSION}"
        )
    graph = graph_type(
        _field(document, "name", str, "graph", "graph"),
        io_data_type=_dtype(document, "io_data_type", "graph"),
        intermediate_data_type=_dtype(document, "intermediate_data_type", "graph"),
        compute_data_type=_dtype(document, "compute_data_type", "graph"),
    )
    by_uid: dict[int, TensorAttr] = {}
    for index, item in enumerate(_field(document, "tensors", list, "graph")):
        tensor = _tensor_from_json(item, f"tensors[{index}]")
        if tensor.uid in by_uid:
            raise GraphError(f"tensors[{index}]: uid {tensor.uid} is used twice")
        by_uid[tensor.uid] = graph.own(tensor)
    for index, item in enumerate(_field(document, "nodes", list, "graph")):
        _node_from_json(graph, item, by_uid, f"nodes[{index}]")
    return graph


def _tensor_to_json(tensor: TensorAttr) -> dict[str, Any]:
    data: dict[str, Any] = {
        "uid": tensor.uid,
        "name": tensor.name,
        "data_type": tensor.data_type.name,
        "dims": list(tensor.dims),
        "strides": list(tensor.strides),
        "virtual": tensor.is_virtual,
    }
    if tensor.value is not None:
        data["value"] = _plain_scalar(tensor.value)
    if tensor.is_pass_by_value:
        data["pass_by_value"] = True
    return data


def _tensor_from_json(item: Any, where: str) -> TensorAttr:
    uid = _field(item, "uid", int, where)
    tensor = TensorAttr(
        name=_field(item, "name", str, where, None),
        uid=uid,
        dims=_field(item, "dims", list, where, None),
        strides=_field(item, "strides", list, where, None),
        data_type=_dtype(item, "data_type", where),
        is_virtual=_field(item, "virtual", bool, where, False),
        is_pass_by_value=_field(item, "pass_by_value", bool, where, False),
    )
    return _with_value(tensor, item.get("value"))


def _with_value(tensor: TensorAttr, value: Any) -> TensorAttr:
    if value is None:
        return tensor
    return tensor.set_value(float(value) if value in ("inf", "-inf", "nan") else value)


def _node_from_json(graph: Graph, item: Any, by_uid: dict[int, TensorAttr], where: str) -> None:
    """Adds a node as a document has it; every uid has to name a tensor that was read before."""
    op = _field(item, "op", str, where)
    node_type = OPS.get(op)
    if node_type is None:
        near = did_you_mean(op, OPS)
        raise GraphError(f"{where}: operation {_shown(op)} is unknown{near}; known are {', '.join(sorted(OPS))}")

    def ports(side: str) -> dict[str, TensorAttr]:
        found: dict[str, TensorAttr] = {}
        for port, uid in _field(item, side, dict, where).items():
            if isinstance(uid, bool) or not isinstance(uid, int) or uid not in by_uid:
                raise GraphError(f"{where}.{side}.{port}: {_shown(uid)} is no tensor of this graph")
            found[port] = by_uid[uid]
        return found

    name = _field(item, "name", str, where, None)
    with naming(name or where):
        attributes = node_type.attributes_type.from_json(_field(item, "attributes", dict, where, {}), where)
    graph.add_node(
        node_type,
        ports("inputs"),
        name=name,
        attributes=attributes,
        outputs=ports("outputs"),
        compute_data_type=_dtype(item, "compute_data_type", where),
    )


_MISSING: Any = object()


def _field(item: Any, key: str, kind: type, where: str, default: Any = _MISSING) -> Any:
    if not isinstance(item, dict):
        raise GraphError(f"{where}: expected an object, got {_shown(item)}")
    value = item.get(key, default)
    if value is _MISSING:
        raise GraphError(f"{where}: '{key}' is missing")
    if value is default and key not in item:
        return value
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise GraphError(f"{where}: '{key}' must be {kind.__name__}, got {_shown(value)}")
    return value


def _dtype(item: Any, key: str, where: str) -> DataType | None:
    value = item.get(key) if isinstance(item, dict) else None
    if value is None:
        return None
    if not isinstance(value, str) or value not in DataType.__members__:
        near, known = did_you_mean(value, DataType.__members__), ", ".join(DataType.__members__)
        raise GraphError(f"{where}: {key} {_shown(value)} is unknown{near}; known are {known}")
    return DataType[value]


def _name(dtype: DataType | None) -> str | None:
    return dtype.name if dtype else None


def _plain_scalar(value: Scalar | None) -> Scalar | str | None:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
