"""Floats of 8 bits and less: what their codes are made of. How they are computed with is said where it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["E2M1", "E2M3", "E3M2", "E4M3", "E4M3_FNUZ", "E5M2", "E5M2_FNUZ", "E8M0", "FloatFormat"]


@dataclass(frozen=True)
class FloatFormat:
    """A float of a sign, an exponent and a mantissa; with neither sign nor mantissa, a power of two.

    Attributes:
        exponent, mantissa: their bits.
        bias: of the exponent.
        largest: code of the largest finite value.
        infinity: code of it, or None.
        nan: code of a NaN, or None; those above it, up to the sign, are NaN too.
        fnuz: there is no negative zero, whose code is the one NaN.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: int
    infinity: int | None = None
    nan: int | None = None
    fnuz: bool = False

    @property
    def sign(self) -> int:
        """Number of bits below the sign."""
        return self.exponent + self.mantissa

    @property
    def bits(self) -> int:
        """Of an element."""
        return self.sign + 1 if self.mantissa else self.exponent


E4M3: Final = FloatFormat(4, 3, 7, 0x7E, nan=0x7F)
E5M2: Final = FloatFormat(5, 2, 15, 0x7B, infinity=0x7C, nan=0x7E)
E4M3_FNUZ: Final = FloatFormat(4, 3, 8, 0x7F, nan=0x80, fnuz=True)
E5M2_FNUZ: Final = FloatFormat(5, 2, 16, 0x7F, nan=0x80, fnuz=True)
E2M3: Final = FloatFormat(2, 3, 1, 0x1F)
E3M2: Final = FloatFormat(3, 2, 3, 0x1F)
E2M1: Final = FloatFormat(2, 1, 1, 0x07)
E8M0: Final = FloatFormat(8, 0, 127, 0xFE, nan=0xFF)
"""Formats of the Open Compute Project, its microscaling ones, and those without a negative zero of AMD's gfx942."""
