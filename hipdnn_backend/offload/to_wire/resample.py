"""Pooling. Windows as large as the image are reductions, which fuse with more."""

from __future__ import annotations

import math

from hipdnn_backend.offload.to_wire.builder import Builder
from hipdnn_backend.offload.to_wire.conv import unpadded
from hipdnn_backend.offload.to_wire.operation import Op
from hipdnn_backend.offload.to_wire.registry import Result, Role, rule
from hipdnn_backend.offload.to_wire.types import compute_type
from hipdnn_backend.offload.to_wire.values import Padded, Tensor, Value
from hipdnn_backend.offload.to_wire.views import Dims
from hipdnn_backend.wire import (
    DataType,
    PaddingMode,
    PointwiseMode,
    ReductionMode,
    ResampleFwdAttributes,
    ResampleMode,
)

__all__ = ["batched", "padding_of", "rank_of", "stride_of"]


def rank_of(op: Op) -> int:
    """Spatial dims, from the operation's name: ``aten.max_pool2d``."""
    return next(int(letter) for letter in op.name if letter in "123")


def stride_of(op: Op, window: Dims, operand: int = 2) -> Dims:
    """The stride; default: the window. Torch-MLIR's importer fills ONNX's list up with ones, to two per dim."""
    values, rank = op.ints(operand), len(window)
    if len(values) == 2 * rank and set(values[rank:]) == {1}:
        return values[:rank]
    return op.per_axis(operand, rank) if values else window


def padding_of(op: Op, rank: int, operand: int = 3) -> tuple[Dims, Dims]:
    """Padding before and after each dim. Torch-MLIR's importer writes ONNX's list: first all begins, then all ends."""
    values = op.ints(operand)
    if len(values) == 2 * rank:
        return values[:rank], values[rank:]
    same = op.per_axis(operand, rank, 0)
    return same, same


def batched(b: Builder, op: Op, x: Value, rank: int) -> Value:
    """``x`` with a batch dim."""
    if isinstance(x, Padded) or len(x.dims) == rank + 2:
        return x
    return b.reshaped(op, x, (1, *x.dims), "x")


def _pool(
    b: Builder, op: Op, x: Value, mode: ResampleMode, window: Dims, stride: Dims, before: Dims,
    padding: PaddingMode = PaddingMode.NEG_INF_PAD, suffix: str = "", index: Tensor | None = None,
) -> Value:  # fmt: skip
    """A pooling node, or a reduction; the padding at the end is what the result's size needs."""
    rank = len(window)
    out = op.result().dims[-rank:]
    source = x.inner if isinstance(x, Padded) else x
    sizes = source.dims[-rank:]
    ends = tuple(
        max((o - 1) * s + w - size - pre, 0)
        for o, s, w, size, pre in zip(out, stride, window, sizes, before, strict=True)
    )
    dtype = op.result().dtype
    if index is None and window == sizes and set(out) == {1} and not any((*before, *ends)):
        whole = ReductionMode.MAX_OP if mode is ResampleMode.MAXPOOL else ReductionMode.AVG
        made = b.reduction(op, whole, source, range(2, rank + 2), dtype, suffix=suffix)
        return b.reshaped(op, made, op.result().dims)
    tensor = b.plain(op, source, "x")
    y = b.tensor(op, (*source.dims[:2], *out), dtype, suffix)
    table = ResampleFwdAttributes(
        x_tensor_uid=tensor.uid,
        y_tensor_uid=y.uid,
        index_tensor_uid=None if index is None else index.uid,
        pre_padding=before,
        post_padding=ends,
        stride=stride,
        window=window,
        resample_mode=mode,
        padding_mode=padding,
        generate_index=None if index is None else True,
    )
    b.node(op, table, compute_type(source.dtype, dtype), suffix)
    return b.reshaped(op, b.made(y), op.result().dims)


def _pool_with_index(b: Builder, op: Op, x: Value, window: Dims, stride: Dims, before: Dims) -> Result:
    index = b.tensor(op, (*x.dims[:2], *op.result().dims[-len(window) :]), DataType.INT32, "::index")
    made = _pool(b, op, x, ResampleMode.MAXPOOL, window, stride, before, index=index)
    wide = b.pointwise(op, PointwiseMode.IDENTITY, [b.made(index)], op.result(1).dtype, suffix="::positions")
    return [made, b.reshaped(op, wide, op.result(1).dims)]


def _frame(op: Op, x: Value, rank: int, constant: float) -> Dims:
    """The padding before each spatial dim; that behind follows from the size of the result."""
    return unpadded(op, x, rank, constant, "x")[1]


