"""3-D convolution in groups as a ``linalg.generic``.

torch-mlir does not lower ``torch.aten.convolution`` of that kind where it is depthwise or of integers.
"""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType
from graph_api.ops.conv import ConvAttributes
from iree_bridge.emit._linalg import Code, Operand, element_type, generic
from iree_bridge.emitter import Emitter, Value
from iree_bridge.types import builtin_tensor

__all__ = ["grouped_3d"]


def grouped_3d(
    e: Emitter, attributes: ConvAttributes, x: Value, w: Value, groups: int, out: Sequence[int], dtype: DataType
) -> Value:
    """The convolution of padded x [N, C, D, H, W] and w [K, C/g, filter...]; [N, K, out...] of type ``dtype``."""
    n, per_group = x.dims[0], w.dims[1]
    filters = w.dims[0] // groups
    x = e.reshape(x, (n, groups, per_group, *x.dims[2:]))
    w = e.reshape(w, (groups, filters, *w.dims[1:]))
    dims = (n, groups, filters, *out)
    y = e.call(_function(attributes, x, w, dims, dtype), [x, w], dims, dtype)
    return e.reshape(y, (n, groups * filters, *out))


def _function(attributes: ConvAttributes, x: Value, w: Value, dims: Sequence[int], dtype: DataType) -> str:
    """Loops: 0 batch, 1 group, 2 filter, 3 to 5 place in the result; sums over 6 channel, 7 to 9 place in the filter."""
    image, kernel, result = (builtin_tensor(d, t) for d, t in ((x.dims, x.dtype), (w.dims, w.dtype), (dims, dtype)))
    element, kind = element_type(dtype), "f" if dtype.is_float else "i"
    steps = zip(attributes.stride, attributes.dilation, strict=True)
    places = [f"d{3 + i} * {stride} + d{7 + i} * {dilation}" for i, (stride, dilation) in enumerate(steps)]
    ins = [
        Operand("%x", image, ["d0", "d1", "d6", *places]),
        Operand("%w", kernel, ["d1", "d2", "d6", "d7", "d8", "d9"]),
    ]
    code = Code()
    a, b = (_converted(code, name, value.dtype, dtype) for name, value in (("%i0", x), ("%i1", w)))
    total = code.op(f"add{kind}", "%o", code.op(f"mul{kind}", a, b, element), element)
    begun = Operand("%begun", result, [f"d{i}" for i in range(6)])
    loops = ["parallel"] * 6 + ["reduction"] * 4
    lines = [
        f"func.func private @grouped(%x: {image}, %w: {kernel}) -> {result} {{",
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
    wider = target.itemsize > source.itemsize
    if target.is_float:
        return code.line(f"arith.{'extf' if wider else 'truncf'} {name} : {before} to {after}")
    return code.line(f"arith.{'extsi' if wider else 'trunci'} {name} : {before} to {after}")
