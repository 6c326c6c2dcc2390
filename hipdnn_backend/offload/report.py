"""What happened in a pipeline run, as data: for tables, pages and messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hipdnn_backend.engine import Support

__all__ = ["GraphReport", "PassTime", "Progress", "Report", "Split"]


@dataclass(frozen=True, slots=True)
class Progress:
    """An engine is done with a graph: it is compiled, or it was not to be.

    Attributes:
        done: how many graphs of this round the engines are done with.
        total: how many there are.
        name: of this one.
        engine: that was to compile it.
        seconds: that took.
        error: why it is not compiled, "" if it is.
    """

    done: int
    total: int
    name: str
    engine: str
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        if not self.error:
            return f"compiled {self.done} of {self.total}: {self.name}, {self.seconds:.2f} s"
        why = self.error.partition("\n")[0]
        return f"not compiled, {self.done} of {self.total}: {self.name}, {self.seconds:.2f} s: {why}"


@dataclass(frozen=True, slots=True)
class PassTime:
    """How long a pass took, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Split:
    """A graph that did not compile and what was done about it.

    Attributes:
        nodes: the model's nodes in it.
        engine: that failed.
        reason: what it said.
        action: e.g. ``split into 3 and 4 operations``.
    """

    nodes: tuple[str, ...]
    engine: str
    reason: str
    action: str


@dataclass(frozen=True, slots=True)
class GraphReport:
    """A compiled graph.

    Attributes:
        name: e.g. ``hipdnn_graph_0``.
        engine: that compiled it.
        nodes: the model's nodes in it.
        operations: MLIR names of its operations.
        custom: they went to the engine as one custom operation.
        equal_to: name of the graph whose plan it shares, "" if it was compiled.
        seconds: that compiling took, 0 if it shares a plan.
        workspace_size: bytes.
        declined: engine name → why it did not get the graph.
    """

    name: str
    engine: str
    nodes: tuple[str, ...]
    operations: tuple[str, ...]
    custom: bool
    equal_to: str
    seconds: float
    workspace_size: int
    declined: Mapping[str, Support]


@dataclass
class Report:
    """A pipeline run.

    Attributes:
        passes: in the order in which they ran.
        graphs: in program order.
        refused: model node → engine name → why the engine did not take it as a hipDNN operation.
        splits: graphs that did not compile at first.
        layout: strides of the tensors between graphs, in words.
        views: model nodes of each reshape and concatenation for which nothing runs.
    """

    passes: list[PassTime] = field(default_factory=list)
    graphs: list[GraphReport] = field(default_factory=list)
    refused: dict[str, Mapping[str, Support]] = field(default_factory=dict)
    splits: list[Split] = field(default_factory=list)
    layout: str = ""
    views: list[tuple[str, ...]] = field(default_factory=list)
