"""What `fusilli fuzz` found in our own code, each with a right value that was derived without it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge import build

_NUMBERS = (-1e-300, -3e-20, -(2.0**-30), -2.17e-4, -1e-3, -(2.0**-9))


def _tanh(x: Fraction) -> Fraction:
    """The first terms of its series: what is left out is below 2**-60 of the result."""
    return x - x**3 / 3 + 2 * x**5 / 15 - 17 * x**7 / 315


def _exp_less_one(x: Fraction) -> Fraction:
    return x + x**2 / 2 + x**3 / 6 + x**4 / 24 + x**5 / 120 + x**6 / 720


@pytest.mark.iree_cpu
@pytest.mark.parametrize(("mode", "exact"), [("TANH_FWD", _tanh), ("ELU_FWD", _exp_less_one)])
def test_small_doubles_keep_their_digits(mode: str, exact: object) -> None:
    """seed 7000561: the CPU target's exp(x) - 1 cancels, so that the tanh of 1e-19 was 0."""
    assert callable(exact)
    g = Graph("small", io_data_type=DataType.DOUBLE)
    x = g.tensor("x", dim=(len(_NUMBERS),))
    y = g.pointwise(PointwiseMode[mode], x).set_output(True)
    pack = {x: np.array(_NUMBERS), y: y.empty()} if g.validate() else {}
    build(g, "cpu").run(pack)
    for number, got in zip(_NUMBERS, pack[y], strict=True):
        right = exact(Fraction(number))
        assert abs(Fraction(float(got)) - right) <= abs(right) * Fraction(4, 2**52), number
