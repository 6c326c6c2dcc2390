from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_api import ConvolutionMode, DataType, Graph, GraphError, PointwiseMode
from graph_api.ops.pointwise import MODES

M = PointwiseMode

TEXT = """\
{
 "format": "fusilli-graph",
 "version": 1,
 "name": "g",
 "io_data_type": "FLOAT",
 "intermediate_data_type": null,
 "compute_data_type": null,
 "tensors": [
  {
   "uid": 1,
   "name": "x",
   "data_type": "FLOAT",
   "dims": [
    2,
    3
   ],
   "strides": [
    1,
    2
   ],
   "virtual": false
  },
  {
   "uid": 2,
   "name": "c",
   "data_type": "HALF",
   "dims": [
    1
   ],
   "strides": [
    1
   ],
   "virtual": false,
   "value": 0.5
  },
  {
   "uid": 3,
   "name": "größe",
   "data_type": "FLOAT",
   "dims": [
    2,
    3
   ],
   "strides": [
    1,
    2
   ],
   "virtual": false
  }
 ],
 "nodes": [
  {
   "op": "pointwise",
   "name": "n",
   "compute_data_type": "FLOAT",
   "inputs": {
    "in_0": 1,
    "in_1": 2
   },
   "outputs": {
    "out_0": 3
   },
   "attributes": {
    "mode": "MAX"
   }
  }
 ]
}
"""


def sample() -> Graph:
    g = Graph("g", io_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=(2, 3), stride=(1, 2))
    c = g.scalar(0.5, name="c", data_type=DataType.HALF)
    g.pointwise(M.MAX, x, c, name="n").set_output().set_name("größe")
    return g


def test_the_text() -> None:
    assert sample().to_json() == TEXT
    assert Graph.from_json(TEXT).to_json() == TEXT
    assert Graph.from_json(TEXT.encode()).to_json() == TEXT


def test_what_can_be_inferred_may_be_left_out() -> None:
    data = {
        "format": "fusilli-graph", "version": 1, "name": "g", "io_data_type": "FLOAT",
        "tensors": [
            {"uid": 1, "name": "x", "dims": [2, 3], "strides": [1, 2]},
            {"uid": 2, "name": "c", "dims": [1], "data_type": "HALF", "value": 0.5},
            {"uid": 3, "name": "größe"},
        ],
        "nodes": [{"op": "pointwise", "name": "n", "inputs": {"in_1": 2, "in_0": 1}, "outputs": {"out_0": 3},
                   "attributes": {"mode": "MAX"}}],
    }  # fmt: skip
    assert Graph.from_json(json.dumps(data)).to_json() == TEXT


def test_special_values_survive() -> None:
    for value in (math.inf, -math.inf, -0.0, 1e-300, 0.1, 5, True):
        g = Graph("g", io_data_type=DataType.DOUBLE)
        dtype = DataType.BOOLEAN if value is True else DataType.DOUBLE
        g.pointwise(M.MAX, g.tensor("x", dim=(2,)), g.scalar(value, name="c", data_type=dtype)).set_output()
        again = Graph.from_json(g.to_json())
        found = again.find("c").value
        assert (type(found), repr(found)) == (type(value), repr(value))
        assert (again.to_json(), again.canonical_json()) == (g.to_json(), g.canonical_json())


def test_nan_survives() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.pointwise(M.MAX, g.tensor("x", dim=(2,)), math.nan).set_output()
    again = Graph.from_json(g.to_json())
    assert math.isnan(again.tensors[1].value or 0)
    assert again.to_json() == g.to_json()


Change = Callable[[dict[str, Any]], object]


def _put(*path: str | int, value: Any) -> Change:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def _drop(*path: str | int) -> Change:
    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


def _cycle(data: dict[str, Any]) -> None:
    """n reads what m makes of what n makes."""
    data["tensors"].append({"uid": 9, "virtual": True})
    data["nodes"][0]["inputs"]["in_1"] = 9
    data["tensors"].pop(1)
    data["nodes"].append({"op": "pointwise", "name": "m", "inputs": {"in_0": 3}, "outputs": {"out_0": 9},
                          "attributes": {"mode": "NEG"}})  # fmt: skip


def _loop(data: dict[str, Any]) -> None:
    data["nodes"][0]["inputs"]["in_1"] = 3
    data["tensors"].pop(1)


def _two_writers(data: dict[str, Any]) -> None:
    data["nodes"].append(copy.deepcopy(data["nodes"][0]) | {"name": "m"})


