"""Dims and strides of views, in elements; all functions are pure.

A stride of 0 repeats along its dim. The stride of a dim of size 1 means nothing; `filled` gives it the value that a
packed tensor would have there, so that equal views compare equal.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Dims", "axes_of", "broadcast", "broadcasts", "expanded", "filled", "permuted", "reshaped"]

Dims = tuple[int, ...]


def filled(dims: Sequence[int], strides: Sequence[int]) -> Dims:
    """``strides`` with those of size-1 dims replaced: by what follows from the next inner dim."""
    found = list(strides)
    for axis in reversed(range(len(dims))):
        if dims[axis] == 1:
            inner = found[axis + 1] * dims[axis + 1] if axis + 1 < len(dims) else 1
            found[axis] = max(inner, 1)
    return tuple(found)


def permuted(values: Sequence[int], order: Sequence[int]) -> Dims:
    """Dims or strides after a transposition: entry i comes from ``order[i]``."""
    return tuple(values[axis] for axis in order)


def expanded(dims: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> Dims:
    """Strides of a view that repeats dims of size 1 (and new leading ones) up to ``new``."""
    lead = len(new) - len(dims)
    kept = [0 if size != new[lead + axis] else strides[axis] for axis, size in enumerate(dims)]
    return tuple([0 if size != 1 else 1 for size in new[:lead]] + kept)


def reshaped(dims: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> Dims | None:
    """Strides of a row-major reshape to ``new`` (of equal volume), or None if that would need a copy."""
    runs: list[list[int]] = []  # [size, stride of the innermost element] of maximal evenly spaced runs
    for size, stride in zip(dims, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    found = [1] * len(new)
    left, stride = 1, 1
    for axis in reversed(range(len(new))):
        if new[axis] == 1:
            continue
        if left == 1:
            left, stride = runs.pop()
        if left % new[axis]:
            return None
        found[axis] = stride
        stride *= new[axis]
        left //= new[axis]
    return filled(new, found)


def axes_of(dims: Dims, strides: Dims, seen: Dims, steps: Dims) -> tuple[int | None, ...] | None:
    """For each dim of a tensor the axis of a view that it is; None overall if the view splits or merges dims.

    A dim of size 1 may be any axis that says nothing (of size 1, or repeated); it is given a free one beside its
    neighbour, or None if there is none.

    Args:
        dims, strides: of the tensor; no two dims larger than 1 have the same stride.
        seen, steps: dims and strides of the view.
    """
    axes = {(size, step): axis for axis, (size, step) in enumerate(zip(seen, steps, strict=True)) if size > 1 and step}
    pairs = list(zip(dims, strides, strict=True))
    if sum(size > 1 for size in dims) != len(axes) or any(pair[0] > 1 and pair not in axes for pair in pairs):
        return None
    found: list[int | None] = [axes[pair] if pair[0] > 1 else None for pair in pairs]
    taken = {label for label in found if label is not None}
    for place, size in enumerate(dims):
        before = found[place - 1] if place else -1
        free = None if before is None else before + 1
        if size == 1 and free is not None and free < len(seen) and free not in taken:
            found[place] = free
            taken.add(free)
    return tuple(found)


def broadcasts(dims: Dims, result: Dims) -> bool:
    """Whether a tensor repeats, right-aligned, to ``result``."""
    fits = all(size in (1, new) for size, new in zip(reversed(dims), reversed(result), strict=False))
    return fits and len(dims) <= len(result)


def broadcast(shapes: Sequence[Sequence[int]]) -> Dims:
    """Right-aligned common shape of shapes that do broadcast."""
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, start=rank - len(shape)):
            out[axis] = size if out[axis] == 1 else out[axis]
    return tuple(out)
