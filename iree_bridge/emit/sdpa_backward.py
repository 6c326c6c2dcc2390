"""Emission of attention's gradients: five products around the weights, which are computed again from the statistics."""

from __future__ import annotations

import math
from typing import NamedTuple

from graph_api import DataType
from graph_api.ops.sdpa_backward import SdpaBackwardNode
from iree_bridge.emit.attention import bias_of, cut, dropout_of, element, product_type, visible
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.matmul import product
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.emit.reduction import total as sums

__all__ = ["sdpa_backward"]


class _Dropout(NamedTuple):
    mask: Value
    scale: Value | None
    inverse: Value | None


@rule("sdpa_backward")
def sdpa_backward(e: Emitter, node: SdpaBackwardNode) -> None:
    """Weights and gradients of scores are rounded to the operands' type: each is a kernel's result and others' operand.

    A kernel of its own each: delta, weights, dv, gradients of scores, dq, dk.
    """
    t = Elementwise(e, node.compute)
    q, k = _operands(e, node, "q", "k")
    do, v = _operands(e, node, "do", "v")
    drop = _dropout(e, node)
    stats = e.reshape(_read(e, node, "stats", node.compute), (*node.score_dims[:3], 1))
    weights = e.cast(_weights(t, node, q, k, stats), do.dtype)
    delta = _delta(t, node, do)
    ds = _score_gradients(t, node, weights, delta, do, v, drop)
    for_k, for_q = e.cast(ds, k.dtype), e.cast(ds, q.dtype)
    e.write(node, "dq", _scaled(t, node, product(e, for_k, k, node.compute, across=False)))
    e.write(node, "dk", _scaled(t, node, _across(e, for_q, q, k.dims[1], node.compute)))
    e.write(node, "dv", _across(e, _kept(t, weights, drop), do, v.dims[1], node.compute))
    if "dbias" in node.outputs:
        e.write(node, "dbias", _bias_gradient(e, node, ds, for_k))
    if "dsink_token" in node.outputs:
        e.write(node, "dsink_token", _sink_gradient(t, node, stats, delta))


def _operands(e: Emitter, node: SdpaBackwardNode, queries: str, keys: str) -> tuple[Value, Value]:
    """Two operands of a product, within their lengths."""
    kind = product_type(e, node, *(node.inputs[port].data_type for port in (queries, keys)))
    x, y = (_read(e, node, port, kind) for port in (queries, keys))
    return cut(e, node, "seq_len_q", x), cut(e, node, "seq_len_kv", y)


def _read(e: Emitter, node: SdpaBackwardNode, port: str, kind: DataType) -> Value:
    """An operand, in memory if the graph makes it: several kernels read it, and none is right that makes it again."""
    value = e.read(node.inputs[port], kind)
    return value if node.inputs[port] in e.graph.arguments().inputs else e.barrier(value)


def _dropout(e: Emitter, node: SdpaBackwardNode) -> _Dropout | None:
    mask = dropout_of(e, node)
    if mask is None:
        return None
    names = ("dropout_scale", "dropout_scale_inv")
    return _Dropout(mask, *(element(e, node, name) if name in node.inputs else None for name in names))


def _weights(t: Elementwise, node: SdpaBackwardNode, q: Value, k: Value, stats: Value) -> Value:
    """exp(scores - stats), 0 where a query does not see a key."""
    e = t.e
    scores = _scaled(t, node, product(e, q, e.permute(k, [0, 1, 3, 2]), node.compute, across=True))
    bias = bias_of(t, node)
    if bias is not None:
        scores = t.add(scores, bias)
    seen = t.compare("ne", stats, -math.inf)
    shown = visible(e, node)
    if shown is not None:
        seen = t.call("logical_and", shown, seen, dtype=DataType.BOOLEAN)
    return t.select(seen, t.unary("exp", t.sub(scores, stats)), t.constant(0.0, scores))


def _delta(t: Elementwise, node: SdpaBackwardNode, do: Value) -> Value:
    """sum(do * o) over the head size."""
    o = cut(t.e, node, "seq_len_q", _read(t.e, node, "o", node.compute))
    return sums(t.e, t.mul(t.e.cast(do, node.compute), o), [3])


def _score_gradients(
    t: Elementwise, node: SdpaBackwardNode, weights: Value, delta: Value, do: Value, v: Value, drop: _Dropout | None
) -> Value:
    """Of the scores before the bias, without the factor of the scale."""
    e = t.e
    dp = product(e, do, e.permute(v, [0, 1, 3, 2]), node.compute, across=True)
    weights = e.cast(weights, node.compute)
    if drop is None:
        return t.mul(weights, t.sub(dp, delta))
    dp = t.sub(t.mul(dp, drop.mask), delta if drop.inverse is None else t.mul(delta, drop.inverse))
    return t.mul(weights, dp if drop.scale is None else t.mul(dp, drop.scale))


def _kept(t: Elementwise, weights: Value, drop: _Dropout | None) -> Value:
    """What of the weights a dropout leaves, in their type."""
    if drop is None:
        return weights
    kept = t.mul(t.e.cast(weights, t.dtype), drop.mask)
    return t.e.cast(kept if drop.scale is None else t.mul(kept, drop.scale), weights.dtype)


def _across(e: Emitter, matrix: Value, x: Value, heads: int, dtype: DataType) -> Value:
    """[B, H, Sq, Skv] transposed, times [B, H, Sq, D], summed over the query heads of each of ``heads`` groups.

    The heads of a group are more rows of both: the sum over them is that of the product.
    """
    b, _, _, keys = matrix.dims
    rows = matrix.dims[1] // heads * matrix.dims[2]
    matrix, x = e.reshape(matrix, (b, heads, rows, keys)), e.reshape(x, (b, heads, rows, x.dims[3]))
    return product(e, e.permute(matrix, [0, 1, 3, 2]), x, dtype, across=False)


def _scaled(t: Elementwise, node: SdpaBackwardNode, x: Value) -> Value:
    scale = node.constant_scale
    return t.mul(x, element(t.e, node, "scale")) if scale is None else t.scale(x, scale)


def _bias_gradient(e: Emitter, node: SdpaBackwardNode, ds: Value, rounded: Value) -> Value:
    """Of the rounded gradients where they are summed: those are in memory."""
    axes = node.bias_axes()
    value = sums(e, e.cast(rounded, node.compute), list(axes)) if axes else ds
    return e.reshape(value, node.inputs["attn_mask"].dims)


def _sink_gradient(t: Elementwise, node: SdpaBackwardNode, stats: Value, delta: Value) -> Value:
    sink, stats = t.e.read(node.inputs["sink_token"], node.compute), cut(t.e, node, "seq_len_q", stats)
    share = t.unary("exp", t.sub(sink, stats))
    share = t.select(t.compare("ne", stats, -math.inf), share, t.constant(0.0, stats))
    return t.unary("neg", sums(t.e, t.mul(share, delta), [0, 2]))
