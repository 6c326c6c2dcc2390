"""What a graph must be beyond its bytes: uids that are unique and exist, nodes in topological order."""

from __future__ import annotations

from hipdnn_backend.errors import WireError
from hipdnn_backend.wire.attributes import Attributes, UnknownAttributes
from hipdnn_backend.wire.model import WireGraph

__all__ = ["check_graph"]


def check_graph(graph: WireGraph) -> None:
    """Check the references inside a graph.

    Nodes of unknown operations are left out: their operands cannot be read.

    Raises:
        WireError: two tensors share a uid, dims and strides differ in length, a node has no attributes, a uid names no
            tensor, two nodes write one tensor, or a node reads what it or a later node writes.
    """
    known = _check_tensors(graph)
    writers = _check_writers(graph, known)
    for position, node in enumerate(graph.nodes):
        if not isinstance(node.attributes, Attributes):
            continue
        for field, uid in node.attributes.input_uids():
            if uid not in known:
                raise WireError(f"nodes[{position}].attributes.{field}", f"{uid} is no tensor of this graph")
            writer = writers.get(uid, -1)
            if writer >= position:
                reason = f"tensor {uid} is written by nodes[{writer}], which does not come before this node"
                raise WireError(f"nodes[{position}].attributes.{field}", reason)


def _check_tensors(graph: WireGraph) -> set[int]:
    known: set[int] = set()
    for position, tensor in enumerate(graph.tensors):
        if tensor.uid in known:
            raise WireError(f"tensors[{position}].uid", f"{tensor.uid} is the uid of an earlier tensor")
        if len(tensor.dims) != len(tensor.strides):
            reason = f"{len(tensor.strides)} strides for {len(tensor.dims)} dims"
            raise WireError(f"tensors[{position}].strides", reason)
        known.add(tensor.uid)
    for position, tensor in enumerate(graph.tensors):
        uid = tensor.ragged_offset_tensor_uid
        if uid is not None and uid not in known:
            raise WireError(f"tensors[{position}].ragged_offset_tensor_uid", f"{uid} is no tensor of this graph")
    return known


def _check_writers(graph: WireGraph, known: set[int]) -> dict[int, int]:
    """Which node writes each uid."""
    writers: dict[int, int] = {}
    for position, node in enumerate(graph.nodes):
        attributes = node.attributes
        if not isinstance(attributes, Attributes):
            # records check no types: anything may be there
            if not isinstance(attributes, UnknownAttributes):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise WireError(f"nodes[{position}].attributes", "this is required and missing")
            continue
        for field, uid in attributes.output_uids():
            if uid not in known:
                raise WireError(f"nodes[{position}].attributes.{field}", f"{uid} is no tensor of this graph")
            if uid in writers:
                reason = f"tensor {uid} is written by nodes[{writers[uid]}] already"
                raise WireError(f"nodes[{position}].attributes.{field}", reason)
            writers[uid] = position
    return writers
