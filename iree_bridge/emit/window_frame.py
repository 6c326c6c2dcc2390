"""Padding of convolutions, of which there may be less than none."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api.ops.conv import ConvAttributes
from iree_bridge.emit.emitter import Emitter, Value

__all__ = ["cropped", "met"]


def cropped(
    e: Emitter, value: Value, around: Sequence[tuple[int, int]], fill: float = 0.0
) -> tuple[Value, list[tuple[int, int]]]:
    """``value`` cut where its trailing dims have negative padding, and the padding, of ``fill``, that is left."""
    left = [(max(before, 0), max(after, 0)) for before, after in around]
    lead = len(value.dims) - len(around)
    for i, (before, after) in enumerate(around):
        axis = lead + i
        if value.dims[axis] + min(before, 0) + min(after, 0) < 1:  # only padding stays, so it is made first
            value = e.pad(value, [left[i] if j == axis else (0, 0) for j in range(lead, len(value.dims))], fill)
            left[i] = (0, 0)
        value = e.slice(value, axis, max(-before, 0), value.dims[axis] - max(-after, 0))
    return value, left


def met(a: ConvAttributes, size: Sequence[int], window: Sequence[int], out: Sequence[int]) -> list[tuple[int, int]]:
    """The padding of each spatial dim that leaves what some window meets: at its end less than asked for, or none."""
    return [
        (pre, a.stride[i] * (out[i] - 1) + a.dilation[i] * (window[i] - 1) + 1 - size[i] - pre)
        for i, pre in enumerate(a.pre_padding)
    ]
