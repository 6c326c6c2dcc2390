"""Activations that torch-mlir's ONNX conversion lacks."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []


@rewrites("Swish")
def _swish(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``x * sigmoid(alpha * x)``; alpha 1 is ``aten.silu``."""
    x, type_ = node.input[0], b.type(node.input[0])
    alpha = b.given.get("alpha", 1.0)
    if type_ is None:
        return None
    if alpha == 1.0:
        return [b.torch("silu", x, like=type_)]
    return [b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.like(x, alpha))))]
