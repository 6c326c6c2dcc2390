"""Samples of a picture at computed positions: GridSample, RoiAlign, DeformConv.

Positions are brought inside the picture before they become integers, so that no value of a run, NaN included, reads
outside; torch-mlir's own conversions do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.graph import numpy_type
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

_INT64 = onnx.TensorProto.INT64


@dataclass(kw_only=True)
class _Picture:
    """A picture ``[N, C, d...]`` as a table of its places, ``[N * d..., C]``.

    Attributes:
        b: where nodes go.
        rows: the table, in the type in which sums are computed.
        count, channels: N and C.
        sizes: d.
        dtype: of the positions.
    """

    b: Builder
    rows: str
    count: int
    channels: int
    sizes: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, b: Builder, x: str, dims: tuple[int, ...], element: int, dtype: np.dtype) -> _Picture:
        rank = len(dims)
        last = b.op("Transpose", x, perm=[0, *range(2, rank), 1])
        rows = b.op("Reshape", last, b.constant([dims[0] * math.prod(dims[2:]), dims[1]]))
        return cls(
            b=b, rows=b.op("Cast", rows, to=element), count=dims[0], channels=dims[1], sizes=dims[2:], dtype=dtype
        )

    def number(self, value: float) -> str:
        """A constant in the type of the positions."""
        return self.b.constant(value, self.dtype)

    def within(self, x: str, low: float, high: float) -> str:
        """``x`` between two bounds; NaN becomes the lower one."""
        b, least, most = self.b, self.number(low), self.number(high)
        x = b.op("Where", b.op("GreaterOrEqual", x, least), x, least)
        return b.op("Where", b.op("LessOrEqual", x, most), x, most)

    def read(self, base: str, at: Sequence[str]) -> str:
        """``[P..., C]``: what is at positions ``[P...]``, for each dim a float tensor inside it, which broadcast.

        Args:
            base: where the pictures begin, "" for one.
            at: the positions.
        """
        b, flat = self.b, ""
        for size, x in zip(self.sizes, at, strict=True):
            whole = b.op("Cast", x, to=_INT64)
            flat = b.op("Add", b.op("Mul", flat, b.constant(size)), whole) if flat else whole
        return b.op("Gather", self.rows, b.op("Add", flat, base) if base else flat, axis=0)

    def column(self, x: str) -> str:
        """``[P...]`` → ``[P..., 1]``."""
        return self.b.op("Unsqueeze", x, self.b.constant([-1]))


@rewrites("GridSample")
def _grid_sample(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    dims, grid, type_, kind = (
        b.dims(node.input[0]),
        b.dims(node.input[1]),
        b.type(node.input[0]),
        b.dtype(node.input[1]),
    )
    if dims is None or grid is None or type_ is None or kind is None:
        return None
    mode, padding = b.given.get("mode", "linear"), b.given.get("padding_mode", "zeros")
    taps = {"nearest": [0], "linear": [0, 1], "bilinear": [0, 1], "cubic": [-1, 0, 1, 2], "bicubic": [-1, 0, 1, 2]}
    if mode not in taps or padding not in ("zeros", "border", "reflection") or type_.dtype.kind in "iub":
        raise b.unsupported("grid-sample", f"mode {mode!r} with padding {padding!r} of {type_.dtype}")
    dtype = kind if kind in (np.float32, np.float64) else np.dtype(np.float32)
    summed = type_.element if type_.dtype == np.float64 or mode == "nearest" else onnx.TensorProto.FLOAT
    picture = _Picture.of(b, node.input[0], dims, summed, dtype)
    sizes, points = dims[2:], math.prod(grid[:-1])
    flat = b.op("Reshape", node.input[1], b.constant([points, len(sizes)]))
    flat = b.op("Cast", flat, to=onnx.helper.np_dtype_to_tensor_dtype(dtype))
    aligned = bool(b.given.get("align_corners", 0))
    along = []
    for axis, size in enumerate(sizes):  # the grid's last coordinate is that of the first dim
        x = b.op("Gather", flat, b.constant(len(sizes) - 1 - axis), axis=1)
        x = _in_pixels(picture, x, size, aligned)
        if mode == "nearest":
            x = b.op("Round", x)
        along.append(_taps(picture, _padded(picture, x, size, padding, aligned), size, taps[mode], padding, aligned))
    first = np.repeat(np.arange(dims[0]) * math.prod(sizes), points // max(dims[0], 1))
    y = _weighted(picture, b.constant(first) if dims[0] > 1 else "", along, summed)
    y = b.op("Reshape", y, b.constant([*grid[:-1], dims[1]]))
    y = b.op("Transpose", y, perm=[0, len(dims) - 1, *range(1, len(dims) - 1)])
    return [b.op("Cast", y, to=type_.element)]


def _in_pixels(picture: _Picture, x: str, size: int, aligned: bool) -> str:
    """From -1 … 1 to 0 … size - 1, or to the outer edges of these."""
    b, half = picture.b, picture.number(0.5)
    x = b.op("Add", x, picture.number(1))
    if aligned:
        return b.op("Mul", x, picture.number((size - 1) / 2))
    return b.op("Mul", b.op("Sub", b.op("Mul", x, picture.number(size)), picture.number(1)), half)


def _padded(picture: _Picture, x: str, size: int, padding: str, aligned: bool) -> str:
    """Coordinates outside are reflected, or so far away at most that no tap is inside: each is padded by itself."""
    if padding == "reflection":
        low, high = (0, size - 1) if aligned else (-0.5, size - 0.5)
        return picture.within(_reflected(picture, x, low, high), low, high)
    return picture.within(x, -4, size + 3)


def _reflected(picture: _Picture, x: str, low: float, high: float) -> str:
    """Back and forth between two bounds."""
    b, reach = picture.b, high - low
    if reach <= 0:
        return b.op("Mul", x, picture.number(0))
    far = b.op("Abs", b.op("Sub", x, picture.number(low)))
    period = picture.number(2 * reach)
    rest = b.op("Sub", far, b.op("Mul", b.op("Floor", b.op("Div", far, period)), period))
    back = b.op("Abs", b.op("Sub", rest, picture.number(reach)))  # from the upper bound
    return b.op("Sub", picture.number(high), back)


_Tap = tuple[str, str, str]
"""Position inside, weight ("" for 1), and whether it counts ("" for always)."""


def _taps(picture: _Picture, x: str, size: int, taps: Sequence[int], padding: str, aligned: bool) -> list[_Tap]:
    b = picture.b
    base = b.op("Floor", x) if len(taps) > 1 else x
    part = b.op("Sub", x, base) if len(taps) > 1 else ""
    found = []
    for tap in taps:
        at, counts = b.op("Add", base, picture.number(tap)) if tap else base, ""
        if padding == "zeros":
            low, high = picture.number(0), picture.number(size - 1)
            counts = b.op("And", b.op("GreaterOrEqual", at, low), b.op("LessOrEqual", at, high))
        elif padding == "reflection":
            at = _reflected(picture, at, *((0, size - 1) if aligned else (-0.5, size - 0.5)))
        weight = "" if len(taps) == 1 else (_linear if len(taps) == 2 else _cubic)(picture, part, tap)
        found.append((picture.within(at, 0, size - 1), weight, counts))
    return found


def _linear(picture: _Picture, part: str, tap: int) -> str:
    return part if tap else picture.b.op("Sub", picture.number(1), part)


def _cubic(picture: _Picture, part: str, tap: int) -> str:
    """Keys' kernel with a = -0.75, at the distance of a tap."""
    b, a = picture.b, -0.75
    x = b.op("Sub", picture.number(tap), part) if tap > 0 else b.op("Sub", part, picture.number(tap))

    def polynomial(*factors: float) -> str:
        y = picture.number(factors[0])
        for factor in factors[1:]:
            y = b.op("Add", b.op("Mul", y, x), picture.number(factor))
        return y

    return polynomial(a + 2, -(a + 3), 0, 1) if tap in (0, 1) else polynomial(a, -5 * a, 8 * a, -4 * a)