@rule(
    "aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d", "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices", "aten.max_pool1d_with_indices", role=Role.ANCHOR,
)  # fmt: skip
def max_pool(b: Builder, op: Op) -> Result:
    """x, window, stride, padding, dilation, ceil_mode; positions are made as INT32 and widened.

    Where a window holds NaN or nothing but minus infinity, they are -1.
    """
    rank, indexed = rank_of(op), "indices" in op.name and op.used(1)
    x = batched(b, op, b.value(op, 0), rank)
    window = op.per_axis(1, rank)
    stride = stride_of(op, window)
    if set(op.per_axis(4, rank, 1)) != {1}:
        raise op.refuse(f"dilation {op.ints(4)} has no hipDNN form")
    padding, _ = padding_of(op, rank)
    mode, before = PaddingMode.NEG_INF_PAD, padding
    if isinstance(x, Padded):
        if indexed:
            raise op.refuse("its positions (result 1) are those in an image padded before")
        if any(op.ints(3)) and x.value != float("-inf"):
            raise op.refuse(f"it pads what is padded with {x.value} already")
        if x.value not in (0.0, float("-inf")):
            raise op.refuse(f"x is padded with {x.value}; 0 and -inf are known")
        mode = PaddingMode.ZERO_PAD if x.value == 0 else mode
        before = _frame(op, x, rank, x.value)
        if mode is PaddingMode.ZERO_PAD and op.flag(5):
            raise op.refuse("ceil_mode of a padded image would let further zeros compete")
        before = tuple(map(sum, zip(before, padding, strict=True)))
    if indexed:
        return _pool_with_index(b, op, x, window, stride, before)
    made = _pool(b, op, x, ResampleMode.MAXPOOL, window, stride, before, mode)
    return [made, None] if len(op.operation.results) > 1 else made


@rule("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d", role=Role.ANCHOR)
def avg_pool(b: Builder, op: Op) -> Value:
    """x, window, stride, padding, ceil_mode, count_include_pad, divisor_override."""
    rank = rank_of(op)
    x = batched(b, op, b.value(op, 0), rank)
    window = op.per_axis(1, rank)
    stride = stride_of(op, window)
    padding, after = padding_of(op, rank)
    include, override = op.flag(5, True), len(op.operands) > 6 and not op.is_none(6)
    before = padding
    if isinstance(x, Padded):
        if any((*padding, *after)) and not include:
            raise op.refuse("it pads what is padded already, and counts one but not the other")
        before = tuple(map(sum, zip(_frame(op, x, rank, 0.0), padding, strict=True)))
        include = True
    if override:  # the sum is the average over the whole window, whose padding is 0, times the window's volume
        factor = math.prod(window) / op.int(6)
        made = _pool(b, op, x, ResampleMode.AVGPOOL_INCLUDE_PADDING, window, stride, before, suffix="::average")
        return b.pointwise(op, PointwiseMode.MUL, [made, factor], made.dtype)
    if (include and any((*before, *after))) or isinstance(x, Padded):
        _check_floor(op, x, window, stride, tuple(map(sum, zip(padding, after, strict=True))))
    mode = ResampleMode.AVGPOOL_INCLUDE_PADDING if include else ResampleMode.AVGPOOL_EXCLUDE_PADDING
    if include and not any((*before, *after)) and not isinstance(x, Padded):
        mode = ResampleMode.AVGPOOL_EXCLUDE_PADDING  # what ceil_mode adds at the end counts in neither
    return _pool(b, op, x, mode, window, stride, before)


def _check_floor(op: Op, x: Value, window: Dims, stride: Dims, padding: Dims) -> None:
    """Windows that begin beyond the padding count in PyTorch only what lies inside it; hipDNN has no such divisor."""
    rank = len(window)
    for size, out, w, s, p in zip(x.dims[-rank:], op.result().dims[-rank:], window, stride, padding, strict=True):
        if (size + p - w) // s + 1 != out:
            raise op.refuse("ceil_mode together with padding that counts has no hipDNN form")


@rule("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d", role=Role.ANCHOR)
@rule("aten._adaptive_avg_pool2d")
def adaptive_avg_pool(b: Builder, op: Op) -> Value:
    """Windows of equal size."""
    rank = rank_of(op)
    x = batched(b, op, b.value(op, 0), rank)
    window = _equal_windows(op, x, rank)
    none = (0,) * rank
    return _pool(b, op, x, ResampleMode.AVGPOOL_EXCLUDE_PADDING, window, window, none)


@rule("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d", role=Role.ANCHOR)
def adaptive_max_pool(b: Builder, op: Op) -> Result:
    """Windows of equal size; positions must be unused."""
    rank = rank_of(op)
    if len(op.operation.results) > 1 and op.used(1):
        raise op.refuse("positions are INT32 in hipDNN and INT64 here (result 1 is used)")
    x = batched(b, op, b.value(op, 0), rank)
    window = _equal_windows(op, x, rank)
    none = (0,) * rank
    made = _pool(b, op, x, ResampleMode.MAXPOOL, window, window, none)
    return [made, None] if len(op.operation.results) > 1 else made


def _equal_windows(op: Op, x: Value, rank: int) -> Dims:
    if isinstance(x, Padded):
        raise op.refuse("x is padded")
    sizes, out = x.dims[-rank:], op.result().dims[-rank:]
    if any(size % o for size, o in zip(sizes, out, strict=True)):
        raise op.refuse(f"windows of an image {sizes} for a result {out} differ in size")
    return tuple(size // o for size, o in zip(sizes, out, strict=True))
