"""Convolution as a ``linalg.generic``, for what torch-mlir does not lower: 3-D groups, 8-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType
from graph_api.ops.conv import ConvAttributes
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Code, Operand, element_type, generic
from iree_bridge.targets.types import builtin_tensor

__all__ = ["generic_convolution"]


def generic_convolution(
    e: Emitter, attributes: ConvAttributes, x: Value, w: Value, groups: int, out: Sequence[int], dtype: DataType
) -> Value:
    """The convolution of padded x [N, C, spatial...] and w [K, C/g, filter...]; [N, K, out...] of type ``dtype``."""
    n, (k, per_group) = x.dims[0], w.dims[:2]
    split = groups > 1
    if split:
        x = e.reshape(x, (n, groups, per_group, *x.dims[2:]))
        w = e.reshape(w, (groups, k // groups, *w.dims[1:]))
    dims = (n, groups, k // groups, *out) if split else (n, k, *out)
    y = e.call(_function(attributes, x, w, dims, dtype, split=split), [x, w], dims, dtype)
    return e.reshape(y, (n, k, *out))


def _function(
    attributes: ConvAttributes, x: Value, w: Value, dims: Sequence[int], dtype: DataType, *, split: bool
) -> str:
    """Loops: batch, group (if ``split``), filter, places in the result; sums over channel, places in the filter."""
    image, kernel, result = (builtin_tensor(d, t) for d, t in ((x.dims, x.dtype), (w.dims, w.dtype), (dims, dtype)))
    element, kind, rank = element_type(dtype), "f" if dtype.is_float else "i", len(attributes.stride)
    filters, channel = (2 if split else 1), len(dims)
    steps = list(zip(attributes.stride, attributes.dilation, strict=True))
    group = ["d1"] if split else []
    places = [
        f"d{filters + 1 + i} * {stride} + d{channel + 1 + i} * {dilation}" for i, (stride, dilation) in enumerate(steps)
    ]
    ins = [
        Operand("%x", image, ["d0", *group, f"d{channel}", *places]),
        Operand("%w", kernel, [*group, f"d{filters}", f"d{channel}", *(f"d{channel + 1 + i}" for i in range(rank))]),
    ]
    code = Code()
    a, b = (_converted(code, name, value.dtype, dtype) for name, value in (("%i0", x), ("%i1", w)))
    total = code.op(f"add{kind}", "%o", code.op(f"mul{kind}", a, b, element), element)
    begun = Operand("%begun", result, [f"d{i}" for i in range(len(dims))])
    loops = ["parallel"] * len(dims) + ["reduction"] * (1 + rank)
    lines = [
        f"func.func private @convolution(%x: {image}, %w: {kernel}) -> {result} {{",
        f"  %zero = arith.constant {'0.0' if dtype.is_float else '0'} : {element}",
        f"  %empty = tensor.empty() : {result}",
        f"  %begun = linalg.fill ins(%zero : {element}) outs(%empty : {result}) -> {result}",
        *generic("%y", ins, begun, loops, code.lines, total),
        f"  return %y : {result}",
        "}",
    ]
    return "\n".join(lines)


def _converted(code: Code, name: str, source: DataType, target: DataType) -> str:
    """An element in the type of the sum; both types are floats, or both integers."""
    before, after = element_type(source), element_type(target)
    if before == after:
        return name
    wider = target.bits > source.bits
    if target.is_float:
        return code.line(f"arith.{'extf' if wider else 'truncf'} {name} : {before} to {after}")
    return code.line(f"arith.{'extsi' if wider else 'trunci'} {name} : {before} to {after}")
