"""The case tables: one file per operation family, read by the tests of every layer.

``ALL`` maps family to cases. A case builds a small graph; what a device may be off by follows from the graph itself
(``graph_api.numerics``).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graph_api import Graph, TensorAttr

__all__ = ["OpCase", "all_cases", "family_cases"]

Pack = dict[TensorAttr, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class OpCase:
    """One graph with inputs.

    Attributes:
        name: unique in its family; stable, since results are recorded by it.
        build: makes the graph, not yet validated.
        inputs: makes the inputs from the validated graph; None: ``graph.random_inputs()``.
        dims: expected dims of outputs by tensor name, worked out by hand; checked where given.
        fast: True if ``make test`` or ``make test-thorough`` runs it compiled; the others belong to ``make test-full``.
        declined: the support rule by which targets of this backend decline it, by backend name.
        note: what it is about.
    """

    name: str
    build: Callable[[], Graph]
    inputs: Callable[[Graph], Pack] | None = None
    dims: Mapping[str, tuple[int, ...]] | None = None
    fast: bool = False
    declined: Mapping[str, str] | None = None
    note: str = ""

    def graph(self) -> Graph:
        """A validated graph."""
        return self.build().validate()

    def pack(self, graph: Graph) -> Pack:
        """Inputs for ``graph``."""
        return graph.random_inputs() if self.inputs is None else self.inputs(graph)


def family_cases(family: str) -> list[OpCase]:
    """The cases of one family, the name of its file."""
    cases = importlib.import_module(f"tests.cases.{family}").CASES
    names = [case.name for case in cases]
    assert len(names) == len(set(names)), f"two cases of {family} have one name"
    return cases


def all_cases() -> list[tuple[str, OpCase]]:
    """Every case as (family, case)."""
    families = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [(family, case) for family in families for case in family_cases(family)]
