"""Emission of attention: one fused operation where it can say what is wanted, else its steps one by one."""

from __future__ import annotations

from typing import NamedTuple

from graph_api import AttentionImplementation, DataType
from graph_api.layout import broadcast_dims
from graph_api.ops.sdpa import SdpaNode
from iree_bridge.emit._attention import fused_attention
from iree_bridge.emit.matmul import product
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.emitter import Emitter, Value, rule
from iree_bridge.target import Target

__all__ = ["sdpa", "uses_fused"]


@rule("sdpa")
def sdpa(e: Emitter, node: SdpaNode) -> None:
    """On a GPU one kernel; on a CPU, whose code for that is 50 times slower, products around a softmax."""
    if uses_fused(node, e.target):
        e.write(node, "o", _fused(e, node))
        return
    for port, value in _decomposed(e, node).items():
        if port in node.outputs:
            e.write(node, port, value)


def uses_fused(node: SdpaNode, target: Target) -> bool:
    """Whether ``target`` computes the node as one fused operation, which has no other result than o."""
    return (
        target.is_gpu
        and node.compute is DataType.FLOAT
        and set(node.outputs) == {"o"}
        and "sink_token" not in node.inputs
        and node.attributes.implementation is not AttentionImplementation.COMPOSITE
    )


# ---- operands ------------------------------------------------------------------------------------------------------


class _Operands(NamedTuple):
    q: Value
    k: Value
    v: Value
    mask: Value | None  # additive, rank 4
    visible: Value | None  # booleans that broadcast to the scores: window and lengths
    alive: Value | None  # booleans [B, 1, Sq, 1]: rows that see a key at all by window and lengths; None: all do


def _operands(e: Emitter, node: SdpaNode) -> _Operands:
    q, k, v = (node.inputs[port] for port in ("q", "k", "v"))
    kind = _product_type(e, node, q.data_type, k.data_type)
    keys, values = e.read(k, kind), e.read(v, _product_type(e, node, v.data_type))
    visible, alive = _visibility(e, node)
    if node.attributes.padding_mask:
        # What lies behind the lengths may be anything, NaN too, and 0 * NaN is NaN: the select keeps it out.
        inside = _compare(e, "lt", _iota(e, k.dims[2], 2), _length(e, node, "seq_len_kv"))
        keys, values = (_where(e, inside, x, 0.0) for x in (keys, values))
    mask = node.inputs.get("attn_mask")
    bias = None
    if mask is not None:
        bias = e.read(mask)
        bias = e.reshape(bias, (*(1,) * (4 - len(bias.dims)), *bias.dims))
    return _Operands(e.read(q, kind), keys, values, bias, visible, alive)


def _product_type(e: Emitter, node: SdpaNode, *types: DataType) -> DataType:
    """The type in which operands are multiplied: their own if it is one, no wider than the compute type."""
    only = types[0] if len(set(types)) == 1 else node.compute
    if only is DataType.BFLOAT16 and e.target.chip == "gfx908":
        return DataType.FLOAT  # its bf16 matrix instructions are not used: scalar code that spills
    return only if only.eps >= node.compute.eps else node.compute


def _visibility(e: Emitter, node: SdpaNode) -> tuple[Value | None, Value | None]:
    """Which query sees which key, and which query sees any, by window and lengths; None: all."""
    _, _, sq, skv = node.score_dims
    window, padded = node.attributes.window, node.attributes.padding_mask
    if window.is_open and not padded:
        return None, None
    i, j = _iota(e, sq, 2), _iota(e, skv, 3)
    conditions: list[Value] = []
    # Bounds further out than the longest distance change nothing and would overflow.
    left, right = (None if x is None else max(-sq - skv, min(x, sq + skv)) for x in (window.left, window.right))
    diagonal, last = _shift(e, i, skv - sq if window.bottom_right else 0), None
    first = None
    if padded:
        lengths = [_length(e, node, port) for port in ("seq_len_q", "seq_len_kv")]
        if window.bottom_right:
            offset = _arithmetic(e, "sub", lengths[1], lengths[0])
            diagonal = _arithmetic(e, "add", i, offset)
        conditions += [_compare(e, "lt", i, lengths[0]), _compare(e, "lt", j, lengths[1])]
        last = _shift(e, lengths[1], -1)
    if right is not None:
        end = _shift(e, diagonal, right)
        conditions.append(_compare(e, "le", j, end))
        last = _shift_min(e, end, last, skv - 1)
    if left is not None:
        first = _shift(e, diagonal, -left)
        conditions.append(_compare(e, "ge", j, first))
    visible = conditions[0]
    for condition in conditions[1:]:
        visible = _and(e, visible, condition)
    return visible, _alive(e, node, first, last, lengths[0] if padded else None)


def _alive(e: Emitter, node: SdpaNode, first: Value | None, last: Value | None, length: Value | None) -> Value | None:
    """Rows whose range of keys first..last is not empty."""
    _, _, sq, skv = node.score_dims
    if length is None and _every_row_sees(node):
        return None
    first = _splat(e, 0) if first is None else _largest(e, first, 0)
    last = _splat(e, skv - 1) if last is None else last
    alive = _compare(e, "le", first, last)
    if length is not None:
        alive = _and(e, alive, _compare(e, "lt", _iota(e, sq, 2), length))
    return alive


def _every_row_sees(node: SdpaNode) -> bool:
    _, _, sq, skv = node.score_dims
    window = node.attributes.window
    offset = skv - sq if window.bottom_right else 0
    for i in (0, sq - 1):  # first and last key move with the row, so the ends decide
        first = 0 if window.left is None else max(0, i + offset - window.left)
        last = skv - 1 if window.right is None else min(skv - 1, i + offset + window.right)
        if first > last:
            return False
    return True


