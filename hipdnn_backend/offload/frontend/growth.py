"""What onnx's shape inference may cost, decided before it is asked: models of a few hundred bytes can cost gigabytes.

Inference keeps the dims of every tensor and, where it propagates data, an entry for every element of a tensor of one
dim that certain operators read. A chain of ``Concat(t, t)`` doubles the entries with each node, one of ``Gather(t, t)``
the dims. So ranks are bounded first, then data is propagated only where all of it is small; what is not propagated,
folding finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain

import onnx
from onnx import defs

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend.graph import SMALL, OnnxGraph, attributes, subgraphs
from hipdnn_backend.offload.frontend.operators import facts
from hipdnn_backend.offload.frontend.tensors import to_array

__all__ = ["MAX_RANK", "check_ranks", "check_types", "is_small"]

MAX_RANK = 64
"""Dims of a tensor: numpy has no more."""
_MAX_ELEMENTS = 1 << 60
_MAX_ENTRIES = 1 << 20
"""Elements that inference may propagate in one graph, about 70 bytes each."""
_BY_LENGTH = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""Operators whose result has as many dims as an operand has elements → that operand."""
_SUMMED = {"Gather", "GatherND"}
_SHAPES = {"shape", "value", "equation"}
"""Attributes that decide how many dims a result has: of RandomNormal, Constant and Einsum."""
_Dims = tuple[int | None, ...]
_Known = Mapping[str, _Dims]


def check_ranks(graph: OnnxGraph) -> None:
    """Refuse a graph in which a tensor may have too many dims, or is said to have too many elements.

    Raises:
        ModelError: the node that makes it.
    """
    types = {**graph.inputs, **graph.declared}
    for name, type_ in types.items():
        _check_dims(name, type_.dims or ())
    ranks = {name: len(type_.dims or ()) for name, type_ in types.items()}
    _check_nodes(graph, graph.nodes, ranks)


def _check_nodes(graph: OnnxGraph, nodes: Iterable[onnx.NodeProto], ranks: dict[str, int]) -> None:
    for node in nodes:
        for body in subgraphs(node):
            inner = {value.name: len(value.type.tensor_type.shape.dim) for value in body.input}
            _check_nodes(graph, body.node, {**ranks, **inner})
        rank = _rank(graph, node, ranks)
        _check_rank(node.name or node.op_type, rank)
        ranks.update((name, max(rank, ranks.get(name, 0))) for name in node.output if name)


def _rank(graph: OnnxGraph, node: onnx.NodeProto, ranks: Mapping[str, int]) -> int:
    """How many dims a result may have at most, as far as inference without data can know."""
    read = [graph.constants[name].ndim if name in graph.constants else ranks.get(name, 0) for name in node.input]
    most = max(read, default=0)
    if node.domain:
        return most
    if node.op_type in _BY_LENGTH:
        at = _BY_LENGTH[node.op_type]
        shape = graph.constants.get(node.input[at]) if len(node.input) > at else None
        return most if shape is None else max(most, shape.size)
    if node.op_type in _SUMMED:
        return sum(read)
    if node.op_type == "Unsqueeze":
        axes = graph.constants.get(node.input[1]) if len(node.input) > 1 else None
        return most + (len(attributes(node).get("axes", ())) if axes is None else axes.size)
    given = [attribute for attribute in node.attribute if attribute.name in _SHAPES]
    return max([most, *(max(len(each.ints), len(each.t.dims), len({*each.s})) for each in given)])


def _check_rank(name: str, rank: int) -> None:
    if rank > MAX_RANK:
        raise ModelError(name, "rank", f"it may have {rank} dims; at most {MAX_RANK} are supported")


def check_types(model: onnx.ModelProto) -> None:
    """Refuse what inference found to have too many dims or elements.

    Raises:
        ModelError: names the tensor.
    """
    for value in chain(model.graph.value_info, model.graph.output):
        _check_dims(value.name, _dims(value.type) or ())


def _check_dims(name: str, dims: Sequence[int | str | None]) -> None:
    _check_rank(name, len(dims))
    # numpy, too, counts the elements that would be there if no dim were 0
    if math.prod(dim for dim in dims if isinstance(dim, int) and dim > 0) > _MAX_ELEMENTS:
        raise ModelError(name, "size", f"dims {list(dims)} make more than 2**60 elements, which no memory holds")


