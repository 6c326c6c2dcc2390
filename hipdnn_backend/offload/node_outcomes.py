"""What became of each node of a model: which graphs compute it, or why none has to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

__all__ = ["Absorbed", "Became", "Fate", "fates"]


class Became(StrEnum):
    """What became of a node."""

    GRAPH = "graph"
    VIEW = "view"
    UNCLAIMED = "unclaimed"
    MERGED = "merged"
    INLINED = "inlined"
    BODY = "body"
    FOLDED = "folded"
    IDENTITY = "identity"
    UNUSED = "unused"
    SIMPLIFIED = "simplified"


_WORDS: Final = {
    Became.GRAPH: "computed by a graph",
    Became.VIEW: "a view, nothing runs for it",
    Became.UNCLAIMED: "no engine takes it",
    Became.MERGED: "its work is done by",
    Became.INLINED: "a function of the model, which became",
    Became.BODY: "in the body of",
    Became.FOLDED: "computed before any run",
    Became.IDENTITY: "its result is its operand, or a constant",
    Became.UNUSED: "no output needs it",
    Became.SIMPLIFIED: "removed by the compiler: equal to another node, or without effect",
}


@dataclass(frozen=True, slots=True)
class Absorbed:
    """Why a node of the model left no operation.

    Attributes:
        became: of it.
        into: names of the nodes that do its work now, or that it was in.
    """

    became: Became
    into: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a node.

    Attributes:
        node: name.
        operator: with its domain unless that is ONNX's own, "" if the source is no ONNX model.
        became: in one word.
        into: see `Absorbed`.
        graphs: numbers of the graphs that compute it, in their order.
    """

    node: str
    operator: str
    became: Became
    into: tuple[str, ...] = ()
    graphs: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """In words, without the node's name."""
        return " ".join([_WORDS[self.became], ", ".join(self.into)]).strip()

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "node": self.node, "operator": self.operator, "became": str(self.became), "into": list(self.into),
            "graphs": list(self.graphs), "words": self.words,
        }  # fmt: skip


def fates(
    sources: Mapping[str, str],
    absorbed: Mapping[str, Absorbed],
    graphs: Sequence[Sequence[str]],
    views: Sequence[Sequence[str]],
    unclaimed: Sequence[str] = (),
) -> tuple[Fate, ...]:
    """The fate of each node.

    Args:
        sources: every node of the model → its operator.
        absorbed: what the front end found out.
        graphs: names of the nodes of each graph; those that are no node of the model stem from its functions.
        views: names of the nodes of each view, for which nothing runs.
        unclaimed: nodes that no engine takes.
    """
    inside: dict[str, list[int]] = {}
    for number, nodes in enumerate(graphs):
        for node in nodes:
            inside.setdefault(node, []).append(number)
    left, seen = set(unclaimed), {node for nodes in views for node in nodes}
    names = dict.fromkeys([*sources, *inside, *sorted(left | seen)])

    def fate(name: str) -> Fate:
        operator = sources.get(name, "")
        if name in inside:
            return Fate(name, operator, Became.GRAPH, graphs=tuple(inside[name]))
        if name in left or name in seen:
            return Fate(name, operator, Became.UNCLAIMED if name in left else Became.VIEW)
        why = absorbed.get(name, Absorbed(Became.SIMPLIFIED))
        return Fate(name, operator, why.became, why.into)

    return tuple(map(fate, names))
