"""Nodes that do nothing at inference: their readers read what they read."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("Expand", "Reshape", "Squeeze", "Unsqueeze", static=(1,))
operator("Identity", "Transpose", keeps_dims=True)
operator("Max", "Mean", "Min", "Sum", broadcasts=True)


@rewrites("Identity")
def _identity(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    return [node.input[0]] if b.type(node.input[0]) else None


@rewrites("Cast", "Reshape", "Expand", "Flatten", "Squeeze", "Unsqueeze")
def _same_type(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    before, after = b.type(node.input[0]), b.type(node.output[0])
    same = before is not None and before == after and before.static is not None
    return [node.input[0]] if same else None


@rewrites("Transpose")
def _same_order(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    perm = b.given.get("perm")
    return [node.input[0]] if perm is not None and perm == list(range(len(perm))) else None


@rewrites("Concat", "Sum", "Max", "Min", "Mean")
def _single(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    return [node.input[0]] if len(node.input) == 1 else None
