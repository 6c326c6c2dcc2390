from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, Graph, GraphError, PointwiseMode, TensorAttr

M = PointwiseMode


def graph(**arguments: Any) -> Graph:
    return Graph("g", **{"io_data_type": DataType.FLOAT} | arguments)


def conv_bias_relu(**names: Any) -> Graph:
    g = Graph(names.get("graph", "conv_bias_relu"), io_data_type=DataType.HALF, intermediate_data_type=DataType.FLOAT,
              compute_data_type=DataType.FLOAT)  # fmt: skip
    x = g.tensor(names.get("x", "x"), dim=(2, 4, 6, 6), layout="NHWC", uid=names.get("uid"))
    w = g.tensor(names.get("w", "w"), dim=(8, 4, 3, 3), layout="NHWC")
    b = g.tensor(names.get("b", "b"), dim=(1, 8, 1, 1))
    y = g.pointwise(M.ADD, g.conv_fprop(x, w, padding=(1, 1)), b)
    g.pointwise(M.RELU_FWD, y, name=names.get("node", "act")).set_output(True)
    return g


def test_the_example_of_the_readme() -> None:
    g = conv_bias_relu()
    assert not g.is_validated
    assert g.validate() is g
    assert g.is_validated
    assert [(n.op, n.name, n.compute.name) for n in g.nodes] == [
        ("conv_fprop", "conv_fprop_0", "FLOAT"), ("pointwise", "pointwise_1", "FLOAT"), ("pointwise", "act", "FLOAT"),
    ]  # fmt: skip
    # created in this order, and numbered in it
    facts = [(t.uid, t.name, t.dims, t.strides, t.data_type.name, t.is_virtual) for t in g.tensors]
    assert facts == [
        (1, "x", (2, 4, 6, 6), (144, 1, 24, 4), "HALF", False),
        (2, "w", (8, 4, 3, 3), (36, 1, 12, 4), "HALF", False),
        (3, "b", (1, 8, 1, 1), (8, 1, 1, 1), "HALF", False),
        (4, "conv_fprop_0::y", (2, 8, 6, 6), (288, 1, 48, 8), "FLOAT", True),
        (5, "pointwise_1::out_0", (2, 8, 6, 6), (288, 1, 48, 8), "FLOAT", True),
        (6, "act::out_0", (2, 8, 6, 6), (288, 1, 48, 8), "HALF", False),
    ]
    outputs, inputs = g.arguments()
    assert [t.name for t in outputs] == ["act::out_0"]
    assert [t.name for t in inputs] == ["x", "w", "b"]
    assert g.flops() == 2 * (2 * 8 * 36) * (4 * 9) + 2 * (2 * 8 * 36)


def test_describe() -> None:
    text = conv_bias_relu().describe().splitlines()
    assert text[0] == "graph 'conv_bias_relu'"
    assert text[1] == (
        "  conv_fprop 'conv_fprop_0': 'conv_fprop_0::y' = conv_fprop(x='x', w='w') {pre_padding=[1, 1], "
        "post_padding=[1, 1], stride=[1, 1], dilation=[1, 1]} in FLOAT"
    )
    assert text[4] == "  tensor 1 'x': input HALF dims [2, 4, 6, 6] strides [144, 1, 24, 4]"
    assert text[7].startswith("  tensor 4 'conv_fprop_0::y': virtual FLOAT")
    assert text[9].startswith("  tensor 6 'act::out_0': output HALF")


