"""Host memory for results, which callers drop sooner or later: what nobody refers to any more is written again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hipdnn_backend.offload.program.program import View

__all__ = ["ResultMemory"]

Array = np.ndarray[Any, Any]

_MOST: Final = 4
"""Sets of results that are kept; with more in use at one time, results are copied."""
_ALIGNMENT: Final = 64


class ResultMemory:
    """Sets of arrays for all outputs of a program. One thread at a time uses it.

    Attributes:
        views: of the outputs, dense and row-major.
    """

    def __init__(self, views: Sequence[View]) -> None:
        self.views = tuple(views)
        self._sets: list[tuple[list[Array], tuple[int, ...]]] = []

    def take(self) -> tuple[list[Array], tuple[int, ...]] | None:
        """Arrays that nobody else has, and their addresses; None: all are in use."""
        for blocks, addresses in self._sets:
            if all(sys.getrefcount(block) == _UNUSED for block in blocks):
                return self._arrays(blocks), addresses
        if len(self._sets) == _MOST:
            return None
        blocks = [_block(view) for view in self.views]
        addresses = tuple(block.__array_interface__["data"][0] for block in blocks)
        self._sets.append((blocks, addresses))
        return self._arrays(blocks), addresses

    def _arrays(self, blocks: Sequence[Array]) -> list[Array]:
        """They refer to their block, and so does every array that is made of them."""
        return [
            np.ndarray(view.dims, view.dtype, buffer=block.data) for view, block in zip(self.views, blocks, strict=True)
        ]


def _block(view: View) -> Array:
    whole = np.empty(view.count * view.itemsize + _ALIGNMENT, np.uint8)
    start = -whole.__array_interface__["data"][0] % _ALIGNMENT
    # of another type than an array, or what is made of a part would refer to the whole and not to the part
    return np.frombuffer(whole.data[start : start + view.count * view.itemsize], np.uint8)


def _references() -> int:
    """What `sys.getrefcount` says of a block in a loop over its list, when no array refers to it."""
    blocks = [np.empty(1, np.uint8)]
    return next(sys.getrefcount(block) for block in blocks)


_UNUSED: Final = _references()
