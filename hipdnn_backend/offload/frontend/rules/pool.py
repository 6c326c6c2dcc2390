"""Pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import TensorType
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites
from hipdnn_backend.offload.frontend.rules.conv import Window, forward_window
from hipdnn_backend.offload.frontend.torch_ops import Emitter, emits

__all__: list[str] = []


@rewrites("AveragePool")
def _average(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Dilated or rounded-up averages: sums by a depthwise convolution, divided by counts that are known here.

    torch has no dilated average pool, and counts the elements of windows that stick out in another way.
    """
    dims, result = b.dims(node.input[0]), b.dims(node.output[0])
    if dims is None or result is None:
        return None
    window = forward_window(b, dims[2:], b.given["kernel_shape"])
    ceil, dilated = bool(b.given.get("ceil_mode", 0)), any(step != 1 for step in window.dilations)
    if not (dilated or _rounds_up(window, dims[2:], result[2:])):
        if not ceil and b.given.get("auto_pad", "NOTSET") == "NOTSET":
            return None
        given = {"kernel_shape": window.kernel, "strides": window.strides, "pads": [*window.begin, *window.end]}
        include = b.given.get("count_include_pad", 0)
        return [b.op("AveragePool", node.input[0], count_include_pad=include, **given)]
    sums = _sums(b, node.input[0], dims, result, window)
    counts = _counts(window, dims[2:], result[2:], bool(b.given.get("count_include_pad", 0)))
    return [b.op("Mul", sums, b.like(node.input[0], 1.0 / np.maximum(counts, 1)[None, None]))]


def _sums(b: Builder, x: str, dims: Sequence[int], result: Sequence[int], window: Window) -> str:
    """Of each window, by a depthwise convolution with ones; what sticks out counts as 0."""
    like = b.node.input[0]
    reach = [
        (count - 1) * s + e - p - n
        for count, s, e, p, n in zip(result[2:], window.strides, window.extent, window.begin, dims[2:], strict=True)
    ]
    ones = b.like(like, np.ones((dims[1], 1, *window.kernel)))
    given = {"strides": window.strides, "dilations": window.dilations, "kernel_shape": window.kernel, "group": dims[1]}
    pads = [0, 0, *window.begin, 0, 0, *(max(more, 0) for more in reach)]
    if any(pads):
        x = b.op("Pad", x, b.constant(pads), b.like(like, 0))
    return b.op("Conv", x, ones, **given)


@rewrites("LpPool")
def _norm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Powers, their sums, and the root of these."""
    dims, result = b.dims(node.input[0]), b.dims(node.output[0])
    if dims is None or result is None:
        return None
    window = forward_window(b, dims[2:], b.given["kernel_shape"])
    return [_root(b, _sums(b, _power(b, node.input[0]), dims, result, window))]


@rewrites("GlobalLpPool")
def _global_norm(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    dims = b.dims(node.input[0])
    if dims is None:
        return None
    return [_root(b, b.op("ReduceSum", _power(b, node.input[0]), b.constant(range(2, len(dims)))))]


def _power(b: Builder, x: str) -> str:
    p = b.given.get("p", 2)
    if p == 2:
        return b.op("Mul", x, x)
    return b.op("Abs", x) if p == 1 else b.op("Pow", b.op("Abs", x), b.like(x, p))


def _root(b: Builder, x: str) -> str:
    p = b.given.get("p", 2)
    if p == 2:
        return b.op("Sqrt", x)
    return x if p == 1 else b.op("Pow", x, b.like(b.node.input[0], 1 / p))


def _counts(window: Window, sizes: Sequence[int], result: Sequence[int], include_pad: bool) -> np.ndarray:
    """How many elements each window averages: those of the input, with padding if told, never those beyond."""
    total = np.ones((), np.int64)
    for axis, (size, count) in enumerate(zip(sizes, result, strict=True)):
        starts = np.arange(count) * window.strides[axis] - window.begin[axis]
        taps = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        low, high = (-window.begin[axis], size + window.end[axis]) if include_pad else (0, size)
        along = ((taps >= low) & (taps < high)).sum(1)
        total = total[..., None] * along
    return total


def _max_padded(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Pads that differ on the two sides, and sizes that are rounded up, become a Pad with what is below every element.

    Of a size that is rounded up, the pad at the end is what the last window needs: one that would begin there is none.
    """
    dims, result, type_ = b.dims(node.input[0]), b.dims(node.output[0]), b.type(node.input[0])
    if dims is None or result is None or type_ is None:
        return None
    window = forward_window(b, dims[2:], b.given["kernel_shape"])
    plain: dict[str, Any] = {**b.given, "auto_pad": None, "ceil_mode": None, "storage_order": None}
    rest = [""] * (len(node.output) - 1)
    if window.begin == window.end and not _rounds_up(window, dims[2:], result[2:]):
        if all(name in ("kernel_shape", "strides", "pads", "dilations") for name in b.given):
            return None
        plain["pads"] = [*window.begin, *window.end]
        return [b.op("MaxPool", node.input[0], **plain), *rest]
    lowest = np.iinfo(type_.dtype).min if type_.dtype.kind in "iu" else -np.inf
    end = [
        max((count - 1) * stride + extent - size - begin, 0)
        for count, stride, extent, size, begin in zip(
            result[2:], window.strides, window.extent, dims[2:], window.begin, strict=True
        )
    ]
    pads = b.constant([0, 0, *window.begin, 0, 0, *end])
    x = b.op("Pad", node.input[0], pads, b.like(node.input[0], lowest))
    plain["pads"] = None
    return [b.op("MaxPool", x, **plain), *rest]


