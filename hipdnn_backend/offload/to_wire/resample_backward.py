"""The gradient of pooling."""

from __future__ import annotations

import math

from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import Role, rule
from hipdnn_backend.offload.to_wire.resample import batched, padding_of, rank_of, stride_of
from hipdnn_backend.offload.to_wire.types import compute_type
from hipdnn_backend.offload.to_wire.values import Tensor, Value
from hipdnn_backend.offload.to_wire.views import Dims
from hipdnn_backend.wire import PaddingMode, PointwiseMode, ResampleBwdAttributes, ResampleMode

__all__: list[str] = []


@rule("aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward", role=Role.ANCHOR)
def max_pool_backward(b: Builder, op: Op) -> Value:
    """dy, x, window, stride, padding, dilation, ceil_mode, positions; of x the dims are asked alone."""
    rank = rank_of(op)
    if set(op.per_axis(5, rank, 1)) != {1}:
        raise op.refuse(f"dilation {op.ints(5)} has no hipDNN form")
    positions = b.plain(op, batched(b, op, b.value(op, 7), rank), "the positions")
    return _gradient(b, op, b.value(op, 0), ResampleMode.MAXPOOL, rank, positions)


@rule("aten.avg_pool2d_backward", "aten.avg_pool3d_backward", role=Role.ANCHOR)
def avg_pool_backward(b: Builder, op: Op) -> Value:
    """dy, x, window, stride, padding, ceil_mode, count_include_pad, divisor_override; of x the dims are asked alone."""
    rank = rank_of(op)
    dy, window = b.value(op, 0), op.per_axis(2, rank)
    include = op.flag(6) and any(op.ints(4))
    if not op.is_none(7):
        factor = math.prod(window) / op.int(7)
        dy, include = b.pointwise(op, PointwiseMode.MUL, [dy, factor], dy.dtype, suffix="::divided"), True
    mode = ResampleMode.AVGPOOL_INCLUDE_PADDING if include else ResampleMode.AVGPOOL_EXCLUDE_PADDING
    if op.flag(5) and include and op.is_none(7):
        raise op.refuse("ceil_mode together with padding that counts has no hipDNN form")
    return _gradient(b, op, dy, mode, rank, None)


def _gradient(b: Builder, op: Op, dy: Value, mode: ResampleMode, rank: int, index: Tensor | None) -> Value:
    """The node; the padding at the end is what the sizes need."""
    dims, dtype = op.result().dims, op.result().dtype
    window: Dims = op.per_axis(2, rank)
    stride, before = stride_of(op, window, 3), padding_of(op, rank, 4)[0]
    dy = batched(b, op, dy, rank)
    sizes = zip(dy.dims[-rank:], dims[-rank:], stride, window, before, strict=True)
    ends = tuple(max((o - 1) * s + w - size - pre, 0) for o, size, s, w, pre in sizes)
    dx = b.tensor(op, (*dy.dims[:2], *dims[-rank:]), dtype)
    table = ResampleBwdAttributes(
        dy_tensor_uid=b.plain(op, dy, "dy").uid,
        dx_tensor_uid=dx.uid,
        index_tensor_uid=None if index is None else index.uid,
        pre_padding=before,
        post_padding=ends,
        stride=stride,
        window=window,
        resample_mode=mode,
        padding_mode=PaddingMode.NEG_INF_PAD,
    )
    b.node(op, table, compute_type(dy.dtype, dtype))
    return b.reshaped(op, b.made(dx), dims)
