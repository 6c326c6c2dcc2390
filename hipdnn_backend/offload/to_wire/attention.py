"""Attention: PyTorch's operation, and the chain matmul - scale - mask - softmax - matmul that models spell it as."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hipdnn_backend.offload.to_wire.builder import Builder, fields_of, float32
from hipdnn_backend.offload.to_wire.operation import Op, is_constant
from hipdnn_backend.offload.to_wire.registry import Result, Role, rule
from hipdnn_backend.offload.to_wire.types import FLOATS, compute_type
from hipdnn_backend.offload.to_wire.values import Source, Splat, Tensor, Value
from hipdnn_backend.offload.to_wire.views import Dims
from hipdnn_backend.wire import DataType, PointwiseMode, SdpaAttributes, SdpaBackwardAttributes

__all__ = ["Match", "find"]

_PRODUCTS: Final = ("torch.aten.matmul", "torch.aten.bmm", "torch.aten.mm")
_SOFTMAX: Final = ("torch.aten.softmax.int", "torch.aten._softmax")
_SCALES: Final = ("torch.aten.mul.Scalar", "torch.aten.mul.Tensor", "torch.aten.div.Scalar", "torch.aten.div.Tensor")


@dataclass(frozen=True)
class Match:
    """A chain that is attention.

    Attributes:
        scores: the product of q and transposed k.
        last: the product with v.
        scale: factor on the scores.
        mask: the operation that adds the mask and which of its operands that is, None without a mask.
    """

    scores: Op
    last: Op
    scale: float
    mask: tuple[Op, int] | None

    def build(self, b: Builder) -> Value:
        """Adds the node; refuses as `_attention` does."""
        op = self.last
        q, k, v = b.value(self.scores, 0), b.value(self.scores, 1), b.value(op, 1)
        rank = len(k.dims)
        k = b.permuted(op, k, (*range(rank - 2), rank - 1, rank - 2))
        mask = None if self.mask is None else b.value(*self.mask)
        return _attention(b, op, q, k, v, mask, self.scale, causal=False)


def find(ops: Sequence[Op], outputs: Sequence[Any]) -> dict[Any, Match]:
    """The chains among the operations: result of each operation of a chain → the chain.

    Only values that nothing else uses lie inside a chain.
    """
    by_result = {op.operation.results[0]: op for op in ops if len(op.operation.results) == 1}
    kept = set(outputs)
    found: dict[Any, Match] = {}
    for op in ops:
        if op.name in _SOFTMAX and not kept.intersection(op.operation.results):
            match, inside = _match(op, by_result, kept)
            if match is not None:
                found |= dict.fromkeys(inside, match)
    return found


def _match(softmax: Op, by_result: dict[Any, Op], kept: set[Any]) -> tuple[Match | None, list[Any]]:
    """The operations around a softmax that make an attention: product, scale, mask, softmax, product.

    What lies inside may have no other user, since it will not exist.
    """
    none: tuple[None, list[Any]] = (None, [])
    rank = len(softmax.result().dims)
    if not is_constant(softmax.operands[1]) or softmax.axis(1, rank) != rank - 1:
        return none
    last = _only_user(softmax, by_result, kept)
    inside = [softmax.operation.results[0]]
    if last is None or last.name not in _PRODUCTS or last.operands[0] != inside[0] or last.operands[1] == inside[0]:
        return none
    inside.append(last.operation.results[0])
    op = _inner(softmax.operands[0], by_result, kept)
    mask: tuple[Op, int] | None = None
    if op is not None and op.name == "torch.aten.add.Tensor" and is_constant(op.operands[2]) and op.number(2) == 1:
        inside.append(op.operation.results[0])
        side = next((side for side in (0, 1) if _is_scores(_inner(op.operands[side], by_result, kept))), None)
        if side is None:
            return none
        mask = (op, 1 - side)
        op = _inner(op.operands[side], by_result, kept)
    scale = 1.0
    if op is not None and op.name in _SCALES and is_constant(op.operands[1]):
        inside.append(op.operation.results[0])
        factor = op.number(1)
        scale = float(factor) if ".mul." in op.name else 1.0 / factor if factor else 0.0
        op = _inner(op.operands[0], by_result, kept)
    if op is None or op.name not in _PRODUCTS or scale == 0.0:
        return none
    inside.append(op.operation.results[0])
    return Match(op, last, scale, mask), inside


def _inner(value: Any, by_result: dict[Any, Op], kept: set[Any]) -> Op | None:
    """The operation that makes a value which one operation alone uses."""
    op = by_result.get(value)
    return op if op is not None and value not in kept and len(list(value.uses)) == 1 else None


def _is_scores(op: Op | None) -> bool:
    return op is not None and (op.name in _PRODUCTS or (op.name in _SCALES and is_constant(op.operands[1])))


def _only_user(op: Op, by_result: dict[Any, Op], kept: set[Any]) -> Op | None:
    result = op.operation.results[0]
    uses = list(result.uses)
    if result in kept or len(uses) != 1:
        return None
    user = uses[0].owner.operation
    return by_result.get(user.results[0]) if len(user.results) == 1 else None


@rule("aten.scaled_dot_product_attention", role=Role.ANCHOR)
def scaled_dot_product_attention(b: Builder, op: Op) -> Value:
    """q, k, v, mask, dropout, is_causal, scale, enable_gqa."""
    q, k, v = _operands(b, op, (0, 1, 2), dropout=4)
    mask = None if op.is_none(3) else b.value(op, 3)
    grouped = len(op.operands) > 7 and op.flag(7)
    if not grouped and len(q.dims) > 3 and not q.dims[-3] == k.dims[-3] == v.dims[-3]:
        raise op.refuse(f"heads of q {q.dims}, k {k.dims} and v {v.dims} broadcast")
    return _attention(b, op, q, k, v, mask, _scale(op, 6), causal=op.flag(5))


@rule("aten._scaled_dot_product_flash_attention_for_cpu", role=Role.ANCHOR)
def flash_attention(b: Builder, op: Op) -> Result:
    """q, k, v, dropout, is_causal, mask, scale; training saves the logarithm of the sums, without their last dim."""
    q, k, v = _operands(b, op, (0, 1, 2), dropout=3)
    mask = None if op.is_none(5) else b.value(op, 5)
    stats = b.tensor(op, (*q.dims[:3], 1), op.result(1).dtype, "::stats") if op.used(1) else None
    o = _attention(b, op, q, k, v, mask, _scale(op, 6), causal=op.flag(4), stats=stats)
    return [o, None if stats is None else b.made(stats, q.dims[:3])]


@rule("aten._scaled_dot_product_flash_attention_for_cpu_backward", role=Role.ANCHOR)
def flash_attention_backward(b: Builder, op: Op) -> Result:
    """do, q, k, v, o, the logarithm of the sums, dropout, is_causal, mask, scale; gives dq, dk, dv."""
    q, k, v = _operands(b, op, (1, 2, 3), dropout=6)
    do, o, stats = (b.value(op, index) for index in (0, 4, 5))
    if len(q.dims) != 4:
        raise op.refuse(f"gradients of attention of rank {len(q.dims)} have no hipDNN form")
    stats = b.reshaped(op, stats, (*q.dims[:3], 1), "the sums")
    values = {"q": q, "k": k, "v": v, "o": o, "do": do, "stats": stats}
    tensors = {name: b.plain(op, value, name) for name, value in values.items()}
    mask = None if op.is_none(8) else b.value(op, 8)
    if mask is not None and not _changes_nothing(mask, sums=True):
        tensors["attn_mask"] = _mask(b, op, mask, q)
    for index, (name, like) in enumerate((("dq", q), ("dk", k), ("dv", v))):
        tensors[name] = b.tensor(op, like.dims, op.result(index).dtype, f"::{name}")
    compute = compute_type(q.dtype, op.result().dtype)
    table = SdpaBackwardAttributes(
        **fields_of(tensors),
        attn_scale_value=_factor(_scale(op, 9), q, compute),
        right_bound=0 if op.flag(7) else None,
    )
    b.node(op, table, compute)
    return [b.made(tensors[name]) for name in ("dq", "dk", "dv")]


def _operands(b: Builder, op: Op, places: tuple[int, int, int], *, dropout: int) -> tuple[Value, Value, Value]:
    """q, k and v of an attention that drops nothing."""
    if op.number(dropout) != 0:
        raise op.refuse(f"dropout {op.number(dropout)} is random")
    q, k, v = (b.value(op, index) for index in places)
    return q, k, v


def _scale(op: Op, index: int) -> float | None:
    return None if op.is_none(index) else float(op.number(index))


def _factor(scale: float | None, q: Value, compute: DataType) -> float | None:
    """The scale spelled out: none is a scale of 1 to some versions of hipDNN. None: it would be rounded more."""
    factor = 1.0 / math.sqrt(q.dims[-1]) if scale is None else scale
    implied = scale is None and compute == DataType.DOUBLE and float32(factor) != factor
    return None if implied else float32(factor)


def _changes_nothing(mask: Value, *, sums: bool) -> bool:
    """Whether it lets each query see each key and adds one number to all scores; 0 if ``sums`` are of interest too."""
    if not isinstance(mask, Splat):
        return False
    if mask.dtype is DataType.BOOLEAN:
        return bool(mask.value)
    return mask.value == 0 or (not sums and math.isfinite(mask.value))


def _mask(b: Builder, op: Op, mask: Value, q: Value) -> Tensor:
    """What is added to the scores, as a tensor of rank 4."""
    return b.aligned(op, _added(b, op, _mask_view(b, op, mask, len(q.dims)), q.dtype), "the mask")


def _attention(
    b: Builder,
    op: Op,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    scale: float | None,
    *,
    causal: bool,
    stats: Tensor | None = None,
) -> Value:
    """One node on [batch, heads, sequence, head size]; operands of lower rank get heads and a batch of 1."""
    kind = op.result()
    if not 2 <= len(q.dims) <= 4 or not len(q.dims) == len(k.dims) == len(v.dims):
        raise op.refuse(f"attention of ranks {len(q.dims)}, {len(k.dims)} and {len(v.dims)} has no hipDNN form")
    if not {q.dtype, k.dtype, v.dtype} <= FLOATS:
        raise op.refuse("attention of integers has no hipDNN form")
    shape = _heads(q.dims)
    tensors = {name: b.plain(op, b.reshaped(op, value, _heads(value.dims)), name)
               for name, value in (("q", q), ("k", k), ("v", v))}  # fmt: skip
    if mask is not None and not _changes_nothing(mask, sums=stats is not None):
        tensors["attn_mask"] = _mask(b, op, mask, q)
    tensors["o"] = b.tensor(op, (*shape[:3], v.dims[-1]), kind.dtype)
    if stats is not None:
        tensors["stats"] = stats
    compute = compute_type(q.dtype, kind.dtype)
    table = SdpaAttributes(
        **fields_of(tensors),
        generate_stats=True if stats is not None else None,
        attn_scale_value=_factor(scale, q, compute),
        right_bound=0 if causal else None,
    )
    b.node(op, table, compute)
    return b.reshaped(op, b.made(tensors["o"]), kind.dims)


def _heads(dims: Dims) -> Dims:
    """[S, D] and [B, S, D] as [B, H, S, D]."""
    return dims if len(dims) == 4 else (1, 1, *dims) if len(dims) == 2 else (dims[0], 1, *dims[1:])


def _mask_view(b: Builder, op: Op, mask: Value, rank: int) -> Value:
    """The mask in rank 4; dims along which it repeats become 1."""
    dims = (1,) * (rank - len(mask.dims)) + mask.dims
    mask = b.reshaped(op, mask, _heads(dims) if rank < 4 else dims, "the mask")
    if isinstance(mask, Source) and 0 in mask.strides:
        sizes = tuple(1 if step == 0 else size for size, step in zip(mask.dims, mask.strides, strict=True))
        return replace(mask, dims=sizes)
    return mask


def _added(b: Builder, op: Op, mask: Value, dtype: DataType) -> Value:
    """What is added to the scores: of a boolean mask 0 where it is set, else minus infinity."""
    if mask.dtype is not DataType.BOOLEAN:
        return mask
    select = PointwiseMode.BINARY_SELECT
    return b.pointwise(op, select, [0.0, float("-inf"), mask], dtype, compute=DataType.FLOAT, suffix="::mask")
