"""Element types of 8 bits and less that the torch dialect lacks, or that compilers treat differently: as bytes.

Rules that compute with such elements ask for their codes (``codes`` of `TORCH_DOMAIN`) and make elements of codes
(``of_codes``); `rules.small_types` knows what the codes mean. Everything else that touches them moves them. So behind
the rewrites a tensor of such a type can be one of UINT8, a code a byte, as numpy has it: `carried`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from fusilli_ground import float_formats
from fusilli_ground.float_formats import FloatFormat
from hipdnn_backend.offload.errors import UnsupportedNodeError
from hipdnn_backend.offload.frontend.graph import TORCH_DOMAIN, OnnxGraph, Output, TensorType, rename, subgraphs

__all__ = ["CODES", "OF_CODES", "SMALL", "Integer", "carried", "is_small_type", "packed"]

CODES, OF_CODES = "codes", "of_codes"
"""Operators of `TORCH_DOMAIN`: the same bytes as UINT8, or as elements of the small type ``to``."""

_MOVES = frozenset({
    "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity",
    "Pad", "Reshape", "ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
"""Operators that do not look at elements."""


@dataclass(frozen=True)
class Integer:
    """An integer of less than a byte: codes are its last bits.

    Attributes:
        bits: of an element.
        signed: in two's complement.
    """

    bits: int
    signed: bool


SMALL: Mapping[int, FloatFormat | Integer] = {
    TensorProto.FLOAT8E4M3FN: float_formats.E4M3,
    TensorProto.FLOAT8E5M2: float_formats.E5M2,
    TensorProto.FLOAT8E4M3FNUZ: float_formats.E4M3_FNUZ,
    TensorProto.FLOAT8E5M2FNUZ: float_formats.E5M2_FNUZ,
    TensorProto.FLOAT8E8M0: float_formats.E8M0,
    TensorProto.FLOAT4E2M1: float_formats.E2M1,
    TensorProto.INT4: Integer(4, signed=True),
    TensorProto.UINT4: Integer(4, signed=False),
    TensorProto.INT2: Integer(2, signed=True),
    TensorProto.UINT2: Integer(2, signed=False),
    TensorProto.FLOAT6E2M3: float_formats.E2M3,
    TensorProto.FLOAT6E3M2: float_formats.E3M2,
}
"""Element type → what its codes are."""


def is_small_type(type_: TensorType | None) -> bool:
    """Whether a tensor has elements of `SMALL`."""
    return type_ is not None and type_.element in SMALL


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes, a byte each, as a row of bytes that hold several, the lowest bits first; ``bits`` divides 8."""
    per = 8 // bits
    rows = np.zeros((-(-codes.size // per), per), np.uint8)
    rows.reshape(-1)[: codes.size] = codes.reshape(-1) & ((1 << bits) - 1)
    return np.bitwise_or.reduce(rows << (bits * np.arange(per, dtype=np.uint8)), axis=1)


def carried(graph: OnnxGraph) -> OnnxGraph:
    """The graph with UINT8 in the place of small types; the graph itself if it has none.

    Requires: types are current, nothing is to be rewritten any more.

    Raises:
        UnsupportedNodeError: a node computes with such elements, and no rule has rewritten it.
    """
    names = {name for name, type_ in _all_types(graph) if is_small_type(type_)}
    if not names and not any(map(_is_same, graph.nodes)):
        return graph
    result = OnnxGraph(graph.name, graph.opsets)
    result.inputs = {name: _carrier(type_) for name, type_ in graph.inputs.items()}
    result.outputs = [replace(output, type=_output_type(graph, output)) for output in graph.outputs]
    result.constants = {
        name: value.view(np.uint8) if name in names else value for name, value in graph.constants.items()
    }
    result.types = {name: _carrier(type_) for name, type_ in graph.types.items()}
    result.declared = {name: _carrier(type_) for name, type_ in graph.declared.items()}
    result.hints, result.whole, result.sources = graph.hints, graph.whole, graph.sources
    same: dict[str, str] = {}
    for node in graph.nodes:
        if _is_same(node):
            same[node.output[0]] = same.get(node.input[0], node.input[0])
            continue
        _check(graph, node, names)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        rename(copy, same)
        result.nodes.append(copy)
    for output in result.outputs:
        output.value = same.get(output.value, output.value)
    return result


def _is_same(node: onnx.NodeProto) -> bool:
    """Whether a node gives the bytes that it takes."""
    return node.domain == TORCH_DOMAIN and node.op_type in (CODES, OF_CODES)


def _all_types(graph: OnnxGraph) -> Iterable[tuple[str, TensorType]]:
    yield from graph.inputs.items()
    yield from graph.types.items()
    yield from graph.declared.items()
    for name, value in graph.constants.items():
        if not value.dtype.hasobject:
            yield name, TensorType.of_array(value)


def _carrier(type_: TensorType) -> TensorType:
    return TensorType(TensorProto.UINT8, type_.dims) if is_small_type(type_) else type_


def _output_type(graph: OnnxGraph, output: Output) -> onnx.TypeProto:
    known = graph.type(output.value)
    if not is_small_type(known):
        return output.type
    return onnx.helper.make_tensor_type_proto(TensorProto.UINT8, None)


def _check(graph: OnnxGraph, node: onnx.NodeProto, names: set[str]) -> None:
    """Refuse a node that looks at elements of a small type."""
    bodies = any(True for _ in subgraphs(node))
    touched = [name for name in (*node.input, *node.output) if name in names]
    if bodies:
        touched += _small_in_bodies(node)
    moves = node.op_type in _MOVES and not node.domain and not _reduces(node)
    if touched and (bodies or not (moves or node.domain == TORCH_DOMAIN)):
        type_ = graph.type(touched[0])
        kind = TensorProto.DataType.Name(type_.element) if type_ is not None else "a small type"
        reason = f"{node.op_type}: {touched[0]!r} has elements of type {kind}, with which nothing here computes that"
        raise UnsupportedNodeError(node.name, "element-type", reason)


def _reduces(node: onnx.NodeProto) -> bool:
    """Whether a scattering node combines elements."""
    return any(each.name == "reduction" and each.s not in (b"", b"none") for each in node.attribute)


def _small_in_bodies(node: onnx.NodeProto) -> list[str]:
    """Values in the bodies of a node that are declared to have, or are cast to, a small type."""
    found = []
    for body in subgraphs(node):
        for value in (*body.input, *body.output, *body.value_info):
            if value.type.tensor_type.elem_type in SMALL:
                found.append(value.name)
        found += [tensor.name for tensor in body.initializer if tensor.data_type in SMALL]
        for inner in body.node:
            if any(each.name in ("to", "output_dtype") and each.i in SMALL for each in inner.attribute):
                found.append(inner.output[0])
            found += _small_in_bodies(inner)
    return found
