"""The reducer with an oracle that knows no compiler: what is left has what the oracle wants, and little else."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from fusilli_plugin.fuzz.cases import Case, load_case, save_case
from fusilli_plugin.fuzz.reduce import reduce
from fusilli_plugin.testing.graphs import FAMILIES, graph
from graph_api import DataType, Graph, PointwiseMode

D, M = DataType, PointwiseMode


def network() -> Graph:
    """Two convolutions with epilogues, a residual, a second result, halves, channels last: 9 nodes."""
    g = Graph("network", io_data_type=D.HALF, compute_data_type=D.FLOAT)
    x = g.tensor("x", dim=(2, 8, 9, 7), layout="NHWC")
    y = g.conv_fprop(x, g.tensor("w", dim=(8, 8, 3, 3), layout="NHWC"), padding=1)
    y = g.pointwise(M.ADD, y, g.tensor("b", dim=(1, 8, 1, 1)))
    y = g.pointwise(M.RELU_FWD, y).set_output(True)
    z = g.conv_fprop(y, g.tensor("w2", dim=(16, 8, 3, 3), layout="NHWC"), padding=1, stride=2)
    z = g.pointwise(M.ADD, z, g.tensor("b2", dim=(1, 16, 1, 1)))
    z = g.pointwise(M.SIGMOID_FWD, z)
    z = g.pointwise(M.MUL, z, 0.5)
    z = g.pointwise(M.MAX, z, g.tensor("z", dim=(2, 16, 5, 4), layout="NHWC"))
    g.pointwise(M.GELU_FWD, z).set_output(True)
    return g.validate()


def has(op: str, **attributes: object) -> Callable[[Case], bool]:
    def fails(case: Case) -> bool:
        return any(
            node.op == op and attributes.items() <= node.attributes.to_json().items() for node in case.graph.nodes
        )

    return fails


def test_one_node_of_nine_is_left() -> None:
    case = Case.of(network())
    made = reduce(case, has("pointwise", mode="SIGMOID_FWD"))
    assert [node.attributes.to_json()["mode"] for node in made.graph.nodes] == ["SIGMOID_FWD"]
    assert all(tensor.volume == 1 and tensor.data_type is D.FLOAT for tensor in made.graph.tensors)
    assert not np.any(made.named()[made.graph.arguments().inputs[0].name])


def test_a_pair_that_has_to_stay_together_stays() -> None:
    """A convolution that an addition reads, with at least four channels."""

    def fails(case: Case) -> bool:
        for node in case.graph.nodes:
            reader = [r for r in case.graph.readers(next(iter(node.outputs.values()))) if r.op == "pointwise"]
            if node.op == "conv_fprop" and node.inputs["x"].dims[1] >= 4 and reader:
                return reader[0].attributes.to_json()["mode"] == "ADD"
        return False

    made = reduce(Case.of(network()), fails)
    assert [node.op for node in made.graph.nodes] == ["conv_fprop", "pointwise"]
    x, w, b = made.graph.arguments().inputs
    assert x.dims[1] == w.dims[1] == 4
    assert x.volume == 4
    assert w.volume == 4
    assert b.volume == 1


def test_attributes_that_matter_stay() -> None:
    made = reduce(Case.of(network()), has("conv_fprop", stride=[2, 2]))
    (node,) = made.graph.nodes
    attributes = node.attributes.to_json()
    assert attributes["stride"] == [2, 2]
    assert max(attributes.get("pre_padding", [0])) == 0


def test_the_one_input_that_matters_is_found() -> None:
    g = Graph("sum", io_data_type=D.FLOAT)
    a, b = g.tensor("a", dim=(4, 8)), g.tensor("b", dim=(4, 8))
    g.pointwise(M.ADD, a, b).set_output(True)
    case = Case.of(g.validate(), seed=0)
    biggest = np.max(np.abs(case.named()["a"]))

    def fails(other: Case) -> bool:
        return bool(np.any(np.abs(other.named()["a"]) == biggest)) and other.graph.find("a").dims == (4, 8)

    made = reduce(case, fails)
    assert np.count_nonzero(made.named()["a"]) == 1
    assert not np.any(made.named()["b"])


def test_inputs_that_a_node_left_out_made_are_its_values() -> None:
    case = Case.of(network())
    seen: list[Case] = []

    def fails(other: Case) -> bool:
        seen.append(other)
        return False

    reduce(case, fails)
    alone = next(c for c in seen if [n.attributes.to_json().get("mode") for n in c.graph.nodes] == ["RELU_FWD"])
    (tensor,) = alone.graph.arguments().inputs
    relu = next(node for node in case.graph.nodes if node.attributes.to_json().get("mode") == "RELU_FWD")
    exact = case.graph.reference(dict(case.inputs))[relu.outputs["out_0"]]
    np.testing.assert_allclose(np.maximum(np.float64(alone.inputs[tensor]), 0), exact, rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_shrinks_and_stays_valid(family: str) -> None:
    """The oracle wants the node that was last; each proposal can be evaluated."""
    made = graph(3, family)
    op = made.nodes[-1].op

    def fails(case: Case) -> bool:
        assert set(case.inputs) == set(case.graph.arguments().inputs)
        return any(node.op == op for node in case.graph.nodes)

    small = reduce(Case.of(made, 3), fails)
    assert [node.op for node in small.graph.nodes] == [op]
    assert sum(t.volume for t in small.graph.tensors) <= sum(t.volume for t in made.tensors)
    small.graph.reference(dict(small.inputs))


def test_it_stops_when_it_is_told_to() -> None:
    calls: list[Case] = []

    def fails(case: Case) -> bool:
        calls.append(case)
        return has("conv_fprop")(case)

    reduce(Case.of(network()), fails, lambda: len(calls) >= 5)
    assert len(calls) == 5


def test_a_case_in_a_folder_is_the_same(tmp_path: pytest.TempPathFactory) -> None:
    for family in ("custom", "small product", "convolution"):
        case = Case.of(graph(5, family), 5)
        save_case(tmp_path, case)  # type: ignore[arg-type]
        again = load_case(tmp_path)  # type: ignore[arg-type]
        assert again.digest == case.digest
        assert json.loads(again.graph.to_json()) == json.loads(case.graph.to_json())
