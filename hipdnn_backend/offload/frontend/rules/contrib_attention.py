"""Attention and rotary embedding of ONNX Runtime's ``com.microsoft`` domain."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import TensorType
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.attention import (
    Attention,
    attend,
    merge_heads,
    rotate,
    split_heads,
    window_bias,
)
from hipdnn_backend.offload.frontend.rules.contrib import DOMAIN

__all__: list[str] = []


@rewrites("RotaryEmbedding", domain=DOMAIN, operands=4, attributes="interleaved num_heads rotary_embedding_dim scale")
def _rotary(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """``x [B, S, hidden]`` or ``[B, N, S, size]``; positions are one offset, or one per batch entry and token."""
    x, position, cos, sin = node.input[:4]
    dims, cache, at = b.dims(x), b.dims(cos), b.dims(position)
    if dims is None or cache is None or at is None:
        return None
    turned = b.given.get("rotary_embedding_dim", 0)
    heads = b.given.get("num_heads", 0) or (dims[-1] // (2 * cache[1]) if len(dims) == 3 else dims[1])
    flat = len(dims) == 3
    split = (*dims[:2], heads, dims[2] // heads) if flat else dims
    sequence, axis = (dims[1], 2) if flat else (dims[2], 1)
    y = b.op("Reshape", x, b.constant(split)) if flat else x
    if at in ((), (1,)):
        start = b.op("Reshape", position, b.constant([1, 1]))
        position = b.op("Add", start, b.constant(np.arange(sequence).reshape(1, sequence)))
    cos, sin = _angles(b, cos, sin, position, axis)
    y = rotate(b, y, split, cos, sin, turned, bool(b.given.get("interleaved", 0)))
    scale = b.given.get("scale", 1.0)
    y = b.op("Mul", y, b.like(x, scale)) if scale != 1.0 else y
    return [b.op("Reshape", y, b.constant(dims)) if flat else y]


def _angles(b: Builder, cos: str, sin: str, position: str, axis: int) -> tuple[str, str]:
    """Rows of the caches at ``position [B, S]``, with a dim of 1 for the heads."""
    cos, sin = (b.op("Unsqueeze", b.op("Gather", cache, position, axis=0), b.constant([axis])) for cache in (cos, sin))
    return cos, sin


@rewrites(
    "MultiHeadAttention", domain=DOMAIN, operands=8, attributes="mask_filter_value num_heads scale unidirectional"
)
def _multi_head(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Separate query, key and value; masks become a bias of ``mask_filter_value``, as ONNX Runtime has it."""
    heads = b.given["num_heads"]
    _check_scores(b)
    if not b.input(1) or not b.input(2) or len(b.dims(node.input[0]) or ()) == 5:
        raise b.unsupported("attention", "packed query, key and value are not known")
    operands = []
    for which, name in enumerate(node.input[:3]):
        dims = b.dims(name)
        if dims is None:
            return None
        if b.input(3) and len(dims) == 3:
            name = b.op("Add", name, _bias_part(b, which, [b.dims(each) for each in node.input[:3]]))
        operands.append(split_heads(b, name, dims, heads))
    (q, q_dims), (k, k_dims), (v, v_dims) = operands
    k, v, k_dims, v_dims, offset = _with_past(b, b.input(6), b.input(7), k, v, k_dims, v_dims)
    type_ = b.type(node.input[0])
    if type_ is None:
        return None
    terms = [b.input(5)] if b.input(5) else []
    if b.input(4):
        terms.append(_padding(b, b.input(4), type_))
    causal = bool(b.given.get("unidirectional", 0))
    if causal and (terms or offset):
        terms.append(b.constant(window_bias(q_dims[2], k_dims[2], offset, 0, None, type_.dtype), None))
    bias = ""
    for term in terms:
        bias = b.op("Add", bias, term) if bias else term
    y_dims = (*q_dims[:3], v_dims[3])
    attention = Attention(
        q=q, k=k, v=v, q_dims=q_dims, k_dims=k_dims, v_dims=v_dims, type=TensorType(type_.element, y_dims),
        scale=b.given.get("scale", 0.0) or q_dims[3] ** -0.5, causal=causal and not bias, bias=bias,
    )  # fmt: skip
    y, _ = attend(b, attention)
    return [merge_heads(b, y, y_dims), k, v]


def _check_scores(b: Builder) -> None:
    if b.has_output(3):
        raise b.unsupported("attention", "scores as a result are not known")


def _bias_part(b: Builder, which: int, dims: Sequence[tuple[int, ...] | None]) -> str:
    """The query's, key's or value's part of the one bias that all three share."""
    sizes = [each[-1] if each else 0 for each in dims]
    start = sum(sizes[:which])
    return b.op("Slice", b.input(3), b.constant([start]), b.constant([start + sizes[which]]), b.constant([0]))


def _with_past(
    b: Builder, past_k: str, past_v: str, k: str, v: str, k_dims: tuple[int, ...], v_dims: tuple[int, ...]
) -> tuple[str, str, tuple[int, ...], tuple[int, ...], int]:
    """Keys and values behind those of the cache, and how many those are."""
    past = b.dims(past_k) if past_k else None
    if past is None or not past_v or not past[2]:
        return k, v, k_dims, v_dims, 0
    k, v = b.op("Concat", past_k, k, axis=2), b.op("Concat", past_v, v, axis=2)
    count = past[2] + k_dims[2]
    return k, v, (*k_dims[:2], count, k_dims[3]), (*v_dims[:2], count, v_dims[3]), past[2]


