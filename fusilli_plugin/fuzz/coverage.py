"""What graphs have in them that code depends on, in pairs: what was tried, what was declined, what never came.

Each node has an operation (with its mode), the type and the layout of its first operand, a class of size, and
neighbours. Two of these make a pair; a graph that has pairs which few graphs had is worth more.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final, NamedTuple

from graph_api import DataType, Graph, Node, PointwiseMode, ReductionMode, ResampleMode, TensorAttr
from graph_api.layout import packed_strides, stride_order
from graph_api.node import OPS

__all__ = ["ASPECTS", "Coverage", "Pair", "operation", "pairs"]

ASPECTS: Final = ("operation", "type", "layout", "size", "neighbour")
LAYOUTS: Final = ("packed", "channels last", "permuted", "gaps", "repeated")
SIZES: Final = ("one element", "below 8", "multiple of 16", "multiple of 4", "ragged")
ALONE: Final = "none"
_MODES: Final[Mapping[str, tuple[str, type[Enum]]]] = {
    "pointwise": ("mode", PointwiseMode),
    "reduction": ("mode", ReductionMode),
    "resample_fwd": ("mode", ResampleMode),
    "resample_bwd": ("mode", ResampleMode),
}


class Pair(NamedTuple):
    """Two aspects of a node and what they were: ``("type", "HALF")``, ``("layout", "gaps")``."""

    first: tuple[str, str]
    second: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.first[1]} x {self.second[1]}"


def operation(node: Node) -> str:
    """The name of what a node does, with its mode."""
    if node.op not in _MODES:
        return node.op
    return f"{node.op} {getattr(node.attributes, _MODES[node.op][0]).name}"


def pairs(graph: Graph) -> set[Pair]:
    """All pairs of a graph's nodes."""
    found: set[Pair] = set()
    for node in graph.nodes:
        tensor = next(iter((*node.inputs.values(), *node.outputs.values())))
        one = {
            "operation": operation(node),
            "type": tensor.data_type.name,
            "layout": _layout(tensor),
            "size": _size(next(iter(node.outputs.values()))),
        }
        for neighbour in _neighbours(graph, node):
            aspects = {**one, "neighbour": neighbour}
            found.update(Pair(*both) for both in itertools.combinations(aspects.items(), 2))
    return found


def _neighbours(graph: Graph, node: Node) -> set[str]:
    """Operations that make what the node reads or read what it makes."""
    makers = (graph.maker(tensor) for tensor in node.inputs.values())
    readers = (reader for tensor in node.outputs.values() for reader in graph.readers(tensor))
    return {each.op for each in (*makers, *readers) if each is not None} or {ALONE}


def _layout(tensor: TensorAttr) -> str:
    if tensor.is_repeated:
        return "repeated"
    dims, strides = tensor.dims, tensor.strides
    met = [(dim, stride) for dim, stride in zip(dims, strides, strict=True) if dim > 1]
    extent = 1 + sum((dim - 1) * stride for dim, stride in met)
    if extent > tensor.volume:
        return "gaps"
    order = [axis for axis in stride_order(dims, strides) if dims[axis] > 1]
    if order == sorted(order) or tuple(strides) == packed_strides(dims):
        return "packed"
    last = [axis for axis in (0, *range(2, len(dims)), 1) if dims[axis] > 1]
    return "channels last" if len(dims) > 2 and order == last else "permuted"


def _size(tensor: TensorAttr) -> str:
    """Of the result's longest dim: what vectors and tiles divide, or do not."""
    longest = max(tensor.dims, default=1)
    if longest == 1:
        return "one element"
    if longest < 8:
        return "below 8"
    if longest % 16 == 0:
        return "multiple of 16"
    return "multiple of 4" if longest % 4 == 0 else "ragged"


@cache
def universe() -> frozenset[Pair]:
    """Every pair that could be, whether or not an operation has that type."""
    operations = [name for name in OPS if name not in _MODES]
    operations += [f"{name} {mode.name}" for name, (_, modes) in _MODES.items() for mode in modes]
    values = {
        "operation": operations,
        "type": [kind.name for kind in DataType],
        "layout": LAYOUTS,
        "size": SIZES,
        "neighbour": [ALONE, *OPS],
    }
    return frozenset(
        Pair((first, a), (second, b))
        for first, second in itertools.combinations(ASPECTS, 2)
        for a in values[first]
        for b in values[second]
    )


class Coverage:
    """Counts of pairs: of graphs that ran, and of those that were declined."""

    def __init__(self) -> None:
        self.tried: Counter[Pair] = Counter()
        self.declined: Counter[Pair] = Counter()

    def novelty(self, graph: Graph) -> float:
        """How much a graph has in it that few had."""
        return sum(1.0 / (1 + self.tried[pair]) ** 2 for pair in pairs(graph))

    def add(self, graph: Graph) -> None:
        """Counts a graph that is tried."""
        self.tried.update(pairs(graph))

    def decline(self, graph: Graph) -> None:
        """Counts a graph that was to be tried, and was declined, as that."""
        found = pairs(graph)
        self.declined.update(found)
        self.tried -= Counter(found)

    def never(self) -> Iterator[Pair]:
        """Pairs that no graph that ran had, sorted; those of declined graphs among them."""
        yield from sorted(universe() - self.tried.keys())

    def rows(self) -> list[tuple[str, int, int, int]]:
        """Of each two aspects: their names, pairs tried, pairs of declined graphs alone, pairs that never came."""
        rows = []
        for both in itertools.combinations(ASPECTS, 2):
            every = {pair for pair in universe() if (pair.first[0], pair.second[0]) == both}
            tried = every & self.tried.keys()
            declined = (every & self.declined.keys()) - tried
            rows.append((" x ".join(both), len(tried), len(declined), len(every) - len(tried) - len(declined)))
        return rows

    def to_json(self) -> dict[str, Any]:
        """Plain values: the counts of pairs by name, and those that never came."""
        never = [pair for pair in self.never() if pair not in self.declined]
        return {
            "tried": _named(self.tried),
            "declined": _named(self.declined),
            "never": _named(dict.fromkeys(never, 0)),
        }


def _named(counts: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for pair in sorted(counts):
        found.setdefault(f"{pair.first[0]} x {pair.second[0]}", {})[str(pair)] = counts[pair]
    return found
