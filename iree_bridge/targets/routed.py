"""How rows that are routed to experts are cut into blocks, each of which is multiplied with one expert's matrix."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MOST_ROWS", "MOST_ROWS_BACKWARD", "Blocks"]

MOST_ROWS, MOST_ROWS_BACKWARD = 64, 256
"""Of a block of the product, and of its gradient, where each block is a partial sum of a whole matrix."""


class Blocks(NamedTuple):
    """Blocks for any routing of some rows to some groups.

    Attributes:
        rows: of a block; what a group leaves of its last one is filled up with zeros.
        count: enough, however the rows are shared out.
    """

    rows: int
    count: int

    @classmethod
    def of(cls, rows: int, groups: int, *, most: int) -> Blocks:
        """Blocks of about a group's share, at most ``most`` rows: the fewer rows a block has, the less is filled up.

        Each block costs a copy of its expert's matrix, or one more partial sum.
        """
        share = -(-rows // groups)
        height = min(1 << (share - 1).bit_length(), most)
        return cls(height, (rows + groups * (height - 1)) // height)
