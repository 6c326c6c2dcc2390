"""Types that onnx's inference does not tell: results of other domains' operators, and of loops.

They come from a rule, or from what the model says about its tensors. Nobody checks the latter; an engine that runs the
node compares what comes out with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import (
    TORCH_DOMAIN,
    OnnxGraph,
    Output,
    TensorType,
    attributes,
    captures,
    subgraphs,
)
from hipdnn_backend.offload.frontend.shapes import infer
from hipdnn_backend.offload.frontend.tensors import to_array

__all__ = ["declare_untold", "infer_all"]

Dims = tuple[int, ...]

_LEARNING = "ai.onnx.ml"
_MAX_DIM = 1 << 60


def infer_all(graph: OnnxGraph, *, strict: bool = True) -> None:
    """Fill `Graph.types`, with what onnx's inference does not tell; see `infer`.

    Raises:
        ModelError: as `infer`.
    """
    infer(graph, strict=strict)
    while declare_untold(graph):
        infer(graph, strict=strict)


def declare_untold(graph: OnnxGraph) -> bool:
    """Note in `Graph.declared` what is known of results that inference left open; whether there is anything new."""
    found = {}
    for node in graph.nodes:
        if node.domain == TORCH_DOMAIN or (not node.domain and not any(True for _ in subgraphs(node))):
            continue
        open_ = [name for name in node.output if name and not _is_static(graph.type(name))]
        if not open_:
            continue
        told = dict(zip(node.output, _by_rule(graph, node), strict=False))
        for name in open_:
            type_ = told.get(name) or graph.hints.get(name)
            if _is_static(type_) and name not in graph.declared:
                found[name] = type_
    graph.declared.update((name, type_) for name, type_ in found.items() if type_ is not None)
    return bool(found)


def _is_static(type_: TensorType | None) -> bool:
    return type_ is not None and type_.static is not None


def _by_rule(graph: OnnxGraph, node: onnx.NodeProto) -> Sequence[TensorType | None]:
    if not node.domain:
        return _loop(graph, node) if node.op_type == "Loop" else ()
    rule = _RULES.get(node.op_type) if node.domain == _LEARNING else None
    type_ = graph.type(node.input[0]) if node.input else None
    if rule is None or type_ is None or type_.static is None:
        return ()
    shapes = rule(type_.static, attributes(node))
    known = [graph.type(name) for name in node.output]
    return [
        None if each is None or not all(0 <= dim < _MAX_DIM for dim in dims) else TensorType(each.element, dims)
        for each, dims in zip(known, shapes, strict=False)
    ]


# ---- loops


def _loop(graph: OnnxGraph, node: onnx.NodeProto) -> list[TensorType | None]:
    """The types of the states behind a Loop whose body leaves them what they are; of nothing else.

    onnx's inference says nothing about the dims of states, which a body may change in each step.
    """
    (body,) = subgraphs(node)
    first = [graph.type(name) for name in node.input[2:]]
    if len(body.input) != len(first) + 2 or len(body.output) <= len(first):
        return []
    if any(type_ is None or type_.static is None for type_ in first):
        return []
    states = [type_ for type_ in first if type_ is not None]
    after = _body_types(graph, body, states)
    if after is None:
        return []
    return [now if now == then else None for now, then in zip(states, after, strict=True)]


def _body_types(
    graph: OnnxGraph, body: onnx.GraphProto, states: Sequence[TensorType]
) -> list[TensorType | None] | None:
    """What a body's next states are if its states have these types; None if onnx cannot say."""
    inner = OnnxGraph("body", graph.opsets)
    inner.nodes = list(body.node)
    inner.constants = {tensor.name: to_array(tensor) for tensor in body.initializer}
    own = [value.name for value in body.input]
    scalars = [TensorType(onnx.TensorProto.INT64, ()), TensorType(onnx.TensorProto.BOOL, ())]
    inner.inputs.update(zip(own, [*scalars, *states], strict=True))
    made = {name for each in body.node for name in each.output}
    for each in body.node:
        for name in filter(None, (*each.input, *captures(each))):
            if name in made or name in inner.inputs or name in inner.constants:
                continue
            type_ = graph.type(name)
            if type_ is None:
                return None
            if name in graph.constants and graph.is_small(name):
                inner.constants[name] = graph.constants[name]
            else:
                inner.inputs[name] = type_
    results = [value.name for value in body.output][1 : 1 + len(states)]
    inner.outputs = [Output(name, name, onnx.TypeProto()) for name in results]
    try:
        infer_all(inner, strict=False)
    except ModelError:
        return None
    return [inner.type(name) for name in results]


# ---- ai.onnx.ml


def _rows(dims: Dims) -> int:
    """A vector is one row."""
    return dims[0] if len(dims) > 1 else 1


def _same(dims: Dims, _: Mapping[str, Any]) -> list[Dims]:
    return [dims]


def _targets(dims: Dims, given: Mapping[str, Any]) -> list[Dims]:
    return [(_rows(dims), given.get("targets", given.get("n_targets", 1)))]


def _classes(dims: Dims, given: Mapping[str, Any]) -> list[Dims]:
    names = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
    count = max(len(given.get(name, ())) for name in names)
    return [(_rows(dims),), (_rows(dims), count)] if count else [(_rows(dims),)]


def _categories(dims: Dims, given: Mapping[str, Any]) -> list[Dims]:
    return [(*dims, max(len(given.get(name, ())) for name in ("cats_int64s", "cats_strings")))]


def _features(dims: Dims, given: Mapping[str, Any]) -> list[Dims]:
    return [(_rows(dims), sum(given["inputdimensions"]))] if given.get("inputdimensions") else []


_RULES: Mapping[str, Callable[[Dims, Mapping[str, Any]], list[Dims]]] = {
    **dict.fromkeys(("Scaler", "Normalizer", "Imputer", "Binarizer", "LabelEncoder", "CategoryMapper"), _same),
    **dict.fromkeys(("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor", "TreeEnsemble"), _targets),
    **dict.fromkeys(("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier"), _classes),
    "OneHotEncoder": _categories,
    "FeatureVectorizer": _features,
}
"""Operator → the dims of its results, from those of its first operand and its attributes; onnx says few of them."""
