"""Computes at load time what does not depend on the inputs: shape arithmetic, weight-only operations, constant Ifs."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import (
    OnnxGraph,
    TensorType,
    attributes,
    captures,
    inlined,
    rename,
    subgraphs,
)
from hipdnn_backend.offload.frontend.small_types import is_small_type
from hipdnn_backend.offload.frontend.tensors import to_array
from hipdnn_backend.offload.node_outcomes import Absorbed, Became
from hipdnn_backend.offload.onnx_process.client import OnnxError, infer_shapes
from hipdnn_backend.onnx_op import RANDOM

__all__ = ["evaluate", "fold"]

log = logging.getLogger(__name__)

_LIMIT = 1 << 16
"""Elements that a folded result may always have; above, it may not be larger than what it is computed from."""

_ROOM = 64 << 20
"""Bytes that a graph's constants may always have; above, folding may make them as large as `_GROWTH` times what the
model has: a chain of ``Concat(t, t)`` would double them with each node."""
_GROWTH = 4

_SLOW = {
    "Conv",
    "ConvTranspose",
    "ConvInteger",
    "QLinearConv",
    "LSTM",
    "GRU",
    "RNN",
    "Einsum",
    "DeformConv",
    "Attention",
}
"""Operators whose reference is not vectorised: only small cases are folded."""
_READERS = {"Cast", "CastLike", "DequantizeLinear", "IsInf", "IsNaN"}
"""Operators that make larger elements of small ones: weights of small types stay what they are."""
_NO_GROWTH = {"NonZero", "Unique", "Compress", "TopK", "StringSplit", "NonMaxSuppression"}
"""Operators whose result's size depends on values but is bounded by their inputs'."""


def fold(graph: OnnxGraph) -> bool:
    """Replace nodes by constants, once over the graph; whether anything changed.

    Requires: `Graph.types` is current.  Ensures: no Constant node is left; results of the graph keep their names.

    Raises:
        ModelError: a constant's data is damaged.
    """
    before = len(graph.nodes)
    kept: list[onnx.NodeProto] = []
    names: dict[str, str] = {}
    known = _read_empty_inputs(graph)
    room = _room(graph)
    for node in _flat(graph, names):
        values = _value(graph, node)
        room -= sum(value.nbytes for value in values or ())
        if values is None or (room < 0 and node.op_type != "Constant"):
            kept.append(node)
            continue
        graph.absorbed.setdefault(node.name, Absorbed(Became.FOLDED))
        for name, value in zip(node.output, values, strict=False):
            if name:
                graph.constants[name] = value
    changed = known or len(kept) != before or bool(names)
    graph.nodes = kept
    for output in graph.outputs:
        output.value = names.get(output.value, output.value)
    return _drop_dead(graph) or changed


def evaluate(
    node: onnx.NodeProto, opsets: Mapping[str, int], values: Mapping[str, np.ndarray], dims: Mapping[str, Sequence[int]]
) -> Sequence[np.ndarray] | None:
    """What a node gives, if that is known and computed here with little time and memory.

    Args:
        node: by itself.
        opsets: as in `OnnxGraph`.
        values: of its operands.
        dims: of operands whose elements are not known.

    Raises:
        OnnxProcessError: see `native_onnx`.
    """
    alone = OnnxGraph("alone", opsets)
    alone.nodes = [node]
    alone.constants.update(values)
    alone.inputs.update((name, TensorType(onnx.TensorProto.INT8, tuple(each))) for name, each in dims.items())
    return _value(alone, node)


def _room(graph: OnnxGraph) -> int:
    """Bytes that may be added to the constants."""
    held = sum(array.nbytes for array in graph.constants.values())
    if not graph.room:
        written = sum(node.ByteSize() for node in graph.nodes if node.op_type == "Constant")
        graph.room = max(_ROOM, _GROWTH * (held + written))
    return graph.room - held


def _read_empty_inputs(graph: OnnxGraph) -> bool:
    """Let nodes read a constant in place of an input without elements, which has no other value; whether any does."""
    names = {name: "" for name, type_ in graph.inputs.items() if type_.static is not None and 0 in type_.static}
    readers = [node for node in graph.nodes if not names.keys().isdisjoint([*node.input, *captures(node)])]
    if not readers:
        return False
    for name in names:
        type_ = graph.inputs[name]
        names[name] = graph.add_constant(f"{name}/empty", np.zeros(type_.static or (), type_.dtype))
    for node in readers:
        rename(node, names)
    return True


def _flat(graph: OnnxGraph, names: dict[str, str]) -> Iterator[onnx.NodeProto]:
    """The nodes, an If with a constant condition replaced by those of its branch; ``names`` collects its results."""
    waiting = list(reversed(graph.nodes))
    while waiting:
        node = waiting.pop()
        if names:
            rename(node, names)
        condition = graph.constants.get(node.input[0]) if node.op_type == "If" and node.input else None
        if condition is None or node.domain or condition.size != 1:
            yield node
            continue
        branch = attributes(node)["then_branch" if condition.reshape(-1)[0] else "else_branch"]
        waiting.extend(reversed(_taken(graph, node, branch, names)))


def _taken(
    graph: OnnxGraph, call: onnx.NodeProto, branch: onnx.GraphProto, names: dict[str, str]
) -> list[onnx.NodeProto]:
    """A branch's nodes with names of their own; its results take the place of the If's."""
    inner: dict[str, str] = {}
    result = inlined(graph, branch, inner, call.name)
    results = {old: inner.get(v.name, v.name) for old, v in zip(call.output, branch.output, strict=True) if old}
    names.update({old: results.get(new, new) for old, new in names.items()})  # an If inside a branch gives its results
    names.update(results)
    return result


def _value(graph: OnnxGraph, node: onnx.NodeProto) -> Sequence[np.ndarray] | None:
    """What a node gives if that is known before any run."""
    if node.domain:
        return None
    if node.op_type == "Constant":
        return [_constant(node)]
    if node.op_type in ("Shape", "Size"):
        return _shape(graph, node)
    empty = _empty(graph, node)
    if empty is not None:
        return empty
    if not all(name in graph.constants for name in node.input if name) or node.op_type in RANDOM:
        return None
    if any(True for _ in subgraphs(node)) or not _is_cheap(graph, node):
        return None
    return _evaluated(graph, node)


def _constant(node: onnx.NodeProto) -> np.ndarray:
    given = attributes(node)
    if "value" in given:
        return to_array(given["value"])
    for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
        for key in (name, f"{name}s"):
            if key in given:
                return np.asarray(given[key], dtype)
    text = given.get("value_string", given.get("value_strings"))
    if text is None:
        raise ModelError(node.name, "tensor-data", "the Constant has no dense value")
    return np.asarray(text, object)


def _empty(graph: OnnxGraph, node: onnx.NodeProto) -> Sequence[np.ndarray] | None:
    """Results without elements are known without any work, which compilers do not all survive."""
    types = [graph.type(name) for name in node.output if name]
    dims = [type_.static if type_ else None for type_ in types]
    if not dims or any(each is None or math.prod(each) for each in dims):
        return None
    made = iter([np.zeros(each or (), type_.dtype) for each, type_ in zip(dims, types, strict=True) if type_])
    return [next(made) if name else np.zeros(0) for name in node.output]


def _shape(graph: OnnxGraph, node: onnx.NodeProto) -> Sequence[np.ndarray] | None:
    type_ = graph.type(node.input[0])
    dims = type_.static if type_ else None
    if dims is None:
        return None
    if node.op_type == "Size":
        return [np.asarray(math.prod(dims), np.int64)]
    given = attributes(node)
    return [np.asarray(dims[slice(given.get("start", 0), given.get("end"))], np.int64)]


def _is_cheap(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Whether computing a node here costs little time and memory, whoever wrote the model."""
    read = sum(graph.constants[name].size for name in node.input if name)
    if node.op_type in _SLOW and read > 1 << 12:
        return False
    if node.op_type in _READERS and is_small_type(graph.type(node.input[0])) and not graph.is_small(node.input[0]):
        return False
    if node.op_type == "Range":
        start, limit, delta = (float(graph.constants[name].reshape(-1)[0]) for name in node.input)
        return delta != 0 and abs((limit - start) / delta) <= _LIMIT
    if node.op_type in _NO_GROWTH:
        return read <= _LIMIT
    made = 0
    for name in filter(None, node.output):
        type_ = graph.type(name)
        dims = type_.static if type_ else _local_dims(graph, node, name)
        if dims is None:
            return False
        made += math.prod(dims)
    return made <= max(_LIMIT, read)


