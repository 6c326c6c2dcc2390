"""Floating-point operations of ONNX nodes, from the dims of their tensors: how much of a model's work is claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from fusilli_plugin.ort_ep.graphs import Node, SessionGraph, Value

__all__ = ["node_flops"]

_CONVOLUTIONS: Final = frozenset({"Conv", "FusedConv", "NhwcFusedConv"})
_PRODUCTS: Final = frozenset({"MatMul", "FusedMatMul", "Gemm", "FusedGemm"})
_ATTENTIONS: Final = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
# They move elements or make them; nothing is computed.
_MOVES: Final = frozenset(
    [
        "Cast",
        "CastLike",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "DepthToSpace",
        "Dropout",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Range",
        "Reshape",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ]
)


def node_flops(graph: SessionGraph, node: Node) -> int:
    """Operations of one run of a node; a multiplication and an addition are two.

    Convolutions, matrix products and attention are counted exactly (attention without its softmax, masks ignored);
    what moves data is 0; everything else counts one for each element of its largest tensor. Dims that are not known
    before a run count as 1.

    Args:
        graph: that the node is in.
        node: as ONNX Runtime shows it.
    """
    if node.op_type in _MOVES:
        return 0
    inputs = [_extents(graph.values, name) for name in node.inputs]
    outputs = [_extents(graph.values, name) for name in node.outputs]
    if not inputs or not outputs:
        return 0
    made = prod(outputs[0])
    if node.op_type in _CONVOLUTIONS and len(inputs) > 1:  # each result is a sum over a filter
        return 2 * made * prod(inputs[1][1:])
    if node.op_type == "ConvTranspose" and len(inputs) > 1:  # each input is spread by its filters
        return 2 * prod(inputs[0]) * prod(inputs[1][1:])
    if node.op_type in _PRODUCTS and len(inputs) > 1:
        return 2 * made * _depth(inputs, outputs[0])
    if node.op_type in _ATTENTIONS and len(inputs) > 1 and len(inputs[1]) > 2:  # scores, and their product with V
        return 4 * made * inputs[1][-2]
    return max(prod(dims) for dims in (*inputs, *outputs))


def _depth(inputs: Sequence[Sequence[int]], output: Sequence[int]) -> int:
    """How many products a sum has. The first operand may be transposed, so its number of elements tells."""
    if len(inputs[0]) < 2 or len(output) < 2:
        return inputs[0][-1] if inputs[0] else 1
    batch = prod(inputs[0][:-2])
    rows = output[-2] if len(inputs[1]) > 1 else output[-1]
    return prod(inputs[0]) // max(batch * rows, 1)


def _extents(values: Mapping[str, Value], name: str) -> tuple[int, ...]:
    value = values.get(name)
    return tuple(dim if isinstance(dim, int) else 1 for dim in (value.dims if value else None) or ())
