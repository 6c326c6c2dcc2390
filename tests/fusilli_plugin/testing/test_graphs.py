"""Random graphs: all operations come, numbers decide them, and hypothesis shrinks what fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from fusilli_plugin.testing.graphs import FAMILIES, graph, inputs
from fusilli_plugin.testing.graphs.custom import with_references
from fusilli_plugin.testing.strategies import graphs
from graph_api import DataType, Graph, GraphError
from graph_api.node import OPS
from iree_bridge import Target, support

_SHORT = settings(
    max_examples=60,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
)


def smallest(complains: Callable[[Graph], bool], families: Sequence[str]) -> Graph:
    """What hypothesis makes of a graph that is complained of."""
    last: list[Graph] = []

    @seed(1)
    @_SHORT
    @given(graphs(families=families))
    def try_one(made: Graph) -> None:
        if complains(made):
            last.append(made)
            raise AssertionError("found")

    with pytest.raises(AssertionError, match="found"):
        try_one()
    return last[-1]


def test_every_operation_comes_and_a_number_decides() -> None:
    met: set[str] = set()
    types: set[DataType] = set()
    for name in FAMILIES:
        for number in range(40):
            made = graph(number, name)
            assert made.to_json() == graph(number, name).to_json()
            met |= {node.op for node in made.nodes}
            types |= {tensor.data_type for tensor in made.tensors}
    assert met == set(OPS)
    assert types == set(DataType)


def test_most_graphs_are_served_somewhere() -> None:
    targets = [Target.parse("cpu"), Target.parse("gfx942")]
    for name in FAMILIES:
        made = [graph(number, name) for number in range(20)]
        served = sum(any(support(each, target).ok for target in targets) for each in made)
        assert served >= 10, f"{name}: {served} of 20"


@pytest.mark.parametrize("name", FAMILIES)
def test_inputs_have_a_finite_reference(name: str) -> None:
    """Overflow and NaN would excuse everything. Types of few values may saturate."""
    finite = 0
    for number in range(6):
        made = graph(number, name)
        found = with_references(Graph.from_json(made.to_json())).reference(
            {tensor.uid: array for tensor, array in inputs(made, number).items()}
        )
        finite += all(np.all(np.isfinite(value)) for value in found.values())
    assert finite >= 5


@pytest.mark.parametrize(
    ("families", "op"), [(("product",), "matmul"), (("chain", "pool"), "resample_fwd"), (("norm",), "layernorm")]
)
def test_what_fails_shrinks_to_one_small_node(families: Sequence[str], op: str) -> None:
    made = smallest(lambda each: any(node.op == op for node in each.nodes), families)
    assert [node.op for node in made.nodes] == [op]
    assert made.tensors[0].volume <= 8


def test_unknown_families_are_named() -> None:
    with pytest.raises(GraphError, match="unknown families of graphs \\['convolutoin'\\]; known are product"):
        graphs(families=("convolutoin",))


def test_only_what_suits_is_drawn() -> None:
    @seed(2)
    @_SHORT
    @given(graphs(suits=lambda made: len(made.nodes) == 2))
    def try_one(made: Graph) -> None:
        assert len(made.nodes) == 2

    try_one()
