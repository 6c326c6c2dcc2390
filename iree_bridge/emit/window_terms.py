"""What windows meet, written out: a part of the padded image for each place of the window, to be read as vectors.

A row of every second element is read as pairs, one number of twice the bits, whose half is the element: the compiler
reads rows with a stride element by element. ``docs/performance.md`` has the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graph_api import DataType
from iree_bridge.emit.linalg import Code, Operand, element_type
from iree_bridge.targets.types import builtin_tensor

__all__ = ["MOST_TERMS", "WindowTerms", "half", "has_terms", "vector_row"]

_VECTOR: Final = 8
"""Elements of a vector; rows that it does not divide would be left to scalar loops."""
MOST_TERMS: Final = 64
"""Most places of a window that are written out."""


def has_terms(stride: int, dtype: DataType) -> bool:
    """Whether rows of this stride can be read as vectors."""
    return stride == 1 or (stride == 2 and dtype.bits in (8, 16, 32))


def vector_row(length: int) -> int:
    """The length of a row that vectors compute, at least ``length``."""
    return -(-length // _VECTOR) * _VECTOR


@dataclass(frozen=True)
class WindowTerms:
    """The terms of windows over an image whose rows are contiguous.

    Attributes:
        image: dims of the padded image, [lead..., spatial...]; those of the last dim are even if its stride is 2.
        dtype: of its elements.
        dims: of the result, which has the same leading dims.
        stride: of each spatial dim; the last is 1 or 2.
        places: offsets in the image, of each term.
    """

    image: tuple[int, ...]
    dtype: DataType
    dims: tuple[int, ...]
    stride: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]

    def written(self, code: Code) -> tuple[list[str], list[Operand], list[str]]:
        """Lines that make the parts of %x; these as operands of a ``linalg.generic``; in its body, each term's element.

        The elements are the body's %i0, %i1 and so on: the operands are to come first.
        """
        lines, step = list[str](), self.stride[-1]
        image, element = self.image, element_type(self.dtype)
        name, kind = "%x", builtin_tensor(image, self.dtype)
        if step == 2:
            pairs = "x".join(map(str, (*image[:-1], image[-1] // 2))), f"i{2 * self.dtype.bits}"
            name, paired = "%pairs", f"tensor<{pairs[0]}x{pairs[1]}>"
            lines.append(f"  %pairs = iree_tensor_ext.bitcast %x : {kind} -> {paired}")
            kind, element = paired, pairs[1]
        lead = [0] * (len(self.dims) - len(self.stride))
        steps = [1] * len(lead) + [*self.stride[:-1], 1]
        part = f"tensor<{'x'.join(map(str, self.dims))}x{element}>"
        loops = [f"d{i}" for i in range(len(self.dims))]
        operands: dict[tuple[int, ...], Operand] = {}
        elements: list[str] = []
        for place in self.places:
            at = (*place[:-1], place[-1] // step)
            if at not in operands:
                made = f"%part{len(operands)}"
                lines.append(
                    f"  {made} = tensor.extract_slice {name}{[*lead, *at]} {list(self.dims)} {steps} : {kind} to {part}"
                )
                operands[at] = Operand(made, part, loops)
            value = f"%i{list(operands).index(at)}"
            elements.append(value if step == 1 else half(code, value, place[-1] % 2, self.dtype))
        return lines, list(operands.values()), elements


def half(code: Code, pair: str, which: int, dtype: DataType) -> str:
    """An element of a pair, in the order of memory, which is little-endian on every processor served."""
    bits, element = dtype.bits, element_type(dtype)
    wide, narrow = f"i{2 * bits}", f"i{bits}"
    if which:
        pair = code.op("shrui", pair, code.constant(bits, wide), wide)
    cut = code.line(f"arith.trunci {pair} : {wide} to {narrow}")
    return cut if element == narrow else code.line(f"arith.bitcast {cut} : {narrow} to {element}")
