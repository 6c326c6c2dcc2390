"""Operators of ``ai.onnx.ml`` that are arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

_DOMAIN = "ai.onnx.ml"


@rewrites("ArrayFeatureExtractor", domain=_DOMAIN)
def _features(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Positions along the last axis; a vector counts as one row."""
    dims, places = b.dims(node.input[0]), b.dims(node.input[1])
    if not dims or places is None:
        return None
    flat = b.op("Reshape", node.input[1], b.constant([-1]))
    y = b.op("Gather", node.input[0], flat, axis=len(dims) - 1)
    return [b.op("Unsqueeze", y, b.constant([0])) if len(dims) == 1 else y]


@rewrites("Binarizer", domain=_DOMAIN)
def _binary(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """1 for what is greater than the threshold, else 0."""
    type_ = b.type(node.input[0])
    if type_ is None:
        return None
    more = b.op("Greater", node.input[0], b.like(node.input[0], b.given.get("threshold", 0.0)))
    return [b.op("Cast", more, to=type_.element)]
