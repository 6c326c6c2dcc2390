"""Emission of convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from graph_api import DataType, TensorAttr
from graph_api.ops.conv import ConvAttributes, ConvFpropNode, ConvNode
from graph_api.ops.reduction import ReductionNode
from iree_bridge.emit import products_fp8
from iree_bridge.emit.conv import cpu, generic
from iree_bridge.emit.conv.thin import in_two_channels, without_thin_axes
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.few_rows import missing_terms
from iree_bridge.emit.linalg import mirrored
from iree_bridge.emit.products_cpu import as_computed
from iree_bridge.emit.window_frame import cropped, met
from iree_bridge.targets.types import multiplied
from iree_bridge.targets.variants import is_channels_last, is_usual, reads_parts

__all__ = ["conv_fprop", "convolution", "in_mirror", "operand_type", "operands"]


@rule("conv_fprop")
def conv_fprop(e: Emitter, node: ConvFpropNode) -> None:
    """torch.aten.convolution on logical operands; the result has the compute type, in which it accumulates."""
    if _is_native(e, node):
        e.write(node, "y", _native(e, node))
        return
    x, w = operands(e, node, "x", "w")
    if reads_parts(node) and e.graph.maker(node.inputs["x"]) is not None:
        x = _copied(e, x, last=is_channels_last(node.inputs["x"]))
    if node.attributes.is_mirrored:
        # Picking elements out of a buffer with gaps and mirroring them in one kernel fails on the CPU target.
        w = in_mirror(e, e.barrier(w))
    w = _as_the_image(e, node, w)
    y = cpu.forward(e, node, x, w)
    if y is None:
        y = convolution(e, node.attributes, x, w, node.groups, node.compute)
    e.write(node, "y", y)


def _is_native(e: Emitter, node: ConvFpropNode) -> bool:
    """Whether the chip multiplies the 8-bit floats of both operands as they are.

    Filters of one position and of another type than the image the compiler refuses ("vector.contract").
    """
    x, w, y = node.inputs["x"], node.inputs["w"], node.outputs["y"]
    dims = math.prod(y.dims) // y.dims[1], y.dims[1], x.dims[1]
    point = all(size == 1 for size in w.dims[2:])
    alike = is_usual(x) and (
        x.data_type is w.data_type if point else (is_usual(w) and is_channels_last(x) == is_channels_last(w))
    )
    plain = alike and x.physical.dense and w.physical.dense and node.groups == 1 and not node.attributes.is_mirrored
    return plain and products_fp8.is_native(e.target, x.data_type, w.data_type, dims, node.compute)


def _native(e: Emitter, node: ConvFpropNode) -> Value:
    x, w = (e.read(node.inputs[port], node.inputs[port].data_type) for port in ("x", "w"))
    out, a = node.outputs["y"].dims[2:], node.attributes
    x, padding = cropped(e, x, met(a, x.dims[2:], w.dims[2:], out))
    return products_fp8.convolution(e, a, x, w, out, padding, last=is_channels_last(node.inputs["x"]))


def in_mirror(e: Emitter, w: Value) -> Value:
    """Filters [K, C/g, F...] with the order along each spatial dim reversed."""
    axes = [axis for axis in range(2, len(w.dims)) if w.dims[axis] > 1]
    return e.call(mirrored(w.dims, w.dtype, axes), [w], w.dims, w.dtype) if axes else w


def _as_the_image(e: Emitter, node: ConvFpropNode, w: Value) -> Value:
    """Filters in the order of dims that the image has, copied for AMD chips if they lie in another one.

    Implicit GEMM gathers the terms of a sum in the image's order. Where they do not lie so in the filters the compiler
    mixes the two up, and nearly every number is wrong (``docs/gpu_findings.md``).
    """
    x, filters = node.inputs["x"], node.inputs["w"]
    if e.target.backend != "rocm" or all(size == 1 for size in filters.dims[2:]) or filters.dims[1] == 1:
        return w
    last = is_channels_last(x)
    return w if last == is_channels_last(filters) else _copied(e, w, last=last)


def _copied(e: Emitter, value: Value, *, last: bool) -> Value:
    """An image or filters as a copy whose channels, or with ``last`` unset whose last spatial dim, lie side by side."""
    if not last:
        return e.barrier(value)
    rank = len(value.dims)
    moved = e.barrier(e.permute(value, (0, *range(2, rank), 1)))
    return e.permute(moved, (0, rank - 1, *range(1, rank - 1)))


def operands(e: Emitter, node: ConvNode, first: str, second: str) -> tuple[Value, Value]:
    """The inputs at two ports in the one type in which they are multiplied."""
    a, b = node.inputs[first], node.inputs[second]
    first_type, second_type = (multiplied(tensor.data_type, is_gpu=e.target.is_gpu) for tensor in (a, b))
    dtype = operand_type(first_type, second_type, node.compute)
    if dtype is DataType.BFLOAT16 and e.target.chip == "gfx908":
        dtype = DataType.FLOAT  # the compiler does not use the bf16 matrix instructions of this chip
    return _operand(e, node, a, dtype), _operand(e, node, b, dtype)


def _operand(e: Emitter, node: ConvNode, tensor: TensorAttr, dtype: DataType) -> Value:
    """A tensor in the type in which it is multiplied; for AMD chips in one of the two usual orders of dims.

    GPU targets fail on convolutions whose operands are widened, or picked out of a buffer with gaps, in the same kernel
    (local memory is exceeded, an allocation has no bound, address spaces differ), so there that takes one of its own.
    So does a reduction of which the convolution meets a part ("restricted to workgroup distributed contexts"), and an
    operand that is there once for all of a dim: terms of sums are mixed up, for AMD chips channels last, on CUDA too.
    It leaves the order of dims as it is: `_as_the_image` has the filters follow that of the image.
    """
    value = e.read(tensor)
    widened = tensor.data_type.bits < dtype.bits or value.dtype.is_float != dtype.is_float
    apart = not tensor.physical.dense or tensor.is_repeated or _is_reduced(e, tensor)
    if e.target.is_gpu and (widened or apart):
        return _copied(e, e.cast(value, dtype), last=is_channels_last(tensor))
    value = as_computed(e, e.cast(value, dtype))
    return (
        _copied(e, value, last=is_channels_last(tensor))
        if (e.target.backend == "rocm" and _is_odd(e, node, tensor)) or _is_shared(e, tensor)
        else value
    )


def _is_shared(e: Emitter, tensor: TensorAttr) -> bool:
    """Whether an operand is made by the graph, and a result or read elsewhere as well, on CUDA.

    The compiler makes it in the convolution's kernel then, and may fail to ("apply fusion + hoisting patterns").
    """
    readers = len(e.graph.readers(tensor))
    return e.target.backend == "cuda" and e.graph.maker(tensor) is not None and (readers > 1 or not tensor.is_virtual)


def _is_reduced(e: Emitter, tensor: TensorAttr) -> bool:
    made = e.graph.maker(tensor) if tensor.is_virtual else None
    return isinstance(made, ReductionNode)


def _is_odd(e: Emitter, node: ConvNode, tensor: TensorAttr) -> bool:
    """Whether an operand whose elements implicit GEMM gathers may lie otherwise than channels first or last.

    Or otherwise than its strides say, as what is made in the graph may: the compiler chooses its order. Implicit GEMM
    takes the terms of a sum in the image's order, whatever the filters' is: see `_as_the_image`.
    """
    window = node.inputs["dy" if node.op == "conv_wgrad" else "w"].dims[2:]
    if all(size == 1 for size in window) or (node.op == "conv_dgrad" and tensor is node.inputs["w"]):
        return False
    return not is_usual(tensor) or e.graph.maker(tensor) is not None


def operand_type(x: DataType, w: DataType, compute: DataType) -> DataType:
    """The one type in which both operands are multiplied: the wider; DOUBLE to compute in DOUBLE."""
    if compute is DataType.DOUBLE:
        return DataType.DOUBLE
    if x is w and (x.is_float or x is DataType.INT8):
        return x
    if x.is_float or w.is_float:
        floats = [dtype for dtype in (x, w) if dtype.is_float]
        return floats[0] if len(floats) == 1 else (DataType.DOUBLE if DataType.DOUBLE in floats else DataType.FLOAT)
    return DataType.INT64 if DataType.INT64 in (x, w, compute) else DataType.INT32


def convolution(
    e: Emitter,
    attributes: ConvAttributes,
    x: Value,
    w: Value,
    groups: int,
    compute: DataType,
) -> Value:
    """The forward convolution of logical x and w; the filter is used as it is."""
    attributes, x = _without_strided_points(e, attributes, x, w)
    out = [attributes.output_size(i, size, w.dims[i + 2]) for i, size in enumerate(x.dims[2:])]
    whole = [axis for axis, size in enumerate(out) if size == 1 < w.dims[axis + 2]]
    if whole and e.target.is_gpu:
        x, w, attributes = _in_channels(e, attributes, x, w, whole)
        return convolution(e, attributes, x, w, groups, compute)
    thin = without_thin_axes(e, attributes, x, w, out)
    if thin is not None:
        return thin.restored(e, convolution(e, thin.attributes, x, thin.w, groups, compute))
    x, w = in_two_channels(e, attributes, x, w, groups)
    if groups == 1 and all(size == 1 for size in w.dims[2:]):
        more = missing_terms(e, x.dtype, w.dims[1], (x.dims[0] * math.prod(out), w.dims[0]))
        x, w = _with_channels(e, x, more), _with_channels(e, w, more)
    dtype = _accumulator(x.dtype, compute)
    if (len(out) == 3 and groups > 1) or x.dtype is DataType.INT8:
        return generic.generic_convolution(
            e, attributes, e.pad(*cropped(e, x, met(attributes, x.dims[2:], w.dims[2:], out))), w, groups, out, dtype
        )
    if attributes.pre_padding != attributes.post_padding:
        padding = list(zip(attributes.pre_padding, attributes.post_padding, strict=True))
        x, attributes = e.pad(x, padding), _with_padding(attributes, [(0, 0)] * len(out))
    else:
        x = e.padded_once(x, list(zip(attributes.pre_padding, attributes.post_padding, strict=True)))
    if len(out) == 1:
        y = _convolution_op(e, _as_2d(attributes), _unsqueeze(e, x), _unsqueeze(e, w), groups, [1, *out], dtype)
        return e.reshape(y, (x.dims[0], w.dims[0], *out))
    return _convolution_op(e, attributes, x, w, groups, out, dtype)


def _with_channels(e: Emitter, value: Value, more: int) -> Value:
    """An image or filters with ``more`` channels of zeros."""
    return e.barrier(e.pad(value, [(0, more), *[(0, 0)] * (len(value.dims) - 2)])) if more else value


def _in_channels(
    e: Emitter, attributes: ConvAttributes, x: Value, w: Value, whole: Sequence[int]
) -> tuple[Value, Value, ConvAttributes]:
    """Spatial dims along which the window is met once, as more channels.

    Of sums along such dims the compiler adds up only some waves' parts, where a power of two does not divide the work.
    """
    rank = len(w.dims) - 2
    padding = list(zip(attributes.pre_padding, attributes.post_padding, strict=True))
    for axis in whole:
        span = attributes.dilation[axis] * (w.dims[axis + 2] - 1) + 1
        padding[axis] = (attributes.pre_padding[axis], span - x.dims[axis + 2] - attributes.pre_padding[axis])
    x, left = cropped(e, x, padding)
    x = e.pad(x, [left[axis] if axis in whole else (0, 0) for axis in range(rank)])
    for axis in whole:
        x = e.slice(x, axis + 2, 0, x.dims[axis + 2], attributes.dilation[axis])
    x, w = (e.barrier(_folded(e, value, whole)) for value in (x, w))
    left = [(0, 0) if axis in whole else pads for axis, pads in enumerate(left)]
    once = {
        name: tuple(1 if axis in whole else step for axis, step in enumerate(getattr(attributes, name)))
        for name in ("stride", "dilation")
    }
    return x, w, _with_padding(replace(attributes, **once), left)


def _folded(e: Emitter, value: Value, whole: Sequence[int]) -> Value:
    """[N, C, F...] with some of F as a part of C; 1 in their place."""
    rank = len(value.dims) - 2
    kept = [axis for axis in range(rank) if axis not in whole]
    moved = e.permute(value, (0, 1, *(axis + 2 for axis in whole), *(axis + 2 for axis in kept)))
    channels = value.dims[1] * math.prod(value.dims[axis + 2] for axis in whole)
    dims = (1 if axis in whole else value.dims[axis + 2] for axis in range(rank))
    return e.reshape(moved, (value.dims[0], channels, *dims))


def _accumulator(operand: DataType, compute: DataType) -> DataType:
    if compute.is_float == operand.is_float:
        return compute
    return DataType.INT32 if operand is DataType.INT8 else operand


def _convolution_op(
    e: Emitter, attributes: ConvAttributes, x: Value, w: Value, groups: int, out: Sequence[int], dtype: DataType
) -> Value:
    return e.op(
        "aten.convolution", (x.dims[0], w.dims[0], *out), dtype,
        x, w, None, list(attributes.stride), list(attributes.pre_padding), list(attributes.dilation),
        False, [], groups,
    )  # fmt: skip


def _without_strided_points(e: Emitter, attributes: ConvAttributes, x: Value, w: Value) -> tuple[ConvAttributes, Value]:
    """Gives dims of output size 1 the stride 1: the compiler fails on them ("inferred input/output operand").

    The window is met once, so the end of padded x is cut to the filter's span.
    """
    stride, padding = list(attributes.stride), list(zip(attributes.pre_padding, attributes.post_padding, strict=True))
    for axis, size in enumerate(x.dims[2:]):
        if stride[axis] > 1 and attributes.output_size(axis, size, w.dims[axis + 2]) == 1:
            span = attributes.dilation[axis] * (w.dims[axis + 2] - 1) + 1
            stride[axis] = 1
            padding[axis] = (attributes.pre_padding[axis], span - size - attributes.pre_padding[axis])
    x, padding = cropped(e, x, padding)
    return _with_padding(replace(attributes, stride=tuple(stride)), padding), x


def _with_padding(attributes: ConvAttributes, padding: Sequence[tuple[int, int]]) -> ConvAttributes:
    pre, post = zip(*padding, strict=True)
    return replace(attributes, pre_padding=pre, post_padding=post)


def _as_2d(attributes: ConvAttributes) -> ConvAttributes:
    return replace(
        attributes,
        pre_padding=(0, *attributes.pre_padding),
        post_padding=(0, *attributes.post_padding),
        stride=(1, *attributes.stride),
        dilation=(1, *attributes.dilation),
    )


def _unsqueeze(e: Emitter, value: Value) -> Value:
    return e.reshape(value, (*value.dims[:2], 1, *value.dims[2:]))
