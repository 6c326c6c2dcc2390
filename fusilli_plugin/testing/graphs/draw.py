"""Sources of choices, and what the families of graphs share: types, sizes, layouts, epilogues.

Sizes are small, so that an emulator runs them, and ragged: what vectors, tiles and matrix instructions do not divide is
where compilers go wrong.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, TypeVar

from graph_api import DataType, Graph, PointwiseMode, TensorAttr
from graph_api.layout import strides_in_order

T = TypeVar("T")
D, M = DataType, PointwiseMode

__all__ = [
    "ACTIVATIONS",
    "CHANNELS",
    "FP8",
    "HALVES",
    "IMAGES",
    "SIZES",
    "TYPES",
    "Draw",
    "RandomDraw",
    "epilogue",
    "new_graph",
    "result",
    "tensor",
    "window",
]

HALVES: Final = (D.HALF, D.BFLOAT16)
TYPES: Final = (D.HALF, D.HALF, D.BFLOAT16, D.FLOAT, D.FLOAT)
FP8: Final = (D.FP8_E4M3, D.FP8_E5M2, D.FP8_E4M3_FNUZ, D.FP8_E5M2_FNUZ)
SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 12, 14, 15, 16, 17, 24, 31, 32, 33, 48, 56, 64, 65, 70, 96)
CHANNELS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 13, 16, 24, 31, 32, 33, 48, 64, 70, 96)
IMAGES: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 28)
ACTIVATIONS: Final = (M.RELU_FWD, M.TANH_FWD, M.GELU_FWD, M.SIGMOID_FWD, M.SWISH_FWD, M.ABS, M.NEG)


class Draw(ABC):
    """A source of choices. What is simple comes first in what is chosen from: examples shrink towards it."""

    @abstractmethod
    def pick(self, choices: Sequence[T]) -> T:
        """One of ``choices``."""

    @abstractmethod
    def number(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``."""

    @abstractmethod
    def chance(self, of: float) -> bool:
        """True with the probability ``of``; False is simple."""

    @abstractmethod
    def order(self, count: int) -> list[int]:
        """The numbers below ``count`` in any order."""

    def one_in(self, chances: int) -> bool:
        """True once in so many times."""
        return self.chance(1 / chances)


class RandomDraw(Draw):
    """Choices that follow from a number alone."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self._source.randrange(len(choices))]

    def number(self, low: int, high: int) -> int:
        return self._source.randint(low, high)

    def chance(self, of: float) -> bool:
        return self._source.random() < of

    def order(self, count: int) -> list[int]:
        order = list(range(count))
        self._source.shuffle(order)
        return order

    def weighted(self, choices: Sequence[T], weights: Sequence[float]) -> T:
        """One of ``choices``, as often as its weight says."""
        return self._source.choices(choices, weights)[0]


def new_graph(io: DataType) -> Graph:
    """An empty graph that computes in DOUBLE for DOUBLE, else in FLOAT."""
    return Graph("g", io_data_type=io, compute_data_type=D.DOUBLE if io is D.DOUBLE else D.FLOAT)


def tensor(d: Draw, g: Graph, name: str, dims: Sequence[int], *, layouts: Sequence[str] = ("packed",)) -> TensorAttr:
    """An input, packed in some order of its dims, sometimes with gaps."""
    kind = d.pick(layouts)
    rank = len(dims)
    order = list(range(rank))
    if kind == "last":  # channels last
        order = [0, *range(2, rank), 1]
    elif kind == "transposed":
        order[-1], order[-2] = order[-2], order[-1]
    elif kind == "any":
        order = d.order(rank)
    strides = strides_in_order(tuple(dims), tuple(order))
    return g.tensor(name, dim=tuple(dims), stride=strides)


def result(d: Draw, y: TensorAttr, dims: Sequence[int], layouts: Sequence[str]) -> None:
    """Makes ``y`` a result, where its inputs may lie in any order in an order of its own."""
    y.set_output(True).set_dim(tuple(dims))
    if "any" in layouts and d.chance(0.5):
        order = d.order(len(dims))
        y.set_stride(strides_in_order(tuple(dims), tuple(order)))


def epilogue(
    d: Draw, g: Graph, y: TensorAttr, dims: Sequence[int], channel: int, layouts: Sequence[str] = ("packed",)
) -> TensorAttr:
    """What follows ``y``: a bias, a residual, an activation, each or none."""
    if d.chance(0.5):
        added = g.tensor("added", dim=tuple(dim if axis == channel else 1 for axis, dim in enumerate(dims)))
        y = g.pointwise(M.ADD, y, added)
    if d.chance(0.15):
        y = g.pointwise(M.ADD, y, tensor(d, g, "residual", dims, layouts=layouts))
    if d.chance(0.5):
        y = g.pointwise(d.pick(ACTIVATIONS), y)
    return y


def window(d: Draw, size: int, *, dilated: bool, point: bool = False) -> tuple[int, int, int, int, int, int] | None:
    """Filter, stride, padding before and after, dilation, size of the result."""
    filter_size = 1 if point else d.pick((1, 1, 2, 3, 3, 3, 4, 5, 7))
    stride = d.pick((1, 1, 1, 2, 2, 3))
    dilation = d.pick((1, 1, 1, 2)) if dilated else 1
    extent = dilation * (filter_size - 1) + 1
    before = d.pick((0, 0, extent // 2))
    after = before if d.chance(0.8) else d.number(0, extent - 1)
    result = (size + before + after - extent) // stride + 1
    if size + before + after < extent or result < 1:
        return None
    return filter_size, stride, before, after, dilation, result
