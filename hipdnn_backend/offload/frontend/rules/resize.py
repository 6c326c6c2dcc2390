"""Resize as gathers and weighted sums, one axis after the other: where it reads and with which weight is known here.

Torch's own resizes know some of the operator's coordinates and ignore the rest of what a node says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.operators import operator
from hipdnn_backend.offload.frontend.rewriting import Builder, rewrites

__all__: list[str] = []

operator("Resize", static=(1, 2, 3))

_SUMMED = 4
"""Taps up to which each is a gather of its own; more are gathered into an axis and reduced."""


@dataclass(kw_only=True)
class _Axis:
    """What happens along one axis.

    Attributes:
        axis: which.
        before, after: its sizes.
        scale: asked for, or the ratio of the sizes.
        wanted: size by the scale, which need not be a whole number.
        begin, end: of the region of interest, in parts of the axis.
    """

    axis: int
    before: int
    after: int
    scale: float
    wanted: float
    begin: float = 0.0
    end: float = 1.0

    @property
    def stays(self) -> bool:
        return self.scale == 1.0 and self.before == self.after and (self.begin, self.end) == (0.0, 1.0)


@rewrites("Resize")
def _resize(b: Builder, node: onnx.NodeProto) -> Sequence[str] | None:
    """Axis by axis: a gather for the nearest, weighted sums otherwise; integers are rounded once, at the end."""
    dims, result, type_ = b.dims(node.input[0]), b.dims(node.output[0]), b.type(node.input[0])
    if dims is None or result is None or type_ is None:
        return None
    axes = [axis for axis in _axes(b, dims, result) if not axis.stays]
    mode, dtype = b.given.get("mode", "nearest"), type_.dtype
    if mode not in ("nearest", "linear", "cubic"):
        raise b.unsupported("resize", f"mode {mode!r}")
    y = node.input[0]
    wide = dtype if mode == "nearest" or dtype in (np.float32, np.float64) else np.dtype(np.float32)
    if wide != dtype:
        y = b.op("Cast", y, to=onnx.helper.np_dtype_to_tensor_dtype(wide))
    now = list(dims)
    for axis in axes:
        at = _coordinates(b, axis)
        where, weights = _nearest(b, axis, at) if mode == "nearest" else _taps(b, axis, at, mode)
        y = _read(b, y, now, axis.axis, where, weights, wide)
        now[axis.axis] = axis.after
        beyond = (at < 0) | (at > np.float32(axis.before - 1))
        if b.given.get("coordinate_transformation_mode") == "tf_crop_and_resize" and beyond.any():
            mask = b.constant(beyond.reshape(_along(len(dims), axis.axis, beyond.shape)), np.bool_)
            y = b.op("Where", mask, b.constant(b.given.get("extrapolation_value", 0.0), wide), y)
    if wide == dtype:
        return [y]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        y = b.op("Clip", b.op("Round", y), b.constant(limits.min, wide), b.constant(limits.max, wide))
    return [b.op("Cast", y, to=type_.element)]


def _axes(b: Builder, dims: tuple[int, ...], result: tuple[int, ...]) -> list[_Axis]:
    """Scale and size of each axis; the scale that a size implies is a float32 quotient."""
    rank = len(dims)
    roi, scales, sizes = (b.value(b.input(i)) if b.input(i) else None for i in (1, 2, 3))
    chosen = [axis % rank for axis in b.given.get("axes") or range(rank)]
    if scales is not None and scales.size:
        factors, wanted = (
            [float(scale) for scale in scales],
            [float(s) * dims[a] for s, a in zip(scales, chosen, strict=True)],
        )
    elif sizes is not None and sizes.size:
        factors = [float(np.float32(size) / np.float32(dims[axis])) for size, axis in zip(sizes, chosen, strict=True)]
        policy = b.given.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factors = [min(factors) if policy == "not_larger" else max(factors)] * len(factors)
        wanted = [float(result[axis]) for axis in chosen]
    else:
        raise b.unsupported("resize", "neither scales nor sizes are known before a run")
    found = [
        _Axis(axis=axis, before=dims[axis], after=result[axis], scale=scale, wanted=size)
        for axis, scale, size in zip(chosen, factors, wanted, strict=True)
    ]
    if b.given.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        if roi is None or roi.size != 2 * len(chosen):
            raise b.unsupported("resize", "tf_crop_and_resize with a region of interest that only a run knows")
        for axis, begin, end in zip(found, roi[: len(chosen)], roi[len(chosen) :], strict=True):
            axis.begin, axis.end = float(begin), float(end)
    return found


def _coordinates(b: Builder, axis: _Axis) -> np.ndarray:
    """Where each output lies in the input, in float32 as ONNX Runtime computes it: halves decide the nearest one."""
    mode = b.given.get("coordinate_transformation_mode", "half_pixel")
    x, one, scale = np.arange(axis.after, dtype=np.float32), np.float32(1), np.float32(axis.scale)
    last, half = np.float32(axis.before - 1), np.float32(0.5)
    if mode in ("align_corners", "tf_crop_and_resize") and axis.after not in (1, axis.wanted):
        reason = f"{mode} with scale {axis.scale:g} of {axis.before}, which is no whole size: ONNX's text and its tests"
        raise b.unsupported("resize", f"{reason} differ there; give sizes instead of scales")
    if mode == "asymmetric":
        return x / scale
    if mode == "align_corners":
        return x * last / np.float32(axis.after - 1) if axis.after > 1 else x * 0
    if mode == "tf_crop_and_resize":
        begin, end = np.float32(axis.begin), np.float32(axis.end)
        if axis.after == 1:
            return x + half * (begin + end) * last
        return begin * last + x * (end - begin) * last / np.float32(axis.after - 1)
    if mode == "tf_half_pixel_for_nn":
        return (x + half) / scale
    if mode == "pytorch_half_pixel" and axis.after == 1:
        return x * 0
    offset = np.float32(0)
    if mode == "half_pixel_symmetric":
        offset = np.float32(axis.before / 2) * (one - np.float32(axis.after / axis.wanted))
    elif mode not in ("half_pixel", "pytorch_half_pixel"):
        raise b.unsupported("resize", f"coordinate_transformation_mode {mode!r}")
    return offset + (x + half) / scale - half


def _nearest(b: Builder, axis: _Axis, at: np.ndarray) -> tuple[np.ndarray, None]:
    mode = b.given.get("nearest_mode", "round_prefer_floor")
    rounding = {
        "round_prefer_floor": lambda x: np.ceil(x - np.float32(0.5)),
        "round_prefer_ceil": lambda x: np.floor(x + np.float32(0.5)),
        "floor": np.floor,
        "ceil": np.ceil,
        "": np.ceil if axis.scale < 1 else np.floor,  # before opset 11
    }
    if mode not in rounding:
        raise b.unsupported("resize", f"nearest_mode {mode!r}")
    return np.clip(rounding[mode](at), 0, axis.before - 1).astype(np.int64)[:, None], None


def _taps(b: Builder, axis: _Axis, at: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions ``[after, taps]`` and their weights."""
    shrink = min(axis.scale, 1.0) if b.given.get("antialias", 0) else 1.0
    reach = 1 if mode == "linear" else 2
    first = int(np.floor(-reach / shrink)) + 1
    base = np.floor(at)
    part = (at - base).astype(np.float64)[:, None]
    taps = np.arange(first, 2 - first)
    kernel = _tent if mode == "linear" else _cubic(b.given.get("cubic_coeff_a", -0.75))
    weights = kernel(np.abs(taps - part) * shrink)
    where = base.astype(np.int64)[:, None] + taps
    if b.given.get("exclude_outside", 0):
        weights = np.where((where < 0) | (where >= axis.before), 0, weights)
    sums = weights.sum(1, keepdims=True)
    weights = weights / np.where(sums == 0, 1, sums)
    return np.clip(where, 0, axis.before - 1), weights


