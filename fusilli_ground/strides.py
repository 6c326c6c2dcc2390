"""Strides of dense memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["row_major"]


def row_major(dims: Sequence[int]) -> tuple[int, ...]:
    """In elements; the last dim is contiguous. Tensors without elements have strides of 0 in front of the empty dim."""
    return tuple(math.prod(dims[axis + 1 :]) for axis in range(len(dims)))