BAD: list[tuple[Change, str]] = [
    (_put("format", value="onnx"), 'no "format": "fusilli-graph"'),
    (_drop("format"), 'no "format": "fusilli-graph"'),
    (_put("version", value=2), "graph version 2 is not readable here; this is version 1"),
    (_put("version", value=True), "graph version True is not readable"),
    (_drop("version"), "graph version None is not readable"),
    (_put("name", value=7), "graph: 'name' must be str, got 7"),
    (_put("io_data_type", value="F32"), "graph: io_data_type 'F32' is unknown; known are FLOAT, HALF"),
    (_put("io_data_type", value=["FLOAT"]), r"graph: io_data_type \['FLOAT'\] is unknown"),
    (_drop("tensors"), "graph: 'tensors' is missing"),
    (_put("tensors", value={}), "graph: 'tensors' must be list, got {}"),
    (_put("tensors", value=None), "graph: 'tensors' must be list, got None"),
    (_put("tensors", 0, value=5), r"tensors\[0\]: expected an object, got 5"),
    (_drop("tensors", 0, "uid"), r"tensors\[0\]: 'uid' is missing"),
    (_put("tensors", 0, "uid", value="1"), r"tensors\[0\]: 'uid' must be int, got '1'"),
    (_put("tensors", 0, "uid", value=True), r"tensors\[0\]: 'uid' must be int, got True"),
    (_put("tensors", 0, "uid", value=10**30), "uid 1000000000000000000000000000000 is outside"),
    (_put("tensors", 0, "uid", value=-1), "uid -1 is outside"),
    (_put("tensors", 1, "uid", value=1), r"tensors\[1\]: uid 1 is used twice"),
    (_put("tensors", 1, "name", value="x"), "have the same name 'x'"),
    (_put("tensors", 0, "name", value=None), r"tensors\[0\]: 'name' must be str, got None"),
    (_put("tensors", 0, "name", value=""), "a tensor name must be a non-empty string"),
    (_put("tensors", 0, "name", value="\ud800"), "a tensor name must be text"),
    (_put("tensors", 0, "dims", value="23"), r"tensors\[0\]: 'dims' must be list, got '23'"),
    (_put("tensors", 0, "dims", value=[2, "3"]), r"dims of tensor 'x' must hold integers, got \[2, '3'\]"),
    (_put("tensors", 0, "dims", value=[2, 3.5]), "dims of tensor 'x' must hold integers"),
    (_put("tensors", 0, "dims", value=[2, -3]), "must be at least 1 each"),
    (_put("tensors", 0, "dims", value=[2, 10**30]), "hold fewer than 2.63 elements"),
    (_put("tensors", 0, "dims", value=[[2], 3]), "must hold integers"),
    (_drop("tensors", 0, "dims"), "tensor 'x' has no dims|input 'x' of graph 'g' has no dims"),
    (_put("tensors", 0, "strides", value=[1]), "1 strides"),
    (_put("tensors", 0, "strides", value=[1, -2]), "must be 0 or positive"),
    (_put("tensors", 0, "strides", value=[1, 10**30]), "must be 0 or positive"),
    (
        _put("tensors", 0, "data_type", value="float"),
        r"tensors\[0\]: data_type 'float' is unknown .did you mean FLOAT\?.; known",
    ),
    (_put("tensors", 0, "virtual", value=1), r"tensors\[0\]: 'virtual' must be bool, got 1"),
    (_put("tensors", 0, "virtual", value=True), "tensor 'x' is virtual, but no node"),
    (_put("tensors", 2, "virtual", value=True), "has no output"),
    (_put("tensors", 0, "pass_by_value", value="yes"), "'pass_by_value' must be bool"),
    (_put("tensors", 1, "value", value="a"), "a scalar value must be a number or bool, got 'a'"),
    (_put("tensors", 1, "value", value=[1]), "a scalar value must be a number or bool"),
    (_put("tensors", 1, "value", value=10**400), "tensor 'c': 1000.* is no value of HALF"),
    (_put("tensors", 0, "value", value=1), "tensor 'x': a scalar value needs 1 element"),
    (_put("nodes", value="n"), "graph: 'nodes' must be list, got 'n'"),
    (_put("nodes", value=[]), "graph 'g' has no nodes"),
    (_put("nodes", 0, value=None), r"nodes\[0\]: expected an object, got None"),
    (_put("nodes", 0, "op", value="Matmull"), r"operation 'Matmull' is unknown \(did you mean matmul\?\); known are"),
    (_put("nodes", 0, "op", value="conv"), r"nodes\[0\]: operation 'conv' is unknown; known are .*conv_fprop"),
    (_drop("nodes", 0, "op"), r"nodes\[0\]: 'op' is missing"),
    (_put("nodes", 0, "op", value=["pointwise"]), r"nodes\[0\]: 'op' must be str"),
    (_put("nodes", 0, "op", value="conv_fprop"), r"nodes\[0\]: unknown attribute 'mode'; known are pre_padding"),
    (_put("nodes", 0, "inputs", value=[1, 2]), r"nodes\[0\]: 'inputs' must be dict"),
    (_put("nodes", 0, "inputs", "in_0", value="x"), r"nodes\[0\].inputs.in_0: 'x' is no tensor of this graph"),
    (_put("nodes", 0, "inputs", "in_0", value=99), r"nodes\[0\].inputs.in_0: 99 is no tensor of this graph"),
    (_put("nodes", 0, "inputs", "in_0", value=True), r"nodes\[0\].inputs.in_0: True is no tensor"),
    (_put("nodes", 0, "inputs", "in_0", value=[1]), r"nodes\[0\].inputs.in_0: \[1\] is no tensor"),
    (_put("nodes", 0, "inputs", "x", value=1), "unknown input 'x'; known are in_0, in_1, in_2"),
    (_drop("nodes", 0, "inputs", "in_0"), "input 'in_0' is missing"),
    (_drop("nodes", 0, "inputs", "in_1"), "pointwise 'n': MAX takes 2 inputs|is used by no node"),
    (_put("nodes", 0, "outputs", value={}), "is used by no node|has no output"),
    (_put("nodes", 0, "outputs", "y", value=3), "unknown output 'y'; known are out_0"),
    (_put("nodes", 0, "outputs", "out_0", value=2), "tensor 'c' is a constant and cannot be written"),
    (_put("nodes", 0, "attributes", value=[]), r"nodes\[0\]: 'attributes' must be dict"),
    (_put("nodes", 0, "attributes", value={}), r"nodes\[0\]: .*mode"),
    (
        _put("nodes", 0, "attributes", "mode", value="MAXIMUM"),
        r"nodes\[0\]: mode: 'MAXIMUM' is unknown .did you mean MAX\?.; known",
    ),
    (_put("nodes", 0, "attributes", "mode", value=17), r"nodes\[0\]: mode: 17 is unknown"),
    (
        _put("nodes", 0, "attributes", "alpha", value=1),
        r"nodes\[0\]: unknown attribute 'alpha' .did you mean elu_alpha\?.; known",
    ),
    (_put("nodes", 0, "attributes", "axis", value=1), "pointwise MAX: axis=1 does not belong to this mode"),
    (_put("nodes", 0, "attributes", "relu_lower_clip", value=10**400), "relu_lower_clip: .* outside the range"),
    (_put("nodes", 0, "compute_data_type", value="FLOAT32"), "compute_data_type 'FLOAT32' is unknown"),
    (_put("nodes", 0, "compute_data_type", value="INT8"), "compute_data_type INT8 is none of"),
    (_cycle, "graph 'g' has a cycle through 'n', 'm'; a node may not use its own result"),
    (_loop, "graph 'g' has a cycle through 'n'"),
    (_two_writers, "pointwise 'm': tensor 'größe' is also written by 'n'"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=range(len(BAD)))
def test_bad_documents(change: Change, message: str) -> None:
    data = json.loads(TEXT)
    change(data)
    with pytest.raises(GraphError, match=message):
        Graph.from_json(json.dumps(data))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "nul", "1", '"x"', b"\xff\xfe\x00", b"\x80abc", None, 5, [], "[" * 100_000,
     '{"a":' * 100_000, "\x00", '{"format": "fusilli-graph", "version": 1' + "0" * 5000 + "}", 
     TEXT.replace("0.5", "-")],
    ids=range(17),
)  # fmt: skip
def test_what_is_no_document(text: Any) -> None:
    with pytest.raises(GraphError):
        Graph.from_json(text)


