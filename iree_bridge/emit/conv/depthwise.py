"""Depthwise convolution on the CPU target: a filter [C, 1, window...] for each channel, f32.

The compiler has vectors for it where channels are innermost. Where they are not, it is left to scalar loops, so there
the sum over the window is written out, each term a part of padded x; ``docs/performance.md`` has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from graph_api import DataType
from graph_api.ops.conv import ConvAttributes
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Code, Operand, generic
from iree_bridge.emit.window_frame import cropped, met
from iree_bridge.emit.window_terms import MOST_TERMS, WindowTerms, has_terms, vector_row
from iree_bridge.targets.types import builtin_tensor

__all__ = ["depthwise"]

_MOST_STRIDE: Final = 8
"""Stride in a row from which on most of what is computed would be left out."""


def depthwise(e: Emitter, a: ConvAttributes, x: Value, w: Value, *, is_last: bool) -> Value | None:
    """x [N, C, spatial...] with w [C, 1, window...], logical; None: the torch form serves.

    ``is_last``: the channels of x lie next to each other.
    """
    if is_last:
        return _channels_last(e, a, x, w) if len(x.dims) == 4 else None
    if a.stride[-1] >= _MOST_STRIDE or math.prod(w.dims[2:]) > MOST_TERMS:
        return None
    return _channels_first(e, a, x, w)


def _channels_last(e: Emitter, a: ConvAttributes, x: Value, w: Value) -> Value:
    """As a named operation; a barrier keeps the filter's transpose apart."""
    out = [a.output_size(i, x.dims[i + 2], w.dims[i + 2]) for i in range(2)]
    # What no window meets is cut off: the compiler checks for it.
    image, padding = cropped(e, x, met(a, x.dims[2:], w.dims[2:], out))
    image = e.pad(e.permute(image, (0, 2, 3, 1)), [*padding, (0, 0)])
    kernel = e.barrier(e.reshape(e.permute(w, (2, 3, 1, 0)), (*w.dims[2:], w.dims[0])))
    dims = (x.dims[0], *out, w.dims[0])
    source, filters, result = (builtin_tensor(d, DataType.FLOAT) for d in (image.dims, kernel.dims, dims))
    strides, dilations = (
        f"dense<[{', '.join(map(str, values))}]> : tensor<2xi64>" for values in (a.stride, a.dilation)
    )
    text = f"""
    func.func private @depthwise(%x: {source}, %w: {filters}) -> {result} {{
      %zero = arith.constant 0.0 : f32
      %empty = tensor.empty() : {result}
      %begun = linalg.fill ins(%zero : f32) outs(%empty : {result}) -> {result}
      %y = linalg.depthwise_conv_2d_nhwc_hwc {{strides = {strides}, dilations = {dilations}}}
          ins(%x, %w : {source}, {filters}) outs(%begun : {result}) -> {result}
      return %y : {result}
    }}"""
    return e.permute(e.call(text, [image, kernel], dims, DataType.FLOAT), (0, 3, 1, 2))


def _channels_first(e: Emitter, a: ConvAttributes, x: Value, w: Value) -> Value:
    """As a sum of parts of padded x, whose rows are as long as vectors want them; what is too much is cut off after it.

    Rows of a stride that cannot be read as vectors are computed as if it was 1.
    """
    size, window, step = x.dims[2:], w.dims[2:], a.stride[-1]
    out = [a.output_size(i, size[i], window[i]) for i in range(len(size))]
    left = 1 if has_terms(step, DataType.FLOAT) else step
    summed = replace(a, stride=(*a.stride[:-1], step // left))
    wide = (*out[:-1], vector_row(left * out[-1]))
    frame = [(pre, max(end, 0)) for pre, end in met(summed, size, window, wide)]
    odd = (x.dims[-1] + sum(frame[-1])) % summed.stride[-1]
    frame[-1] = frame[-1][0], frame[-1][1] + odd
    image, dims = e.pad(x, frame), (*x.dims[:2], *wide)
    y = e.call(_sum_function(summed, image, w, dims), [image, w], dims, DataType.FLOAT)
    if wide[-1] != out[-1] and left == 1:
        y = e.barrier(y)  # or the compiler sums rows of the length that is cut out
    return e.slice(y, len(dims) - 1, 0, left * (out[-1] - 1) + 1, left)


def _sum_function(a: ConvAttributes, image: Value, w: Value, dims: Sequence[int]) -> str:
    """A function from padded x and w to the sum over the window, a term at a time, of their products."""
    source, filters, result = (builtin_tensor(d, DataType.FLOAT) for d in (image.dims, w.dims, dims))
    channels = builtin_tensor(dims[1:2], DataType.FLOAT)
    window = list(product(*map(range, w.dims[2:])))
    places = tuple(tuple(at * step for at, step in zip(place, a.dilation, strict=True)) for place in window)
    code, total = Code(), ""
    lines, ins, elements = WindowTerms(image.dims, image.dtype, tuple(dims), tuple(a.stride), places).written(code)
    for i, (place, element) in enumerate(zip(window, elements, strict=True)):
        lines.append(
            f"  %w{i} = tensor.extract_slice %w{[0, 0, *place]} {[dims[1], 1, *(1 for _ in place)]} "
            f"{[1 for _ in dims]} : {filters} to {channels}"
        )
        term = code.op("mulf", element, f"%i{len(ins)}", "f32")
        ins.append(Operand(f"%w{i}", channels, ["d1"]))
        total = code.op("addf", total, term, "f32") if total else term
    loops = [f"d{i}" for i in range(len(dims))]
    lines = [
        f"func.func private @depthwise(%x: {source}, %w: {filters}) -> {result} {{",
        *lines,
        f"  %empty = tensor.empty() : {result}",
        *generic("%y", ins, Operand("%empty", result, loops), ["parallel"] * len(dims), code.lines, total),
        f"  return %y : {result}",
        "}",
    ]
    return "\n".join(lines)