# ---- the two ways --------------------------------------------------------------------------------------------------


def _fused(e: Emitter, node: SdpaNode) -> Value:
    x = _operands(e, node)
    q, scale = x.q, node.constant_scale
    if scale is None:
        factor = _scale_tensor(e, node)
        wide = e.op("aten.mul.Tensor", q.dims, DataType.FLOAT, e.cast(q, DataType.FLOAT), factor)
        q, scale = e.cast(wide, q.dtype), 1.0
    mask = x.mask
    if mask is not None and mask.dtype is DataType.DOUBLE:
        mask = e.cast(mask, DataType.FLOAT)
    if x.visible is not None:
        shown = _splat(e, 0.0, DataType.FLOAT) if mask is None else e.cast(mask, DataType.FLOAT)
        mask = _select(e, x.visible, shown, _splat(e, -float("inf"), DataType.FLOAT))
    return fused_attention(e, q, x.k, x.v, mask, scale)


def _decomposed(e: Emitter, node: SdpaNode) -> dict[str, Value]:
    x = _operands(e, node)
    t = Elementwise(e, node.compute)
    scores = product(e, x.q, e.permute(x.k, [0, 1, 3, 2]), node.compute)
    scale = node.constant_scale
    scores = t.mul(scores, _scale_tensor(e, node)) if scale is None else t.scale(scores, scale)
    if x.mask is not None:
        scores = t.add(scores, e.cast(x.mask, node.compute))
    if x.visible is not None:
        scores = t.select(x.visible, scores, t.constant(-float("inf"), scores))
    top = _reduce(e, "amax", scores)
    sink = node.inputs.get("sink_token")
    logit = None if sink is None else e.read(sink, node.compute)
    shift = top if logit is None else t.call("maximum", top, logit)
    # Rows that see nothing have the maximum -inf; any finite shift makes their weights exp(-inf) = 0.
    finite = t.call("clamp_min", shift, -3.0e38)
    weights = t.unary("exp", t.sub(scores, finite))
    total = _reduce(e, "sum", weights)
    if logit is not None:
        total = t.add(total, t.unary("exp", t.sub(logit, finite)))
    o = product(e, e.cast(weights, x.v.dtype), x.v, node.compute)
    o = t.div(o, t.select(t.compare("eq", total, 0.0), t.constant(1.0, total), total))
    stats = t.add(shift, t.unary("log", total)) if "stats" in node.outputs else total
    return {"o": o, "stats": stats, "max": top, "sum_exp": total}


def _reduce(e: Emitter, name: str, value: Value) -> Value:
    """amax or sum over the last dim, which stays as 1."""
    dims = (*value.dims[:-1], 1)
    if name == "amax":
        return e.op("aten.amax", dims, value.dtype, value, [3], True)
    return e.op("aten.sum.dim_IntList", dims, value.dtype, value, [3], True, None)


# ---- small things --------------------------------------------------------------------------------------------------


def _scale_tensor(e: Emitter, node: SdpaNode) -> Value:
    return e.reshape(e.read(node.inputs["scale"], node.compute), (1, 1, 1, 1))


def _length(e: Emitter, node: SdpaNode, port: str) -> Value:
    return e.read(node.inputs[port], DataType.INT32)


def _iota(e: Emitter, size: int, axis: int) -> Value:
    """0, 1, ... along ``axis`` of rank 4."""
    dims = [1, 1, 1, 1]
    dims[axis] = size
    line = e.op("aten.arange", (size,), DataType.INT32, size, 3, None, None, None)
    return e.reshape(line, dims)


def _splat(e: Emitter, value: float, dtype: DataType = DataType.INT32) -> Value:
    return e.splat(value, (1, 1, 1, 1), dtype)


def _shift(e: Emitter, x: Value, amount: int) -> Value:
    return x if amount == 0 else e.op("aten.add.Scalar", x.dims, x.dtype, x, amount, 1)


def _binary(e: Emitter, name: str, x: Value, y: Value, dtype: DataType, *rest: int) -> Value:
    dims = broadcast_dims([x.dims, y.dims])
    assert dims is not None
    return e.op(f"aten.{name}", dims, dtype, x, y, *rest)


def _arithmetic(e: Emitter, name: str, x: Value, y: Value) -> Value:
    return _binary(e, f"{name}.Tensor", x, y, x.dtype, 1)


def _shift_min(e: Emitter, end: Value, last: Value | None, largest: int) -> Value:
    """The smaller of ``end`` and ``last``, which is ``largest`` if it is None."""
    return _binary(e, "minimum", end, _splat(e, largest) if last is None else last, end.dtype)


def _largest(e: Emitter, x: Value, least: int) -> Value:
    return _binary(e, "maximum", x, _splat(e, least), x.dtype)


def _compare(e: Emitter, name: str, x: Value, y: Value) -> Value:
    return _binary(e, f"{name}.Tensor", x, y, DataType.BOOLEAN)


def _and(e: Emitter, x: Value, y: Value) -> Value:
    return _binary(e, "logical_and", x, y, DataType.BOOLEAN)


def _select(e: Emitter, predicate: Value, x: Value, y: Value) -> Value:
    dims = broadcast_dims([predicate.dims, x.dims, y.dims])
    assert dims is not None
    return e.op("aten.where.self", dims, x.dtype, predicate, x, y)


def _where(e: Emitter, predicate: Value, x: Value, otherwise: float) -> Value:
    return _select(e, predicate, x, _splat(e, otherwise, x.dtype))
