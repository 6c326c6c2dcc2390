"""Graphs as cuDNN's front end writes them: JSON (``repr`` of a graph) or UBJSON (``serialize``).

Facts about the form are from NVIDIA/cudnn-frontend, versions 1.5 to 1.23, ``include/``: graph_interface.h,
graph_properties.h, utils/serialize.h, cudnn_frontend_utils.h. What a graph leaves open is inferred as in graphs that
are built here; cuDNN writes all of it once its graph is validated.
"""

# What comes out of JSON has no type until it is checked.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fusilli_ground.spelling import did_you_mean
from graph_api.dtypes import DataType
from graph_api.errors import GraphError, NotSupportedError, naming
from graph_api.foreign.cudnn_nodes import DECLINED, RULES, Rule
from graph_api.foreign.fields import Fields
from graph_api.foreign.ubjson import is_ubjson, loads
from graph_api.tensor import Scalar, TensorAttr

if TYPE_CHECKING:
    from graph_api.graph import Graph

__all__ = ["from_cudnn", "is_cudnn"]

G = TypeVar("G", bound="Graph")

_KEY: Final = re.compile(rb'"(?:tag|cudnn_frontend_version|cudnn_backend_version)"\s*:')
_COMMON: Final = ("name", "tag", "compute_data_type", "inputs", "outputs", "peer_stats")
_HALVES: Final = (2, 5)  # of the kinds that a scalar may have: int64, int32, half, float, double, bfloat16
_INTEGERS: Final = (0, 1)
_KINDS: Final = 6


def is_cudnn(data: bytes) -> bool:
    """Whether bytes look like such a graph: UBJSON, or JSON with keys that no other form has."""
    return is_ubjson(data) or (data.lstrip()[:1] == b"{" and _KEY.search(data) is not None)


def from_cudnn(graph_type: type[G], data: str | bytes) -> G:
    """A graph, not yet validated.

    Raises:
        GraphError: it is no such graph; the message names node or tensor, field and value.
        NotSupportedError: it has an operation or a feature without counterpart here.
    """
    document = Fields(_parsed(data), "graph")
    return _Reader(graph_type, document).read()


