"""Concatenations that need no kernel: where the parts follow each other in memory, their makers write them there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from hipdnn_backend.offload.mlir import ir
from hipdnn_backend.offload.passes.graph import LIST, FunctionGraph, Node
from hipdnn_backend.offload.passes.regions import replace_results

__all__ = ["CONCAT", "concat_of", "is_in_place", "lower_concat"]

CONCAT: Final = "hipdnn.concat"

_ALIGNMENT: Final = 64  # bytes between the starts of two parts: what buffers and kernels expect of an address
_BYTES: Final = {"f64": 8, "si64": 8, "f32": 4, "si32": 4, "f16": 2, "bf16": 2, "si8": 1, "ui8": 1, "i1": 1}


def _shape(value: Any) -> tuple[list[int], str]:
    """Dims and element type of a torch tensor; a dim that is not static is -1."""
    text = str(value.type)
    dims, _bracket, dtype = text[text.index("[") + 1 : text.rindex(">")].partition("],")
    return [int(dim) if dim.isdecimal() else -1 for dim in filter(None, dims.split(","))], dtype


def _axis(graph: FunctionGraph, node: Node) -> int | None:
    """The constant axis of an ``aten.cat``, counted from 0."""
    owner = graph.constants.get(node.op.operands[1])
    if owner is None or owner.name != "torch.constant.int":
        return None
    axis = ir.IntegerAttr(owner.attributes["value"]).value
    return axis + len(_shape(node.op.results[0])[0]) if axis < 0 else axis


def _parts(graph: FunctionGraph, node: Node) -> list[Any]:
    owner = graph.constants.get(node.op.operands[0])
    return list(owner.operands) if owner is not None and owner.name == LIST else []


def is_in_place(graph: FunctionGraph, node: Node) -> bool:
    """True for an ``aten.cat`` whose parts are aligned runs of its result's memory, all made by operations."""
    if node.name != "torch.aten.cat":
        return False
    parts, axis = _parts(graph, node), _axis(graph, node)
    dims, dtype = _shape(node.op.results[0])
    if axis is None or not parts or dtype not in _BYTES or min(dims) < 1 or math.prod(dims[:axis]) != 1:
        return False
    for part in parts:
        own, own_dtype = _shape(part)
        if own_dtype != dtype or len(own) != len(dims) or min(own) < 1 or part not in graph.owner:
            return False
        if math.prod(own) * _BYTES[dtype] % _ALIGNMENT:
            return False
    return len(set(parts)) == len(parts)


def concat_of(graph: FunctionGraph, node: Node) -> None:
    """Replaces an ``aten.cat`` by ``torch.operator "hipdnn.concat"``, which has the parts as operands."""
    op, axis = node.op, _axis(graph, node)
    index = ir.IntegerType.get_signless(64, op.context)
    # the list's operands are read from the list, since parts may have become results of regions
    parts = list(op.operands[0].owner.operation.operands)
    made = ir.Operation.create(
        "torch.operator",
        results=[op.results[0].type],
        operands=parts,
        attributes={"name": ir.StringAttr.get(CONCAT, op.context), "dim": ir.IntegerAttr.get(index, axis)},
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    replace_results(op, list(made.results))
    op.erase()


def lower_concat(op: Any, parts: Sequence[Any], to: Any) -> Any:
    """The parts inserted one behind the other into an empty tensor, which stands in front of all that makes them.

    Args:
        op: the ``hipdnn.concat``.
        parts: its operands as builtin tensors.
        to: the builtin type of its result.
    """
    axis, context, place = ir.IntegerAttr(op.attributes["dim"]).value, op.context, op.location
    start = ir.InsertionPoint.at_block_begin(op.block)
    whole = ir.Operation.create("tensor.empty", results=[to], loc=place, ip=start).results[0]
    offset, rank = 0, ir.RankedTensorType(to).rank
    for part in parts:
        sizes = list(ir.RankedTensorType(part.type).shape)
        offsets = [offset if dim == axis else 0 for dim in range(rank)]
        attributes = {
            "static_offsets": ir.DenseI64ArrayAttr.get(offsets, context),
            "static_sizes": ir.DenseI64ArrayAttr.get(sizes, context),
            "static_strides": ir.DenseI64ArrayAttr.get([1] * rank, context),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, 0, 0, 0], context),
        }
        whole = ir.Operation.create(
            "tensor.insert_slice",
            results=[to],
            operands=[part, whole],
            attributes=attributes,
            loc=place,
            ip=ir.InsertionPoint(op),
        ).results[0]
        offset += sizes[axis]
    return whole