def test_reference_takes_tensors_names_and_uids() -> None:
    g = graph()
    a, b = g.tensor("a", dim=(2,)), g.tensor("b", dim=(2,), uid=40)
    y = g.pointwise(M.SUB, a, b).set_output()
    (result,) = g.reference({a: [5, 7], 40: np.array([1, 2])}).items()
    assert result[0] is y
    np.testing.assert_array_equal(result[1], [4, 5])
    assert g.find("a") is g.find(a) is g.find(np.int64(a.uid)) is a  # type: ignore[arg-type]
    named = g.reference({"a": np.ones(2), "b": np.ones(2)})
    np.testing.assert_array_equal(named[y], [0, 0])


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        ({"a": [1, 2]}, "no array was given for input 'b' of graph 'g'"),
        ({"a": [1, 2], "b": [1]}, r"input 'b': the array has shape \(1,\), its tensor dims \(2,\)"),
        ({"a": [1, 2], "b": [1, 2], "c": 0}, "graph 'g' has no tensor 'c'; it has 'a', 'b'"),
        ({"a": [1, 2], "b": [1, 2], 99: 0}, "graph 'g' has no tensor 99"),
        ({"a": [1, 2], "b": [1, 2], 1: [1, 2]}, "tensor 'a' is given twice, the second time as 1"),
        ({"a": [1, 2], "b": [1, 2], True: [1, 2]}, "a tensor is named by itself, its name or its uid, got True"),
        ({"a": [1, 2], "b": [1, 2], None: [1, 2]}, "a tensor is named by itself, its name or its uid, got None"),
        ({"a": [1, 2], "b": ["x", "y"]}, "'b': expected an array of real numbers, got list"),
        ({"a": [1, 2], "b": [1j, 2j]}, "'b': expected an array of real numbers, got list"),
        ({"a": [1, 2], "b": [[1], [1, 2]]}, "'b': expected an array of real numbers, got list"),
        ({"a": [1, 2], "b": None}, "'b': expected an array of real numbers, got NoneType"),
        ({"a": [1, 2], TensorAttr(name="b", dims=(2,)): [1, 2]}, "tensor 'b' belongs to another graph than 'g'"),
    ],
)
def test_bad_packs(pack: Any, message: str) -> None:
    g = graph()
    g.pointwise(M.ADD, g.tensor("a", dim=(2,)), g.tensor("b", dim=(2,))).set_output()
    with pytest.raises(GraphError, match=message):
        g.reference(pack)


@pytest.mark.parametrize("pack", [None, [1, 2], "a"])
def test_a_pack_that_is_no_mapping(pack: Any) -> None:
    g = graph()
    g.pointwise(M.RELU_FWD, g.tensor("a", dim=(2,))).set_output()
    for call in (g.reference, g.with_dims):
        with pytest.raises(GraphError, match="expected {tensor: value}, got"):
            call(pack)


@pytest.mark.parametrize("rank", [-1, 1.5, None, "2"])
def test_a_bad_rank_of_a_scalar(rank: Any) -> None:
    with pytest.raises(GraphError, match="scalar '2.0': rank must be an integer from 0 on"):
        graph().scalar(2.0, rank=rank)


def test_the_time_to_validate_grows_with_the_graph_and_not_with_its_square() -> None:
    g = graph()
    x = g.tensor("x", dim=(2,))
    for _ in range(3000):
        x = g.pointwise(M.RELU_FWD, x)
    x.set_output()
    start = time.process_time()
    g.validate()
    assert time.process_time() - start < 8  # it took about 14 s when each step looked at all nodes that were left


def _x(g: Graph, name: str = "x", *, dim: tuple[int, ...] = (2, 3), **more: Any) -> TensorAttr:
    return g.tensor(name, dim=dim, **more)


def _no_nodes(g: Graph) -> None:
    _x(g)


def _no_output(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g))


def _unused(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g)).set_output()
    _x(g, "left over")


def _two_names(g: Graph) -> None:
    g.pointwise(M.ADD, _x(g), _x(g)).set_output()


def _two_uids(g: Graph) -> None:
    g.pointwise(M.ADD, _x(g, "a", uid=5), _x(g, "b", uid=5)).set_output()


def _output_named_as_an_input(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g)).set_output().set_name("x")


def _two_nodes(g: Graph) -> None:
    g.pointwise(M.NEG, g.pointwise(M.NEG, _x(g), name="n"), name="n").set_output()


def _other_graph(g: Graph) -> None:
    g.pointwise(M.ADD, _x(g), _x(graph(), "theirs")).set_output()


def _no_tensor(g: Graph) -> None:
    g.pointwise(M.ADD, _x(g), "x").set_output()  # type: ignore[arg-type]


def _virtual_input(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g).set_output(False)).set_output()


def _no_type(g: Graph) -> None:
    g.io_data_type = None
    g.pointwise(M.NEG, _x(g)).set_output()


