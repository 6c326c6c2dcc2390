"""Products of few rows on AMD chips whose sums the compiler takes in vectors of five or seven."""

from __future__ import annotations

from collections.abc import Sequence

from graph_api import DataType
from iree_bridge.emit.emitter import Emitter

__all__ = ["missing_terms"]


def missing_terms(e: Emitter, dtype: DataType, terms: int, sides: Sequence[int]) -> int:
    """How many zeros the sums of a product need at their end for the compiler to make code of it.

    It aborts ("Cannot select") on float16 vectors of 5 and 7, which it takes where they divide an odd number of terms:
    in products of two to four rows, and of one that the kernel itself makes, of small floats and their scales say.

    Args:
        terms: of each sum.
        sides: rows and columns of the result.
    """
    if e.target.backend != "rocm" or dtype is not DataType.HALF or min(sides) > 4 or max(sides) == 1:
        return 0
    return int(terms % 2 == 1 and (terms % 5 == 0 or terms % 7 == 0))
