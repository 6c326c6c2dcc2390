"""Pictures with text, and what stands around three text models: their inputs, boxes, and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

__all__ = ["Box", "Line", "boxes", "characters", "crop", "draw", "model_input", "strips", "text_of"]

Array = np.ndarray[Any, Any]

_FONT_SIZE = 28
_HEIGHT = 48  # of the pictures of one line that the classifier and the recogniser take
_THRESHOLD = 0.3
_GROWTH = 1.6  # the detector marks the core of a line; area times this over circumference is what it leaves out


@dataclass(frozen=True)
class Box:
    """Pixels of a picture: from ``left`` to before ``right``, from ``top`` to before ``bottom``."""

    left: int
    top: int
    right: int
    bottom: int

    def covers(self, other: Box) -> bool:
        """Whether no pixel of another box is outside."""
        outside = self.left > other.left or self.top > other.top
        return not outside and self.right >= other.right and self.bottom >= other.bottom


@dataclass(frozen=True)
class Line:
    """A line of text in a picture.

    Attributes:
        text: what is drawn.
        box: the pixels that it has.
    """

    text: str
    box: Box


def draw(texts: Sequence[str], size: tuple[int, int]) -> tuple[Array, list[Line]]:
    """Black lines of text on white, spread over the height, each a bit further to the right.

    Returns:
        The picture, bytes of [height, width, 3], and the lines.
    """
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(_FONT_SIZE)
    lines = []
    for number, text in enumerate(texts):
        at = (16 + 12 * number, (2 * number + 1) * size[1] // (2 * len(texts)))
        pen.text(at, text, font=font, fill="black", anchor="lm")
        left, top, right, bottom = pen.textbbox(at, text, font=font, anchor="lm")
        lines.append(Line(text, Box(round(left), round(top), round(right), round(bottom))))
    return np.asarray(picture), lines


def crop(picture: Array, box: Box) -> Array:
    """The part of a picture in a box."""
    return picture[box.top : box.bottom, box.left : box.right]


def strips(texts: Sequence[str]) -> list[tuple[str, Array]]:
    """Each text and a picture of it alone, with a margin."""
    picture, lines = draw(texts, (320, 320))
    margin = 5
    return [
        (line.text, crop(picture, Box(at.left - margin, at.top - margin, at.right + margin, at.bottom + margin)))
        for line in lines
        for at in [line.box]
    ]


def model_input(picture: Array, width: int = 0) -> Array:
    """What the models take: blue before green before red, -1 to 1, ``[1, 3, height, width]``.

    Args:
        picture: bytes of [height, width, 3].
        width: 0: the picture as it is; else it is brought to the height of a line, and filled up to this width with
            what is 0 to the model.
    """
    if width:
        height, own = picture.shape[:2]
        scaled = (min(width, round(own * _HEIGHT / height)), _HEIGHT)
        picture = np.asarray(Image.fromarray(picture).resize(scaled, Image.Resampling.BILINEAR))
    values = (picture[..., ::-1].astype(np.float32) / 255 - 0.5) / 0.5
    values = np.pad(values, ((0, 0), (0, max(0, width - values.shape[1])), (0, 0)))
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def boxes(marks: Array) -> list[Box]:
    """The boxes of lines, from top to bottom, in a detector's result ``[1, 1, height, width]``."""
    seen = marks[0, 0] > _THRESHOLD
    height, width = seen.shape
    found = []
    while seen.any():
        rows, columns = _region(seen)
        seen[rows, columns] = False
        left, right, top, bottom = columns.min(), columns.max() + 1, rows.min(), rows.max() + 1
        grow = _GROWTH * (right - left) * (bottom - top) / (2 * (right - left + bottom - top))
        box = (max(0, left - grow), max(0, top - grow), min(width, right + grow), min(height, bottom + grow))
        found.append(Box(*(round(float(edge)) for edge in box)))
    return sorted(found, key=lambda box: box.top)


def _region(seen: Array) -> tuple[Array, Array]:
    """Rows and columns of the marks that hang together with the first one."""
    row, column = np.argwhere(seen)[0]
    members, edge = {(row, column)}, [(row, column)]
    while edge:
        row, column = edge.pop()
        for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = 0 <= near[0] < seen.shape[0] and 0 <= near[1] < seen.shape[1]
            if inside and seen[near] and near not in members:
                members.add(near)
                edge.append(near)
    rows, columns = np.array(sorted(members)).T
    return rows, columns


def characters(listed: str) -> list[str]:
    """What the classes of the recogniser stand for: nothing, the characters that its file lists, a space."""
    return ["", *listed.splitlines(), " "]


def text_of(scores: Array, classes: list[str]) -> str:
    """The text in a recogniser's result ``[1, steps, classes]``: what is said several times in a row is said once."""
    best = scores[0].argmax(-1)
    first = np.insert(best[1:] != best[:-1], 0, True)
    return "".join(classes[int(number)] for number in best[first])