def _no_output_type(g: Graph) -> None:
    g.io_data_type = None
    g.pointwise(M.NEG, _x(g, data_type=DataType.FLOAT)).set_output()


def _output_dims(g: Graph) -> None:
    g.conv_fprop(_x(g, dim=(1, 4, 8)), _x(g, "w", dim=(8, 4, 3))).set_output().set_dim((1, 8, 8)).set_name("y")


def _smaller_output(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g)).set_output().set_dim((1, 3)).set_name("y")


def _overlapping_output(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g)).set_output().set_stride((1, 1)).set_name("y")


def _repeated_output(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g)).set_output().set_stride((0, 1)).set_name("y")


def _strides_of_another_rank(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g, stride=(6, 3, 1))).set_output()


def _stride_and_layout(g: Graph) -> None:
    _x(g, dim=(1, 2, 3, 4), stride=(24, 12, 4, 1), layout="NHWC")


def _compute_in_int8(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g), compute_data_type=DataType.INT8, name="n").set_output()


def _compute_in_words(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g), compute_data_type="FLOAT").set_output()  # type: ignore[arg-type]


def _constant_as_output(g: Graph) -> None:
    y = g.pointwise(M.NEG, g.tensor("x", dim=(1,))).set_output()
    y.set_value(1.0).set_name("y")


def _empty_node_name(g: Graph) -> None:
    g.pointwise(M.NEG, _x(g), name="")


def _no_dims(g: Graph) -> None:
    g.tensor("x")


def _no_name_and_no_dims(g: Graph) -> None:
    g.tensor(layout="NHWC")


BAD: list[tuple[Callable[[Graph], None], str]] = [
    (_no_nodes, "graph 'g' has no nodes; add an operation"),
    (_no_output, "graph 'g' has no output; call set_output(True) on a result"),
    (_unused, "tensor 'left over' is used by no node of graph 'g'; remove it or use it"),
    (_two_names, "graph 'g': tensors 'x' and 'x' have the same name 'x'"),
    (_two_uids, "graph 'g': tensors 'a' and 'b' have the same uid 5"),
    (_output_named_as_an_input, "graph 'g': tensors 'x' and 'x' have the same name 'x'"),
    (_two_nodes, "two nodes are named 'n'; give each its own name"),
    (_other_graph, "node 'pointwise_0': tensor 'theirs' at 'in_1' belongs to another graph"),
    (_no_tensor, "node 'pointwise_0': 'in_1' must be a tensor of the graph, got 'x'"),
    (_virtual_input, "tensor 'x' is virtual, but no node of graph 'g' writes it"),
    (_no_type, "tensor 'x' has no data type; set data_type= or the graph's io_data_type"),
    (_no_output_type, "output '' has no data type; set it or the graph's io_data_type"),
    (_output_dims, "conv_fprop 'conv_fprop_0': output 'y' must have dims (1, 8, 6), it was given (1, 8, 8)"),
    (_smaller_output, "pointwise 'pointwise_0': output 'y' has dims (1, 3), the inputs broadcast to (2, 3)"),
    (_overlapping_output, "tensor 'y': strides (1, 1) make rows of dims (2, 3) overlap"),
    (_repeated_output, "tensor 'y' is written by a node: stride 0 in (0, 1) is for inputs only"),
    (_strides_of_another_rank, "tensor 'x': 3 strides (6, 3, 1) for 2 dims (2, 3); give one stride per dim"),
    (_stride_and_layout, "tensor 'x': give stride= or layout=, not both"),
    (_no_dims, "input 'x' has no dims: dim= is missing; write e.g. g.tensor('x', dim=(8, 64, 56, 56))"),
    (_no_name_and_no_dims, "an input has no dims: dim= is missing; write e.g. g.tensor(dim=(8, 64, 56, 56))"),
    (_compute_in_int8, "pointwise 'n': compute_data_type INT8 is none of FLOAT, DOUBLE, INT32, INT64, HALF, BFLOAT16"),
    (_compute_in_words, "pointwise: compute_data_type must be a DataType, got 'FLOAT'"),
    (_constant_as_output, "pointwise 'pointwise_0': tensor 'y' is a constant and cannot be written"),
    (_empty_node_name, "a node name must be a non-empty string, got ''"),
]


