"""Emission of the gradients of a convolution: each as one forward convolution of rearranged operands.

So all that holds of forward convolutions (matrix instructions, groups, dilation, fused epilogues) holds of them. On a
CPU products that rearrange less take the place of some (``cpu.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from graph_api.ops.conv import ConvAttributes, ConvDgradNode, ConvWgradNode
from iree_bridge.emit.conv.cpu import Tap, data_gradient, few_places_gradient, filter_gradient, has_few_places
from iree_bridge.emit.conv.fprop import convolution, in_mirror, operands
from iree_bridge.emit.emitter import Emitter, Value, rule
from iree_bridge.emit.linalg import Code, element_type, made_by_elements
from iree_bridge.emit.window_frame import cropped
from iree_bridge.targets.types import builtin_tensor

__all__ = ["conv_dgrad", "conv_wgrad"]


@dataclass(frozen=True)
class _Axis:
    """How the data gradient works along one spatial dim.

    Row i = stride * q + r of dx, phase r, is the sum over taps t of dy[q + lead - step * t] times the filter position
    f(r, t), where there is one. So each phase is a stride-1 convolution of dy; the phases are extra output channels of
    one convolution and are interleaved afterwards. Nothing is multiplied with the zeros that a dilated dy would hold.

    Attributes:
        stride, dilation: of the forward convolution.
        window: filter positions.
        start: f(r, t) = (start + r + stride * t) / dilation, or t where the stride is 1.
        phases: the phases that meet the filter; the other rows of dx are zero.
        taps: of each phase.
        lead, step: see above.
        rows: q runs from 0 to rows - 1.
    """

    stride: int
    dilation: int
    window: int
    start: int
    phases: range
    taps: int
    lead: int
    step: int
    rows: int

    @property
    def unit(self) -> int:
        """What f(r, t) is divided by."""
        return 1 if self.stride == 1 else self.dilation

    @property
    def is_point(self) -> bool:
        """True if there is one phase with one tap, the one filter position."""
        return self.window == self.taps == len(self.phases) == 1 and self.start + self.phases.start == 0

    def taps_of(self, phase: int, *, mirrored: bool) -> list[tuple[int, int]]:
        """Of each tap of a phase that meets the filter: the position, and the row of padded dy from row q of dx on."""
        found: list[tuple[int, int]] = []
        for tap in range(self.taps):
            position, rest = (tap, 0) if self.stride == 1 else divmod(
                self.start + phase + self.stride * tap, self.dilation
            )  # fmt: skip
            if not rest and 0 <= position < self.window:
                met = self.step * (self.taps - 1 - tap)
                found.append((self.window - 1 - position if mirrored else position, met))
        return found

    def padding(self, size: int) -> tuple[int, int]:
        """Rows around dy, which has ``size`` of them; negative to cut."""
        return self.step * (self.taps - 1) - self.lead, self.rows + self.lead - size


def _axis(a: ConvAttributes, axis: int, window: int, size: int) -> _Axis:
    """The plan for a filter of ``window`` positions and dx of ``size`` rows."""
    stride, dilation, pre = a.stride[axis], a.dilation[axis], a.pre_padding[axis]
    if stride == 1:
        return _Axis(1, dilation, window, 0, range(1), window, pre, dilation, size)
    span = dilation * (window - 1) + 1
    met = [r for r in range(min(stride, size)) if (r + pre) % stride < span] or [0]
    lead = (met[-1] + pre) // stride
    start = pre - stride * lead
    taps = (span - 1 - start - met[0]) // stride + 1
    return _Axis(stride, dilation, window, start, range(met[0], met[-1] + 1), max(taps, 1), lead, 1, -(-size // stride))


@rule("conv_dgrad")
def conv_dgrad(e: Emitter, node: ConvDgradNode) -> None:
    """A stride-1 convolution of dy with the transposed, mirrored filter; under a stride, one per phase of dx."""
    dy, w = operands(e, node, "dy", "w")
    if not node.inputs["w"].physical.dense:
        w = e.barrier(
            w
        )  # picking elements out of a buffer with gaps and rearranging them in one kernel fails on the CPU
    dx, a = node.outputs["dx"], node.attributes
    axes = [_axis(a, i, window, size) for i, (window, size) in enumerate(zip(w.dims[2:], dx.dims[2:], strict=True))]
    frame = [axis.padding(size) for axis, size in zip(axes, dy.dims[2:], strict=True)]
    if has_few_places(e, node, dy, w):
        taps = _taps_of_phases(axes, mirrored=a.is_mirrored)
        parts = few_places_gradient(e, dy, w, frame, [axis.rows for axis in axes], taps)
        e.write(node, "dx", _interleaved(e, axes, _stacked(e, parts), dx.dims))
        return
    kernel = _phase_filters(e, node, axes, w)
    dy, padding = cropped(e, dy, frame)
    forward = replace(
        a,
        pre_padding=tuple(before for before, _ in padding),
        post_padding=tuple(after for _, after in padding),
        stride=(1,) * len(axes),
        dilation=tuple(axis.step for axis in axes),
    )
    phases = data_gradient(e, node, forward, dy, kernel)
    if phases is None:
        phases = convolution(e, forward, dy, kernel, node.groups, node.compute)
    e.write(node, "dx", _interleaved(e, axes, phases, dx.dims))


def _taps_of_phases(axes: Sequence[_Axis], *, mirrored: bool) -> list[list[Tap]]:
    """What is summed for each phase, the phases of the last spatial dim next to each other."""
    of_axes = [[axis.taps_of(phase, mirrored=mirrored) for phase in axis.phases] for axis in axes]
    found: list[list[Tap]] = []
    for phases in product(*of_axes):
        taps: list[Tap] = []
        for terms in product(*phases):
            position = 0
            for axis, (at, _) in zip(axes, terms, strict=True):
                position = position * axis.window + at
            taps.append(Tap(position, tuple(met for _, met in terms)))
        found.append(taps)
    return found


def _stacked(e: Emitter, parts: Sequence[Value]) -> Value:
    """Phases [N, C, rows...] as [N, C * phases, rows...]."""
    if len(parts) == 1:
        return parts[0]
    n, c, *rows = parts[0].dims
    each = [e.reshape(part, (n, c, 1, *rows)).ssa for part in parts]
    made = e.op("aten.cat", (n, c, len(parts), *rows), parts[0].dtype, e.list(each), 2)
    return e.reshape(made, (n, c * len(parts), *rows))


def _phase_filters(e: Emitter, node: ConvDgradNode, axes: Sequence[_Axis], w: Value) -> Value:
    """w [K, C/g, F...] as the filter of the phases [C * phases, K/g, taps...], last tap first, by one kernel."""
    k, per_group = w.dims[:2]
    groups, rank = node.groups, len(axes)
    if all(axis.is_point for axis in axes):
        swapped = e.permute(e.reshape(w, (groups, k // groups, *w.dims[1:])), (0, 2, 1, *range(3, 3 + rank)))
        return e.reshape(swapped, (groups * per_group, k // groups, *w.dims[2:]))
    order = node.inputs["w"].physical.order  # the kernel reads w as it lies in memory
    text = _phase_filter_function(w, order, axes, groups, mirrored=node.attributes.is_mirrored)
    phases, taps = [len(axis.phases) for axis in axes], [axis.taps for axis in axes]
    made = e.call(text, [e.permute(w, order)], (groups, per_group, *phases, *taps, k // groups), w.dtype)
    if e.target.is_gpu and 1 in node.outputs["dx"].dims[2:]:
        made = e.barrier(made)  # else the compiler fails on channels-last ones ("inferred input/output operand")
    made = e.permute(made, (*range(2 + rank), 2 + 2 * rank, *range(2 + rank, 2 + 2 * rank)))
    return e.reshape(made, (groups * per_group * math.prod(phases), k // groups, *taps))


def _phase_filter_function(
    w: Value, order: Sequence[int], axes: Sequence[_Axis], groups: int, *, mirrored: bool
) -> str:
    """A function from w, its dims in the given order, to [g, C/g, phases..., taps..., K/g]; 0 where no position is."""
    k, per_group = w.dims[:2]
    rank = len(axes)
    source = builtin_tensor([w.dims[axis] for axis in order], w.dtype)
    phases, taps = [len(axis.phases) for axis in axes], [axis.taps for axis in axes]
    dims = (groups, per_group, *phases, *taps, k // groups)
    element = element_type(w.dtype)
    code = _PositionCode()
    filters = code.op("addi", code.scale(code.loop(0), k // groups), code.loop(2 + 2 * rank))
    where = [filters, code.loop(1)]
    where += [code.position(axis, 2 + i, 2 + rank + i, mirrored=mirrored) for i, axis in enumerate(axes)]
    value = code.line(f"tensor.extract %x[{', '.join(where[axis] for axis in order)}] : {source}")
    if code.inside:
        value = code.line(f"arith.select {code.inside}, {value}, %zero : {element}")
    zero = f"  %zero = arith.constant {'0.0' if w.dtype.is_float else '0'} : {element}"
    return made_by_elements("filter", source, (dims, w.dtype), code, value, first=[zero])


class _PositionCode(Code):
    """Index arithmetic of the filter positions."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = ""
        """SSA name of the condition that all positions exist; empty if they always do."""

    def position(self, axis: _Axis, phase: int, tap: int, *, mirrored: bool) -> str:
        """The filter position of the phase and tap at which two loops stand, clamped to the filter."""
        least = axis.start + axis.phases[0]
        last = least + axis.stride * (axis.taps - 1)
        most = last + len(axis.phases) - 1
        place = self.op("addi", self.constant(last), self.loop(phase))
        if least < 0:
            place = self.op("subi", place, self.scale(self.loop(tap), axis.stride))
        else:
            place = self.lowered(place, self.loop(tap), axis.stride, most)
        if axis.unit > 1:
            rest = self.op("remsi", place, self.constant(axis.unit))
            self.require(f"arith.cmpi eq, {rest}, {self.constant(0)} : index")
            place = self.op("floordivsi", place, self.constant(axis.unit))
            least, most = least // axis.unit, most // axis.unit
        if least < 0:
            self.require(f"arith.cmpi sge, {place}, {self.constant(0)} : index")
            place = self.op("maxsi", place, self.constant(0))
        if most >= axis.window:
            self.require(f"arith.cmpi slt, {place}, {self.constant(axis.window)} : index")
            place = self.op("minsi", place, self.constant(axis.window - 1))
        return self.lowered(self.constant(axis.window - 1), place, 1, axis.window - 1) if mirrored else place

    def require(self, condition: str) -> None:
        """Makes ``condition`` part of ``inside``."""
        name = self.line(condition)
        self.inside = self.line(f"arith.andi {self.inside}, {name} : i1") if self.inside else name