def _padding(b: Builder, mask: str, type_: TensorType) -> str:
    """``[batch, keys]``, 0 for keys that are padding."""
    dims = b.dims(mask)
    if dims is None or len(dims) != 2:
        raise b.unsupported(
            "attention", f"a key padding mask of dims {list(dims or ())} is not known; [batch, keys] is"
        )
    value = b.given.get("mask_filter_value", -10000.0)
    masked = b.op("Equal", mask, b.like(mask, 0))
    bias = b.op("Where", masked, b.constant(value, type_.dtype), b.constant(0, type_.dtype))
    return b.op("Reshape", bias, b.constant([dims[0], 1, 1, dims[1]]))


@rewrites(
    "GroupQueryAttention",
    domain=DOMAIN,
    operands=12,
    attributes="do_rotary kv_num_heads local_window_size num_heads rotary_interleaved scale smooth_softmax softcap",
)
def _grouped(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Causal attention of grouped heads behind an optional cache that is full, with optional rotary embedding."""
    heads, kv_heads = b.given["num_heads"], b.given["kv_num_heads"]
    _check_scores(b)
    operands = _grouped_operands(b, heads, kv_heads)
    type_ = b.type(node.input[0])
    if operands is None or type_ is None:
        return None
    (q, q_dims), (k, k_dims), (v, v_dims) = operands
    past = (b.dims(b.input(3)) if b.input(3) else None) or (0, 0, 0, 0)
    _check_cache(b, past[2], q_dims[2])
    if b.given.get("do_rotary", 0):
        q, k = (_turned(b, x, dims, past[2]) for x, dims in ((q, q_dims), (k, k_dims)))
    k, v, k_dims, v_dims, offset = _with_past(b, b.input(3), b.input(4), k, v, k_dims, v_dims)
    window, bias = b.given.get("local_window_size", -1), b.input(10)
    if b.input(11) or b.given.get("smooth_softmax", 0) > 0:  # -1, its default, is none
        raise b.unsupported("attention", "attention sinks are not known")
    causal = not offset and window < 0 and not bias
    if not causal:
        limits = window_bias(q_dims[2], k_dims[2], offset, 0, window - 1 if window >= 0 else None, type_.dtype)
        bias = b.op("Add", bias, b.constant(limits, None)) if bias else b.constant(limits, None)
    y_dims = (*q_dims[:3], v_dims[3])
    attention = Attention(
        q=q, k=k, v=v, q_dims=q_dims, k_dims=k_dims, v_dims=v_dims, type=TensorType(type_.element, y_dims),
        scale=b.given.get("scale", 0.0) or q_dims[3] ** -0.5, causal=causal, bias=bias,
        softcap=b.given.get("softcap", 0.0),
    )  # fmt: skip
    y, _ = attend(b, attention)
    return [merge_heads(b, y, y_dims), k, v]


def _grouped_operands(b: Builder, heads: int, kv_heads: int) -> list[tuple[str, tuple[int, ...]]] | None:
    """Query, key and value by heads, from three tensors or from one that packs them."""
    names, dims = list(b.node.input[:3]), b.dims(b.node.input[0])
    if dims is None:
        return None
    shapes = [dims, *(b.dims(name) if name else None for name in names[1:])]
    if not names[1]:
        size = dims[2] // (heads + 2 * kv_heads)
        bounds = np.cumsum([0, heads, kv_heads, kv_heads]) * size
        names = [
            b.op("Slice", names[0], b.constant([start]), b.constant([stop]), b.constant([2]))
            for start, stop in itertools.pairwise(bounds.tolist())
        ]
        shapes = [(*dims[:2], stop - start) for start, stop in itertools.pairwise(bounds.tolist())]
    if any(shape is None for shape in shapes):
        return None
    counts = (heads, kv_heads, kv_heads)
    return [split_heads(b, name, shape or (), count) for name, shape, count in zip(names, shapes, counts, strict=True)]


def _check_cache(b: Builder, past: int, queries: int) -> None:
    """A cache is used as far as it is long: what its entries' lengths say must be known and agree."""
    if not past:
        return
    lengths = b.value(b.input(5))
    if lengths is None:
        reason = (
            f"with a cache, {b.input(5) or 'seqlens_k'} decides where keys are put; bind it to {past + queries - 1}"
        )
        raise b.unsupported("attention", reason)
    if (lengths != past + queries - 1).any():
        reason = f"seqlens_k {lengths.tolist()} is not cache {past} + query {queries} - 1: caches are used whole"
        raise b.unsupported("attention", reason)


def _turned(b: Builder, x: str, dims: tuple[int, ...], offset: int) -> str:
    cos, sin, cache = b.input(7), b.input(8), b.dims(b.input(7))
    if not cos or not sin or cache is None:
        raise b.unsupported("attention", "do_rotary wants cos_cache and sin_cache with static dims")
    position = b.input(9) or b.constant(np.arange(offset, offset + dims[2]).reshape(1, -1))
    cos, sin = _angles(b, cos, sin, position, 1)
    return rotate(b, x, dims, cos, sin, 2 * cache[1], bool(b.given.get("rotary_interleaved", 0)))
