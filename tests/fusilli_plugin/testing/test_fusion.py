"""`assert_fusion_right`: what is right passes everywhere, each kind of disagreement is told from the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.edge.install import plugin_dir
from fusilli_plugin.testing import FusionError, Place, assert_fusion_right, place
from graph_api import DataType, FusilliError, Graph, GraphError, NotSupportedError, PointwiseMode, TensorAttr

D, M = DataType, PointwiseMode


def scaled_sum() -> Graph:
    """y = (2 x) + x, whose middle is named."""
    g = Graph("scaled_sum", io_data_type=D.FLOAT)
    x = g.tensor("x", dim=(3, 4))
    doubled = g.pointwise(M.MUL, x, 2.0).set_name("doubled")
    g.pointwise(M.ADD, doubled, x).set_name("y").set_output(True)
    return g.validate()


class Faulty(Place):
    """Computes in float64 and adds ``by`` to element [1, 2] of graphs of ``nodes`` nodes."""

    def __init__(self, nodes: int, by: float) -> None:
        self._nodes, self._by = nodes, by

    def __str__(self) -> str:
        return "a faulty place"

    def declines(self, graph: Graph) -> str:
        return "it has a tensor of 5 elements" if any(t.volume == 5 for t in graph.tensors) else ""

    def run(self, graph: Graph, inputs: dict[TensorAttr, Any]) -> dict[TensorAttr, Any]:
        found = {t: value.astype(np.float32) for t, value in graph.reference(inputs).items()}
        if len(graph.nodes) == self._nodes:
            for array in found.values():
                array[1, 2] += self._by
        return found


def test_a_wrong_element_of_the_fused_graph_is_named() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.raises(FusionError, match=r"fused graph and float64 differ: tensor 'y' at \[1, 2\]") as caught:
        assert_fusion_right(scaled_sum(), device=Faulty(2, 0.5), inputs={"x": x})
    error = caught.value
    assert (error.comparison, error.tensor, error.index) == ("fused", "y", (1, 2))
    assert (error.got, error.expected) == (18.5, 18.0)
    assert 0 < error.bound < 1e-4
    assert isinstance(error, AssertionError)
    assert isinstance(error, FusilliError)


def test_a_wrong_element_of_a_node_alone_is_told_from_it() -> None:
    with pytest.raises(FusionError, match="its nodes one by one and float64 differ") as caught:
        assert_fusion_right(scaled_sum(), device=Faulty(1, 0.5))
    assert caught.value.comparison == "steps"


def test_the_bound_can_be_widened_and_not_be_nonsense() -> None:
    ones = {"x": np.ones((3, 4))}
    far = 40 * 2.0**-24 * 3
    with pytest.raises(FusionError):
        assert_fusion_right(scaled_sum(), device=Faulty(2, far), inputs=ones)
    found = assert_fusion_right(scaled_sum(), device=Faulty(2, far), inputs=ones, tol=50)
    assert 1 < found["fused"] < 50
    for tol in (0, -1, float("nan")):
        with pytest.raises(GraphError, match="must be positive"):
            assert_fusion_right(scaled_sum(), device=Faulty(2, 0), tol=tol)


def test_nothing_is_compared_in_silence() -> None:
    g = Graph("five", io_data_type=D.FLOAT)
    g.pointwise(M.NEG, g.tensor("x", dim=(5,))).set_output(True)
    with pytest.raises(NotSupportedError, match="'five' is declined on a faulty place: it has a tensor of 5 elements"):
        assert_fusion_right(g, device=Faulty(1, 0))
    with pytest.raises(GraphError, match="no array was given for input 'x'"):
        assert_fusion_right(scaled_sum(), device=Faulty(1, 0), inputs={})
    with pytest.raises(GraphError, match="input 'x' has shape"):
        assert_fusion_right(scaled_sum(), device=Faulty(1, 0), inputs={"x": np.ones(4)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"emulate": "gfx942", "device": "cpu"}, "emulate=gfx942 and device=cpu exclude each other"),
        ({"engine": "FUSILLI_ENGINE", "compiler": "x"}, "exclude each other"),
        ({"device": "cpu", "compiler": "/no/iree-compile"}, "/no/iree-compile is no program"),
        ({"device": "cpu", "engine": "/no/such.so"}, "/no/such.so: one engine is needed, it has none"),
        ({"device": "cpu", "engine": "NO_ENGINE"}, "there is no engine NO_ENGINE"),
    ],
)
def test_a_place_that_is_not_there(given: dict[str, Any], message: str) -> None:
    with pytest.raises(FusilliError, match=message):
        place(**given)


@pytest.mark.a_few("{'engine': 'FUSILLI_ENGINE'}")
@pytest.mark.iree_cpu
@pytest.mark.parametrize("given", [{}, {"engine": "FUSILLI_ENGINE"}, {"compiler": "iree-compile"}], ids=str)
def test_every_place_runs_it(given: dict[str, Any]) -> None:
    """The compiler is this environment's own program."""
    if "compiler" in given:
        import iree.compiler

        given = {"compiler": str(Path(iree.compiler.__file__).parent / "_mlir_libs" / "iree-compile")}
    found = assert_fusion_right(scaled_sum(), device="cpu", **given)
    assert set(found) == {"fused", "steps", "between"}
    assert max(found.values()) <= 1


@pytest.mark.iree_cpu
def test_an_engine_plugin_runs_it() -> None:
    """By its file, through the C interface; in a process of its own, since a plugin reads its settings once."""
    (library,) = plugin_dir().glob("*.so")
    text = (
        "import sys; from fusilli_plugin.testing import assert_fusion_right; from graph_api import Graph;"
        "graph = Graph.from_json(sys.stdin.read());"
        "print(assert_fusion_right(graph, device='cpu', engine=sys.argv[1])['fused'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(library)], input=scaled_sum().validate().to_json(),
        env=os.environ | {"FUSILLI_DEVICE": "cpu"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 1


@pytest.mark.iree_cpu
def test_elements_of_less_than_a_byte() -> None:
    g = Graph("small", io_data_type=D.FLOAT)
    x = g.pointwise(M.ABS, g.tensor("x", dim=(3, 5), data_type=D.INT4))
    x.set_data_type(D.FLOAT)
    g.pointwise(M.MUL, x, 0.5).set_output(True).set_data_type(D.FP4_E2M1)
    assert max(assert_fusion_right(g, device="cpu").values()) <= 1
