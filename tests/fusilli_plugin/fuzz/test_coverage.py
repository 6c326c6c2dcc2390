"""Pairs of a graph, by hand; what never came; more that is new is worth more."""

from __future__ import annotations

from fusilli_plugin.fuzz.coverage import Coverage, Pair, pairs, universe
from fusilli_plugin.testing.graphs import FAMILIES, graph
from graph_api import DataType, Graph, PointwiseMode


def product() -> Graph:
    g = Graph("product", io_data_type=DataType.HALF)
    y = g.matmul(g.tensor("a", dim=(32, 5), stride=(1, 32)), g.tensor("b", dim=(5, 3)))
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    return g.validate()


def test_pairs_by_hand() -> None:
    found = pairs(product())
    assert Pair(("operation", "matmul"), ("layout", "permuted")) in found
    assert Pair(("operation", "matmul"), ("size", "multiple of 16")) in found
    assert Pair(("operation", "matmul"), ("neighbour", "pointwise")) in found
    assert Pair(("operation", "pointwise RELU_FWD"), ("layout", "packed")) in found
    assert Pair(("type", "HALF"), ("layout", "permuted")) in found
    assert not any(pair.second == ("neighbour", "none") for pair in found)
    assert len(found) == 20


def test_layouts() -> None:
    g = Graph("layouts", io_data_type=DataType.FLOAT)
    for name, strides in {"last": (60, 1, 15, 3), "gaps": (120, 40, 10, 2), "repeated": (0, 20, 5, 1)}.items():
        g.pointwise(PointwiseMode.NEG, g.tensor(name, dim=(2, 3, 4, 5), stride=strides)).set_output(True)
    met = {pair.second[1] for pair in pairs(g.validate()) if pair.second[0] == "layout"}
    assert met == {"channels last", "gaps", "repeated"}


def test_all_pairs_of_all_graphs_are_in_the_universe() -> None:
    for name in FAMILIES:
        for number in range(10):
            assert pairs(graph(number, name)) <= universe()


def test_what_came_is_worth_less_and_is_no_longer_missing() -> None:
    coverage, made = Coverage(), product()
    before, missing = coverage.novelty(made), len(list(coverage.never()))
    coverage.add(made)
    assert coverage.novelty(made) == before / 4
    assert len(list(coverage.never())) == missing - 20
    declined = graph(0, "attention")
    coverage.add(declined)
    coverage.decline(declined)
    assert sum(row[1] for row in coverage.rows()) == 20
    assert sum(row[2] for row in coverage.rows()) == len(pairs(declined) - pairs(made))
    document = coverage.to_json()
    assert document["tried"]["operation x type"]["matmul x HALF"] == 1
    assert "matmul x HALF" not in document["never"]["operation x type"]
