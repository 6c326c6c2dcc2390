"""Emission of the gradients of normalisations: sums and arithmetic in the compute type, which the compiler fuses."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType
from graph_api.ops.norm_backward import (
    BATCHNORM_BACKWARD_EPSILON,
    BatchnormBackwardNode,
    LayernormBackwardNode,
    RmsnormBackwardNode,
)
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.norm import inverse_root, number
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.emit.reduction import accumulator, mean, plus_nothing, total

__all__ = ["batchnorm_backward", "trailing"]


@rule("batchnorm_backward")
def batchnorm_backward(e: Emitter, node: BatchnormBackwardNode) -> None:
    """Both sums over each channel, then dx of them."""
    t = Elementwise(e, _arithmetic(e, node, node.axes))
    center, inverse = _statistics(t, node)
    dy, normal = _operands(t, node, center, inverse)
    dbias, dscale = total(e, dy, node.axes), total(e, _terms(t, dy, normal), node.axes)
    count = node.inputs["x"].volume // node.inputs["x"].dims[1]
    along, across = (t.scale(summed, 1 / count) for summed in (dbias, dscale))
    factor = t.mul(e.read(node.inputs["scale"], t.dtype), inverse)
    dx = t.mul(t.sub(t.sub(dy, along), t.mul(normal, across)), factor)
    for port, value in (("dx", dx), ("dscale", dscale), ("dbias", dbias)):
        e.write(node, port, value)


@rule("layernorm_backward")
@rule("rmsnorm_backward")
def trailing(e: Emitter, node: LayernormBackwardNode | RmsnormBackwardNode) -> None:
    """The means of each row, dx of them, the sums of each column.

    On a GPU these are kernels of their own, each of which reads dy and x: what two share would be stored, and two sums
    of a row together with what is made of them need all registers and more, or minutes to compile.
    """
    t = Elementwise(e, _arithmetic(e, node, node.axes, node.lead_axes))
    center, inverse = _statistics(t, node)
    scale = e.read(node.inputs["scale"], t.dtype)
    scale = e.reshape(scale, (1,) * (node.inputs["x"].rank - len(scale.dims)) + scale.dims)
    dy, normal = _operands(t, node, center, inverse)
    across = _alone(e, mean(e, _terms(t, t.mul(dy, scale), normal), node.axes))
    dy, normal = _operands(t, node, center, inverse)
    along = None if center is None else _alone(e, mean(e, _terms(t, dy, scale), node.axes))
    dy, normal = _operands(t, node, center, inverse)
    left = t.sub(t.mul(dy, scale), t.mul(normal, across))
    e.write(node, "dx", t.mul(left if along is None else t.sub(left, along), inverse))
    dy, normal = _operands(t, node, center, inverse)
    for port, terms in (("dscale", _terms(t, dy, normal)), ("dbias", dy)):
        if port in node.outputs:
            summed = total(e, terms, node.lead_axes) if node.lead_axes else terms
            e.write(node, port, e.reshape(summed, node.outputs[port].dims))


def _arithmetic(
    e: Emitter, node: BatchnormBackwardNode | LayernormBackwardNode | RmsnormBackwardNode, *sums: Sequence[int]
) -> DataType:
    """The type in which all is computed: the widest of those of its sums, given by their axes."""
    dims = node.inputs["x"].dims
    kinds = [accumulator(e.target, dims, axes, node.compute) for axes in sums if axes]
    return DataType.DOUBLE if DataType.DOUBLE in kinds else node.compute


def _statistics(
    t: Elementwise, node: BatchnormBackwardNode | LayernormBackwardNode | RmsnormBackwardNode
) -> tuple[Value | None, Value]:
    """Mean, which an RMS norm has none of, and inverse deviation: given, or computed from x."""
    e, given = t.e, node.inputs
    if isinstance(node, RmsnormBackwardNode):
        return None, e.read(given["inv_rms"], t.dtype)
    if "mean" in given:
        return e.read(given["mean"], t.dtype), e.read(given["inv_variance"], t.dtype)
    x = e.read(given["x"], t.dtype)
    if isinstance(node, LayernormBackwardNode):
        epsilon = number(t, given["epsilon"], x)
    else:
        epsilon = e.splat(BATCHNORM_BACKWARD_EPSILON, (1,) * len(x.dims), t.dtype)
    center = _alone(e, mean(e, x, node.axes))
    difference = t.sub(x, center)
    variance = mean(e, _terms(t, difference, difference), node.axes)
    return center, _alone(e, inverse_root(t, variance, epsilon))


def _operands(
    t: Elementwise,
    node: BatchnormBackwardNode | LayernormBackwardNode | RmsnormBackwardNode,
    center: Value | None,
    inverse: Value,
) -> tuple[Value, Value]:
    """dy and normalised x, at each call as values that the compiler for a GPU does not know to be computed already."""
    e = t.e
    dy, x = (e.again(tensor) if e.target.is_gpu else e.read(tensor) for tensor in (node.inputs["dy"], node.inputs["x"]))
    dy, x = e.cast(dy, t.dtype), e.cast(x, t.dtype)
    return dy, t.mul(x if center is None else t.sub(x, center), inverse)


def _alone(e: Emitter, value: Value) -> Value:
    """``value``, for a GPU as the result of a kernel of its own."""
    return e.barrier(value) if e.target.is_gpu else value


def _terms(t: Elementwise, a: Value, b: Value) -> Value:
    """``a * b`` for a sum."""
    return plus_nothing(t.e, t.mul(a, b))