def _tent(x: np.ndarray) -> np.ndarray:
    return np.clip(1 - x, 0, 1)


def _cubic(a: float):
    def kernel(x: np.ndarray) -> np.ndarray:
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0))

    return kernel


def _along(rank: int, axis: int, sizes: Sequence[int]) -> list[int]:
    return [*(1,) * axis, *sizes, *(1,) * (rank - axis - 1)]


def _read(
    b: Builder, x: str, dims: Sequence[int], axis: int, where: np.ndarray, weights: np.ndarray | None, dtype: np.dtype
) -> str:
    """``sum(x[where[:, k]] * weights[:, k])`` along an axis."""
    if weights is None:
        return _picked(b, x, dims, axis, where[:, 0])
    if where.shape[1] <= _SUMMED:
        y = ""
        for k in range(where.shape[1]):
            factor = b.constant(weights[:, k].reshape(_along(len(dims), axis, [len(weights)])), dtype)
            term = b.op("Mul", b.op("Gather", x, b.constant(where[:, k]), axis=axis), factor)
            y = b.op("Add", y, term) if y else term
        return y
    factor = b.constant(weights.reshape(_along(len(dims), axis, weights.shape)), dtype)
    terms = b.op("Mul", b.op("Gather", x, b.constant(where), axis=axis), factor)
    return b.op("ReduceSum", terms, b.constant([axis + 1]), keepdims=0)


def _picked(b: Builder, x: str, dims: Sequence[int], axis: int, where: np.ndarray) -> str:
    """A gather; where every element comes as often as the others, one after the other, an expansion."""
    size = dims[axis]
    times, rest = divmod(len(where), size)
    if rest or not np.array_equal(where, np.repeat(np.arange(size), times)):
        return b.op("Gather", x, b.constant(where), axis=axis)
    if times == 1:
        return x
    wide = [*dims[: axis + 1], times, *dims[axis + 1 :]]
    expanded = b.op("Expand", b.op("Unsqueeze", x, b.constant([axis + 1])), b.constant(wide))
    return b.op("Reshape", expanded, b.constant([*dims[:axis], len(where), *dims[axis + 1 :]]))
