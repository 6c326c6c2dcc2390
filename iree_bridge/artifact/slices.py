"""A graph with fewer entries of its batch, which a reference in float64 computes where the whole takes too long.

Entries of a batch have nothing to do with one another in most graphs of inference: images of a convolution, products
of a batch, sequences of an attention. Then some results of the whole graph are those of a graph with these entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graph_api import FusilliError, Graph, Node, PointwiseMode, TensorAttr
from graph_api.ops.pointwise import PointwiseNode

__all__ = ["Slice", "slice_of"]

_BATCHED: Final[Mapping[str, tuple[str, ...]]] = {
    "conv_fprop": ("x",),
    "conv_dgrad": ("dy",),
    "matmul": ("a", "b"),
    "batchnorm_inference": ("x",),
    "batchnorm_inference_variance_ext": ("x",),
    "layernorm": ("x",),
    "rmsnorm": ("x",),
    "resample_fwd": ("x",),
    "reduction": ("x",),
    "sdpa": ("q", "k", "v"),
}
"""Operation → operands of whose first dim each entry gives the entry of the results, and nothing else."""


class Slice(NamedTuple):
    """Entries of a graph's batch.

    Attributes:
        graph: with those alone; tensors have the uids that they have in the whole.
        entries: their numbers in the whole.
        batched: uids of the tensors that have fewer entries.
    """

    graph: Graph
    entries: tuple[int, ...]
    batched: frozenset[int]

    def inputs(self, whole: Mapping[TensorAttr, NDArray[Any]]) -> dict[int, NDArray[Any]]:
        """Of the whole graph's inputs those of the entries, by uid."""
        entries = list(self.entries)
        return {t.uid: array[entries] if t.uid in self.batched else array for t, array in whole.items()}

    def positions(self, tensor: TensorAttr, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where flat positions in a result of the slice are in the whole graph's ``tensor``."""
        inner = tensor.volume // tensor.dims[0]
        return np.asarray(self.entries, np.int64)[indices // inner] * inner + indices % inner


def slice_of(graph: Graph, count: int) -> Slice | None:
    """The first and the last entries of a graph's batch, ``count`` in all; None if its entries are not apart."""
    outputs = graph.arguments().outputs
    sizes = {tensor.dims[0] for tensor in outputs if tensor.dims}
    if len(sizes) != 1 or not all(tensor.dims for tensor in outputs) or min(sizes) <= count:
        return None
    size = sizes.pop()
    batched = _batched(graph, size)
    if batched is None:
        return None
    entries = (*range(count - 1), size - 1)
    dims = {tensor: (count, *tensor.dims[1:]) for tensor in batched}
    try:
        made = graph.with_dims(dims)
    except FusilliError:
        return None
    return Slice(made, entries, frozenset(tensor.uid for tensor in batched))


def _batched(graph: Graph, size: int) -> set[TensorAttr] | None:
    """The tensors whose first dim is the batch, found from the results back; None if that is not what it is."""
    batched = set(graph.arguments().outputs)
    for node in reversed(graph.nodes):
        results = [tensor for tensor in node.outputs.values() if tensor in batched]
        if not results:
            return None  # made of no entry, or of all of them
        given = _given(node, results, size)
        if given is None:
            return None
        batched |= given
        batched |= set(node.outputs.values())
    # nobody may read as a whole what has entries
    for node in graph.nodes:
        own = _given(node, node.outputs.values(), size) or set()
        if any(tensor in batched and tensor not in own for tensor in node.inputs.values()):
            return None
    return batched


def _given(node: Node, results: Iterable[TensorAttr], size: int) -> set[TensorAttr] | None:
    """The operands of a node that have the entries of its results; None if entries are not apart in it."""
    if any(not result.dims or result.dims[0] != size for result in results):
        return None
    rank = max(result.rank for result in results)
    if node.op == "pointwise":
        ports = tuple(node.inputs)
    elif node.op in _BATCHED:
        ports = _BATCHED[node.op]
    else:
        return None
    operands = [node.inputs[port] for port in ports if port in node.inputs]
    if not _entries_are_apart(node, ports, rank, size):
        return None
    found = {tensor for tensor in operands if tensor.rank == rank and tensor.dims and tensor.dims[0] == size}
    rest = [tensor for tensor in operands if tensor not in found]
    if any(tensor.rank == rank and tensor.dims[0] != 1 for tensor in rest):
        return None
    return found or None


def _entries_are_apart(node: Node, ports: Iterable[str], rank: int, size: int) -> bool:
    """Whether an operation of those that may have entries has them here."""
    others = [tensor for port, tensor in node.inputs.items() if port not in ports]
    if isinstance(node, PointwiseNode):
        return node.attributes.mode is not PointwiseMode.GEN_INDEX  # numbers of entries are values there
    if node.op == "matmul":
        return rank >= 3
    if node.op == "sdpa":
        return set(node.inputs) <= {*ports, "scale"}
    if node.op == "resample_fwd":
        return len(node.outputs) == 1  # indices are of the whole
    if node.op in ("conv_fprop", "conv_dgrad", "reduction"):
        return True
    return all(tensor.rank < rank or tensor.dims[0] != size for tensor in others)  # norms that are not over the batch
