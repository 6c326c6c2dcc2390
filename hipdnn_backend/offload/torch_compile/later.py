"""Traced graphs that PyTorch runs until their code is there."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from hipdnn_backend.offload.background import background
from hipdnn_backend.offload.torch_compile.compiling import Compiled
from hipdnn_backend.offload.torch_compile.report import GraphReport

__all__ = ["Later", "Running"]

_NUMBERS: Final = itertools.count()


class Told(Protocol):
    """Where is told what was compiled."""

    graphs: list[GraphReport]

    def fails(self, what: str, error: Exception) -> None:
        """PyTorch goes on running a graph."""
        ...


class Later:
    """A traced graph. PyTorch runs it, while a thread compiles it; from then on its programs do.

    Attributes:
        is_ready: there are programs, or there will be none.
    """

    def __init__(self, graph: Callable[..., Any], compile_: Callable[[], Compiled], told: Told) -> None:
        """Wishes for the code.

        Args:
            graph: PyTorch's operators.
            compile_: makes the programs.
            told: see there.
        """
        self._call = graph
        self._compile = compile_
        self._told = told
        self._key = ("torch", next(_NUMBERS))
        self.is_ready = False
        self._wish()

    def __call__(self, *given: Any) -> Any:
        if not self.is_ready and not background.holds(self._key):  # newer wishes, or a fork, drove it out
            self._wish()
        return self._call(*given)

    def _wish(self) -> None:
        weak = weakref.ref(self)

        def job() -> None:
            later = weak()
            if later is not None:
                later._work()

        background.wants(self._key, job)

    def _work(self) -> None:
        try:
            made = self._compile()
        except Exception as error:  # whatever it is, PyTorch goes on with what it runs already
            self._told.fails("stays in PyTorch, because it could not be compiled", error)
        else:
            self._told.graphs.append(made.report)
            self._call = made.call
        self.is_ready = True


class Running:
    """A function whose forward and backward graphs get their code later.

    Attributes:
        is_ready: all that there are have it.
    """

    def __init__(self, call: Callable[..., Any], graphs: Sequence[Later]) -> None:
        self._call = call
        self._graphs = graphs

    @property
    def is_ready(self) -> bool:
        return all(graph.is_ready for graph in self._graphs)

    def __call__(self, *given: Any) -> Any:
        return self._call(*given)
