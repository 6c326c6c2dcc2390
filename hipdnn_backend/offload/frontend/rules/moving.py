"""Operators that move elements: where each comes from is known here, or computed as a position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("CenterCropPad", static=(1,))
operator("Col2Im", static=(1, 2))

_INT64 = onnx.TensorProto.INT64


@rewrites("DepthToSpace")
def _spread(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Torch-MLIR orders the channels of ``CRD`` wrongly for blocks of more than 2."""
    dims, mode, size = b.dims(node.input[0]), b.given.get("mode", "DCR"), b.given["blocksize"]
    if dims is None:
        return None
    n, c, h, w = dims
    whole = c // (size * size)
    split, order = {
        "DCR": ([n, size, size, whole, h, w], [0, 3, 4, 1, 5, 2]),
        "CRD": ([n, whole, size, size, h, w], [0, 1, 4, 2, 5, 3]),
    }[mode]
    turned = b.op("Transpose", b.op("Reshape", node.input[0], b.constant(split)), perm=order)
    return [b.op("Reshape", turned, b.constant([n, whole, h * size, w * size]))]


@rewrites("SpaceToDepth")
def _blocks(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Torch-MLIR orders the channels of both modes as ``DCR`` does."""
    dims, mode = b.dims(node.input[0]), b.given.get("mode", "DCR")
    if dims is None:
        return None
    orders = {"DCR": [0, 3, 5, 1, 2, 4], "CRD": [0, 1, 3, 5, 2, 4]}
    if mode not in orders or len(dims) != 4:
        raise b.unsupported("space-to-depth", f"mode {mode!r} of {list(dims)}")
    n, c, h, w = dims
    size = b.given["blocksize"]
    split = b.op("Reshape", node.input[0], b.constant([n, c, h // size, size, w // size, size]))
    turned = b.op("Transpose", split, perm=orders[mode])
    return [b.op("Reshape", turned, b.constant([n, c * size * size, h // size, w // size]))]


@rewrites("ReverseSequence")
def _reversed(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Rows are gathered: element t of a sequence is element ``length - 1 - t`` up to its end, and stays behind it."""
    dims, kind = b.dims(node.input[0]), b.type(node.input[1])
    if dims is None or kind is None:
        return None
    time, batch = b.given.get("time_axis", 0), b.given.get("batch_axis", 1)
    if {time, batch} != {0, 1}:
        raise b.fail("reverse-sequence", f"time_axis {time} and batch_axis {batch} are not 0 and 1")
    steps, count = dims[time], dims[batch]
    lengths = b.op("Clip", b.op("Cast", node.input[1], to=_INT64), b.constant(0), b.constant(steps))
    t = np.arange(steps).reshape(-1, 1) if time == 0 else np.arange(steps).reshape(1, -1)
    which = np.arange(count).reshape(1, -1) if time == 0 else np.arange(count).reshape(-1, 1)
    lengths = b.op("Unsqueeze", lengths, b.constant([time]))
    inside = b.op("Less", b.constant(t), lengths)
    at = b.op("Where", inside, b.op("Sub", lengths, b.constant(t + 1)), b.constant(t))
    if time == 0:
        at = b.op("Add", b.op("Mul", at, b.constant(count)), b.constant(which))
    else:
        at = b.op("Add", at, b.constant(which * steps))
    rows = b.op("Reshape", node.input[0], b.constant([dims[0] * dims[1], *dims[2:]]))
    return [b.op("Reshape", b.op("Gather", rows, at, axis=0), b.constant(dims))]


@rewrites("Col2Im")
def _image(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Each element of the image sums the few columns that hold it, whose places are known here."""
    dims, sizes, block = b.dims(node.input[0]), b.value(node.input[1]), b.value(node.input[2])
    if dims is None or sizes is None or block is None:
        return None
    rank = len(sizes)
    given = [b.given.get(name) or [1] * rank for name in ("strides", "dilations")]
    strides, dilations = (np.asarray(each) for each in given)
    pads = b.given.get("pads") or [0] * (2 * rank)
    counts = [
        (size + pads[i] + pads[rank + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(sizes.tolist())
    ]
    taps, columns = math.prod(block.tolist()), math.prod(counts)
    if len(dims) != 3 or dims[1] % taps or dims[2] != columns:
        raise b.fail("col2im", f"{list(dims)} are no {columns} columns of blocks {block.tolist()}")
    places = np.indices(counts).reshape(rank, 1, columns) * strides[:, None, None] - np.reshape(
        pads[:rank], (rank, 1, 1)
    )
    at = places + np.indices(block.tolist()).reshape(rank, taps, 1) * dilations[:, None, None]
    inside = ((at >= 0) & (at < sizes[:, None, None])).all(0)
    target = np.ravel_multi_index(tuple(at[:, inside]), tuple(sizes))
    source = np.arange(taps * columns).reshape(taps, columns)[inside]
    order = np.argsort(target, kind="stable")
    held = np.bincount(target, minlength=math.prod(sizes.tolist()))
    filled = np.arange(max(1, held.max())) < held[:, None]
    where = np.zeros(filled.shape, np.int64)
    where[filled] = source[order]
    flat = b.op("Reshape", node.input[0], b.constant([dims[0], dims[1] // taps, taps * columns]))
    terms = b.op("Gather", flat, b.constant(where), axis=2)
    if not filled.all():
        terms = b.op("Where", b.constant(filled, np.bool_), terms, b.like(node.input[0], 0))
    y = b.op("ReduceSum", terms, b.constant([3]), keepdims=0)
    return [b.op("Reshape", y, b.constant([dims[0], dims[1] // taps, *sizes.tolist()]))]


@rewrites("CenterCropPad")
def _centred(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """A slice of what is larger, then a pad of what is smaller; the odd element is at the end."""
    dims, sizes = b.dims(node.input[0]), b.value(node.input[1])
    if dims is None or sizes is None:
        return None
    axes = b.given.get("axes") or list(range(len(dims)))
    begin, end, y = [0] * len(dims), [0] * len(dims), node.input[0]
    for axis, size in zip(axes, sizes.tolist(), strict=True):
        before = dims[axis]
        if before > size:
            start = (before - size) // 2
            y = b.op("Slice", y, *(b.constant([number]) for number in (start, start + size, axis % len(dims))))
        else:
            begin[axis] = (size - before) // 2
            end[axis] = size - before - begin[axis]
    return [b.op("Pad", y, b.constant([*begin, *end]), b.like(node.input[0], 0))]


@rewrites("TensorScatter")
def _cache(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Each place of the cache takes the update that was written there, if one was."""
    dims, new = b.dims(node.input[0]), b.dims(node.input[1])
    if dims is None or new is None:
        return None
    axis, mode = b.axis(-2, len(dims)), b.given.get("mode", "linear")
    if axis == 0 or mode not in ("linear", "circular"):
        raise b.fail("tensor-scatter", f"mode {mode!r} along axis {axis}")
    size, count = dims[axis], new[axis]
    begin = b.op("Cast", b.input(2), to=_INT64) if b.input(2) else b.constant(np.zeros(dims[0]))
    step = b.op("Sub", b.constant(np.arange(size)[None]), b.op("Unsqueeze", begin, b.constant([1])))
    if mode == "circular":
        step = b.op("Mod", step, b.constant(size))  # of the divisor's sign
    written = b.op("And", b.op("GreaterOrEqual", step, b.constant(0)), b.op("Less", step, b.constant(count)))
    at = b.op("Clip", step, b.constant(0), b.constant(count - 1))
    at = b.op("Add", at, b.constant(np.arange(dims[0])[:, None] * count))
    first = [0, axis, *(i for i in range(1, len(dims)) if i != axis)]
    back = [first.index(i) for i in range(len(dims))]
    rows = b.op("Transpose", node.input[1], perm=first)
    rows = b.op("Reshape", rows, b.constant([dims[0] * count, *(dims[i] for i in first[2:])]))
    update = b.op("Transpose", b.op("Gather", rows, at, axis=0), perm=back)
    shape = [dims[0], *(size if i == axis else 1 for i in range(1, len(dims)))]
    return [b.op("Where", b.op("Reshape", written, b.constant(shape)), update, node.input[0])]
