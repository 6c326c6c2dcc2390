"""A graph file and a runner for the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fusilli_plugin.cli import cli
from graph_api import DataType, Graph, PointwiseMode

Fusilli = Callable[..., Result]


@pytest.fixture
def fusilli() -> Fusilli:
    """Runs ``fusilli ARGS``; an exception that the command line does not handle fails the test."""

    def run(*args: object) -> Result:
        result = CliRunner().invoke(cli, [str(arg) for arg in args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


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