@pytest.mark.parametrize(("build", "message"), BAD, ids=[build.__name__.strip("_") for build, _ in BAD])
def test_bad_graphs(build: Callable[[Graph], None], message: str) -> None:
    g = graph()
    if build is _no_output_type:
        message = message.replace("''", "'pointwise_0::out_0'")

    def ask() -> None:
        build(g)
        g.validate()

    with pytest.raises(GraphError, match=re.escape(message)):
        ask()


@pytest.mark.parametrize(
    ("x", "w", "arguments", "message"),
    [
        ((1, 5, 8, 8), (4, 3, 3, 3), {}, "conv_fprop 'c': x (1, 5, 8, 8) has C=5 channels, w (4, 3, 3, 3) takes 3"),
        ((1, 6, 8, 8), (4, 2, 3, 3), {}, "conv_fprop 'c': w (4, 2, 3, 3) has K=4 filters, which 3 groups (C=6 / 2)"),
        ((1, 4, 8, 8), (4, 4, 3), {}, "conv_fprop 'c': x (1, 4, 8, 8) and w (4, 4, 3) must have 2 spatial dims"),
        ((1, 4, 8, 8), (4, 4, 9, 3), {}, "filter (9, 3) with dilation (1, 1) is larger than padded x (8, 8)"),
        (
            (1, 4, 8, 8),
            (4, 4, 3, 3),
            {"dilation": 4},
            "filter (3, 3) with dilation (4, 4) is larger than padded x (8, 8)",
        ),
        (
            (1, 4, 8, 8),
            (4, 4, 3, 3),
            {"padding": -1},
            "pre_padding (-1, -1) must be at least 0 and less than 2^31 in every spatial dim",
        ),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"post_padding": (0, -2)}, "post_padding (0, -2) must be at least 0"),
        (
            (1, 4, 8, 8),
            (4, 4, 3, 3),
            {"stride": 0},
            "stride (0, 0) must be at least 1 and less than 2^31 in every spatial dim",
        ),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"dilation": (1, 0)}, "dilation (1, 0) must be at least 1"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"stride": (1, 1, 1)}, "pre_padding (0, 0) and stride (1, 1, 1) differ in length"),
        (
            (1, 4, 8, 8),
            (4, 4, 3, 3),
            {"padding": 1, "pre_padding": 1},
            "give padding=, or pre_padding= and post_padding=",
        ),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"stride": 1.5}, "stride must hold integers, got [1.5, 1.5]"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"stride": "11"}, "stride must be a sequence of integers, got '11'"),
        ((1, 4, 8, 8), (4, 4, 3, 3), {"padding": 2**40}, "must be at least 0 and less than 2^31 in every spatial dim"),
        ((1, 4), (4, 4), {}, "a tensor needs dims [N, C, spatial...] with at least one spatial dim"),
        ((1, 4, 8), (4, 4, 3), {"convolution_mode": "CONVOLUTION"}, "must be a ConvolutionMode, got 'CONVOLUTION'"),
    ],
)
def test_bad_convolutions(x: tuple[int, ...], w: tuple[int, ...], arguments: dict[str, Any], message: str) -> None:
    def ask() -> None:
        g = graph()
        g.conv_fprop(g.tensor("x", dim=x), g.tensor("w", dim=w), name="c", **arguments).set_output()
        g.validate()

    with pytest.raises(GraphError, match=re.escape(message)):
        ask()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": 3}, "a graph name must be a string, got 3"),
        ({"name": "g\udfff"}, "a graph name must be text"),
        ({"io_data_type": "HALF"}, "graph 'g': io_data_type must be a DataType, got 'HALF'"),
        ({"compute_data_type": np.float32}, "graph 'g': compute_data_type must be a DataType"),
    ],
)
def test_bad_graph_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph(**({"name": "g"} | arguments))


