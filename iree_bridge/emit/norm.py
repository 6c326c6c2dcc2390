"""Emission of normalisations: reductions and arithmetic in the compute type, which the compiler fuses."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType, TensorAttr
from graph_api.ops.norm import (
    BatchnormInferenceNode,
    BatchnormInferenceVarianceNode,
    BatchnormNode,
    LayernormNode,
    RmsnormNode,
)
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.emit.reduction import accumulator, fills_waves, mean

__all__ = [
    "batchnorm",
    "batchnorm_inference",
    "batchnorm_inference_variance",
    "inverse_root",
    "layernorm",
    "moments",
    "number",
    "rmsnorm",
]


@rule("batchnorm_inference")
def batchnorm_inference(e: Emitter, node: BatchnormInferenceNode) -> None:
    """(x - mean) * inv_variance * scale + bias."""
    t = Elementwise(e, node.compute)
    x, center, inverse, scale, bias = (e.read(node.inputs[port], node.compute) for port in node.input_ports)
    e.write(node, "y", _affine(t, t.sub(x, center), inverse, scale, bias))


@rule("batchnorm_inference_variance_ext")
def batchnorm_inference_variance(e: Emitter, node: BatchnormInferenceVarianceNode) -> None:
    """(x - mean) * rsqrt(variance + epsilon) * scale + bias."""
    t = Elementwise(e, node.compute)
    x, center, variance, scale, bias = (e.read(node.inputs[port], node.compute) for port in node.input_ports[:5])
    inverse = inverse_root(t, variance, number(t, node.inputs["epsilon"], variance))
    e.write(node, "y", _affine(t, t.sub(x, center), inverse, scale, bias))


@rule("batchnorm")
def batchnorm(e: Emitter, node: BatchnormNode) -> None:
    """Statistics of x in two passes, then as in inference; running statistics where they are wanted."""
    kind = _arithmetic(e, node)
    t = Elementwise(e, kind)
    x, scale, bias = (e.read(node.inputs[port], kind) for port in ("x", "scale", "bias"))
    center, difference, variance = moments(t, x, node.axes)
    inverse = inverse_root(t, variance, number(t, node.inputs["epsilon"], variance))
    results = {"y": _affine(t, difference, inverse, scale, bias), "mean": center, "inv_variance": inverse}
    for port, value in results.items():
        if port in node.outputs:
            e.write(node, port, value)
    for what, new in (("mean", center), ("variance", t.scale(variance, node.correction))):
        if f"next_running_{what}" in node.outputs:
            old = e.read(node.inputs[f"prev_running_{what}"], kind)
            momentum = number(t, node.inputs["momentum"], old)
            rest = t.call("rsub.Scalar", momentum, 1.0, 1)
            e.write(node, f"next_running_{what}", t.add(t.mul(rest, old), t.mul(momentum, new)))


@rule("layernorm")
def layernorm(e: Emitter, node: LayernormNode) -> None:
    """Statistics of the trailing dims in two passes, then (x - mean) * inv_variance * scale + bias."""
    kind = _arithmetic(e, node)
    t = Elementwise(e, kind)
    x, scale, bias = (e.read(node.inputs[port], kind) for port in ("x", "scale", "bias"))
    center, difference, variance = moments(t, x, node.axes)
    inverse = inverse_root(t, variance, number(t, node.inputs["epsilon"], variance))
    if _needs_statistics_first(e, node):
        center, inverse = e.barrier(center), e.barrier(inverse)
        difference = t.sub(e.cast(e.again(node.inputs["x"]), kind), center)
    y = e.stored_beside(_affine(t, difference, inverse, scale, bias), node.inputs["x"])
    results = {"y": y, "mean": center, "inv_variance": inverse}
    for port in node.outputs:
        e.write(node, port, results[port])


@rule("rmsnorm")
def rmsnorm(e: Emitter, node: RmsnormNode) -> None:
    """x * rsqrt(mean of x^2 + epsilon) * scale (+ bias); in the compute type, so that squares of f16 stay finite."""
    kind = _arithmetic(e, node)
    t = Elementwise(e, kind)
    x, scale = (e.read(node.inputs[port], kind) for port in ("x", "scale"))
    square = mean(e, t.mul(x, x), node.axes)
    inverse = inverse_root(t, square, number(t, node.inputs["epsilon"], square))
    if _needs_statistics_first(e, node):
        x, inverse = e.cast(e.again(node.inputs["x"]), kind), e.barrier(inverse)
    bias = e.read(node.inputs["bias"], kind) if "bias" in node.inputs else None
    e.write(node, "y", e.stored_beside(_affine(t, x, inverse, scale, bias), node.inputs["x"]))
    if "inv_rms" in node.outputs:
        e.write(node, "inv_rms", inverse)


def _arithmetic(e: Emitter, node: BatchnormNode | LayernormNode | RmsnormNode) -> DataType:
    """The type in which all is computed: that in which the statistics are summed.

    Conversions between the steps would be cheaper, but the compiler starts another kernel at each.
    """
    return accumulator(e.target, node.inputs["x"].dims, node.axes, node.compute)


def _needs_statistics_first(e: Emitter, node: LayernormNode | RmsnormNode) -> bool:
    """Whether a GPU computes the statistics in a kernel of their own, and y of x again where it is needed.

    That is where y goes to blocks that are quantised. The kernel of the statistics would make x less its mean as well,
    to be stored beside its sums; and that the compiler fails to distribute.
    """
    return e.target.is_gpu and _reaches_blocks(e, node.outputs["y"])


def _reaches_blocks(e: Emitter, tensor: TensorAttr) -> bool:
    return any(
        node.op == "block_scale_quantize" or (node.op == "pointwise" and _reaches_blocks(e, node.outputs["out_0"]))
        for node in e.graph.readers(tensor)
    )


def moments(t: Elementwise, x: Value, axes: Sequence[int]) -> tuple[Value, Value, Value]:
    """Mean, difference from it, biased variance: of a constant row the last two are 0 where its sum is exact.

    For what `fills_waves` says the mean is a kernel of its own.
    """
    center = mean(t.e, x, axes)
    if t.e.target.is_gpu and not fills_waves(x.dims, axes):
        center = t.e.barrier(center)
    difference = t.sub(x, center)
    return center, difference, mean(t.e, t.mul(difference, difference), axes)


def inverse_root(t: Elementwise, value: Value, epsilon: Value) -> Value:
    """1 / sqrt(value + epsilon)."""
    return t.unary("rsqrt", t.add(value, epsilon))


def _affine(t: Elementwise, x: Value, inverse: Value, scale: Value, bias: Value | None) -> Value:
    y = t.mul(t.mul(x, inverse), scale)
    return y if bias is None else t.add(y, bias)


def number(t: Elementwise, tensor: TensorAttr, like: Value) -> Value:
    """A tensor of one element with as many dims as ``like``."""
    return t.e.reshape(t.e.read(tensor, t.dtype), (1,) * len(like.dims))
