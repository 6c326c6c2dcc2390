"""Convolution on the CPU target as products with shifted images, one for each place of the window.

Of an image with channels first whose spatial dims are flattened, padding included, what a place of the window meets is
the same matrix ``[channels, places]`` a constant number of elements further on. So the sum over the window is written
out in the innermost loop of one product, whose second factors are views of one image: no matrix of what windows meet is
made, and filters are read as they lie. The places between the rows of the result are computed too and cut off.

A stride takes the image apart into phases, each of which is such an image: of a stride of 2 the even and the odd rows
and columns. ``docs/performance.md`` has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Final

from graph_api import DataType
from graph_api.ops.conv import ConvAttributes
from iree_bridge.emit.emitter import Emitter, Value
from iree_bridge.emit.linalg import Code, Operand
from iree_bridge.emit.products_cpu import Shift, by_shifts, by_stored_columns, shift_columns
from iree_bridge.emit.window_frame import cropped, met
from iree_bridge.emit.window_terms import half
from iree_bridge.targets.types import builtin_tensor

__all__ = ["shifted"]

_MOST_TAPS: Final = 27
"""Places of a window that are written out; more compile for seconds."""
_MOST_WASTE: Final = 1.6
"""Places that are computed, by those of the result; with more, a matrix of what windows meet pays. Data gradients have
none beside the compiler's loops, which take ten times as long: they pass a larger number."""
_MOST_MORE: Final = 8
_CUT: Final = 0.03
"""By how many columns rows are lengthened at most so that none is cut; what cutting costs, by the product's time."""


