from __future__ import annotations

import numpy as np
import pytest

from fusilli_plugin.checks.demo import PICTURE_HEIGHT, PICTURE_LINES, PICTURE_WIDTH
from fusilli_plugin.checks.picture import draw_text, normalized


def test_a_letter_is_drawn_dot_by_dot() -> None:
    picture = draw_text(["I"], height=20, width=20, dot=1)
    ink = (picture == (20, 30, 60)).all(axis=2)
    letter = ink[4:11, 4:9]  # margin of four dots; seven rows of five dots
    assert letter.astype(int).tolist() == [
        [0, 1, 1, 1, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 1, 1, 1, 0],
    ]
    assert ink.sum() == letter.sum()


def test_the_demo_s_text_fits() -> None:
    picture = draw_text(PICTURE_LINES, height=PICTURE_HEIGHT, width=PICTURE_WIDTH)
    assert picture.shape == (PICTURE_HEIGHT, PICTURE_WIDTH, 3)
    assert picture.dtype == np.uint8


def test_text_that_does_not_fit_and_unknown_letters_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        draw_text(["CONV"], height=20, width=40)
    with pytest.raises(ValueError, match=r"the font has no \['?'?q'?"):
        draw_text(["q"], height=100, width=100)


def test_normalized_is_channels_first_with_imagenet_s_statistics() -> None:
    picture = np.zeros((2, 3, 3), np.uint8)
    picture[1, 2] = (255, 0, 255)
    values = normalized(picture)
    assert values.shape == (1, 3, 2, 3)
    assert values.dtype == np.float32
    np.testing.assert_allclose(
        values[0, :, 1, 2], [(1 - 0.485) / 0.229, -0.456 / 0.224, (1 - 0.406) / 0.225], rtol=1e-6
    )
