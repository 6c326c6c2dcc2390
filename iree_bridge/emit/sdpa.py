"""Emission of attention: one fused operation where it can say what is wanted, else its steps one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from fusilli_ground.late_numpy import np
from graph_api import DataType, TensorAttr
from graph_api.ops.sdpa import SdpaNode
from iree_bridge.emit.attention import alibi, cut, dropout_of, element, factor_of, product_type, rank_4, visible
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.fused_attention import LEAST_MASK, FusedAttention, Tiles, fused_attention
from iree_bridge.emit.matmul import product
from iree_bridge.emit.pointwise import Elementwise
from iree_bridge.emit.reduction import extreme
from iree_bridge.emit.reduction import total as sums
from iree_bridge.emit.softmax import is_served, softmax
from iree_bridge.targets.variants import MASKED_TILES, is_ragged_attention, uses_fused_attention

__all__ = ["sdpa"]


_LOG2_E = math.log2(math.e)
_LN_2 = math.log(2.0)
_OF_SCORES = ("scale", "descale_q", "descale_k")


@rule("sdpa")
def sdpa(e: Emitter, node: SdpaNode) -> None:
    """On a GPU one kernel; on a CPU, whose code for that is 50 times slower, products around a softmax."""
    is_fused = uses_fused_attention(node, e.target) and not e.variant.apart
    values = _fused(e, node) if is_fused else _decomposed(e, node)
    values |= _scaled_results(e, node, values["o"])
    for port in node.outputs:
        e.write(node, port, values[port])


def _scaled_results(e: Emitter, node: SdpaNode, o: Value) -> dict[str, Value]:
    """o, of weights and values, times what their types are scaled with; its largest magnitude before scale_o."""
    t = Elementwise(e, node.compute)
    factor = factor_of(t, node, ("descale_v", "scale_s", "descale_s"), node.score_dims[1])
    o = o if factor is None else t.mul(o, factor)
    if "amax_o" in node.outputs and e.target.is_gpu:
        o = e.barrier(o)  # a kernel that makes it, stores it and reduces it, the compiler fails to distribute
    made = {"amax_o": _largest(t, o)} if "amax_o" in node.outputs else {}
    return made | {"o": t.mul(o, element(e, node, "scale_o")) if "scale_o" in node.inputs else o}


def _largest(t: Elementwise, x: Value) -> Value:
    return extreme(t.e, t.unary("abs", x), range(4))


# ---- operands ------------------------------------------------------------------------------------------------------


class _Operands(NamedTuple):
    q: Value
    k: Value
    v: Value
    mask: Value | None  # additive, rank 4
    visible: Value | None  # booleans that broadcast to the scores: window and lengths


def _operands(e: Emitter, node: SdpaNode, padded: tuple[int, int] | None = None) -> _Operands:
    """What both ways of emission start from: operands in the type of the product, one bias, one mask.

    Args:
        padded: numbers of queries and keys that everything is filled up to, so that tiles divide them.
    """
    q, k, v = (node.inputs[port] for port in ("q", "k", "v"))
    kind = product_type(e, node, q.data_type, k.data_type)
    queries = cut(e, node, "seq_len_q", _read(e, q, kind))
    values = _of_keys(e, node, "v", product_type(e, node, v.data_type))
    keys = _of_keys(e, node, "k", kind)
    mask = node.inputs.get("attn_mask")
    bias = None if mask is None else rank_4(e, e.read(mask))
    if padded:
        queries, keys, values = (
            _filled(e, x, size) for x, size in ((queries, padded[0]), (keys, padded[1]), (values, padded[1]))
        )
        if bias is not None:
            more = [(0, to - size if size > 1 else 0) for size, to in zip(bias.dims[2:], padded, strict=True)]
            bias = e.pad(bias, more)
    if node.attributes.alibi_mask:
        t = Elementwise(e, node.compute)
        slopes = alibi(t, node.score_dims, padded or node.score_dims[2:])
        bias = slopes if bias is None else t.add(e.cast(bias, node.compute), slopes)
    return _Operands(queries, keys, values, bias, visible(e, node, padded))


def _of_keys(e: Emitter, node: SdpaNode, port: str, kind: DataType) -> Value:
    """k or v, [B, H, Skv, D]: its pages one after the other, zeros behind the lengths."""
    x = e.read(node.inputs[port]) if node.is_paged(port) else _read(e, node.inputs[port], kind)
    if node.is_paged(port):
        x = e.cast(_gathered(e, node, port, x), kind)
    return cut(e, node, "seq_len_kv", x)


def _read(e: Emitter, tensor: TensorAttr, kind: DataType) -> Value:
    """An operand; of 4 and 6 bits unpacked by a kernel of its own on GPUs (``docs/gpu_findings.md``)."""
    if not tensor.data_type.is_packed or not e.target.is_gpu:
        return e.read(tensor, kind)
    return e.cast(e.barrier(e.read(tensor, tensor.data_type)), kind)


def _decoded(e: Emitter, node: SdpaNode, port: str, x: Value) -> Value:
    """An operand as the fused kernel takes it: it cannot decode small floats where it reads them."""
    return e.barrier(x) if node.inputs[port].data_type.is_small_float else x


def _gathered(e: Emitter, node: SdpaNode, port: str, x: Value) -> Value:
    """The pages that a table names, in the order of the keys.

    What is computed of a container is in memory first: in the kernel that gathers, the compiler keeps it in the private
    memory of threads, and each reads what others have.
    """
    tensor = node.inputs[port]
    if tensor not in e.graph.arguments().inputs or not tensor.physical.dense:
        x = e.barrier(x)
    pages, heads, rows, size = x.dims
    batch, _, count, _ = node.inputs[f"page_table_{port}"].dims
    table = e.reshape(e.read(node.inputs[f"page_table_{port}"], DataType.INT64), (batch * count,))
    table = e.op("aten.clamp", table.dims, table.dtype, table, 0, pages - 1)
    x = e.op("aten.index_select", (batch * count, heads, rows, size), x.dtype, x, 0, table)
    x = e.permute(e.reshape(x, (batch, count, heads, rows, size)), [0, 2, 1, 3, 4])
    return e.slice(e.reshape(x, (batch, heads, count * rows, size)), 2, 0, node.score_dims[3])


def _filled(e: Emitter, x: Value, size: int) -> Value:
    """[B, H, S, D] with rows of 0 up to ``size``."""
    missing = size - x.dims[2]
    return e.pad(x, [(0, missing), (0, 0)])


def _whole_tiles(node: SdpaNode) -> tuple[int, int] | None:
    """Numbers of queries and keys to fill up to, so that matrix instructions can be used; None: they are, or cannot be.

    Where a tile ends beyond the last query or key, the compiler takes none at all: 197 tokens ran in scalar code.
    """
    _, _, queries, keys = node.score_dims
    if node.multiplied(node.inputs["q"]) not in (DataType.HALF, DataType.BFLOAT16) or queries == 1:
        return None
    filled = _filled_up(queries), _filled_up(keys)
    return None if filled == (queries, keys) else filled


def _tiles(e: Emitter, node: SdpaNode) -> Tiles | None:
    """Tiles whose ends are masked, in the form of a graph that has them."""
    if e.variant.name != MASKED_TILES or not is_ragged_attention(node, e.target):
        return None
    kind = "F16" if node.inputs["q"].data_type is DataType.HALF else "BF16"
    values, instruction = min(node.inputs["v"].dims[3], 64), f"MFMA_F32_16x16x16_{kind}, col_major = true"
    orders = {port: _order(node.inputs[port]) for port in "qkv"}
    return Tiles(16 if node.score_dims[2] <= 16 else 64, 32, values, instruction, orders)


def _order(tensor: TensorAttr) -> Sequence[int]:
    """Its axes as they lie in memory, if its value is there as it is."""
    return range(4) if tensor.is_virtual or not tensor.physical.dense else tensor.physical.order


def _filled_up(size: int) -> int:
    """The next multiple of the largest tile that adds little; the smallest serves as it is."""
    if size % 16 == 0:
        return size
    tile = next((tile for tile in (64, 32) if 6 * (-size % tile) <= size), 16)
    return size + -size % tile


# ---- the two ways --------------------------------------------------------------------------------------------------


def _fused(e: Emitter, node: SdpaNode) -> dict[str, Value]:
    """All results by port, of one fused operation, which works with powers of 2 and leaves the division to us.

    A query that sees no key has a sum of 0: it is divided by 1, so that its result is 0 and not NaN.
    """
    tiles = _tiles(e, node)
    padded = None if tiles else _whole_tiles(node)
    x = _operands(e, node, padded)
    t = Elementwise(e, DataType.FLOAT)
    factor, scale = factor_of(t, node, _OF_SCORES, node.score_dims[1]), node.constant_scale
    q = x.q if factor is None else e.cast(t.mul(e.cast(x.q, DataType.FLOAT), factor), x.q.dtype)
    q, k, v = (_decoded(e, node, port, value) for port, value in (("q", q), ("k", x.k), ("v", x.v)))
    scale = 1.0 if scale is None else scale
    mask = _fused_mask(t, x)
    if tiles:
        mask = _mask_of_tiles(e, node, mask, x.visible)
    fused = fused_attention(e, q, k, v, mask, scale, tiles)
    if padded:
        fused = FusedAttention(*(e.slice(part, 2, 0, node.score_dims[2]) for part in fused))
    sink, top = _sink(e, node), fused.max
    if sink is not None:
        fused = _with_sink(t, fused, t.scale(sink, _LOG2_E))
    one, nothing = t.constant(1.0, fused.sum), t.constant(-math.inf, fused.sum)
    empty = t.compare("eq", fused.sum, 0.0)
    values = {"o": t.div(fused.total, t.select(empty, one, fused.sum)), "sum_exp": fused.sum}
    if set(node.outputs) & {"max", "stats"}:
        values["max"] = t.select(empty, nothing, t.scale(fused.max, _LN_2))
        values["stats"] = t.add(values["max"], t.unary("log", fused.sum))
    if "amax_s" in node.outputs:
        weight = t.div(t.unary("exp2", t.sub(top, fused.max)), t.select(empty, one, fused.sum))
        values["amax_s"] = _largest(t, t.select(empty, t.constant(0.0, weight), weight))
    return values


def _with_sink(t: Elementwise, fused: FusedAttention, logit: Value) -> FusedAttention:
    """The parts with one more logit (base 2, [1, H, 1, 1]) in the maximum and the sum.

    It could be initial values of the fused operation instead, but what comes out then is wrong on a real GPU.
    """
    shift = t.call("maximum", fused.max, logit)
    kept = t.unary("exp2", t.sub(fused.max, shift))
    total = t.add(t.mul(fused.sum, kept), t.unary("exp2", t.sub(logit, shift)))
    return FusedAttention(t.mul(fused.total, kept), shift, total)


def _fused_mask(t: Elementwise, x: _Operands) -> Value | None:
    """Mask and visibility as one additive mask, whose finite values are within what the fused operation takes."""
    mask = x.mask
    if mask is None and x.visible is None:
        return None
    if mask is not None and mask.dtype is DataType.HALF and x.visible is None:
        return mask
    hidden = t.e.splat(-math.inf, (1, 1, 1, 1), DataType.FLOAT)
    if mask is None:
        shown = t.e.splat(0.0, (1, 1, 1, 1), DataType.FLOAT)
    else:
        shown = t.e.cast(mask, DataType.FLOAT)
        if mask.dtype is not DataType.HALF:
            shown = t.select(t.compare("eq", shown, -math.inf), hidden, t.call("clamp_min", shown, LEAST_MASK))
    return shown if x.visible is None else t.select(x.visible, shown, hidden)


def _mask_of_tiles(e: Emitter, node: SdpaNode, mask: Value | None, visible: Value | None) -> Value:
    """The mask, which there has to be; one that is made of positions comes from a kernel of its own.

    The compiler does not distribute one that is made where it is used, whose ends are masked along two dims.
    """
    if mask is None:
        return e.splat(0.0, (1, 1, 1, node.score_dims[3]), DataType.FLOAT)
    if visible is None:
        return mask
    of_numbers = node.attributes.alibi_mask or "attn_mask" in node.inputs
    return e.barrier(mask if of_numbers else e.cast(mask, DataType.HALF))


def _decomposed(e: Emitter, node: SdpaNode) -> dict[str, Value]:
    x = _operands(e, node)
    t = Elementwise(e, node.compute)
    factor, scale = factor_of(t, node, _OF_SCORES, node.score_dims[1]), node.constant_scale
    is_softmax = factor is None and _is_softmax(e, node, x)
    scores = product(e, x.q, e.permute(x.k, [0, 1, 3, 2]), node.compute, across=True, cut=not is_softmax)
    if is_softmax:
        weights = softmax(e, scores, 1.0 if scale is None else scale, node.score_dims[3])
        return {"o": product(e, weights, x.v, node.compute, across=False)}
    scores = scores if factor is None else t.mul(scores, factor)
    scores = scores if scale is None else t.scale(scores, scale)
    if x.mask is not None:
        scores = t.add(scores, e.cast(x.mask, node.compute))
    if x.visible is not None:
        scores = t.select(x.visible, scores, t.constant(-math.inf, scores))
    top = _reduce(e, "amax", scores)
    logit = _sink(e, node)
    shift = top if logit is None else t.call("maximum", top, logit)
    # Rows that see nothing have the maximum -inf; any finite shift makes their weights exp(-inf) = 0.
    finite = t.call("clamp_min", shift, float(np.finfo(node.compute.numpy).min))
    weights = t.unary("exp", t.sub(scores, finite))
    total = _reduce(e, "sum", weights)
    if logit is not None:
        total = t.add(total, t.unary("exp", t.sub(logit, finite)))
    kept = dropout_of(e, node)
    if kept is not None:
        weights = t.mul(weights, kept)
        if "dropout_scale" in node.inputs:
            weights = t.mul(weights, element(e, node, "dropout_scale"))
    o = product(e, e.cast(weights, x.v.dtype), x.v, node.compute, across=False)
    divisor = t.select(t.compare("eq", total, 0.0), t.constant(1.0, total), total)
    o = t.div(o, divisor)
    stats = t.add(shift, t.unary("log", total)) if "stats" in node.outputs else total
    values = {"o": o, "stats": stats, "max": shift, "sum_exp": total}
    if "amax_s" in node.outputs:
        values["amax_s"] = _largest(t, t.div(_reduce(e, "amax", t.unary("abs", weights)), divisor))
    return values


def _is_softmax(e: Emitter, node: SdpaNode, x: _Operands) -> bool:
    """Whether the weights are a softmax of rows that see all keys, and wanted for nothing but o."""
    plain = x.mask is None and x.visible is None and "sink_token" not in node.inputs and not node.drops
    rising = node.constant_scale is None or node.constant_scale > 0
    single = {node.compute, x.v.dtype} == {DataType.FLOAT}
    return plain and rising and single and set(node.outputs) <= {"o", "amax_o"} and is_served(node.score_dims, e.target)


def _reduce(e: Emitter, name: str, value: Value) -> Value:
    """amax or sum over the last dim, which stays as 1."""
    dims = (*value.dims[:-1], 1)
    if name == "amax":
        return e.op("aten.amax", dims, value.dtype, value, [3], True)
    return sums(e, value, [3])


# ---- small things --------------------------------------------------------------------------------------------------


def _sink(e: Emitter, node: SdpaNode) -> Value | None:
    sink = node.inputs.get("sink_token")
    return None if sink is None else e.read(sink, node.compute)