def test_a_convolution_without_spatial_dims_is_none() -> None:
    g = Graph("g", io_data_type=DataType.FLOAT)
    g.conv_fprop(g.tensor("x", dim=(1, 2, 3)), g.tensor("w", dim=(2, 2, 1))).set_output()
    data = json.loads(g.to_json())
    for tensor in data["tensors"]:
        del tensor["dims"][2], tensor["strides"][2]
    for values in data["nodes"][0]["attributes"].values():
        values.clear()
    with pytest.raises(GraphError, match="spatial dim"):
        Graph.from_json(json.dumps(data))


def test_a_truncated_document_is_an_error_wherever_it_ends() -> None:
    compact = json.dumps(json.loads(TEXT))
    for end in range(len(compact)):
        with pytest.raises(GraphError, match="invalid JSON"):
            Graph.from_json(compact[:end])


def test_deep_nesting_is_an_error_around_the_recursion_limit() -> None:
    for depth in (1, 100, *range(800, 1100), 5000):
        data = TEXT.replace('"value": 0.5', '"value": ' + "[" * depth + "]" * depth)
        with pytest.raises(GraphError) as caught:
            Graph.from_json(data)
        assert len(str(caught.value)) < 400


def test_a_long_value_makes_no_long_message() -> None:
    for change in (
        _put("tensors", 0, "uid", value="x" * 100_000),
        _put("nodes", 0, "op", value="x" * 100_000),
        _put("nodes", 0, "attributes", "mode", value="x" * 100_000),
        _put("tensors", 0, "dims", value=[2] * 100_000),
        _put("tensors", 1, "value", value="x" * 100_000),
    ):
        data = json.loads(TEXT)
        change(data)
        with pytest.raises(GraphError) as caught:
            Graph.from_json(json.dumps(data))
        assert len(str(caught.value)) < 2000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        found += _places(value, (*path, key))
    return found


