"""How a wire graph is to be read where hipDNN's own sources disagree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fusilli_plugin.errors import BadParamError
from iree_bridge import Options

__all__ = ["Reading"]

_WORDS = {
    "newest-dtypes": "data types from 16 on have the newest numbers",
    "backward-x-first": "backward pointwise modes take (x, dy)",
    "select-predicate-first": "BINARY_SELECT takes (predicate, value if true, value if false)",
    "batchnorm-variance": "inv_variance of batchnorm inference is a variance, with an epsilon of 1e-5",
    "attention-scale-one": "attention without a scale is not scaled; otherwise its scale is 1/sqrt(head size)",
    "batchnorm-inverse": "inv_variance of batchnorm inference is 1 / sqrt(variance + epsilon), as its name says",
}


class Reading(NamedTuple):
    """Choices of what imports a graph; part of no graph.

    Attributes:
        newest_dtypes: data types from number 16 on are those of the newest schema; without it graphs with them are
            declined, because published schemas number them differently.
        backward_x_first: the backward pointwise modes take (x, dy), as hipDNN's CPU reference does; by default
            (dy, x), as cuDNN's front end does.
        select_predicate_first: BINARY_SELECT takes (predicate, a, b) as ``where`` does; by default (a, b, predicate).
        batchnorm_variance: ``inv_variance`` of batchnorm inference is the variance, as AMD's own provider reads it.
        batchnorm_inverse: it is the inverse standard deviation that its name says. If neither is asked for, that too,
            but where AMD's provider is loaded: see `beside_miopen`.
        attention_scale_one: attention that gives no scale has the scale 1, as in the newest hipDNN and in cuDNN; by
            default 1/sqrt(head size), as in older hipDNN and in AMD's providers of July 2026.
    """

    newest_dtypes: bool = False
    backward_x_first: bool = False
    select_predicate_first: bool = False
    batchnorm_variance: bool = False
    attention_scale_one: bool = False
    batchnorm_inverse: bool = False

    def beside_miopen(self) -> Reading:
        """The reading where AMD's MIOpen provider is loaded: a graph means the same whichever engine runs it."""
        return self._replace(batchnorm_variance=self.batchnorm_variance or not self.batchnorm_inverse)

    @classmethod
    def parse(cls, words: Iterable[str]) -> Reading:
        """The reading that words ask for, e.g. ``["backward-x-first"]``.

        Raises:
            BadParamError: a word means nothing.
        """
        chosen = list(words)
        for word in chosen:
            if word not in _WORDS:
                known = "; ".join(f"{name}: {meaning}" for name, meaning in _WORDS.items())
                raise BadParamError(f"FUSILLI_WIRE_READING: {word!r} means nothing; known are {known}")
        if {"batchnorm-variance", "batchnorm-inverse"} <= set(chosen):
            raise BadParamError("FUSILLI_WIRE_READING: batchnorm-variance and batchnorm-inverse contradict each other")
        return cls(**{word.replace("-", "_"): True for word in chosen})

    @classmethod
    def of(cls, options: Options) -> Reading:
        """The reading that options ask for.

        Raises:
            BadParamError: a word means nothing.
        """
        reading = cls.parse(options.wire_reading)
        return reading._replace(newest_dtypes=reading.newest_dtypes or options.newest_dtypes)
