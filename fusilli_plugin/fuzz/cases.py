"""A graph with its inputs, which fails or does not: in memory, and in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from fusilli_ground.files import write_whole
from fusilli_plugin.testing.graphs.custom import with_references
from fusilli_plugin.testing.graphs.inputs import inputs as random_inputs
from graph_api import Graph, TensorAttr
from iree_bridge.artifact.arrays import load_inputs, save_outputs

__all__ = ["GRAPH", "INPUTS", "Array", "Case", "document_of", "load_case", "save_case"]

Array = np.ndarray[Any, Any]
GRAPH: Final = "graph.json"
INPUTS: Final = "inputs.npz"


@dataclass(frozen=True)
class Case:
    """A graph with its inputs.

    Attributes:
        graph: validated.
        inputs: an array for each input, in the tensors' data types and strides.
    """

    graph: Graph
    inputs: Mapping[TensorAttr, Array] = field(repr=False)

    @classmethod
    def of(cls, graph: Graph, seed: int = 0) -> Case:
        """The graph with random inputs."""
        return cls(graph, random_inputs(graph, seed))

    @cached_property
    def digest(self) -> str:
        """Equal for equal graphs and inputs."""
        found = hashlib.sha256(self.graph.canonical_json().encode())
        for tensor in self.graph.arguments().inputs:
            found.update(np.ascontiguousarray(self.inputs[tensor]).view(np.uint8).tobytes())
        return found.hexdigest()

    def named(self) -> dict[str, Array]:
        """The inputs by name."""
        return {tensor.name: array for tensor, array in self.inputs.items()}


def save_case(folder: Path, case: Case) -> None:
    """Write ``graph.json`` and ``inputs.npz``.

    Raises:
        OSError: the folder is not there, or cannot be written.
    """
    write_whole(folder / GRAPH, case.graph.to_json().encode())
    save_outputs(case.inputs, folder / INPUTS)


def load_case(folder: Path) -> Case:
    """What `save_case` wrote.

    Raises:
        GraphError: it is damaged.
        OSError: it cannot be read.
    """
    graph = with_references(Graph.from_json((folder / GRAPH).read_bytes()))
    return Case(graph, load_inputs(graph, folder / INPUTS))


def document_of(graph: Graph) -> dict[str, Any]:
    """The graph as plain values, to be changed."""
    return json.loads(graph.to_json())