def _rounds_up(window: Window, sizes: Sequence[int], result: Sequence[int]) -> bool:
    """Whether there are other windows than those that fit into what is padded."""
    return any(
        (size + begin + end - extent) // stride + 1 != count
        for size, begin, end, extent, stride, count in zip(
            sizes, window.begin, window.end, window.extent, window.strides, result, strict=True
        )
    )


@rewrites("MaxPool")
def _max(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Indices that nobody reads are dropped; those of 2-D pools are made of torch's, which count within a picture.

    Torch-MLIR pads one side more than the other with a float64 that float32 does not hold.
    """
    if len(node.output) < 2 or not node.output[1]:
        return _max_padded(b, node)
    if not b.has_output(1):
        return [b.op("MaxPool", *node.input, **{**b.given, "storage_order": None}), ""]
    dims, result, type_ = b.dims(node.input[0]), b.dims(node.output[0]), b.type(node.output[0])
    if dims is None or result is None or type_ is None:
        return None
    window = forward_window(b, dims[2:], b.given["kernel_shape"])
    if len(dims) != 4 or window.begin != window.end or _rounds_up(window, dims[2:], result[2:]):
        sized = f"{list(dims)} to {list(result)} with pads {window.begin} and {window.end}"
        raise b.unsupported("pool-indices", f"indices of a pool over {sized}")
    given = {"kernel": window.kernel, "strides": window.strides, "pads": window.begin, "dilations": window.dilations}
    indices_type = TensorType(onnx.TensorProto.INT64, type_.dims)
    y, indices = b.torch_pair(
        "max_pool2d_with_indices", node.input[0], like=(type_, indices_type),
        ceil=0, **given,
    )  # fmt: skip
    height, width = dims[2:]
    if b.given.get("storage_order", 0):  # columns are contiguous
        column = b.op("Mod", indices, b.constant(width))
        row = b.op("Div", b.op("Sub", indices, column), b.constant(width))
        indices = b.op("Add", b.op("Mul", column, b.constant(height)), row)
    if dims[0] * dims[1] > 1:
        first = np.arange(dims[0] * dims[1]).reshape(dims[0], dims[1], 1, 1) * height * width
        indices = b.op("Add", indices, b.constant(first))
    return [y, indices]


@emits("max_pool2d_with_indices")
def _emit_max_pool(e: Emitter, x: Any) -> list[Any]:
    lists = [e.ints(e.integers(name)) for name in ("kernel", "strides", "pads", "dilations")]
    operands = [x, *lists, e.bool(bool(e.integer("ceil")))]
    return e.create_all("torch.aten.max_pool2d_with_indices", [result.type for result in e.op.results], operands)