def _interleaved(e: Emitter, axes: Sequence[_Axis], value: Value, dims: Sequence[int]) -> Value:
    """The phases [N, C * phases, rows...] as dx."""
    rank = len(axes)
    n, c = dims[:2]
    if any(axis.stride > 1 for axis in axes):
        value = e.reshape(value, (n, c, *(len(axis.phases) for axis in axes), *value.dims[2:]))
        value = e.permute(value, (0, 1, *(part for i in range(rank) for part in (2 + rank + i, 2 + i))))
        rest = [(axis.phases.start, axis.stride - axis.phases.stop) for axis in axes]
        value = e.pad(value, [pair for amount in rest for pair in ((0, 0), amount)])
        value = e.reshape(value, (n, c, *(axis.rows * axis.stride for axis in axes)))
    for i in range(rank):
        value = e.slice(value, i + 2, 0, dims[i + 2])
    return value


@rule("conv_wgrad")
def conv_wgrad(e: Emitter, node: ConvWgradNode) -> None:
    """A convolution of x with dy as its filter, batch and channels exchanged, stride and dilation exchanged."""
    dy, x = operands(e, node, "dy", "x")
    dw, a, groups = node.outputs["dw"], node.attributes, node.groups
    spatial = range(len(a.stride))
    made = filter_gradient(e, node, dy, x, dw.dims[2:])
    if made is not None:
        e.write(node, "dw", in_mirror(e, made) if a.is_mirrored else made)
        return
    ends = [
        a.stride[i] * (dy.dims[i + 2] - 1) + 1 + a.dilation[i] * (dw.dims[i + 2] - 1) - x.dims[i + 2] - a.pre_padding[i]
        for i in spatial
    ]
    x, padding = cropped(e, x, list(zip(a.pre_padding, ends, strict=True)))
    n, c, *size = x.dims
    axes = range(3, 3 + len(size))
    image = e.permute(e.reshape(x, (n, groups, c // groups, *size)), (2, 1, 0, *axes))
    image = e.reshape(image, (c // groups, groups * n, *size))
    kernel = e.permute(dy, (1, 0, *(i + 2 for i in spatial)))
    forward = replace(
        a,
        pre_padding=tuple(before for before, _ in padding),
        post_padding=tuple(after for _, after in padding),
        stride=a.dilation,
        dilation=a.stride,
    )
    result = convolution(e, forward, image, kernel, groups, node.compute)
    result = e.permute(result, (1, 0, *(i + 2 for i in spatial)))
    if a.is_mirrored:
        result = in_mirror(e, result)
    e.write(node, "dw", result)
