"""Norms and fused operators of ONNX Runtime's ``com.microsoft`` domain, which its optimisers write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import TensorType
from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__ = ["DOMAIN"]

operator("SimplifiedLayerNormalization", trailing=(1, 2))
operator("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", trailing=(1, 2, 3, 4))

DOMAIN = "com.microsoft"


def _activated(b: Builder, y: str, name: str, parameters: Sequence[float]) -> str:
    """A fused activation with its parameters."""
    if not name:
        return y
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Clip": ()}.get(name, ())
    if name == "Clip":
        return b.op("Clip", y, *(b.like(b.node.input[0], bound) for bound in parameters))
    if name not in ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish"):
        raise b.unsupported("fused-activation", f"activation {name!r} is not known")
    given: dict[str, Any] = dict(zip(names, parameters, strict=False))
    return b.op(name, y, **given)


@rewrites(
    "FusedConv",
    domain=DOMAIN,
    operands=4,
    attributes="activation activation_params auto_pad dilations group kernel_shape pads strides",
)
def _fused_conv(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``activation(conv(x, w, b) + z)``."""
    given = dict(b.given)
    name, parameters = given.pop("activation", ""), given.pop("activation_params", [])
    y = b.op("Conv", *node.input[:3], **given)
    return [_activated(b, b.op("Add", y, b.input(3)) if b.input(3) else y, name, parameters)]


@rewrites(
    "FusedGemm",
    domain=DOMAIN,
    operands=3,
    attributes="activation activation_alpha activation_beta alpha beta transA transB",
)
def _fused_gemm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    given: dict[str, Any] = {name: b.given.get(name) for name in ("alpha", "beta", "transA", "transB")}
    parameters = [b.given[name] for name in ("activation_alpha", "activation_beta") if name in b.given]
    return [_activated(b, b.op("Gemm", *node.input, **given), b.given.get("activation", ""), parameters)]


@rewrites("FusedMatMul", domain=DOMAIN, operands=2, attributes="alpha transA transB transBatchA transBatchB")
def _fused_matmul(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``alpha * a @ b`` with either transposed."""
    operands = []
    if b.given.get("transBatchA", 0) or b.given.get("transBatchB", 0):
        raise b.unsupported("fused-matmul", "transposed batch dims are not known")
    for name, turn in zip(node.input, ("transA", "transB"), strict=True):
        dims = b.dims(name)
        if dims is None:
            return None
        order = [*range(len(dims) - 2), len(dims) - 1, len(dims) - 2]
        operands.append(b.op("Transpose", name, perm=order) if b.given.get(turn, 0) and len(dims) > 1 else name)
    alpha = b.given.get("alpha", 1.0)
    y = b.op("MatMul", *operands)
    return [b.op("Mul", y, b.like(node.input[0], alpha)) if alpha != 1.0 else y]


@rewrites("Gelu", "BiasGelu", "FastGelu", domain=DOMAIN, operands=2, attributes="")
def _gelu(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    x = b.op("Add", node.input[0], b.input(1)) if b.input(1) else node.input[0]
    return [b.op("Gelu", x, approximate="tanh" if node.op_type == "FastGelu" else "none")]


@rewrites("QuickGelu", domain=DOMAIN, operands=1, attributes="alpha")
def _quick_gelu(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    x = node.input[0]
    if b.type(x) is None:
        return None
    alpha = b.like(x, b.given.get("alpha", 1.702))
    return [b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, alpha)))]


@rewrites("SimplifiedLayerNormalization", domain=DOMAIN, operands=2, attributes="axis epsilon stash_type")
def _simplified(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """RMS norm over the last dims; its inverse root is no result that inference reads."""
    dims = b.dims(node.input[0])
    if dims is None or b.has_output(1):
        return None
    axis = b.given.get("axis", -1)
    return [_rms(b, node.input[0], node.input[1], axis, b.type(node.input[0])), ""]


def _rms(b: Builder, x: str, scale: str, axis: int, type_: TensorType | None) -> str:
    epsilon = b.given.get("epsilon", 1e-5)
    if type_ is not None and axis in (-1, len(type_.dims or ()) - 1) and b.dtype(scale) == type_.dtype:
        return b.torch("rms_norm", x, scale, like=type_, epsilon=float(epsilon))
    assert type_ is not None
    wide = b.op("Cast", x, to=onnx.TensorProto.FLOAT)
    axes = b.constant(list(range(axis % len(type_.dims or ()), len(type_.dims or ()))))
    mean = b.op("ReduceMean", b.op("Mul", wide, wide), axes, keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.constant(epsilon, np.float32)))
    return b.op("Mul", b.op("Cast", b.op("Div", wide, root), to=type_.element), scale)


@rewrites("SkipSimplifiedLayerNormalization", domain=DOMAIN, operands=4, attributes="epsilon")
def _skip_simplified(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """RMS norm of ``x + skip (+ bias)``, which is the fourth result."""
    type_ = b.type(node.input[0])
    if type_ is None or type_.static is None:
        return None
    total = _skipped(b, node, b.input(3))
    return [_rms(b, total, node.input[2], -1, type_), "", "", total]


@rewrites("SkipLayerNormalization", domain=DOMAIN, operands=5, attributes="epsilon")
def _skip_layer_norm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Layer norm of ``x + skip (+ bias)``, which is the fourth result."""
    total = _skipped(b, node, b.input(4))
    operands = [total, node.input[2], *([b.input(3)] if b.input(3) else [])]
    return [b.op("LayerNormalization", *operands, axis=-1, epsilon=b.given.get("epsilon", 1e-12)), "", "", total]


def _skipped(b: Builder, node: onnx.NodeProto, bias: str) -> str:
    if any(b.has_output(i) for i in (1, 2)):
        raise b.unsupported("norm-statistics", "mean and inverse deviation are results for training only")
    total = b.op("Add", *node.input[:2])
    return b.op("Add", total, bias) if bias else total
