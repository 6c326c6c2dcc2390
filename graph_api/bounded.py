"""Arithmetic on float64 arrays that carries a bound of what a device is off by: running error analysis.

A node that is a formula of several steps writes its ``error`` as the same formula on :class:`Bounded` values.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusilli_ground.late_numpy import np
from graph_api.dtypes import DataType
from graph_api.node import Array, Node

__all__ = ["Bounded", "bounded_input"]


class Bounded:
    """Exact values with a bound of their absolute error, per element.

    Attributes:
        value: what the operation would be without rounding.
        error: bound of the absolute error; of the same shape.
    """

    def __init__(self, value: Array, error: Array, node: Node) -> None:
        """``node``: whose compute type each step is rounded to."""
        self.value = value
        self.error = np.array(np.broadcast_to(error, value.shape))
        self._node = node

    def __add__(self, other: Bounded) -> Bounded:
        return self._step(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Bounded) -> Bounded:
        return self._step(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Bounded) -> Bounded:
        with np.errstate(invalid="ignore"):
            error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return self._step(self.value * other.value, np.nan_to_num(error, nan=np.inf, posinf=np.inf))

    def scaled(self, factor: float) -> Bounded:
        """Times a number that the device rounds to the compute type."""
        return self._step(self.value * factor, abs(factor) * self.error, steps=2.0)

    def square(self) -> Bounded:
        """The product with itself."""
        return self * self

    def abs(self) -> Bounded:
        """The magnitude; exact."""
        return Bounded(np.abs(self.value), self.error, self._node)

    def sum(self, axes: Sequence[int]) -> Bounded:
        """The sum over ``axes``, which stay as dims of 1."""
        over = tuple(axes)
        terms = int(np.prod([self.value.shape[axis] for axis in over], dtype=np.int64))
        value = self.value.sum(over, keepdims=True)
        rounding = self._node.sum_gamma(terms) if terms > 1 else 0.0
        error = self.error.sum(over, keepdims=True) + rounding * np.abs(self.value).sum(over, keepdims=True)
        return Bounded(value, error, self._node)

    def mean(self, axes: Sequence[int]) -> Bounded:
        """The sum over ``axes`` by the number of its terms."""
        total = self.sum(axes)
        return total.scaled(total.value.size / self.value.size)

    def sqrt(self) -> Bounded:
        """The square root of a value that is at least 0."""
        value = np.sqrt(self.value)
        low, high = np.sqrt(np.maximum(self.value - self.error, 0.0)), np.sqrt(self.value + self.error)
        return self._step(value, np.maximum(value - low, high - value), steps=4.0)

    def inverse_root(self, epsilon: Bounded) -> Bounded:
        """1 / sqrt of a value that is at least 0, on devices too, plus a positive ``epsilon``."""
        shifted = self + epsilon
        low = np.maximum(self.value - self.error, 0.0) + np.maximum(epsilon.value - epsilon.error, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = 1.0 / np.sqrt(shifted.value)
            error = np.where(shifted.error > 0, 1.0 / np.sqrt(low) - value, 0.0)
        return self._step(value, error, steps=8.0)

    def _step(self, value: Array, error: Array, *, steps: float = 1.0) -> Bounded:
        return Bounded(value, error + steps * self._node.accumulation_eps * np.abs(value), self._node)


def bounded_input(node: Node, port: str, value: Array, error: Array) -> Bounded:
    """An input of ``node`` as it is read: with its own error and that of its conversion to the compute type."""
    dtype = node.inputs[port].data_type
    lossless = dtype.eps >= node.compute.eps if dtype.is_float else dtype.bits <= 8 or node.compute is DataType.DOUBLE
    loss = 0.0 if lossless else 0.5 * node.accumulation_eps
    return Bounded(value, error + loss * np.abs(value), node)