def test_a_graph_with_an_error_can_be_mended() -> None:
    g = graph()
    x = _x(g)
    y = g.pointwise(M.NEG, x)
    for _ in range(2):
        with pytest.raises(GraphError, match="has no output"):
            g.validate()
    y.set_output()
    g.validate()
    for change in (lambda: _x(g, "z"), lambda: g.pointwise(M.NEG, x), lambda: y.set_dim((1,))):
        with pytest.raises(GraphError, match="validated"):
            change()


def test_the_same_tensor_may_be_given_twice() -> None:
    g = graph()
    x = _x(g)
    y = g.pointwise(M.MUL, x, x).set_output()
    np.testing.assert_array_equal(g.reference({x: np.full((2, 3), 3)})[y], 9)
    assert g.arguments().inputs == (x,)


def test_a_graph_needs_no_name() -> None:
    g = Graph("", io_data_type=DataType.FLOAT)
    g.pointwise(M.NEG, g.tensor("x", dim=(2,))).set_output()
    assert Graph.from_json(g.to_json()).name == ""


NAMES = [
    "layer-1/add",
    "0x",
    "a b",
    "größe",
    "名前",
    'q"uote\\',
    "%0",
    "x\ny",
    "\N{PILE OF POO}",
    "!torch.int",
    "a" * 5000,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_text_is_a_name(name: str) -> None:
    g = Graph(name, io_data_type=DataType.FLOAT)
    g.pointwise(M.NEG, g.tensor(name, dim=(2,)), name=name).set_output()
    again = Graph.from_json(g.to_json())
    assert (again.name, again.nodes[0].name, again.find(name).dims) == (name, name, (2,))
    assert name in g.describe()


def test_automatic_names_and_uids_keep_clear_of_given_ones() -> None:
    g = graph()
    x = _x(g, "pointwise_1::out_0", uid=2)
    a = g.pointwise(M.NEG, x)
    b = g.pointwise(M.NEG, a, name="pointwise_0")  # takes the automatic name of the first node
    c = g.pointwise(M.ABS, b)
    d = g.tensor(dim=(2, 3))
    g.pointwise(M.ADD, c, d).set_output()
    g.validate()
    assert len({n.name for n in g.nodes}) == len(g.nodes)
    assert g.nodes[1].name == "pointwise_0"
    assert len({t.name for t in g.tensors}) == len({t.uid for t in g.tensors}) == len(g.tensors)
    assert (x.uid, x.name) == (2, "pointwise_1::out_0")
    assert all(t.name for t in g.tensors)


def test_nodes_are_sorted_and_the_order_of_arguments_follows_them() -> None:
    """Two outputs; the file lists the nodes backwards."""
    g = graph()
    x, z = _x(g, "x"), _x(g, "z")
    first = g.pointwise(M.NEG, x, name="first").set_output().set_name("p")
    g.pointwise(M.ADD, first, z, name="second").set_output().set_name("q")
    g.validate()
    data = json.loads(g.to_json())
    data["nodes"].reverse()
    data["tensors"].reverse()
    again = Graph.from_json(json.dumps(data))
    assert [node.name for node in again.nodes] == ["first", "second"]
    for one in (g, again):
        assert [[t.name for t in side] for side in one.arguments()] == [["p", "q"], ["x", "z"]]
    assert again.canonical_json() == g.canonical_json()


@pytest.mark.parametrize(
    ("inputs", "graph_type", "node_type", "expected"),
    [
        ([DataType.HALF], None, None, DataType.FLOAT),
        ([DataType.HALF, DataType.DOUBLE], None, None, DataType.DOUBLE),
        ([DataType.INT8], None, None, DataType.INT32),
        ([DataType.INT8, DataType.INT64], None, None, DataType.INT64),
        ([DataType.INT32, DataType.BFLOAT16], None, None, DataType.FLOAT),
        ([DataType.FLOAT], DataType.DOUBLE, None, DataType.DOUBLE),
        ([DataType.FLOAT], DataType.DOUBLE, DataType.FLOAT, DataType.FLOAT),
        ([DataType.HALF], DataType.HALF, None, DataType.FLOAT),
        ([DataType.HALF], None, DataType.BFLOAT16, DataType.FLOAT),
    ],
)
def test_the_compute_type(
    inputs: list[DataType], graph_type: DataType | None, node_type: DataType | None, expected: DataType
) -> None:
    g = graph(compute_data_type=graph_type)
    tensors = [g.tensor(dim=(2,), data_type=dtype) for dtype in inputs]
    mode = M.ADD if len(inputs) == 2 else M.NEG
    v = g.pointwise(mode, *tensors, compute_data_type=node_type)
    g.pointwise(M.NEG, v).set_output()
    assert g.validate().nodes[0].compute is expected
    assert v.data_type is expected  # a virtual tensor without a type of its own


def test_scalars_do_not_decide_the_compute_type() -> None:
    g = graph(io_data_type=DataType.INT32)
    y = g.pointwise(M.MUL, g.tensor("x", dim=(2,)), 3).set_output()
    assert g.validate().nodes[0].compute is DataType.INT32
    np.testing.assert_array_equal(g.reference({"x": [1, -2]})[y], [3, -6])


# ---- with_dims -----------------------------------------------------------------------------------------------------


def test_with_dims_keeps_layouts_names_uids_and_types() -> None:
    g = conv_bias_relu(uid=77).validate()
    new = g.with_dims({"x": (5, 4, 9, 7)})
    assert (new.find("x").strides, new.find("x").uid) == ((252, 1, 28, 4), 77)
    y = new.arguments().outputs[0]
    assert (y.name, y.dims, y.strides, y.data_type) == ("act::out_0", (5, 8, 9, 7), (504, 1, 56, 8), DataType.HALF)
    assert new.find("conv_fprop_0::y").dims == (5, 8, 9, 7)
    assert [(n.op, n.name, n.attributes) for n in new.nodes] == [(n.op, n.name, n.attributes) for n in g.nodes]
    assert g.find("x").dims == (2, 4, 6, 6)  # the original is as it was


def test_with_dims_of_nothing_is_the_same_graph() -> None:
    g = conv_bias_relu().validate()
    assert g.with_dims({}).to_json() == g.to_json()
    assert g.with_dims({g.find("x"): g.find("x").dims}).to_json() == g.to_json()


def test_with_dims_and_back_is_the_same_graph() -> None:
    g = conv_bias_relu().validate()
    assert g.with_dims({"x": (1, 4, 20, 20)}).with_dims({1: (2, 4, 6, 6)}).to_json() == g.to_json()


def test_with_dims_packs_padded_strides_and_keeps_repeated_dims() -> None:
    g = graph()
    a = g.tensor("a", dim=(4, 3), stride=(10, 2))
    b = g.tensor("b", dim=(4, 3), stride=(0, 1))
    g.pointwise(M.ADD, a, b).set_output().set_name("y").set_stride((1, 4))
    g.validate()
    new = g.with_dims({"a": (6, 3), "b": (6, 3)})
    assert [new.find(name).strides for name in "aby"] == [(3, 1), (0, 1), (1, 6)]
    same = g.with_dims({"a": (4, 3)})
    assert [same.find(name).strides for name in "aby"] == [(10, 2), (0, 1), (1, 4)]


def test_with_dims_and_strides() -> None:
    g = conv_bias_relu().validate()
    x, y = g.find("x"), g.arguments().outputs[0]
    c, h, w = x.dims[1:]
    last = (c * h * w, 1, c * w, c)
    new = g.with_dims({"x": x.dims}, {"x": last, y: tuple(2 * stride for stride in y.strides)})
    assert new.find("x").strides == last
    assert new.find(y.name).strides == tuple(2 * stride for stride in y.strides)
    assert [t.strides for t in new.tensors if t.name not in ("x", y.name)] == [
        t.strides for t in g.tensors if t.name not in ("x", y.name)
    ]
    with pytest.raises(GraphError, match="strides"):
        g.with_dims({"x": x.dims}, {"x": (1, 2)})
    with pytest.raises(GraphError, match="no tensor"):
        g.with_dims({}, {"nothing": (1,)})


def test_with_dims_keeps_an_output_that_is_larger_than_its_inputs() -> None:
    g = graph()
    g.pointwise(M.NEG, g.tensor("a", dim=(1, 4))).set_output().set_name("y").set_dim((2, 3, 4))
    g.validate()
    assert g.with_dims({}).find("y").dims == (2, 3, 4)
    assert g.with_dims({"a": (1, 9)}).find("y").dims == (2, 3, 9)
    assert g.with_dims({"a": (1, 9), "y": (5, 9)}).find("y").dims == (5, 9)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"x": (2, 5, 6, 6)}, "conv_fprop 'conv_fprop_0': x .2, 5, 6, 6. has C=5 channels"),
        ({"x": (2, 4, 0, 6)}, "tensor 'x': dims .2, 4, 0, 6. must be at least 1 each"),
        ({"x": (2, 4, 6)}, "conv_fprop 'conv_fprop_0': x .2, 4, 6. and w .* must have 2 spatial dims"),
        ({"x": 5}, "dims of tensor 'x' must be a sequence of integers, got 5"),
        ({"x": (2, 4, 6.0, 6)}, "dims of tensor 'x' must hold integers"),
        ({"nobody": (1,)}, "graph 'conv_bias_relu' has no tensor 'nobody'"),
        ({"x": (2, 4, 6, 6), 1: (2, 4, 6, 6)}, "tensor 'x' is given twice"),
        ({"b": (1, 3, 1, 1)}, "pointwise 'pointwise_1': inputs do not broadcast"),
        ({"act::out_0": (1, 8, 6, 6)}, "pointwise 'act': output 'act::out_0' has dims"),
    ],
)
def test_with_dims_that_do_not_fit(dims: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        conv_bias_relu().validate().with_dims(dims)


# ---- canonical form ------------------------------------------------------------------------------------------------


def test_the_canonical_form_knows_no_names_and_uids() -> None:
    plain = conv_bias_relu().canonical_json()
    assert conv_bias_relu(graph="h", x="an input", w="0x", b="größe", node="n", uid=1234).canonical_json() == plain
    for word in ("conv_bias_relu", '"act', '"x"act'):
        assert word not in plain


def test_the_canonical_form_ignores_strides_of_size_1_dims_and_the_order_of_tensors() -> None:
    def build(stride: int, *, w_first: bool) -> str:
        g = graph()
        if w_first:
            b, a = g.tensor("b", dim=(3,)), g.tensor("a", dim=(1, 3), stride=(stride, 1))
        else:
            a, b = g.tensor("a", dim=(1, 3), stride=(stride, 1)), g.tensor("b", dim=(3,))
        g.pointwise(M.SUB, a, b).set_output()
        return g.canonical_json()

    assert build(3, w_first=False) == build(999, w_first=True)


def _changed(**change: Any) -> str:
    g = Graph("g", io_data_type=change.get("io", DataType.FLOAT), intermediate_data_type=change.get("intermediate"))
    a = g.tensor(dim=change.get("dim", (2, 3)), stride=change.get("stride"))
    b = g.tensor(dim=(2, 3), is_pass_by_value=change.get("by_value", False))
    second = a if change.get("same") else b
    v = g.pointwise(change.get("mode", M.SUB), a, second, compute_data_type=change.get("compute"))
    v = g.pointwise(M.SUB, v, b)
    v.set_output(change.get("stored", False))
    g.pointwise(M.SWISH_FWD, v, swish_beta=change.get("beta")).set_output()
    return g.canonical_json()


@pytest.mark.parametrize(
    "change",
    [
        {"io": DataType.HALF}, {"intermediate": DataType.HALF}, {"dim": (1, 3)}, {"stride": (1, 2)}, {"mode": M.ADD},
        {"same": True}, {"compute": DataType.DOUBLE}, {"stored": True}, {"beta": 2.0}, {"by_value": True},
    ],
    ids=str,
)  # fmt: skip
def test_the_canonical_form_knows_everything_else(change: dict[str, Any]) -> None:
    assert _changed(**change) != _changed()


def test_the_canonical_form_knows_the_order_of_operands() -> None:
    def build(*, swapped: bool) -> str:
        g = graph()
        a, b = g.tensor(dim=(2, 3)), g.tensor(dim=(3,))
        g.pointwise(M.SUB, *((b, a) if swapped else (a, b))).set_output()
        return g.canonical_json()

    assert build(swapped=True) != build(swapped=False)
