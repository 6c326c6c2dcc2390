"""Custom operations in the graph: ports, dims, reference callables, saving."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from graph_api import CustomOpAttributes, DataType, Graph, GraphError
from graph_api.ops.custom_op import MAX_TEXT
from tests.cases.custom_op import ADD, TWO
from tests.cases.custom_op import graph as custom


def added(reference: Any = None) -> Graph:
    return custom(ADD, [(4, 3), (4, 3)], [(4, 3)], reference)


def test_the_reference_is_the_callable() -> None:
    g = custom(TWO, [(4, 3)], [(4, 3), (3, 4)], lambda x: [np.abs(x), x.T]).validate()
    x = -np.arange(12.0).reshape(4, 3)
    got = g.reference({"x0": x})
    np.testing.assert_array_equal(got[g.find("y0")], -x)
    np.testing.assert_array_equal(got[g.find("y1")], x.T)


def test_without_a_callable_there_is_no_reference() -> None:
    g = added().validate()
    with pytest.raises(GraphError, match="custom_op_0.*no reference result.*CustomOpAttributes"):
        g.reference(g.random_inputs())


def test_a_callable_with_other_shapes_is_named() -> None:
    g = added(lambda a, b: [a[0]]).validate()
    with pytest.raises(GraphError, match=r"made shapes \[\(3,\)\]"):
        g.reference(g.random_inputs())


def test_outputs_need_dims() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    (y,) = g.custom_op([g.tensor("x", dim=(2,))], 1, CustomOpAttributes(custom_op_id="fusilli.x", data="text"))
    y.set_output()
    with pytest.raises(GraphError, match="no dims.*set_dim"):
        g.validate()
    y.set_dim((5,))
    assert g.validate().find(y).strides == (1,)


def test_saved_graphs_hold_text_but_no_code() -> None:
    g = added(lambda a, b: [a + b]).validate()
    text = g.to_json()
    assert json.loads(text)["nodes"][0]["attributes"] == {"custom_op_id": "fusilli.test", "data": ADD}
    again = Graph.from_json(text)
    assert again.to_json() == text
    with pytest.raises(GraphError, match="no reference"):
        again.reference(again.random_inputs())
    with pytest.raises(GraphError, match="must hold custom_op_id and data"):
        Graph.from_json(text.replace('"data":', '"reference":'))


def test_other_dims_need_the_outputs_dims() -> None:
    g = added(lambda a, b: [a + b]).validate()
    new = g.with_dims({"x0": (2, 3), "x1": (2, 3), "y0": (2, 3)})
    assert new.reference({"x0": np.ones((2, 3)), "x1": np.ones((2, 3))})[new.find("y0")].tolist() == [[2.0] * 3] * 2
    with pytest.raises(GraphError, match="no dims"):
        g.with_dims({"x0": (2, 3), "x1": (2, 3)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"custom_op_id": ""}, "custom_op_id must be a non-empty string"),
        ({"data": b"bytes"}, "data must be a non-empty string"),
        ({"custom_op_id": "x" * 300}, "at most 256"),
        ({"data": "x" * (MAX_TEXT + 1)}, f"at most {MAX_TEXT}"),
        ({"reference": 3}, "must be callable"),
    ],
)
def test_attributes_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        CustomOpAttributes(**{"custom_op_id": "fusilli.x", "data": "text", **change})


@pytest.mark.parametrize(("inputs", "outputs"), [(33, 1), (1, 0), (1, 33), (1, True)])
def test_the_number_of_ports_is_bounded(inputs: int, outputs: int) -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    tensors = [g.tensor(dim=(1,)) for _ in range(inputs)]
    with pytest.raises(GraphError, match="up to 32"):
        g.custom_op(tensors, outputs, CustomOpAttributes(custom_op_id="fusilli.x", data="text"))


def test_ports_are_numbered_from_zero() -> None:
    text = added().validate().to_json().replace('"in_1"', '"in_2"')
    with pytest.raises(GraphError, match="input in_1 is missing"):
        Graph.from_json(text)