def is_small(model: onnx.ModelProto) -> bool:
    """Whether inference with data propagates few elements: every operand that it may read has a known, small type.

    Args:
        model: as inference without data gave it.
    """
    return _entries(model.graph, {}, 0) <= _MAX_ENTRIES


def _entries(graph: onnx.GraphProto, outer: _Known, spent: int) -> int:
    """``spent``, and what a graph adds: above the limit if it is not known."""
    known = dict(outer)
    known.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)
    for value in chain(graph.value_info, graph.input, graph.output):
        dims = _dims(value.type)
        if dims is not None:
            known[value.name] = dims
    values = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for body in subgraphs(node):
            spent = _entries(body, known, spent)
        if not node.domain and node.op_type in _propagators():
            read = [_length(known.get(name)) for name in node.input if name]
            spent += _MAX_ENTRIES + 1 if None in read else sum(filter(None, read))
        at = _BY_LENGTH.get(node.op_type, len(node.input)) if not node.domain else len(node.input)
        if at < len(node.input) and (_length(known.get(node.input[at])) or 0) > MAX_RANK:
            spent += _MAX_ENTRIES + 1
        if spent > _MAX_ENTRIES:
            break
        dims = _guess(node, known, values)
        known.update((name, dims) for name in node.output if dims is not None and name not in known)
    return spent


def _dims(type_: onnx.TypeProto) -> _Dims | None:
    if not type_.HasField("tensor_type") or not type_.tensor_type.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in type_.tensor_type.shape.dim)


def _length(dims: _Dims | None) -> int | None:
    """Elements of a value that inference takes for data; None if they are not known, or too many."""
    if dims is None or len(dims) > 1:
        return None if dims is None else 0
    size = dims[0] if dims else 1
    return size if size is not None and 0 <= size <= SMALL else None


def _guess(node: onnx.NodeProto, known: _Known, values: Mapping[str, onnx.TensorProto]) -> _Dims | None:
    """Dims of a result as far as they follow from dims alone, in what depends on data: between two Reshapes, mostly.

    They hold for a valid model; what is not sure is left out.
    """
    read = [known.get(name) for name in node.input if name]
    if node.domain or not read or read[0] is None:
        return None
    if node.op_type == "Shape" and not node.attribute:
        return (len(read[0]),)
    if node.op_type in ("Reshape", "Expand") and len(read) == 2:
        length = read[1][0] if read[1] is not None and len(read[1]) == 1 else None
        return (
            None if length is None else (None,) * (length if node.op_type == "Reshape" else max(length, len(read[0])))
        )
    if node.op_type == "Slice":
        return (_sliced(read[0][0], node, values),) if len(read[0]) == 1 else (None,) * len(read[0])
    if node.op_type == "Concat":
        sizes = [each[0] if each is not None and len(each) == 1 else None for each in read]
        return (None,) * len(read[0]) if len(read[0]) != 1 else (None if None in sizes else sum(filter(None, sizes)),)
    if facts(node.op_type).keeps_dims:
        return read[0]
    if None in read or not facts(node.op_type).broadcasts:
        return None
    if node.op_type == "MatMul" and min(map(_rank_of, read)) < 2:
        return None
    rank = max(map(_rank_of, read))
    sizes = [size for each in read if each is not None for size in each]
    return (None,) * rank if rank > 1 or None in sizes else (max(filter(None, sizes), default=0),) * rank


def _rank_of(dims: _Dims | None) -> int:
    return 0 if dims is None else len(dims)


def _sliced(size: int | None, node: onnx.NodeProto, values: Mapping[str, onnx.TensorProto]) -> int | None:
    """The length of ``Slice(x, start, end)`` with constant bounds and steps of one."""
    bounds = [values.get(name) for name in node.input[1:3]]
    if size is None or len(node.input) > 4 or len(bounds) < 2 or None in bounds:
        return None
    numbers = [to_array(each).reshape(-1) for each in bounds if each is not None]
    if any(each.size != 1 or each.dtype.kind not in "iu" for each in numbers):
        return None
    start, end = (int(each[0]) for each in numbers)
    return len(range(size)[start:end])


@cache
def _propagators() -> frozenset[str]:
    """Operators that propagate data in any of their versions."""
    schemas: Iterable[defs.OpSchema] = defs.get_all_schemas_with_history()
    return frozenset(each.name for each in schemas if not each.domain and each.has_data_propagation_function)