def _weighted(picture: _Picture, base: str, along: Sequence[Sequence[_Tap]], element: int) -> str:
    """``[P..., C]``: the sum over all combinations of taps."""
    b = picture.b
    return b.op("ReduceSum", _terms(picture, base, along, element), b.constant(range(len(along))), keepdims=0)


def _terms(picture: _Picture, base: str, along: Sequence[Sequence[_Tap]], element: int) -> str:
    """``[taps of each dim..., P..., C]``: for each combination of taps what is there, times its weight."""
    b = picture.b
    at, weights, inside = (
        [_stacked(b, [tap[part] for tap in taps], axis, len(along)) for axis, taps in enumerate(along)]
        for part in range(3)
    )
    value = picture.read(base, at)
    if counts := _chain(b, "And", [each for each in inside if each]):
        zero = b.constant(0, numpy_type(element))
        value = b.op("Where", picture.column(counts), value, zero)
    if factor := _chain(b, "Mul", [each for each in weights if each]):
        value = b.op("Mul", value, b.op("Cast", picture.column(factor), to=element))
    return value


def _stacked(b: Builder, parts: Sequence[str], axis: int, rank: int) -> str:
    """``[P...]`` of each tap as one tensor ``[1, taps, 1, P...]``, the taps of dim ``axis``; "" if there is nothing."""
    if not parts[0]:
        return ""
    whole = [b.op("Unsqueeze", part, b.constant(range(rank))) for part in parts]
    return b.op("Concat", *whole, axis=axis) if len(whole) > 1 else whole[0]


