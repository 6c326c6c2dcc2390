"""A picture with text in it, drawn with numpy: the input of the demo's text detector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["draw_text", "normalized"]

Image = np.ndarray[Any, np.dtype[np.uint8]]

_ROWS, _COLUMNS = 7, 5
# 5 x 7 dots per letter, rows from the top
_LETTERS = {
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "9": "01110 10001 10001 01111 00001 00010 01100",
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "B": "11110 10001 10001 11110 10001 10001 11110",
    "C": "01110 10001 10000 10000 10000 10001 01110",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "F": "11111 10000 10000 11110 10000 10000 10000",
    "G": "01110 10001 10000 10111 10001 10001 01111",
    "I": "01110 00100 00100 00100 00100 00100 01110",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "M": "10001 11011 10101 10101 10001 10001 10001",
    "N": "10001 11001 10101 10011 10001 10001 10001",
    "O": "01110 10001 10001 10001 10001 10001 01110",
    "R": "11110 10001 10001 11110 10100 10010 10001",
    "S": "01111 10000 10000 01110 00001 00001 11110",
    "U": "10001 10001 10001 10001 10001 10001 01110",
    "V": "10001 10001 10001 10001 10001 01010 00100",
    "X": "10001 10001 01010 00100 01010 10001 10001",
    " ": "00000 00000 00000 00000 00000 00000 00000",
}


def draw_text(lines: Sequence[str], *, height: int, width: int, dot: int = 3) -> Image:
    """Dark text on a light ground that darkens towards the lower right.

    Args:
        lines: text, in the letters of the small font above.
        height, width: of the picture, in pixels.
        dot: pixels per dot of a letter.

    Returns:
        uint8 picture, dims (height, width, 3).

    Raises:
        ValueError: a letter that the font lacks, or text that does not fit.
    """
    shade = np.add.outer(np.linspace(0, 30, height), np.linspace(0, 30, width))
    picture = (250 - shade[:, :, None] - np.array([0, 6, 12])).astype(np.uint8)
    margin, pitch = 4 * dot, (_ROWS + 4) * dot
    for index, line in enumerate(lines):
        ink = np.kron(_dots(line), np.ones((dot, dot), dtype=bool))
        top, bottom = margin + index * pitch, margin + index * pitch + ink.shape[0]
        if bottom > height or margin + ink.shape[1] > width:
            raise ValueError(f"line {index} of {len(line)} letters does not fit into {height} x {width} pixels")
        picture[top:bottom, margin : margin + ink.shape[1]][ink] = (20, 30, 60)
    return picture


def normalized(picture: Image) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The picture as image models take it: float32, dims (1, 3, height, width), ImageNet's mean and deviation."""
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return ((picture / 255.0 - mean) / deviation).transpose(2, 0, 1)[None].astype(np.float32)


def _dots(line: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The dots of a line of text, one empty column between letters."""
    unknown = sorted(set(line) - set(_LETTERS))
    if unknown:
        raise ValueError(f"the font has no {unknown}; it has {''.join(_LETTERS)!r}")
    columns = np.zeros((_ROWS, len(line) * (_COLUMNS + 1)), dtype=bool)
    for index, letter in enumerate(line):
        rows = [[dot == "1" for dot in row] for row in _LETTERS[letter].split()]
        columns[:, index * (_COLUMNS + 1) : index * (_COLUMNS + 1) + _COLUMNS] = rows
    return columns
