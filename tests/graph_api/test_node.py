from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from graph_api import OPS, DataType, Graph, GraphError, Node, PointwiseMode, TensorAttr
from graph_api.node import Attributes, register_op
from graph_api.ops.pointwise import PointwiseAttributes, PointwiseNode


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, kw_only=True)
class Sample(Attributes):
    count: int
    color: Color = Color.RED
    sizes: tuple[int, ...] = ()
    scale: float | None = None
    flag: bool = False


SAMPLES = [
    (Sample(count=1), {"count": 1}),
    (Sample(count=0, color=Color.BLUE, flag=True), {"count": 0, "color": "BLUE", "flag": True}),
    (Sample(count=2, sizes=(3, 4), scale=0.5), {"count": 2, "sizes": [3, 4], "scale": 0.5}),
    (Sample(count=2, scale=float("-inf")), {"count": 2, "scale": "-inf"}),
]


@pytest.mark.parametrize(("attributes", "data"), SAMPLES)
def test_attributes_are_plain_json_without_their_defaults(attributes: Sample, data: dict[str, Any]) -> None:
    assert attributes.to_json() == data
    assert Sample.from_json(data, "n") == attributes


def test_json_may_say_what_is_the_default_and_write_whole_floats_as_integers() -> None:
    assert Sample.from_json({"count": 1, "scale": 2, "flag": False}, "n") == Sample(count=1, scale=2.0)
    assert Sample.from_json({"count": 1, "scale": None}, "n") == Sample(count=1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"n: attributes must be an object, got \[\]"),
        (
            {"count": 1, "size": 2},
            "n: unknown attribute 'size' .did you mean sizes.*; known are count, color, sizes, scale, flag",
        ),
        ({"count": "1"}, "n: count: expected int, got '1'"),
        ({"count": True}, "n: count: expected int, got True"),
        ({"count": 1.0}, "n: count: expected int, got 1.0"),
        ({"count": None}, "n: count: expected int, got None"),
        ({"count": 1, "color": "GREEN"}, "n: color: 'GREEN' is unknown; known are RED, BLUE"),
        ({"count": 1, "color": 1}, "n: color: 1 is unknown; known are RED, BLUE"),
        ({"count": 1, "sizes": 3}, "n: sizes: expected tuple.*, got 3"),
        ({"count": 1, "sizes": [3, "4"]}, "n: sizes: expected int, got '4'"),
        ({"count": 1, "sizes": [[3]]}, r"n: sizes: expected int, got \[3\]"),
        ({"count": 1, "scale": "big"}, "n: scale: expected float, got 'big'"),
        ({"count": 1, "scale": True}, "n: scale: expected float, got True"),
        ({"count": 1, "scale": 10**400}, "n: scale: .* is outside the range of a float"),
        ({"count": 1, "flag": 1}, "n: flag: expected bool, got 1"),
        ({}, "n: .*count"),
        ({"count": "x" * 10_000}, "n: count: expected int, got 'x{1,40}.{1,5}x{1,40}'$"),
    ],
)
def test_bad_json(data: object, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Sample.from_json(data, "n")


def test_ports_are_in_order_of_declaration_and_checked() -> None:
    a, b, c = (TensorAttr(name=name, dims=(2,)) for name in "abc")
    minus = PointwiseAttributes(mode=PointwiseMode.SUB)
    node = PointwiseNode("n", minus, {"in_1": b, "in_0": a}, {"out_0": c})
    assert list(node.inputs.items()) == [("in_0", a), ("in_1", b)]
    with pytest.raises(GraphError, match="pointwise 'n': input 'in_0' is missing"):
        PointwiseNode("n", minus, {"in_1": b}, {"out_0": c})
    with pytest.raises(
        GraphError, match="pointwise 'n': unknown input 'in_7' .did you mean in_[012].*; known are in_0, in_1, in_2"
    ):
        PointwiseNode("n", minus, {"in_0": a, "in_7": b}, {"out_0": c})
    with pytest.raises(GraphError, match="pointwise 'n': output 'out_0' is missing"):
        PointwiseNode("n", minus, {"in_0": a, "in_1": b}, {})
    with pytest.raises(GraphError, match="pointwise 'n': unknown output 'y'; known are out_0"):
        PointwiseNode("n", minus, {"in_0": a, "in_1": b}, {"out_0": c, "y": c})


def test_an_operation_is_registered_once() -> None:
    class Other(PointwiseNode):
        pass

    with pytest.raises(ValueError, match=r"operation 'pointwise' is defined by graph_api.ops.pointwise and"):
        register_op(Other)
    assert OPS["pointwise"] is PointwiseNode
    assert register_op(PointwiseNode) is PointwiseNode


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_operation_documents_and_builds_itself(op: str) -> None:
    node_type: type[Node] = OPS[op]
    assert callable(getattr(Graph, op)), "the builder method has the operation's name"
    for heading in ("Shapes:", "Dtypes:", "Layout:", "Raises:", "Source:"):
        assert heading in (node_type.__doc__ or ""), heading
    assert set(node_type.optional_inputs) <= set(node_type.input_ports)
    assert set(node_type.optional_outputs) <= set(node_type.output_ports)


def test_flops_and_errors_name_the_node() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.pointwise(PointwiseMode.NEG, g.tensor("x", dim=(3, 5)), name="minus").set_output()
    (node,) = g.validate().nodes
    assert (node.flops(), g.flops(), repr(node)) == (15, 15, "<pointwise 'minus'>")
    assert str(node.fail("no")) == "pointwise 'minus': no"