def _chain(b: Builder, op_type: str, operands: Sequence[str]) -> str:
    """One after the other; "" if there is none."""
    result = ""
    for operand in operands:
        result = b.op(op_type, result, operand) if result else operand
    return result


@rewrites("RoiAlign")
def _roi_align(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Each bin is the mean, or the largest weighted corner, of ``sampling_ratio`` squared bilinear samples."""
    dims, rois, type_, kind = (
        b.dims(node.input[0]),
        b.dims(node.input[1]),
        b.type(node.input[0]),
        b.dtype(node.input[1]),
    )
    if dims is None or rois is None or type_ is None or kind is None:
        return None
    given, mode = b.given, b.given.get("mode", "avg")
    samples = given.get("sampling_ratio", 0)
    if samples < 1 or mode not in ("avg", "max"):  # how many samples a bin has is known in a run only
        return None
    dtype = kind if kind in (np.float32, np.float64) else np.dtype(np.float32)
    summed = type_.element if type_.dtype == np.float64 else onnx.TensorProto.FLOAT
    picture = _Picture.of(b, node.input[0], dims, summed, dtype)
    half = given.get("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    corners = b.op("Cast", node.input[1], to=onnx.helper.np_dtype_to_tensor_dtype(dtype))
    corners = b.op("Mul", corners, picture.number(given.get("spatial_scale", 1.0)))
    corners = b.op("Sub", corners, picture.number(0.5)) if half else corners
    bins, along = [given.get("output_height", 1), given.get("output_width", 1)], []
    for axis, (size, count) in enumerate(zip(dims[2:], bins, strict=True)):  # rois are x1, y1, x2, y2
        begin, end = (b.op("Gather", corners, b.constant([first + 1 - axis]), axis=1) for first in (0, 2))
        length = b.op("Sub", end, begin)
        if not half:
            longer = b.op("GreaterOrEqual", length, picture.number(1))
            length = b.op("Where", longer, length, picture.number(1))
        parts = (np.arange(count)[:, None] + (np.arange(samples) + 0.5) / samples).reshape(1, -1) / count
        at = b.op("Add", begin, b.op("Mul", length, b.constant(parts, dtype)))
        taps = _bilinear_inside(picture, at, size)
        wide = b.constant([2 if axis == 0 else 1])  # [rois, samples of the height, samples of the width]
        along.append([tuple(b.op("Unsqueeze", each, wide) for each in tap) for tap in taps])
    whole = b.op("Cast", node.input[2], to=_INT64)
    whole = b.op("Clip", whole, b.constant(0), b.constant(max(dims[0] - 1, 0)))
    base = b.op("Reshape", b.op("Mul", whole, b.constant(math.prod(dims[2:]))), b.constant([rois[0], 1, 1]))
    terms, taps = _terms(picture, base, along, summed), b.constant([0, 1])
    y = b.op("ReduceSum" if mode == "avg" else "ReduceMax", terms, taps, keepdims=0)
    y = b.op("Reshape", y, b.constant([rois[0], bins[0], samples, bins[1], samples, dims[1]]))
    y = b.op("ReduceMean" if mode == "avg" else "ReduceMax", y, b.constant([2, 4]), keepdims=0)
    return [b.op("Cast", b.op("Transpose", y, perm=[0, 3, 1, 2]), to=type_.element)]


def _bilinear_inside(picture: _Picture, x: str, size: int) -> list[_Tap]:
    """Two taps of what is at most 1 outside, which counts as the edge; the rest counts for nothing."""
    b = picture.b
    low, high = (b.op(op, x, picture.number(limit)) for op, limit in (("GreaterOrEqual", -1), ("LessOrEqual", size)))
    counts, at = b.op("And", low, high), picture.within(x, 0, size - 1)
    base = b.op("Floor", at)
    part = b.op("Sub", at, base)
    return [
        (picture.within(b.op("Add", base, picture.number(tap)), 0, size - 1), _linear(picture, part, tap), counts)
        for tap in (0, 1)
    ]


@rewrites("DeformConv")
def _deformed(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """What the moved taps read, as columns, and one product with the filters."""
    dims, filters, result = b.dims(node.input[0]), b.dims(node.input[1]), b.dims(node.output[0])
    type_, kind = b.type(node.input[0]), b.dtype(node.input[2])
    if dims is None or filters is None or result is None or type_ is None or kind is None:
        return None
    if len(dims) != 4:
        raise b.unsupported("deform-conv", f"{len(dims) - 2} spatial dims")
    groups, parts = b.given.get("group", 1), b.given.get("offset_group", 1)
    n, c, taps, places = dims[0], dims[1], filters[2] * filters[3], result[2:]
    strides, dilations = b.given.get("strides") or [1, 1], b.given.get("dilations") or [1, 1]
    begin = (b.given.get("pads") or [0] * 4)[:2]
    dtype = kind if kind in (np.float32, np.float64) else np.dtype(np.float32)
    summed = type_.element if type_.dtype == np.float64 else onnx.TensorProto.FLOAT
    split = (n * parts, c // parts, *dims[2:])
    picture = _Picture.of(b, b.op("Reshape", node.input[0], b.constant(split)), split, summed, dtype)
    moved = b.op("Cast", node.input[2], to=onnx.helper.np_dtype_to_tensor_dtype(dtype))
    moved = b.op("Reshape", moved, b.constant([n * parts, taps, 2, *places]))
    along = []
    for axis, size in enumerate(dims[2:]):
        tap = np.arange(filters[2 + axis]) * dilations[axis] - begin[axis]
        tap = np.repeat(tap, filters[3]) if axis == 0 else np.tile(tap, filters[2])
        place = np.arange(places[axis]) * strides[axis]
        at = tap[:, None, None] + (place[:, None] if axis == 0 else place[None, :])
        x = b.op("Add", b.op("Gather", moved, b.constant(axis), axis=2), b.constant(at[None], dtype))
        along.append(_taps(picture, picture.within(x, -4, size + 3), size, [0, 1], "zeros", False))
    base = b.constant((np.arange(n * parts) * math.prod(dims[2:])).reshape(-1, 1, 1, 1))
    y = _weighted(picture, base if n * parts > 1 else "", along, summed)  # [n * parts, taps, places..., channels]
    if b.input(4):
        mask = b.op("Reshape", node.input[4], b.constant([n * parts, taps, *places, 1]))
        y = b.op("Mul", y, b.op("Cast", mask, to=summed))
    y = b.op("Transpose", y, perm=[0, 4, 1, 2, 3])
    columns = b.op("Reshape", y, b.constant([n, groups, c // groups * taps, math.prod(places)]))
    weights = b.op("Reshape", node.input[1], b.constant([groups, filters[0] // groups, c // groups * taps]))
    y = b.op("MatMul", b.op("Cast", weights, to=summed), columns)
    y = b.op("Cast", b.op("Reshape", y, b.constant(result)), to=type_.element)
    if b.input(3):
        y = b.op("Add", y, b.op("Reshape", node.input[3], b.constant([-1, 1, 1])))
    return [y]
