"""A graph, and a file of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from graph_api import DataType, Graph, PointwiseMode


@pytest.fixture
def add_graph() -> Graph:
    """y = relu(a + b), 2 x 3, f32."""
    g = Graph("add_relu", io_data_type=DataType.FLOAT)
    a, b = (g.tensor(name, dim=(2, 3)) for name in "ab")
    g.pointwise(PointwiseMode.RELU_FWD, g.pointwise(PointwiseMode.ADD, a, b)).set_output(True).set_name("y")
    return g.validate()


@pytest.fixture
def add_file(add_graph: Graph, tmp_path: Path) -> Path:
    """``add_graph`` as a file."""
    path = tmp_path / "add.json"
    path.write_text(add_graph.to_json())
    return path