@given(st.sampled_from(_places(json.loads(TEXT))), JSON)
@settings(max_examples=300, deadline=None)
def test_any_value_at_any_place_is_read_or_is_a_graph_error(path: tuple[Any, ...], value: Any) -> None:
    data = json.loads(TEXT)
    _put(*path, value=value)(data)
    try:
        again = Graph.from_json(json.dumps(data))
    except GraphError:
        return
    text = again.to_json()
    assert Graph.from_json(text).to_json() == text


# ---- round trips of random graphs ----------------------------------------------------------------------------------

TYPES = st.sampled_from([DataType.FLOAT, DataType.HALF, DataType.BFLOAT16, DataType.DOUBLE])
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
UNARY = [mode for mode, spec in MODES.items() if spec.arity == 1 and mode is not M.GEN_INDEX]
BINARY = [mode for mode, spec in MODES.items() if spec.arity == 2]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A convolution, or nothing, and some pointwise operations behind it."""
    g = Graph(draw(NAMES), io_data_type=draw(TYPES), intermediate_data_type=draw(st.none() | TYPES),
              compute_data_type=draw(st.none() | st.just(DataType.FLOAT)))  # fmt: skip
    names = draw(st.lists(NAMES, min_size=8, max_size=8, unique=True))
    uids = draw(st.lists(st.integers(0, 2**63 - 1), min_size=8, max_size=8, unique=True))
    label = iter(
        [
            (draw(st.none() | st.just(name)), draw(st.none() | st.just(uid)))
            for name, uid in zip(names, uids, strict=True)
        ]
    )

    def tensor(dim: tuple[int, ...]) -> Any:
        name, uid = next(label)
        return g.tensor(name, dim=dim, uid=uid, layout=draw(st.sampled_from([None, "NCHW", "NHWC"])),
                        data_type=draw(st.none() | TYPES))  # fmt: skip

    values = [tensor((2, 4, 5, 6))]
    if draw(st.booleans()):
        groups = draw(st.sampled_from([1, 2, 4]))
        values.append(
            g.conv_fprop(
                values[0], tensor((4, 4 // groups, 3, 2)), stride=draw(st.integers(1, 2)),
                pre_padding=draw(st.integers(0, 2)), post_padding=draw(st.integers(0, 2)),
                convolution_mode=draw(st.sampled_from(ConvolutionMode)),
            )
        )  # fmt: skip
    for _ in range(draw(st.integers(0 if len(values) > 1 else 1, 3))):
        value = values[-1]
        if draw(st.booleans()):
            other = draw(st.sampled_from([0.5, -3, True])) if draw(st.booleans()) else tensor((1, 4, 1, 1))
            values.append(g.pointwise(draw(st.sampled_from(BINARY)), value, other))
        else:
            values.append(g.pointwise(draw(st.sampled_from(UNARY)), value))
        values[-1].set_output(draw(st.booleans()))
    values[-1].set_output()
    return g


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_round_trips_are_byte_equal(g: Graph) -> None:
    text = g.to_json()
    again = Graph.from_json(text)
    assert again.to_json() == text
    assert again.canonical_json() == g.canonical_json()
    assert again.describe() == g.describe()
    assert g.with_dims({}).to_json() == text


@given(graphs())
@settings(max_examples=50, deadline=None)
def test_the_canonical_form_does_not_depend_on_names_and_uids(g: Graph) -> None:
    data = json.loads(g.to_json())
    moved = {tensor["uid"]: 1000 + index for index, tensor in enumerate(data["tensors"])}
    for index, tensor in enumerate(data["tensors"]):
        tensor["uid"], tensor["name"] = moved[tensor["uid"]], f"another {index}"
    for node in data["nodes"]:
        for side in ("inputs", "outputs"):
            node[side] = {port: moved[uid] for port, uid in node[side].items()}
        node["name"] += "!"
    data["name"] = "renamed"
    assert Graph.from_json(json.dumps(data)).canonical_json() == g.canonical_json()
