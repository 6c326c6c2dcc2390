"""Makes what fails small: nodes, results, operands, attributes, dims, strides, data types and inputs are taken away.

A step proposes smaller cases; the first that still fails in the same way is gone on with, until no step has another.
What a step proposes need not be valid: those that are not are skipped. Whether a case fails is asked of a function, so
nothing here knows a compiler.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from fusilli_plugin.fuzz.cases import Array, Case, document_of
from fusilli_plugin.testing.graphs.custom import with_references
from graph_api import DataType, FusilliError, Graph, GraphError, TensorAttr, numerics
from graph_api.layout import packed_strides
from graph_api.node import OPS

__all__ = ["reduce"]

Document: TypeAlias = dict[str, Any]
Step: TypeAlias = Callable[[Case], Iterator[Case]]


def reduce(case: Case, fails: Callable[[Case], bool], is_over: Callable[[], bool] = lambda: False) -> Case:
    """The smallest case found that still fails.

    Args:
        case: one that fails.
        fails: whether another fails in the same way.
        is_over: asked before each try; what is smallest by then is returned.
    """
    tried = {case.digest}
    changed = True
    while changed:
        changed = False
        for step in _STEPS:
            smaller = _first(step(case), fails, tried, is_over)
            while smaller is not None:
                case, changed = smaller, True
                smaller = _first(step(case), fails, tried, is_over)
    return case


def _first(
    proposed: Iterable[Case], fails: Callable[[Case], bool], tried: set[str], is_over: Callable[[], bool]
) -> Case | None:
    for case in proposed:
        if case.digest in tried:
            continue
        if is_over():
            return None
        tried.add(case.digest)
        if fails(case):
            return case
    return None


# ---- steps ---------------------------------------------------------------------------------------------------------


def _fewer_nodes(case: Case) -> Iterator[Case]:
    """Single nodes, pairs, halves, all but one; what nodes that are left out made is an input then."""
    count = len(case.graph.nodes)
    if count == 1:
        return
    kept: list[set[int]] = [{index} for index in range(count)] if count > 1 else []
    if count > 2:
        kept += [{one, other} for one in range(count) for other in range(one + 1, count) if _meet(case, one, other)]
    if count > 5:
        kept += [set(range(count // 2)), set(range(count // 2, count))]
    kept += [set(range(count)) - {index} for index in range(count) if count > 2]
    try:
        values = numerics.evaluate(case.graph, dict(case.inputs), with_errors=False).values
    except GraphError:  # a custom operation without a reference
        values = {}
    arrays = {tensor.name: value for tensor, value in values.items()} | case.named()
    for each in kept:
        document = document_of(case.graph)
        document["nodes"] = [node for index, node in enumerate(document["nodes"]) if index in each]
        _close(document)
        yield from _made(document, arrays)


def _meet(case: Case, one: int, other: int) -> bool:
    """Whether a node reads what another makes, or both read the same."""
    first, second = case.graph.nodes[one], case.graph.nodes[other]
    return bool({*first.outputs.values(), *first.inputs.values()} & {*second.inputs.values()})


def _fewer_results(case: Case) -> Iterator[Case]:
    for node in range(len(case.graph.nodes)):
        for port, uid in document_of(case.graph)["nodes"][node]["outputs"].items():
            document = document_of(case.graph)
            item = document["nodes"][node]
            if port in OPS[item["op"]].optional_outputs:
                del item["outputs"][port]
                _close(document)
                yield from _made(document, case.named())
            document = document_of(case.graph)
            (tensor,) = [each for each in document["tensors"] if each["uid"] == uid]
            if not tensor["virtual"]:
                tensor["virtual"] = True
                yield from _made(document, case.named())


def _fewer_operands(case: Case) -> Iterator[Case]:
    for index, node in enumerate(case.graph.nodes):
        for port in node.inputs:
            if port in node.optional_inputs:
                document = document_of(case.graph)
                del document["nodes"][index]["inputs"][port]
                _close(document)
                yield from _made(document, case.named())


def _simpler_attributes(case: Case) -> Iterator[Case]:
    """Each left out, or its numbers 1, or 0; dims of results follow from it anew."""
    for index, node in enumerate(case.graph.nodes):
        for name, value in node.attributes.to_json().items():
            for simple in (None, *_lower(value)):
                for forget in (True, False):
                    document = document_of(case.graph)
                    attributes = document["nodes"][index]["attributes"]
                    if simple is None:
                        del attributes[name]
                    else:
                        attributes[name] = simple
                    if forget:
                        _forget_results(document)
                    yield from _made(document, case.named())


def _lower(value: object) -> Iterator[list[int]]:
    """Ones and zeros for numbers that are larger."""
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        for simple in (0, 1):
            if len(value) * simple < sum(value):
                yield [simple] * len(value)


def _smaller_dims(case: Case) -> Iterator[Case]:
    """Every dim of one size made another; then those of single tensors."""
    graph = case.graph
    inputs, outputs = graph.arguments().inputs, graph.arguments().outputs
    sizes = sorted({dim for tensor in inputs for dim in tensor.dims if dim > 1}, reverse=True)
    for size in sizes:
        for new in dict.fromkeys((1, 2, size // 2, size - 1)):
            if 0 < new < size:
                for tensors in (inputs, (*inputs, *outputs)):
                    yield from _resized(case, {t: [new if dim == size else dim for dim in t.dims] for t in tensors})
    for tensor in inputs:
        for axis, size in enumerate(tensor.dims):
            for new in dict.fromkeys((1, size // 2, size - 1)):
                if 0 < new < size:
                    dims = list(tensor.dims)
                    dims[axis] = new
                    yield from _resized(case, {tensor: dims})


def _resized(case: Case, dims: Mapping[TensorAttr, Sequence[int]]) -> Iterator[Case]:
    try:
        graph = case.graph.with_dims(dims)
    except FusilliError:
        return
    yield from _with_inputs(graph, case.named())


def _plain_strides(case: Case) -> Iterator[Case]:
    odd = [t for t in case.graph.tensors if t.value is None and tuple(t.strides) != packed_strides(t.dims)]
    for tensors in [odd, *([each] for each in odd)] if odd else []:
        try:
            graph = case.graph.with_dims({}, {tensor: packed_strides(tensor.dims) for tensor in tensors})
        except FusilliError:
            continue
        yield from _with_inputs(graph, case.named())


def _plain_types(case: Case) -> Iterator[Case]:
    """Floats become FLOAT: all, those of a type, single tensors."""
    floats = [t for t in case.graph.tensors if t.data_type.is_float and t.data_type is not DataType.FLOAT]
    groups = [floats, *([t for t in floats if t.data_type is kind] for kind in {t.data_type for t in floats})]
    for tensors in [*groups, *([tensor] for tensor in floats)] if floats else []:
        uids = {tensor.uid for tensor in tensors}
        document = document_of(case.graph)
        for tensor in document["tensors"]:
            if tensor["uid"] in uids:
                tensor["data_type"] = DataType.FLOAT.name
        yield from _made(document, case.named())


def _plain_inputs(case: Case) -> Iterator[Case]:
    """Zeros, ones, small integers; then parts of what is left become zero. Never back to what is less plain."""
    for tensor, array in case.inputs.items():
        values = np.asarray(array, np.float64)
        proposed = [np.zeros_like(values)] if np.any(values) else []
        if proposed and not np.all(values == 1):
            with np.errstate(all="ignore"):
                whole = np.clip(np.rint(np.nan_to_num(values)), -4, 4)
            proposed += [np.ones_like(values), whole, *_halves(values)]
        for new in proposed:
            yield Case(case.graph, {**case.inputs, tensor: _fitted(tensor, new)})


def _halves(values: Array) -> Iterator[Array]:
    """Halves, quarters and so on of the numbers that are not zero made zero, down to single ones of few."""
    places = np.flatnonzero(values)
    part = len(places)
    while part > 1 and len(places) // (part := math.ceil(part / 2)) <= _PARTS:
        for start in range(0, len(places), part):
            changed = values.copy()
            changed.reshape(-1)[places[start : start + part]] = 0
            yield changed


_PARTS: Final = 16
_STEPS: Final[tuple[Step, ...]] = (
    _fewer_nodes,
    _fewer_results,
    _fewer_operands,
    _smaller_dims,
    _simpler_attributes,
    _plain_strides,
    _plain_types,
    _plain_inputs,
)


# ---- documents to cases --------------------------------------------------------------------------------------------


def _close(document: Document) -> None:
    """Tensors that no node has go; what is read and not made is an input, what is made and not read a result."""
    made = {uid for node in document["nodes"] for uid in node["outputs"].values()}
    read = {uid for node in document["nodes"] for uid in node["inputs"].values()}
    document["tensors"] = [tensor for tensor in document["tensors"] if tensor["uid"] in made | read]
    for tensor in document["tensors"]:
        tensor["virtual"] = tensor["virtual"] and tensor["uid"] in made and tensor["uid"] in read


def _forget_results(document: Document) -> None:
    made = {uid for node in document["nodes"] for uid in node["outputs"].values()}
    for tensor in document["tensors"]:
        if tensor["uid"] in made:
            del tensor["dims"], tensor["strides"]


def _made(document: Document, arrays: Mapping[str, Array]) -> Iterator[Case]:
    """The case of a document, if that is a graph."""
    try:
        graph = with_references(Graph.from_json(json.dumps(document)))
    except FusilliError:
        return
    yield from _with_inputs(graph, arrays)


def _with_inputs(graph: Graph, arrays: Mapping[str, Array]) -> Iterator[Case]:
    """The graph with what its inputs had, cut to their dims; nothing if there is too little."""
    inputs: dict[TensorAttr, Array] = {}
    for tensor in graph.arguments().inputs:
        found = arrays.get(tensor.name)
        if (
            found is None
            or found.ndim != tensor.rank
            or any(a < b for a, b in zip(found.shape, tensor.dims, strict=True))
        ):
            return
        inputs[tensor] = _fitted(tensor, found[tuple(slice(0, dim) for dim in tensor.dims)])
    yield Case(with_references(graph), inputs)


def _fitted(tensor: TensorAttr, values: Array) -> Array:
    array = tensor.empty()
    with np.errstate(all="ignore"):
        array[...] = tensor.data_type.rounded(values)
    return array
