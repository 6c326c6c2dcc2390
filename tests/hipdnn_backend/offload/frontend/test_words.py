"""Attributes that are one word of a few: every one of every operator is known, and what is no such word is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.frontend import load, prepare
from hipdnn_backend.offload.frontend.words import WORDS
from tests.support.node_cases import load_cases
from tests.support.onnx_attributes import NONSENSE, judged_apart, mutants, string_attributes
from tests.support.onnx_rewritten import check_rewrite, one_node

_FREE = {
    *(("Constant", name) for name in ("value_string", "value_strings")),
    *(("StringNormalizer", name) for name in ("locale", "stopwords")),
    *(("RegexFullMatch", "pattern"), ("StringSplit", "delimiter"), ("TfIdfVectorizer", "pool_strings")),
    *(("Einsum", "equation"), ("Cast", "to")),
}
"""Attributes that are text; `Cast` had a word until opset 6, which is too old."""


def _dummy(op_type: str, attribute: str, value: Any, opset: int, *, inside: bool) -> onnx.ModelProto:
    """A node that nothing is right about but its attribute, if need be in a branch."""
    schema = onnx.defs.get_schema(op_type, opset)
    inputs = ["x"] * max(schema.min_input, 1)
    outputs = ["y", *(f"y{k}" for k in range(1, schema.min_output))]
    node = helper.make_node(op_type, inputs, outputs, "node", **{attribute: value})
    for name, each in schema.attributes.items():
        if each.required and name != attribute:
            kinds = {each.type.INT: 1, each.type.INTS: [1], each.type.STRING: "", each.type.FLOAT: 1.0}
            node.attribute.append(helper.make_attribute(name, kinds[each.type]))
    value_ = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [node]
    if inside:
        body = helper.make_graph(nodes, "body", [], [value_])
        nodes = [helper.make_node("If", ["c"], ["y"], "if", then_branch=body, else_branch=body)]
    inputs_ = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])]
    inputs_ += [helper.make_tensor_value_info("c", TensorProto.BOOL, [])] if inside else []
    graph = helper.make_graph(nodes, "g", inputs_, [value_])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_every_attribute_of_words_is_listed() -> None:
    assert {(op_type, name) for op_type, name, _ in string_attributes()} == WORDS.keys() | _FREE


def _known_at(op_type: str, attribute: str, opset: int) -> bool:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
        return attribute in schema.attributes and not schema.deprecated
    except onnx.defs.SchemaError:
        return False


@pytest.mark.parametrize(
    ("op_type", "attribute", "opset"),
    [
        (*key, next(version for version in (22, 28, 9) if _known_at(*key, version)))
        for key in WORDS
        if any(_known_at(*key, version) for version in (22, 28, 9))
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_no_such_word(op_type: str, attribute: str, opset: int, inside: bool) -> None:
    is_list = next(each for op, name, each in string_attributes() if (op, name) == (op_type, attribute))
    model = _dummy(op_type, attribute, [NONSENSE] if is_list else NONSENSE, opset, inside=inside)
    with pytest.raises(ModelError, match=f"{attribute} is '{NONSENSE}'.*it may be") as caught:
        prepare(model)
    assert caught.value.node == ("if" if inside else "node")
    assert caught.value.rule == "attribute"


@pytest.mark.parametrize(
    ("op_type", "given", "said"),
    [
        ("Pad", {"mode": "mirror"}, "mode is 'mirror'"),
        (
            "MaxPool",
            {"kernel_shape": [1, 1], "auto_pad": "SAME"},
            "auto_pad is 'SAME'; it may be NOTSET, VALID, SAME_UPPER",
        ),
        ("MaxPool", {"kernel_shape": [1, 1], "strides": [0, 1]}, r"strides is \[0, 1\]; it is at least 1"),
        ("MaxPool", {"kernel_shape": [1, 1], "ceil_mode": 2}, "ceil_mode is 2; it may be 0 or 1"),
        ("DepthToSpace", {"blocksize": 0}, "blocksize is 0; it is at least 1"),
        ("Split", {"num_outputs": 3}, "num_outputs is 3; the node has 1 results"),
        ("RMSNormalization", {"axis": 4}, "axis is 4, of a tensor of rank 4"),
    ],
)
def test_refusals_name_attribute_and_value(op_type: str, given: dict[str, Any], said: str) -> None:
    inputs: dict[str, Any] = {"x": np.zeros((1, 4, 4, 4), np.float32)}
    if op_type == "Pad":
        inputs["pads"] = np.ones(8, np.int64)
    if op_type == "RMSNormalization":
        inputs["scale"] = np.ones(4, np.float32)
    constants, opset = [name for name in inputs if name == "pads"], 23 if op_type == "RMSNormalization" else 21
    model, _ = one_node(op_type, inputs, {"y": np.float32}, constants=constants, opset=opset, **given)
    with pytest.raises(ModelError, match=said):
        prepare(model)


@pytest.mark.parametrize("opset", [12, 22])
@pytest.mark.parametrize(
    ("size", "given", "length"),
    [
        (14, {"kernel_shape": [3], "strides": [2], "pads": [0, 2]}, 7),
        (6, {"kernel_shape": [3], "strides": [4], "pads": [1, 2]}, 2),
        (13, {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}, 7),
        (8, {"kernel_shape": [2], "strides": [3], "dilations": [2]}, 3),
    ],
)
@pytest.mark.parametrize("op_type", ["MaxPool", "LpPool"])
def test_pools_that_round_up(op_type: str, size: int, given: dict[str, Any], length: int, opset: int) -> None:
    """A window that would begin in the padding at the end is none."""
    opset = 22 if op_type == "LpPool" else opset  # which has neither before 18
    x = np.random.default_rng(0).standard_normal((1, 2, size)).astype(np.float32)
    model, feeds = one_node(op_type, {"x": x}, {"y": np.float32}, opset=opset, ceil_mode=1, **given)
    graph = check_rewrite(model, feeds)
    type_ = graph.type(graph.outputs[0].value)
    assert type_ is not None
    assert type_.static == (1, 2, length)


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(
    "op_type", [f"Reduce{name}" for name in ("Sum", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")]
)
def test_reductions_of_no_axes_change_each_element(op_type: str, empty: bool) -> None:
    """Torch-MLIR's conversion ended the process at some of them."""
    x = np.array([[1, -2, 0.5], [3, 4, -1]], np.float32)
    inputs = {"x": x, "axes": np.zeros(0, np.int64)} if empty else {"x": x}
    constants = ["axes"] if empty else []
    model, feeds = one_node(op_type, inputs, {"y": np.float32}, constants=constants, noop_with_empty_axes=1)
    graph = check_rewrite(model, feeds)
    assert not any(node.op_type.startswith("Reduce") for node in graph.nodes)
    load(model)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_depth_to_space(mode: str, size: int) -> None:
    x = np.arange(2 * 2 * size * size * 6, dtype=np.float32).reshape(2, 2 * size * size, 2, 3)
    model, feeds = one_node("DepthToSpace", {"x": x}, {"y": np.float32}, blocksize=size, mode=mode)
    check_rewrite(model, feeds)


_OTHERS = {
    f"test_{name}_batchwise/clip=0.5": "WRONG: output 0 has other values" for name in ("gru", "lstm", "simple_rnn")
}
"""ONNX Runtime has no such layout, and onnx's reference no clip."""


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_attribute_of_every_operator() -> None:
    """Right as ONNX Runtime or onnx's reference has it, or refused; words that mean nothing by attribute and value."""
    found, seen = {}, dict[str, int]()
    for name, case in sorted(load_cases().items()):
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain or "_expanded" in name or seen.get(nodes[0].op_type, 0) == 2:
            continue
        if all(hasattr(each, "dtype") for each in case.data_sets[0][0]):
            seen[nodes[0].op_type] = seen.get(nodes[0].op_type, 0) + 1
            found |= judged_apart(list(mutants(case)))
    assert len(seen) > 120
    assert not {name: verdict for name, verdict in found.items() if "WRONG" in verdict and name not in _OTHERS}