def shifted(
    e: Emitter, a: ConvAttributes, x: Value, w: Value, groups: int, *, most_waste: float = _MOST_WASTE
) -> Value | None:
    """The convolution of x [N, C, spatial...] and w [K, C / groups, window...], f32; None: another form is better."""
    window = tuple(w.dims[2:])
    if any(step not in (1, 2) for step in a.stride) or w.dims[0] == groups:
        return None
    if math.prod(window) > _MOST_TAPS:
        is_flat = len(window) == 2 and window[1] <= _MOST_TAPS and window[0] <= _MOST_TAPS
        return _by_rows(e, a, x, w, groups) if is_flat else None
    if w.dims[1] == 1:  # the compiler drops loops of extent 1, and with them the tiles that are set for all
        return None
    plan = _Plan.of(a, x.dims, window, shift_columns(e))
    places = math.prod(plan.out)
    is_plain = math.prod(window) == max(a.stride) == 1
    if plan.columns > most_waste * places or (is_plain and not places % (shift_columns(e) // 2)):
        return None
    if is_plain and 1 in (x.dims[0], groups):
        return _of_points(e, a, x, w, groups)
    image = e.pad(*cropped(e, x, plan.frame))
    images = _phases(e, image, plan.stride)
    n, c, k = x.dims[0], x.dims[1], w.dims[0]
    batch, group = ((count,) if count > 1 else () for count in (n, groups))
    images = [e.reshape(each, (*plan.lead_phases, *batch, *group, c // groups, plan.length)) for each in images]
    filters = e.reshape(w, (*group, k // groups, c // groups, math.prod(window)))
    y = e.reshape(by_shifts(e, filters, images, plan.shifts(), plan.columns), (n, k, plan.columns))
    y = e.slice(y, 2, 0, plan.out[0] * plan.pitch[0])
    y = e.reshape(y, (n, k, plan.out[0], *plan.size[1:]))
    for axis, size in enumerate(plan.out[1:], start=3):
        y = e.slice(y, axis, 0, size)
    return y


def _of_points(e: Emitter, a: ConvAttributes, x: Value, w: Value, groups: int) -> Value:
    """With windows of one place and no stride: one product, whose columns are filled up to whole vectors."""
    n, c, k = x.dims[0], x.dims[1], w.dims[0]
    out = [a.output_size(axis, size, 1) for axis, size in enumerate(x.dims[2:])]
    places = math.prod(out)
    batch, group = ((count,) if count > 1 else () for count in (n, groups))
    image = e.reshape(e.pad(*cropped(e, x, met(a, x.dims[2:], w.dims[2:], out))), (*batch, *group, c // groups, places))
    image = e.barrier(e.pad(image, [(0, -places % shift_columns(e))]))
    y = by_stored_columns(e, e.reshape(w, (*group, k // groups, c // groups)), image)
    y = e.reshape(e.barrier(y), (n, k, image.dims[-1]))
    return e.reshape(e.slice(y, 2, 0, places), (n, k, *out))


def _by_rows(e: Emitter, a: ConvAttributes, x: Value, w: Value, groups: int) -> Value | None:
    """With the rows of the window as more channels: each is a copy of the rows of the image that it meets."""
    n, c, height, _ = x.dims
    k, share, rows, columns = w.dims
    out = a.output_size(0, height, rows)
    image = e.pad(x, list(zip(a.pre_padding, a.post_padding, strict=True)))
    met_rows = [
        e.slice(image, 2, at * a.dilation[0], at * a.dilation[0] + a.stride[0] * (out - 1) + 1, a.stride[0])
        for at in range(rows)
    ]
    width = image.dims[3]
    stacked = [e.reshape(each, (n, c, 1, out, width)) for each in met_rows]
    image = e.op("aten.cat", (n, c, rows, out, width), x.dtype, e.list([each.ssa for each in stacked]), 2)
    image = e.barrier(e.reshape(image, (n, c * rows, out, width)))
    along = replace(a, pre_padding=(0, 0), post_padding=(0, 0), stride=(1, a.stride[1]), dilation=(1, a.dilation[1]))
    return shifted(e, along, image, e.reshape(w, (k, share * rows, 1, columns)), groups)


@dataclass(frozen=True)
class _Plan:
    """How the flattened image of one phase lies.

    Attributes:
        stride, out: of the convolution.
        offsets: of each place of the window in the padded image, by spatial dims.
        frame: padding before and after, of each spatial dim.
        size: spatial dims of one phase of the padded image.
        columns: places of the result that are computed, those between its rows included.
    """

    stride: tuple[int, ...]
    out: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    frame: tuple[tuple[int, int], ...]
    size: tuple[int, ...]
    columns: int

    @staticmethod
    def of(a: ConvAttributes, x: Sequence[int], window: Sequence[int], step: int) -> _Plan:
        """``step``: what the number of columns is a multiple of."""
        size, stride = tuple(x[2:]), tuple(a.stride)
        out = tuple(a.output_size(i, size[i], window[i]) for i in range(len(size)))
        offsets = tuple(
            tuple(at * dilation for at, dilation in zip(place, a.dilation, strict=True))
            for place in product(*map(range, window))
        )
        frame: list[tuple[int, int]] = []
        for i, (pre, end) in enumerate(met(a, size, window, out)):
            frame.append((pre, end + -(size[i] + pre + end) % stride[i]))
        plan = _Plan(stride, out, offsets, tuple(frame), _phase(size, frame, stride), 0)
        plan = min((plan._with_columns(more, step) for more in range(_MOST_MORE)), key=lambda each: each._cost)
        # The last shift of the last column lies in the image, too: rows of padding are added for it.
        beyond = plan.columns + max(shift.offset for shift in plan.shifts()) - plan.length
        return plan._longer(0, max(-(-beyond // plan.pitch[0]), 0))

    def _longer(self, axis: int, more: int) -> _Plan:
        """With so much more padding at the end of a dim of each phase."""
        pre, end = self.frame[axis]
        frame = (*self.frame[:axis], (pre, end + more * self.stride[axis]), *self.frame[axis + 1 :])
        return replace(self, frame=frame, size=(*self.size[:axis], self.size[axis] + more, *self.size[axis + 1 :]))

    def _with_columns(self, more: int, step: int) -> _Plan:
        """With rows that are so much longer."""
        plan = self._longer(len(self.size) - 1, more) if more and len(self.size) > 1 else self
        columns = -(-plan.out[0] * plan.pitch[0] // step) * step
        return replace(plan, columns=columns)

    @property
    def _cost(self) -> float:
        """Columns to compute; where the last rows are not whole, the result is copied once more to cut them off."""
        is_cut = self.columns != self.out[0] * self.pitch[0]
        return self.columns * (1 + _CUT * is_cut)

    @property
    def length(self) -> int:
        """Elements of one phase."""
        return math.prod(self.size)

    @property
    def pitch(self) -> tuple[int, ...]:
        """Elements from one index to the next, of each dim of a phase."""
        return tuple(math.prod(self.size[i + 1 :]) for i in range(len(self.size)))

    @property
    def lead_phases(self) -> tuple[int, ...]:
        """Phases of all dims but the last, which are the leading dims of an image; a stride of 1 has none."""
        return tuple(step for step in self.stride[:-1] if step > 1)

    def shifts(self) -> list[Shift]:
        """Where each place of the window finds what it meets."""
        found: list[Shift] = []
        for offset in self.offsets:
            phase = tuple(at % step for at, step in zip(offset, self.stride, strict=True))
            moved = sum(at // step * pitch for at, step, pitch in zip(offset, self.stride, self.pitch, strict=True))
            lead = tuple(which for which, step in zip(phase[:-1], self.stride[:-1], strict=True) if step > 1)
            found.append(Shift(phase[-1], lead, moved))
        return found


def _phase(size: Sequence[int], frame: Sequence[tuple[int, int]], stride: Sequence[int]) -> tuple[int, ...]:
    return tuple((n + pre + end) // step for n, (pre, end), step in zip(size, frame, stride, strict=True))


def _phases(e: Emitter, image: Value, stride: Sequence[int]) -> list[Value]:
    """The image [N, C, spatial...], for each phase of its last dim: [other phases..., N, C, spatial / stride...]."""
    if max(stride) == 1:
        return [image]
    n, c, *size = image.dims
    # each dim of the image as one or two: how often, and then which phase
    parts = [
        (n,),
        (c,),
        *((n // step, step) if step > 1 else (n,) for n, step in zip(size[:-1], stride[:-1], strict=True)),
    ]
    parts.append((size[-1] // stride[-1],))
    is_phase = [which == 1 for part in parts for which in range(len(part))]
    axes = sorted(range(len(is_phase)), key=lambda axis: not is_phase[axis])
    if stride[-1] == 1:
        return [e.barrier(e.permute(e.reshape(image, [n for part in parts for n in part]), axes))]
    return _halves(e, image, parts, axes)


def _halves(e: Emitter, image: Value, parts: Sequence[Sequence[int]], axes: Sequence[int]) -> list[Value]:
    """The even and the odd columns, each with its dims ``parts`` in the order of ``axes``; they are read as pairs."""
    split = [n for part in parts for n in part]
    dims = tuple(split[axis] for axis in axes)
    source, result = (builtin_tensor(each, DataType.FLOAT) for each in (image.dims, dims))
    pairs, parted = (f"tensor<{'x'.join(map(str, each))}xi64>" for each in (map(math.prod, parts), split))
    at = iter(range(len(split)))
    groups = [list(islice(at, len(part))) for part in parts]
    loops = [f"d{i}" for i in range(len(split))]
    code = Code()
    even, odd = (half(code, "%i0", which, DataType.FLOAT) for which in range(2))
    expand = f"  %parted = tensor.expand_shape %pairs {groups} output_shape {list(split)} : {pairs} into {parted}"
    index = Operand("", "", loops), Operand("", "", [f"d{axis}" for axis in axes])
    maps = ", ".join(f"affine_map<({', '.join(loops)}) -> ({', '.join(i.index)})>" for i in (*index, index[1]))
    kinds = ", ".join(['"parallel"'] * len(split))
    lines = [
        f"func.func private @phases(%x: {source}) -> ({result}, {result}) {{",
        f"  %pairs = iree_tensor_ext.bitcast %x : {source} -> {pairs}",
        expand if parted != pairs else "",
        f"  %empty = tensor.empty() : {result}",
        f"  %made:2 = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} "
        f"ins({'%parted' if parted != pairs else '%pairs'} : {parted}) outs(%empty, %empty : {result}, {result}) {{",
        "  ^bb0(%i0: i64, %o: f32, %p: f32):",
        *(f"    {line}" for line in code.lines),
        f"    linalg.yield {even}, {odd} : f32, f32",
        f"  }} -> ({result}, {result})",
        f"  return %made#0, %made#1 : {result}, {result}",
        "}",
    ]
    return e.calls("\n".join(line for line in lines if line), [image], [(dims, DataType.FLOAT)] * 2)
