"""Hypothesis strategies for valid graphs of all operations. Needs ``pip install 'fusilli-plugin[testing]'``.

What fails shrinks to few nodes, dims of 1, FLOAT where the family has it, packed layouts and no epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from hypothesis import reject
from hypothesis import strategies as st

from fusilli_plugin.testing.graphs.draw import Draw
from fusilli_plugin.testing.graphs.families import FAMILIES
from graph_api import Graph, GraphError

__all__ = ["graphs"]

T = TypeVar("T")
_ATTEMPTS: Final = 4
_IN_ORDER: Final = ("chain", *(name for name in FAMILIES if name != "chain"))


class _ExampleDraw(Draw):
    """Choices that hypothesis makes, remembers and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, choices: Sequence[T]) -> T:
        return self._draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def chance(self, of: float) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 * (1 - of)

    def order(self, count: int) -> list[int]:
        return self._draw(st.permutations(range(count)))


def graphs(
    families: Sequence[str] = _IN_ORDER, suits: Callable[[Graph], bool] = lambda _: True
) -> st.SearchStrategy[Graph]:
    """Validated graphs of one to some nodes.

    Args:
        families: keys of `fusilli_plugin.testing.graphs.FAMILIES`; examples shrink towards the first.
        suits: which graphs are wanted, those that a target serves say; the others are drawn again.

    Raises:
        GraphError: there is no such family, or none is given.
    """
    unknown = [name for name in families if name not in FAMILIES]
    if unknown or not families:
        raise GraphError(f"unknown families of graphs {unknown}; known are {', '.join(FAMILIES)}")
    return _graphs(list(families), suits)


@st.composite
def _graphs(draw: st.DrawFn, families: list[str], suits: Callable[[Graph], bool]) -> Graph:
    name = draw(st.sampled_from(families))
    for _ in range(_ATTEMPTS):
        made = FAMILIES[name][0](_ExampleDraw(draw))
        if made is None:
            continue
        made.name = name
        if suits(made.validate()):
            return made
    reject()