def _local_dims(graph: OnnxGraph, node: onnx.NodeProto, name: str) -> tuple[int, ...] | None:
    """Dims of a result from this node's constants alone: inference of the graph had not seen them yet."""
    local = OnnxGraph("fold", graph.opsets)
    local.nodes = [node]
    local.constants = {name: graph.constants[name] for name in node.input if name}
    type_ = onnx.TypeProto()
    proto = local.to_proto()
    proto.graph.output.append(onnx.ValueInfoProto(name=name, type=type_))
    try:
        inferred = infer_shapes(proto, strict_mode=True)
    except OnnxError:
        return None
    tensor = inferred.graph.output[0].type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)


def _evaluated(graph: OnnxGraph, node: onnx.NodeProto) -> Sequence[np.ndarray] | None:
    """By onnx's reference; None if it cannot, or the result is no tensor."""
    feeds = {name: graph.constants[name] for name in node.input if name}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = _evaluator(node.SerializeToString(deterministic=True), graph.opset).run(None, feeds)
    except Exception as error:  # the reference raises whatever numpy does; the node then stays for the compiler
        log.debug("%s (%s) is not folded: %s", node.name, node.op_type, error)
        return None
    arrays = [np.asarray(result) for result in results if isinstance(result, np.ndarray | np.generic)]
    return arrays if len(arrays) == len(results) and all(map(_is_tensor, arrays)) else None


def _is_tensor(array: np.ndarray) -> bool:
    """Whether an array has a type of ONNX's: text is in arrays of objects."""
    return array.dtype != object or all(isinstance(each, str | bytes) for each in array.flat)


@lru_cache(maxsize=512)
def _evaluator(node: bytes, opset: int) -> Any:
    return ReferenceEvaluator(onnx.NodeProto.FromString(node), opsets={"": opset})


def _drop_dead(graph: OnnxGraph) -> bool:
    """Remove nodes and constants that no result needs; whether nodes were among them."""
    needed = {output.value for output in graph.outputs}
    kept = []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.output):
            needed.update(node.input)
            needed |= captures(node)
            kept.append(node)
        else:
            graph.absorbed.setdefault(node.name, Absorbed(Became.UNUSED))
    changed = len(kept) != len(graph.nodes)
    graph.nodes = kept[::-1]
    graph.constants = {name: array for name, array in graph.constants.items() if name in needed}
    return changed
