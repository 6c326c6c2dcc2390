"""Failures that were found: which are one and the same, and where each lies."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusilli_plugin.fuzz.cases import Case
from fusilli_plugin.fuzz.coverage import operation
from fusilli_plugin.fuzz.examine import Verdict
from graph_api import Graph

__all__ = ["Found", "Ledger", "traits"]


def traits(graph: Graph) -> frozenset[tuple[str, str]]:
    """What tells failures of one signature apart: the operations, and the types of their first operands."""
    return frozenset(
        (operation(node), next(iter((*node.inputs.values(), *node.outputs.values()))).data_type.name)
        for node in graph.nodes
    )


@dataclass
class Found:
    """A finding.

    Attributes:
        verdict: in which way it fails.
        case: the smallest found.
        source: family and number of the graph that it was found in.
        nodes: of that graph.
        count: graphs that fail so.
        capsule: its folder, None if it could not be written.
        missing: what is not in the folder, and why.
    """

    verdict: Verdict
    case: Case
    source: str
    nodes: int
    count: int = 1
    capsule: Path | None = None
    missing: str = ""

    @property
    def name(self) -> str:
        """For its folder: equal for equal findings."""
        verdict = self.verdict
        parts = [repr(verdict.signature), *map(repr, sorted(traits(self.case.graph)))]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
        words = f"{verdict.check}-{verdict.kind}-{self.case.graph.nodes[0].op}"
        return f"{re.sub(r'[^A-Za-z0-9]+', '_', words)}-{digest}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "check": self.verdict.check,
            "kind": self.verdict.kind,
            "text": self.verdict.text,
            "source": self.source,
            "nodes_before": self.nodes,
            "nodes": [operation(node) for node in self.case.graph.nodes],
            "count": self.count,
            "capsule": None if self.capsule is None else str(self.capsule),
            "missing": self.missing,
        }


class Ledger:
    """The findings of a campaign, each once."""

    def __init__(self) -> None:
        self.findings: list[Found] = []

    def known(self, verdict: Verdict, graph: Graph) -> Found | None:
        """The finding that a failure is one more case of, by its signature: its graph has all that the finding has."""
        for found in self.findings:
            same = found.verdict.signature == verdict.signature
            if same and traits(found.case.graph) <= traits(graph):
                return found
        return None

    def add(self, new: Found) -> Found:
        """The finding, or the one that it turned out to be, counted once more."""
        known = self.known(new.verdict, new.case.graph)
        if known is not None:
            known.count += new.count
            return known
        self.findings.append(new)
        return new
