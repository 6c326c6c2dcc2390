"""Attention and rotary embedding of opset 23 and later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import TensorType
from hipdnn_backend.offload.frontend.rewriting import Builder, check_size, rewrites
from hipdnn_backend.offload.frontend.torch_ops import Emitter, emits

__all__ = ["Attention", "attend", "merge_heads", "rotate", "split_heads", "window_bias"]


def split_heads(b: Builder, x: str, dims: tuple[int, ...], heads: int) -> tuple[str, tuple[int, ...]]:
    """``[B, S, H * D]`` → ``[B, H, S, D]``; rank 4 stays as it is."""
    if len(dims) == 4:
        return x, dims
    if len(dims) != 3 or heads < 1 or dims[2] % heads:
        raise b.fail("attention", f"{heads} heads do not divide {x} {list(dims)}")
    batch, sequence, hidden = dims
    split = b.op("Reshape", x, b.constant([batch, sequence, heads, hidden // heads]))
    return b.op("Transpose", split, perm=[0, 2, 1, 3]), (batch, heads, sequence, hidden // heads)


def merge_heads(b: Builder, x: str, dims: tuple[int, ...]) -> str:
    """``[B, H, S, D]`` → ``[B, S, H * D]``."""
    batch, heads, sequence, size = dims
    return b.op("Reshape", b.op("Transpose", x, perm=[0, 2, 1, 3]), b.constant([batch, sequence, heads * size]))


@dataclass(kw_only=True)
class Attention:
    """What an attention computes, in ``[batch, heads, sequence, size]`` form.

    Attributes:
        q, k, v: tensors; the heads of k and v divide those of q.
        q_dims, k_dims, v_dims: their dims.
        type: of the result.
        scale: of the scores.
        causal: query i attends keys up to i; otherwise ``bias`` says all.
        bias: added to the scores, broadcast to them; "" for none.
        empty: boolean, broadcast to ``[batch, heads, sequence, 1]``: rows that attend nothing and give 0; "" for none.
        softcap: of the scores, 0 for none.
        precision: element type in which the softmax is computed, 0: that of q.
    """

    q: str
    k: str
    v: str
    q_dims: tuple[int, ...]
    k_dims: tuple[int, ...]
    v_dims: tuple[int, ...]
    type: TensorType
    scale: float
    causal: bool = False
    bias: str = ""
    empty: str = ""
    softcap: float = 0.0
    precision: int = 0


def attend(b: Builder, a: Attention, captured: int | None = None) -> tuple[str, str]:
    """Emit the attention, whole where torch has it so.

    Args:
        b: where to.
        a: what.
        captured: which stage of the scores is wanted too (ONNX's ``qk_matmul_output_mode``), None for none.

    Returns:
        The result, and the scores that were asked for ("" if none).
    """
    plain = not a.softcap and captured is None and a.precision in (0, onnx.TensorProto.FLOAT, a.type.element)
    if not (plain and not (a.causal and a.bias)):
        return _written_out(b, a, captured)
    operands = [a.q, a.k, a.v, *([a.bias] if a.bias else [])]
    given = {"scale": float(a.scale), "is_causal": int(a.causal)}
    y = b.torch("scaled_dot_product_attention", *operands, like=a.type, **given)
    return _guarded(b, a, y), ""


@emits("scaled_dot_product_attention")
def _emit_attention(e: Emitter, q: Any, k: Any, v: Any, *mask: Any) -> list[Any]:
    grouped = e.dims(q)[1] != e.dims(k)[1]
    operands = [
        *(q, k, v, mask[0] if mask else e.none(), e.float(0.0)),
        *(e.bool(bool(e.integer("is_causal"))), e.float(e.number("scale")), e.bool(grouped)),
    ]
    return [e.create("torch.aten.scaled_dot_product_attention", e.op.results[0].type, operands)]


def _guarded(b: Builder, a: Attention, y: str) -> str:
    return b.op("Where", a.empty, b.constant(0, a.type.dtype), y) if a.empty else y


def _written_out(b: Builder, a: Attention, captured: int | None) -> tuple[str, str]:
    """Attention as products and a softmax, and the scores at the stage that the node gives back, "" if at none.

    The scale is shared between q and k as a root each, as the operator's own function has it: scores of half precision
    would leave their range otherwise.
    """
    dtype = a.type.dtype
    root = b.constant(a.scale**0.5, dtype)
    groups = a.q_dims[1] // a.k_dims[1]
    k, v = _repeated(b, a.k, a.k_dims, groups), _repeated(b, a.v, a.v_dims, groups)
    turned = b.op("Transpose", b.op("Mul", k, root), perm=[0, 1, 3, 2])
    scores = [b.op("MatMul", b.op("Mul", a.q, root), turned)]
    at = scores[0]
    if a.softcap:
        cap = b.constant(a.softcap, dtype)
        at = b.op("Mul", b.op("Tanh", b.op("Div", at, cap)), cap)
    scores.append(at)
    bias = a.bias or (b.constant(causal_bias(a.q_dims[2], a.k_dims[2], dtype), dtype) if a.causal else "")
    at = b.op("Add", at, bias) if bias else at
    scores.append(at)
    if a.precision and a.precision != a.type.element:
        at = b.op("Cast", b.op("Softmax", b.op("Cast", at, to=a.precision), axis=-1), to=a.type.element)
    else:
        at = b.op("Softmax", at, axis=-1)
    at = _guarded(b, a, at)
    scores.append(at)
    return b.op("MatMul", at, v), "" if captured is None else scores[captured]


def causal_bias(queries: int, keys: int, dtype: np.dtype, offset: int = 0) -> np.ndarray:
    """``[queries, keys]``: 0 where query i attends key j ≤ i + offset, else -inf."""
    check_size("a mask", queries, keys)
    allowed = np.arange(keys) <= np.arange(queries)[:, None] + offset
    return np.where(allowed, 0.0, -np.inf).astype(dtype)


def _repeated(b: Builder, x: str, dims: tuple[int, ...], groups: int) -> str:
    """Every head ``groups`` times, one after the other."""
    if groups == 1:
        return x
    batch, heads, sequence, size = dims
    wide = b.op("Expand", b.op("Unsqueeze", x, b.constant([2])), b.constant([batch, heads, groups, sequence, size]))
    return b.op("Reshape", wide, b.constant([batch, heads * groups, sequence, size]))


@rewrites("Attention")
def _attention(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """To ``aten.scaled_dot_product_attention`` where that has the same meaning, else written out."""
    shapes = [b.dims(name) for name in node.input[:3]]
    type_ = b.type(node.input[0])
    if type_ is None or any(dims is None for dims in shapes):
        return None
    given = b.given
    heads = (given.get("q_num_heads", 0), given.get("kv_num_heads", 0), given.get("kv_num_heads", 0))
    (q, q_dims), (k, k_dims), (v, v_dims) = (
        split_heads(b, name, dims or (), count) for name, dims, count in zip(node.input, shapes, heads, strict=False)
    )
    offset = 0
    if b.input(4):
        past = b.dims(b.input(4))
        if past is None or not b.input(5):
            raise b.fail("attention", "past_key and past_value belong together, with static dims")
        offset = past[2]
        k, v = b.op("Concat", b.input(4), k, axis=2), b.op("Concat", b.input(5), v, axis=2)
        k_dims, v_dims = _longer(k_dims, offset), _longer(v_dims, offset)
    if q_dims[1] % k_dims[1] or k_dims[1] != v_dims[1]:
        raise b.fail("attention", f"heads of q {q_dims}, k {k_dims} and v {v_dims} do not fit")
    y_dims = (*q_dims[:3], v_dims[3])
    attention = Attention(
        q=q, k=k, v=v, q_dims=q_dims, k_dims=k_dims, v_dims=v_dims,
        type=TensorType(type_.element, y_dims), scale=given.get("scale", q_dims[3] ** -0.5),
        softcap=given.get("softcap", 0.0), precision=given.get("softmax_precision", 0),
    )  # fmt: skip
    _mask(b, attention, offset)
    captured = given.get("qk_matmul_output_mode", 0) if b.has_output(3) else None
    y, scores = attend(b, attention, captured)
    return [merge_heads(b, y, y_dims) if len(shapes[0] or ()) == 3 else y, k, v, scores]


def _longer(dims: tuple[int, ...], more: int) -> tuple[int, ...]:
    return (*dims[:2], dims[2] + more, *dims[3:])


def _mask(b: Builder, a: Attention, offset: int) -> None:
    """Set ``causal``, ``bias`` and ``empty`` from the node's mask, causality, windows and numbers of valid keys."""
    queries, keys, dtype = a.q_dims[2], a.k_dims[2], a.type.dtype
    causal = bool(b.given.get("is_causal", 0))
    left, right = b.given.get("left_window_size", -1), b.given.get("right_window_size", -1)
    mask, valid = b.input(3), b.input(6)
    if causal and offset == 0 and left < 0 and right < 0 and not mask and not valid:
        a.causal = True
        return
    terms = []
    upper = min([0] * causal + [right] * (right >= 0), default=None)
    lower = left if left >= 0 else None
    if valid:
        terms.append(_valid_keys(b, a, valid, upper, lower))
    elif upper is not None or lower is not None:
        terms.append(b.constant(window_bias(queries, keys, offset, upper, lower, dtype), dtype))
    if mask:
        terms.append(_additive(b, mask, keys, a.type))
    if not terms:
        return
    a.bias = terms[0] if len(terms) == 1 else b.op("Add", *terms)
    if mask or valid or _leaves_rows_empty(b, terms[0]):
        lowest = b.op("ReduceMax", a.bias, b.constant([-1]), keepdims=1)
        a.empty = b.op("Equal", lowest, b.constant(-np.inf, dtype))
    if len(terms) == 1 and mask and len(b.dims(mask) or ()) < 4:
        a.bias = _rank_4(b, a.bias, b.dims(mask) or (), keys)


def _leaves_rows_empty(b: Builder, term: str) -> bool:
    value = b.value(term)
    return value is None or bool(np.isneginf(value).all(-1).any())


def _rank_4(b: Builder, bias: str, dims: tuple[int, ...], keys: int) -> str:
    """Leading dims of 1, which ``aten.scaled_dot_product_attention`` wants."""
    return b.op("Reshape", bias, b.constant([*(1,) * (4 - len(dims)), *dims[:-1], keys]))


def window_bias(
    queries: int, keys: int, offset: int, upper: int | None, lower: int | None, dtype: np.dtype
) -> np.ndarray:
    """0 where ``p - lower <= j <= p + upper`` for the query's position p, else -inf; rank 4."""
    check_size("a mask", queries, keys)
    ahead = np.arange(keys) - (np.arange(queries)[:, None] + offset)
    allowed = np.ones_like(ahead, bool)
    if upper is not None:
        allowed &= ahead <= upper
    if lower is not None:
        allowed &= ahead >= -lower
    return np.where(allowed, 0.0, -np.inf).astype(dtype)[None, None]


def _valid_keys(b: Builder, a: Attention, valid: str, upper: int | None, lower: int | None) -> str:
    """The bias of a cache of which each batch entry uses the first ``valid`` keys; windows end at its last one."""
    batch, _, queries, keys = *a.q_dims[:3], a.k_dims[2]
    count = b.op("Reshape", b.op("Cast", valid, to=onnx.TensorProto.INT64), b.constant([batch, 1, 1, 1]))
    j = b.constant(np.arange(keys).reshape(1, 1, 1, keys))
    allowed = b.op("Less", j, count)
    if upper is not None or lower is not None:
        i = b.constant(np.arange(queries).reshape(1, 1, queries, 1) - queries)
        ahead = b.op("Sub", j, b.op("Add", i, count))
        if upper is not None:
            allowed = b.op("And", allowed, b.op("LessOrEqual", ahead, b.constant(upper)))
        if lower is not None:
            allowed = b.op("And", allowed, b.op("GreaterOrEqual", ahead, b.constant(-lower)))
    return b.op("Where", allowed, b.constant(0, a.type.dtype), b.constant(-np.inf, a.type.dtype))


def _additive(b: Builder, mask: str, keys: int, type_: TensorType) -> str:
    """A mask of booleans or numbers as what is added to the scores, as long as the keys."""
    dims, dtype = b.dims(mask), b.dtype(mask)
    if dims is None or dtype is None or not dims:
        raise b.fail("attention", f"the mask {mask} has no static dims")
    if dtype == np.bool_:
        mask = b.op("Where", mask, b.constant(0, type_.dtype), b.constant(-np.inf, type_.dtype))
    elif dtype != type_.dtype:
        mask = b.op("Cast", mask, to=type_.element)
    missing = keys - dims[len(dims) - 1]
    if not missing:
        return mask
    if missing < 0:
        raise b.fail("attention", f"the mask {list(dims)} is longer than the {keys} keys")
    pads = [0] * (2 * len(dims) - 1) + [missing]
    return b.op("Pad", mask, b.constant(pads), b.constant(-np.inf, type_.dtype))


@rewrites("RotaryEmbedding")
def _rotary(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Written out with static slices."""
    x, cos, sin = node.input[:3]
    dims, cache = b.dims(x), b.dims(cos)
    if dims is None or cache is None:
        return None
    heads = b.given.get("num_heads", 0)
    if len(dims) == 3 and (heads < 1 or dims[2] % heads):
        raise b.fail("attention", f"{heads} heads do not divide X {list(dims)}")
    if b.input(3):
        cos, sin = b.op("Gather", cos, b.input(3), axis=0), b.op("Gather", sin, b.input(3), axis=0)
    batched = len(cache) == 3 or bool(b.input(3))
    axis = 1 if len(dims) == 4 else 2  # of the heads, which share an angle
    cos, sin = (b.op("Unsqueeze", angle, b.constant([axis] if batched else [0, axis])) for angle in (cos, sin))
    split = dims if len(dims) == 4 else (*dims[:2], heads, dims[2] // heads)
    y = x if len(dims) == 4 else b.op("Reshape", x, b.constant(split))
    y = rotate(b, y, split, cos, sin, b.given.get("rotary_embedding_dim", 0), bool(b.given.get("interleaved", 0)))
    return [y if len(dims) == 4 else b.op("Reshape", y, b.constant(dims))]


def rotate(b: Builder, x: str, dims: tuple[int, ...], cos: str, sin: str, turned: int, interleaved: bool) -> str:
    """Turn pairs of elements along the last dim.

    Args:
        b: where to.
        x: rank 4, dims ``dims``.
        dims: of x.
        cos, sin: of the angles, broadcast to x with half as many elements in the last dim.
        turned: elements that are turned, 0 for all.
        interleaved: pairs are neighbours, otherwise elements of the first and the second half.
    """
    size = dims[-1]
    turned = turned or size

    def piece(start: int, stop: int, step: int = 1) -> str:
        return b.op("Slice", x, *(b.constant([number]) for number in (start, stop, len(dims) - 1, step)))

    half = turned // 2
    first, second = (piece(0, turned, 2), piece(1, turned, 2)) if interleaved else (piece(0, half), piece(half, turned))
    real = b.op("Sub", b.op("Mul", first, cos), b.op("Mul", second, sin))
    imaginary = b.op("Add", b.op("Mul", first, sin), b.op("Mul", second, cos))
    if interleaved:
        pairs = [b.op("Unsqueeze", part, b.constant([len(dims)])) for part in (real, imaginary)]
        result = b.op("Reshape", b.op("Concat", *pairs, axis=len(dims)), b.constant([*dims[:-1], turned]))
    else:
        result = b.op("Concat", real, imaginary, axis=len(dims) - 1)
    return result if turned == size else b.op("Concat", result, piece(turned, size), axis=len(dims) - 1)