def _parsed(data: str | bytes) -> Any:
    if isinstance(data, bytes) and is_ubjson(data):
        return loads(data)
    try:
        return json.loads(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise GraphError(f"not a graph: invalid JSON ({error})") from error


class _Reader:
    """A graph while it is read."""

    def __init__(self, graph_type: type[G], document: Fields) -> None:
        context = document.object("context")
        self.document = document
        self.tensors = document.object("tensors")
        self.graph: Any = graph_type(
            context.text("name", "") or "graph",
            io_data_type=_data_type(context, "io_data_type"),
            intermediate_data_type=_data_type(context, "intermediate_data_type"),
            compute_data_type=_data_type(context, "compute_data_type"),
        )
        self.values = document.object("pass_by_values")
        self.made: dict[str, TensorAttr] = {}
        self.tensor_names: set[str] = set()
        self.node_names: set[str] = set()

    def read(self) -> Any:
        for index, item in enumerate(self.document.list("nodes", [])):
            node = Fields(item, f"nodes[{index}]")
            tag = node.text("tag")
            rule, name = RULES.get(tag), node.text("name", "")
            node.where = f"nodes[{index}] ({tag}{f' {name!r}' if name else ''})"
            if rule is None:
                raise _unknown(tag, name or node.where)
            with naming(name or node.where):
                self._add(node, rule, name)
        return self.graph

    def _add(self, node: Fields, rule: Rule, name: str) -> None:
        node.refuse_others((*_COMMON, *rule.fields, *rule.ignored))
        inputs = self._ports(node, "inputs", rule.inputs)
        outputs = self._ports(node, "outputs", rule.outputs)
        for position, item in enumerate(node.list("peer_stats", [])):
            inputs[f"peer_stats_{position}"] = self._tensor(Fields(item, f"{node.where}: peer_stats[{position}]"), None)
        attributes = rule.attributes(node, inputs, outputs)
        self.graph.add_node(
            rule.node,
            inputs,
            name=self._free(name, self.node_names),
            attributes=attributes,
            outputs=outputs,
            compute_data_type=self._compute(node, inputs),
        )

    def _compute(self, node: Fields, inputs: Mapping[str, TensorAttr]) -> DataType | None:
        """The compute type; BOOLEAN, which cuDNN's comparisons compute in, is what the operands are."""
        if node.get("compute_data_type") != "BOOLEAN":
            return _data_type(node, "compute_data_type")
        types = {tensor.data_type for tensor in inputs.values() if tensor.has_data_type}
        if any(dtype.is_float for dtype in types):
            return DataType.DOUBLE if DataType.DOUBLE in types else DataType.FLOAT
        return DataType.INT64 if DataType.INT64 in types else DataType.INT32 if types else None

    def _ports(self, node: Fields, side: str, known: Mapping[str, str]) -> dict[str, TensorAttr]:
        found: dict[str, TensorAttr] = {}
        for port, key in node.object(side).items():
            if key is None:
                continue
            if port not in known:
                near = did_you_mean(port, known)
                raise node.fail(side, f"{port!r} is unknown{near}; known are {', '.join(known)}")
            if isinstance(key, bool) or not isinstance(key, int | str):
                raise node.fail(f"{side}.{port}", f"expected a tensor's uid or name, got {key!r:.60}")
            item = self.tensors.get(str(key))
            if item is None:
                raise node.fail(f"{side}.{port}", f"{key!r:.60} is no tensor of this graph")
            found[known[port]] = self._tensor(Fields(item, f"tensors[{str(key)!r:.60}]"), str(key))
        return found

    def _tensor(self, item: Fields, key: str | None) -> TensorAttr:
        """The tensor of a description, made at its first use."""
        uid = item.integer("uid", 0) if item.flag("uid_assigned", False) else None
        name = item.text("name", "")
        key = key if key is not None else str(uid) if uid is not None else name
        if key not in self.made:
            tensor = self._made(item, uid, self._free(name, self.tensor_names))
            self.made[key] = self.graph.own(tensor)
        return self.made[key]

    def _made(self, item: Fields, uid: int | None, name: str | None) -> TensorAttr:
        reordering = item.text("reordering_type", "NONE")
        if reordering != "NONE":
            raise NotSupportedError(item.where, "reordering_type", f"the order of elements {reordering} is not known")
        if item.has("ragged_offset_uid") or item.has("ragged_offset_name"):
            raise NotSupportedError(item.where, "ragged", "the tensor is ragged; copy it to a dense one")
        dims, strides = item.integers("dim"), item.integers("stride")
        dtype, by_value = _data_type(item, "data_type"), item.flag("is_pass_by_value", False)
        value = self._value(item, uid) if by_value else None
        if value is not None and math.prod(dims) != 1:
            raise item.fail("dim", f"a scalar value needs 1 element, dims are {list(dims)}")
        return TensorAttr(
            name=name,
            uid=uid,
            dims=dims or ((1,) if by_value else None),
            strides=None if value is not None else strides or None,
            data_type=dtype,
            is_virtual=item.flag("is_virtual", False),
            value=value,
            is_pass_by_value=by_value and value is None,
        )

    def _value(self, item: Fields, uid: int | None) -> Scalar | None:
        """The value of a scalar, which may stand in a table of its own; None if it comes at run time."""
        found = item.get("pass_by_value")
        if found is None and uid is not None:
            found = self.values.get(str(uid))
        if found is None:
            return None
        scalar = Fields(found, f"{item.where}: pass_by_value")
        index = scalar.integer("index")
        if not 0 <= index < _KINDS:
            raise scalar.fail("index", f"{index} is no kind of a scalar; kinds are 0 to {_KINDS - 1}")
        return scalar.integer("value") if index in _INTEGERS else scalar.number("value")

    @staticmethod
    def _free(name: str, taken: set[str]) -> str | None:
        """The name if it is one and not taken: cuDNN's need not be unique."""
        if not name or name in taken:
            return None
        taken.add(name)
        return name


def _unknown(tag: str, where: str) -> Exception:
    reason = DECLINED.get(tag)
    if reason is not None:
        return NotSupportedError(where, "operation", f"cuDNN's operation {tag} is not served: {reason}")
    near = did_you_mean(tag, RULES)
    return GraphError(f"{where}: tag: operation {tag!r:.60} is unknown{near}; known are {', '.join(sorted(RULES))}")


def _data_type(item: Fields, key: str) -> DataType | None:
    if item.get(key) == "FAST_FLOAT_FOR_FP8":  # FLOAT with sums that may be less exact
        return DataType.FLOAT
    return item.choice(key, DataType, None)
