"""Convolutions on GPU targets that the compiler fails on, or makes wrong, put in a form that it does right.

Images with one row: permuted and padded ones are refused ("inferred input/output operand"), and their padding, which
joins no kernel, is compiled wrongly. But one filter row at most meets that row for each row of the result, so these are
filters of their own, and the row goes. Nothing is multiplied with padding then.

One channel under a dilated filter: the compiler loads four neighbouring filter positions of a row with one instruction,
as if they lay next to each other in the image. With a second channel, of zeros, it does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graph_api.ops.conv import ConvAttributes
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Code, element_type, made_by_elements
from iree_bridge.targets.types import builtin_tensor

__all__ = ["Thin", "in_two_channels", "without_thin_axes"]


@dataclass(frozen=True)
class Thin:
    """A convolution without the spatial dims in which its image has one row, and how its result is to be viewed."""

    attributes: ConvAttributes
    w: Value
    axes: Sequence[int]
    out: Sequence[int]

    def restored(self, e: Emitter, y: Value) -> Value:
        """The result [N, K * rows..., spatial...] as [N, K, spatial...]."""
        n, k = y.dims[0], y.dims[1] // math.prod(self.out[axis] for axis in self.axes)
        rest = [axis for axis in range(len(self.out)) if axis not in self.axes]
        y = e.reshape(y, (n, k, *(self.out[axis] for axis in (*self.axes, *rest))))
        return e.permute(y, (0, 1, *(2 + [*self.axes, *rest].index(axis) for axis in range(len(self.out)))))


def without_thin_axes(e: Emitter, a: ConvAttributes, x: Value, w: Value, out: Sequence[int]) -> Thin | None:
    """The convolution of x and w with a filter for each row of the result, where x has one row; None: it has more."""
    axes = [i for i, size in enumerate(x.dims[2:]) if size == 1 and (w.dims[i + 2] > 1 or out[i] > 1)]
    if not axes or not e.target.is_gpu:
        return None
    rank = len(out)
    for axis in axes:
        w = _rows_met(e, a, w, axis, out[axis])
    k, per_group = w.dims[:2]
    rest = [axis for axis in range(rank) if axis not in axes]
    w = e.permute(w, (0, *(2 + axis for axis in axes), 1, *(2 + axis for axis in rest)))
    filters = k * math.prod(out[axis] for axis in axes)
    sizes = [1 if axis in axes else w.dims[1 + len(axes) + 1 + rest.index(axis)] for axis in range(rank)]
    w = e.barrier(e.reshape(w, (filters, per_group, *sizes)))

    def kept(values: Sequence[int], other: int) -> tuple[int, ...]:
        return tuple(other if axis in axes else value for axis, value in enumerate(values))

    attributes = replace(
        a,
        pre_padding=kept(a.pre_padding, 0),
        post_padding=kept(a.post_padding, 0),
        stride=kept(a.stride, 1),
        dilation=kept(a.dilation, 1),
    )
    return Thin(attributes, w, axes, out)


def _rows_met(e: Emitter, a: ConvAttributes, w: Value, axis: int, count: int) -> Value:
    """w with, along a spatial dim, the position that meets the one row of x for each row of the result; 0 for none."""
    dims = tuple(count if i == axis + 2 else dim for i, dim in enumerate(w.dims))
    source, element = builtin_tensor(w.dims, w.dtype), element_type(w.dtype)
    code = Code()
    first, row, stride = a.pre_padding[axis], code.loop(axis + 2), a.stride[axis]
    if first < stride * (count - 1):
        place = code.op("subi", code.constant(first), code.scale(row, stride))
    else:
        place = code.lowered(code.constant(first), row, stride, first)
    conditions = [f"sge, {place}, {code.constant(0)}"]
    if a.dilation[axis] > 1:
        conditions.append(f"eq, {code.op('remsi', place, code.constant(a.dilation[axis]))}, {code.constant(0)}")
        place = code.op("divsi", place, code.constant(a.dilation[axis]))
    conditions.append(f"slt, {place}, {code.constant(w.dims[axis + 2])}")
    inside = code.line("arith.constant true")
    for condition in conditions:
        inside = code.line(f"arith.andi {inside}, {code.line(f'arith.cmpi {condition} : index')} : i1")
    place = code.op("minsi", code.op("maxsi", place, code.constant(0)), code.constant(w.dims[axis + 2] - 1))
    where = [place if i == axis + 2 else code.loop(i) for i in range(len(dims))]
    value = code.line(f"tensor.extract %x[{', '.join(where)}] : {source}")
    value = code.line(f"arith.select {inside}, {value}, %zero : {element}")
    zero = f"  %zero = arith.constant {'0.0' if w.dtype.is_float else '0'} : {element}"
    text = made_by_elements("rows", source, (dims, w.dtype), code, value, first=[zero])
    return e.call(text, [w], dims, w.dtype)


def in_two_channels(e: Emitter, a: ConvAttributes, x: Value, w: Value, groups: int) -> tuple[Value, Value]:
    """x and w with a second channel of zeros in each group, if they have one and the filter is dilated along rows."""
    wide = [i for i, size in enumerate(w.dims[2:]) if size > 1]
    is_depthwise = groups > 1 and w.dims[0] == groups  # no matrix instructions, no such loads
    if e.target.backend != "rocm" or w.dims[1] > 1 or is_depthwise or not wide or a.dilation[wide[-1]] == 1:
        return x, w
    n, _, *size = x.dims
    none = [(0, 0)] * len(size)
    x = e.pad(e.reshape(x, (n, groups, 1, *size)), [(0, 1), *none])
    return e.barrier(e.reshape(x, (n, 2 * groups, *size))), e.barrier(e.pad(w, [(0, 1), *none]))
