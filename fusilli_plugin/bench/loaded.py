"""What a side has made of the row that it was asked to load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Loaded"]


@dataclass(frozen=True)
class Loaded:
    """A row that a side can run.

    Attributes:
        run: one run; when it returns, the results are there.
        results: those of a run of its own, as arrays.
        form: the forms of our graphs.
        verdict: ``right`` or ``wrong`` if the results were compared with a float64 reference, else empty.
        wrong: what is wrong with them.
    """

    run: Callable[[], object]
    results: Callable[[], Iterable[Any]]
    form: str = ""
    verdict: str = ""
    wrong: str = ""
