"""Convolutions of numbers of 8 bits by float ones, cut along the channels so that single precision holds each sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
import onnx

from hipdnn_backend.offload.frontend.rewriting import Builder

__all__ = ["Centred", "exact_convolution", "exact_type"]

_FLOAT: Final = onnx.TensorProto.FLOAT
_EXACT: Final = 1 << 24
"""Whole numbers of a smaller magnitude are exact in single precision, and so are their sums in any order."""


def exact_type(terms: int) -> int:
    """The float type in which sums of so many products of 8-bit numbers are exact."""
    return _FLOAT if terms * 255 * 255 < _EXACT else onnx.TensorProto.DOUBLE


@dataclass(frozen=True, slots=True)
class Centred:
    """A tensor of 8-bit numbers less its zero point.

    Attributes:
        name: of the tensor, whose dims are known.
        zero: name of the zero point, one for all or for each entry of the first dim; "" for 0.
    """

    name: str
    zero: str

    def in_type(self, b: Builder, element: int) -> str:
        """The differences in a float type."""
        x = b.op("Cast", self.name, to=element)
        if not self.zero:
            return x
        zero = b.op("Reshape", self.zero, b.constant(self._zero_dims(b)))
        return b.op("Sub", x, b.op("Cast", zero, to=element))

    def known(self, b: Builder) -> np.ndarray | None:
        """The differences, if they are constant."""
        values, zero = b.value(self.name), self._zero(b)
        return None if values is None or zero is None else values.astype(np.int64) - zero

    def most(self, b: Builder) -> int:
        """What no difference exceeds in magnitude."""
        dtype, zero = b.dtype(self.name), self._zero(b)
        if dtype is None or zero is None:
            return 255
        ends = np.iinfo(dtype)
        return max(int(np.abs(end - zero).max(initial=0)) for end in (ends.min, ends.max))

    def _zero(self, b: Builder) -> np.ndarray | None:
        if not self.zero:
            return np.zeros((), np.int64)
        zero = b.value(self.zero)
        return None if zero is None else zero.astype(np.int64).reshape(self._zero_dims(b))

    def _zero_dims(self, b: Builder) -> tuple[int, ...]:
        several = math.prod(b.dims(self.zero) or ()) > 1
        return (-1, *(1,) * (len(b.dims(self.name) or ()) - 1)) if several else ()


def exact_convolution(b: Builder, x: Centred, w: Centred, given: dict[str, Any]) -> str:
    """Sums in INT32 of x [N, C, spatial...] and w [K, C / group, window...], by float convolutions; padding is 0."""
    filters = b.dims(w.name)
    assert filters is not None
    parts = _parts(b, x, w, filters)
    grouped = given.get("group", 1) > 1
    if parts is None or (grouped and len(parts) > 1):
        element = onnx.TensorProto.DOUBLE
        return b.op(
            "Cast", b.op("Conv", x.in_type(b, element), w.in_type(b, element), **given), to=onnx.TensorProto.INT32
        )
    image, kernel = x.in_type(b, _FLOAT), w.in_type(b, _FLOAT)
    sums: list[str] = []
    for part in parts:
        operands = [image, kernel]
        if len(parts) > 1:
            ends = [b.constant([end]) for end in (part.start, part.stop, 1)]
            operands = [b.op("Slice", each, *ends) for each in operands]
        sums.append(b.op("Cast", b.op("Conv", *operands, **given), to=onnx.TensorProto.INT32))
    return reduce(lambda one, other: b.op("Add", one, other), sums)


def _parts(b: Builder, x: Centred, w: Centred, filters: Sequence[int]) -> list[range] | None:
    """Ranges of channels, as few as keep every sum exact; None: those of one channel are too large."""
    count, window = filters[1], math.prod(filters[2:])
    known, most = w.known(b), x.most(b)
    if known is None:
        largest = np.full((1, count), window * w.most(b), np.int64)
    else:
        largest = np.abs(known).reshape(filters[0], count, window).sum(2)  # of each filter and channel
    if int(largest.max(initial=0)) * most >= _EXACT:
        return None
    found, begin, sums = list[range](), 0, np.zeros(len(largest), np.int64)
    for channel in range(count):
        sums = sums + largest[:, channel]
        if int(sums.max(initial=0)) * most >= _EXACT:
            found.append(range(begin, channel))
            begin, sums = channel, largest[:, channel]
    return [*found, range(begin, count)]
