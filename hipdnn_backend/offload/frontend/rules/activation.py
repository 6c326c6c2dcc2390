"""Activations that torch-mlir's ONNX conversion lacks, or takes for another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.torch_ops import Emitter, emits

__all__: list[str] = []

operator("Gelu", "ThresholdedRelu", keeps_dims=True)
operator("PRelu", weights=(1,), broadcasts=True, trailing=(1,))


@rewrites("PRelu")
def _prelu(b: Builder, node: onnx.NodeProto) -> None:
    """Nothing, but a slope has x's dims or is repeated along them; ONNX Runtime repeats x as well, which is no PRelu.

    Raises:
        ModelError: the slope has a dim that x lacks.
    """
    x, slope = b.dims(node.input[0]), b.dims(node.input[1])
    if x is None or slope is None:
        return
    if len(slope) > len(x) or any(ours not in (1, its) for ours, its in zip(slope[::-1], x[::-1], strict=False)):
        raise b.fail("broadcast", f"the slope has dims {list(slope)}, which do not broadcast to {list(x)} of x")


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


@emits("silu")
def _emit_silu(e: Emitter, x: Any) -> list[Any]:
    return [e.create("torch.aten.silu", e.op.results[0].type, [x])]


@rewrites("ThresholdedRelu")
def _thresholded(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """0 where x is NaN: ``aten.threshold`` has NaN there."""
    x = node.input[0]
    if b.type(x) is None:
        return None
    return [b.op("Where", b.op("Greater", x, b.like(x, b.given.get("alpha", 1.0))), x, b.like(x, 0))]
