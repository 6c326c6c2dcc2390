"""Random valid graphs of all operations: families of them, sources of choices, inputs."""

from __future__ import annotations

from fusilli_plugin.testing.graphs.families import FAMILIES, graph
from fusilli_plugin.testing.graphs.inputs import inputs

__all__ = ["FAMILIES", "graph", "inputs"]
