"""Graphs of cuDNN's front end: all kinds of nodes there and back, what is declined, errors, damage."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from graph_api import DataType, FusilliError, Graph, GraphError, NotSupportedError
from graph_api.foreign.cudnn_nodes import DECLINED, RULES
from graph_api.ops.attention import AttentionNode
from tests.cases import OpCase, all_cases
from tests.support.cudnn_files import UnwritableError, cudnn_document, hex_float, in_32_bits, ubjson
from tests.support.damage import changed_bytes, document

CASES = [
    pytest.param(case, id=f"{family}-{case.name}", marks=() if case.fast else pytest.mark.thorough)
    for family, case in all_cases()
]


def written(case: OpCase, **how: Any) -> tuple[Graph, dict[str, Any]]:
    graph = case.graph()
    try:
        return graph, cudnn_document(graph, **how)
    except UnwritableError:
        return graph, {}


_RESPELLED = (
    "attn_scale_value", "causal_mask", "causal_mask_bottom_right", "right_bound", "diagonal_alignment",
    "normalized_dim_count", "generate_stats", "axis", "padding_mode",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_graph_comes_back(case: OpCase) -> None:
    graph, text = written(case)
    if not text:
        return
    back = Graph.from_cudnn(json.dumps(text))
    assert in_32_bits(back, *_RESPELLED) == in_32_bits(graph, *_RESPELLED)
    assert [t.uid for t in back.arguments().inputs] == [t.uid for t in graph.arguments().inputs]
    for ours, theirs in zip(graph.nodes, back.nodes, strict=True):
        if isinstance(ours, AttentionNode):
            assert isinstance(theirs, AttentionNode)
            assert ours.masking.window == theirs.masking.window
            assert (ours.constant_scale is None) == (theirs.constant_scale is None)
            if ours.constant_scale is not None:
                assert theirs.constant_scale == pytest.approx(ours.constant_scale, rel=1e-7)
        for name in ("normalized_dim_count", "axes"):
            assert getattr(ours, name, None) == getattr(theirs, name, None)


def test_most_cases_can_be_written() -> None:
    """So that the test above is one: every operation with a tag, and most graphs of each family."""
    tags: dict[str, int] = {}
    count = 0
    for _, case in all_cases():
        _, text = written(case)
        count += bool(text)
        for node in text.get("nodes", []):
            tags[node["tag"]] = tags.get(node["tag"], 0) + 1
    assert set(tags) == set(RULES) - {"SDPA_FWD", "SDPA_FP8_FWD"}
    assert count > 1900


# ---- right values -----------------------------------------------------------------------------------------------


def tensor(name: str, dim: list[int], data_type: str | None = "FLOAT", **others: Any) -> dict[str, Any]:
    """A tensor as cuDNN prints it before uids are assigned."""
    stride = [int(np.prod(dim[axis + 1 :])) for axis in range(len(dim))]
    return {
        "name": name, "data_type": data_type, "dim": dim, "stride": stride, "is_virtual": False, "pass_by_value": None,
        "is_pass_by_value": False, "reordering_type": "NONE", "uid": 0, "uid_assigned": False, **others,
    }  # fmt: skip


def a_file(nodes: list[dict[str, Any]], *tensors: dict[str, Any], **others: Any) -> dict[str, Any]:
    context = {"name": "g", "compute_data_type": "FLOAT", "intermediate_data_type": "FLOAT", "io_data_type": "FLOAT"}
    return {
        "context": {**context, "sm_count": None, "is_dynamic_shape_enabled": False}, "json_version": "1.0",
        "cudnn_backend_version": "9.3.0", "cudnn_frontend_version": 10900, "nodes": nodes,
        "tensors": {item["name"]: item for item in tensors}, **others,
    }  # fmt: skip


def pointwise(mode: str, inputs: list[str], output: str, **others: Any) -> dict[str, Any]:
    return {
        "tag": "POINTWISE", "name": f"p_{output}", "compute_data_type": "FLOAT", "mode": mode, "axis": None,
        "relu_lower_clip": None, "relu_upper_clip": None, "relu_lower_clip_slope": None,
        "inputs": {f"IN_{index}": name for index, name in enumerate(inputs)}, "outputs": {"OUT_0": output}, **others,
    }  # fmt: skip


def results(text: dict[str, Any], **arrays: np.ndarray) -> list[np.ndarray]:
    graph = Graph.from_cudnn(json.dumps(text))
    return list(graph.reference(arrays).values())


def test_convolution_bias_relu_by_names() -> None:
    """Virtual tensors without types and dims, as they are before cuDNN validates."""
    conv = {
        "tag": "CONV_FPROP", "name": "conv", "compute_data_type": None, "pre_padding": [1], "post_padding": [0],
        "stride": [1], "dilation": [1], "inputs": {"X": "x", "W": "w"}, "outputs": {"Y": "conv::Y"},
    }  # fmt: skip
    nodes = [
        conv,
        pointwise("ADD", ["conv::Y", "b"], "sum"),
        pointwise("RELU_FWD", ["sum"], "y", relu_upper_clip="40400000"),
    ]
    hidden = {"dim": [], "stride": [], "data_type": None, "is_virtual": True}
    text = a_file(
        nodes, tensor("x", [1, 1, 4]), tensor("w", [2, 1, 2]), tensor("b", [1, 2, 1]),
        tensor("conv::Y", [1]) | hidden, tensor("sum", [1]) | hidden, tensor("y", [1, 2, 4], None),
    )  # fmt: skip
    (y,) = results(
        text, x=np.array([[[1.0, -2, 3, 4]]]), w=np.array([[[10.0, 1]], [[0, -1]]]), b=np.array([[[0.5], [-1]]])
    )
    # padded x is 0 1 -2 3 4; rows are 10 x[i-1] + x[i] + 0.5 and -x[i] - 1, clipped to 0 and 3.0 (0x40400000)
    assert y.tolist() == [[[1.5, 3.0, 0.0, 3.0], [0.0, 1.0, 0.0, 0.0]]]


def test_a_choice_takes_its_condition_last() -> None:
    nodes = [pointwise("BINARY_SELECT", ["a", "b", "if"], "y")]
    text = a_file(nodes, *(tensor(name, [3]) for name in "ab"), tensor("if", [3], "BOOLEAN"), tensor("y", [3]))
    arrays = {"a": np.array([1.0, 2, 3]), "b": np.array([-1.0, -2, -3]), "if": np.array([True, False, True])}
    assert results(text, **arrays)[0].tolist() == [1.0, -2.0, 3.0]


def attention(**fields: Any) -> dict[str, Any]:
    node = {
        "tag": "SDPA", "name": "attention", "inputs": {"Q": "q", "K": "k", "V": "v"},
        "outputs": {"O": "o", "Stats": None},
        "generate_stats": False, "alibi_mask": False, "padding_mask": False, "dropout_probability": None,
        "attn_scale_value": None, "max_seq_len_kv": None, "mma_core_mode": "HALF", "left_bound": None,
        "right_bound": None, "diagonal_alignment": "TOP_LEFT", "implementation": "COMPOSITE", "is_mxfp8": False,
        **fields,
    }  # fmt: skip
    return a_file([node], *(tensor(name, [1, 1, 5, 2]) for name in "qkvo"))


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        # which keys queries 0 to 4 see; cuDNN keeps column + left_bound > row, and row + right_bound >= column
        ({"left_bound": 2, "right_bound": 0}, ["0", "01", "12", "23", "34"]),
        ({"left_bound": 1}, ["01234", "1234", "234", "34", "4"]),
        ({"right_bound": 1}, ["01", "012", "0123", "01234", "01234"]),
        ({"causal_mask": True, "sliding_window_length": 3, "tag": "SDPA_FWD"}, ["0", "01", "012", "123", "234"]),
        ({}, ["01234"] * 5),
    ],
)
def test_windows_of_attention(fields: dict[str, Any], seen: list[str]) -> None:
    source = np.random.default_rng(0)
    q, k, v = (source.standard_normal((1, 1, 5, 2)).astype(np.float32).astype(np.float64) for _ in range(3))
    (o,) = results(attention(**fields), q=q, k=k, v=v)
    for row, keys in enumerate(seen):
        columns = [int(key) for key in keys]
        weights = np.exp(k[0, 0, columns] @ q[0, 0, row])  # no scale was given, so there is none
        assert np.allclose(o[0, 0, row], weights / weights.sum() @ v[0, 0, columns], rtol=1e-12)


def test_scalars_of_all_kinds() -> None:
    values = {
        "i64": ("INT64", 0, -3, -3), "i32": ("INT32", 1, 4, 4), "half": ("HALF", 2, "3F800000", 1.0),
        "float": ("FLOAT", 3, hex_float(-0.1), float(np.float32(-0.1))), "double": ("DOUBLE", 4, 0.1, 0.1),
        "bf16": ("BFLOAT16", 5, hex_float(2.5), 2.5),
    }  # fmt: skip
    for name, (dtype, index, spelled, meant) in values.items():
        scalar = tensor(name, [1], dtype, is_pass_by_value=True, pass_by_value={"index": index, "value": spelled})
        graph = Graph.from_cudnn(
            json.dumps(a_file([pointwise("ADD", ["a", name], "y")], tensor("a", [3], dtype), scalar, tensor("y", [3])))
        )
        assert graph.find(name).value == meant


def test_a_scalar_may_come_at_run_time_or_stand_in_a_table() -> None:
    late = tensor("late", [1], is_pass_by_value=True, uid=7, uid_assigned=True)
    others = tensor("a", [3], uid=8, uid_assigned=True), tensor("y", [3], uid=9, uid_assigned=True)
    text = a_file([pointwise("MUL", [8, 7], 9)], late, *others)  # type: ignore[list-item]
    text["tensors"] = {str(item["uid"]): item for item in (late, *others)}
    graph = Graph.from_cudnn(json.dumps(text))
    assert graph.find(7).is_pass_by_value
    assert graph.find(7).value is None
    text["pass_by_values"] = {"7": {"index": 3, "value": "40000000"}}
    graph = Graph.from_cudnn(ubjson(text))
    assert graph.find(7).value == 2.0
    assert graph.reference({8: np.array([1.0, 2, 3])})[graph.find(9)].tolist() == [2.0, 4.0, 6.0]


def test_bytes_are_the_same_graph() -> None:
    text = attention(left_bound=300, right_bound=70000, attn_scale_value="3F000000")
    text |= {"cudnn_backend_data": "x" * 70000, "fe_workspace_size": 2**40, "ratio": 0.25, "none": [None, True, -7]}
    assert Graph.from_cudnn(ubjson(text)).to_json() == Graph.from_cudnn(json.dumps(text)).to_json()


def test_comparisons_compute_in_what_they_compare() -> None:
    node = pointwise("CMP_GT", ["a", "b"], "y", compute_data_type="BOOLEAN")
    text = a_file([node], *(tensor(name, [2], "INT32") for name in "ab"), tensor("y", [2], "BOOLEAN"))
    graph = Graph.from_cudnn(json.dumps(text))
    assert graph.nodes[0].compute is DataType.INT32


# ---- what is refused --------------------------------------------------------------------------------------------


def changed(path: str, value: Any, text: dict[str, Any] | None = None) -> dict[str, Any]:
    """A file with one field set, or with DELETE taken out."""
    document = deepcopy(text or attention())
    *way, last = path.split("/")
    place: Any = document
    for step in way:
        place = place[int(step) if isinstance(place, list) else step]
    if value == "DELETE":
        del place[last]
    else:
        place[last] = value
    return document


NODE = "nodes/0"
REFUSED: list[tuple[str, Any, type[FusilliError], str]] = [
    ("nodes", "x", GraphError, "graph: nodes: expected a list, got 'x'"),
    ("nodes", None, GraphError, "has no nodes"),
    (f"{NODE}/tag", 5, GraphError, r"nodes\[0\]: tag: expected a string, got 5"),
    (f"{NODE}/tag", "DELETE", GraphError, r"nodes\[0\]: tag: is missing"),
    (f"{NODE}/tag", "SDPB", GraphError, "attention: tag: operation 'SDPB' is unknown .did you mean SDPA.*; known are"),
    (f"{NODE}/tag", "RESHAPE", NotSupportedError, "attention.*RESHAPE is not served: hipDNN has no such operation"),
    (
        f"{NODE}/left_bound",
        "2",
        GraphError,
        r"nodes\[0\] \(SDPA 'attention'\): left_bound: expected an integer, got '2'",
    ),
    (f"{NODE}/left_bound", 0, NotSupportedError, "attention.*0 leaves no key to a query.*left_bound"),
    (f"{NODE}/left_bound", True, GraphError, "left_bound: expected an integer, got True"),
    (f"{NODE}/padding_mask", 1, GraphError, "padding_mask: expected true or false, got 1"),
    (
        f"{NODE}/attn_scale_value",
        "3F8",
        GraphError,
        "attn_scale_value: expected a number or eight hexadecimal .* '3F8'",
    ),
    (f"{NODE}/attn_scale_value", "3F80000G", GraphError, "attn_scale_value: expected a number or eight hexadecimal"),
    (f"{NODE}/attn_scale_value", [1], GraphError, "attn_scale_value: expected a number or eight hexadecimal"),
    (f"{NODE}/attn_scale_value", "7F800000", GraphError, "'attention': .*attn_scale_value must be a finite number"),
    (f"{NODE}/diagonal_alignment", "MIDDLE", GraphError, "'MIDDLE' is unknown; known are TOP_LEFT, BOTTOM_RIGHT"),
    (f"{NODE}/mma_core_mode", "INT8x4", GraphError, "mma_core_mode: 'INT8x4' is unknown.*known are"),
    (f"{NODE}/is_mxfp8", True, NotSupportedError, "attention in blocks of 8 bits"),
    (f"{NODE}/new_field", 3, GraphError, "new_field: this field is not known.*its value is 3; known are name, tag"),
    (f"{NODE}/inputs/Q", "nobody", GraphError, "inputs.Q: 'nobody' is no tensor of this graph"),
    (f"{NODE}/inputs/Q", 1.5, GraphError, "inputs.Q: expected a tensor's uid or name, got 1.5"),
    (f"{NODE}/inputs/Q", "DELETE", GraphError, "'attention': input 'q' is missing"),
    (f"{NODE}/inputs/QQ", "q", GraphError, "inputs: 'QQ' is unknown.*; known are Q, K, V"),
    (f"{NODE}/inputs", [], GraphError, r"inputs: expected an object, got \[\]"),
    (f"{NODE}/outputs/O", None, GraphError, "has no output|is used by no node|no nodes"),
    ("tensors/q", 3, GraphError, r"tensors\['q'\]: expected an object, got 3"),
    ("tensors/q/dim", "x", GraphError, r"tensors\['q'\]: dim: expected a list, got 'x'"),
    ("tensors/q/dim", [1, 2.5], GraphError, "dim: expected a list of integers"),
    ("tensors/q/dim", "DELETE", GraphError, "dim: is missing"),
    ("tensors/q/dim", [], GraphError, "'q' of graph 'g' has no dims"),
    ("tensors/q/dim", [-1, 1, 5, 2], GraphError, "tensor 'q'"),
    ("tensors/q/data_type", "FLAOT", GraphError, "data_type: 'FLAOT' is unknown .did you mean FLOAT"),
    ("tensors/q/data_type", "COMPLEX_FP32", GraphError, "data_type: 'COMPLEX_FP32' is unknown"),
    ("tensors/q/reordering_type", "F8_128x4", NotSupportedError, "order of elements F8_128x4"),
    ("tensors/q/ragged_offset_uid", 5, NotSupportedError, "ragged"),
    ("tensors/q/is_virtual", True, GraphError, "tensor 'q' is virtual, but no node"),
    ("context", 3, GraphError, "graph: context: expected an object, got 3"),
    ("context/io_data_type", "FLOAT32", GraphError, "context: io_data_type: 'FLOAT32' is unknown"),
]


@pytest.mark.parametrize(("path", "value", "kind", "message"), REFUSED)
def test_errors_name_place_field_and_value(path: str, value: Any, kind: type[FusilliError], message: str) -> None:
    with pytest.raises(kind, match=message):
        Graph.from_cudnn(json.dumps(changed(path, value)))


POOLING = {
    "tag": "RESAMPLE", "name": "pool", "resample_mode": "MAXPOOL", "padding_mode": "NEG_INF_PAD", "pre_padding": [0],
    "post_padding": [0], "stride": [2], "window": [2], "generate_index": None, "inputs": {"X": "x"},
    "outputs": {"Y": "y", "Index": None},
}  # fmt: skip
POOL = a_file([POOLING], tensor("x", [1, 1, 4]), tensor("y", [1, 1, 2]), tensor("i", [1, 1, 2], "INT8"))
PRODUCT = a_file(
    [{"tag": "MATMUL", "name": "mm", "compute_data_type": "FLOAT", "padding_value": 0.0, "inputs": {"A": "a", "B": "b"},
      "outputs": {"C": "c"}}], *(tensor(name, [1, 4, 4]) for name in "abc"), tensor("m", [1, 1, 1], "INT32"),
)  # fmt: skip
POWER = a_file([pointwise("ADD", ["a", "b"], "c")], *(tensor(name, [4]) for name in "abc"))


@pytest.mark.parametrize(
    ("text", "path", "value", "message"),
    [
        (POOL, f"{NODE}/resample_mode", "BILINEAR", "BILINEAR has no counterpart"),
        (POOL, f"{NODE}/padding_mode", "EDGE_VAL_PAD", "EDGE_VAL_PAD has no counterpart"),
        (POOL, f"{NODE}/outputs/Index", "i", "index of the maximum"),
        (PRODUCT, f"{NODE}/padding_value", 1.5, "padded with 0, not with 1.5"),
        (PRODUCT, f"{NODE}/inputs/M_override", "m", "sizes that tensors override .m_override."),
        *[(POWER, f"{NODE}/mode", mode, f"no pointwise mode {mode}") for mode in ("POW", "MOD", "COS")],
        *[(POWER, f"{NODE}/tag", tag, f"{tag} is not served") for tag in DECLINED],
    ],
)
def test_what_hipdnn_has_no_word_for_is_declined(text: Any, path: str, value: Any, message: str) -> None:
    Graph.from_cudnn(json.dumps(changed("tensors/i" if text is POOL else "json_version", "DELETE", text)))
    with pytest.raises(NotSupportedError, match=message):
        Graph.from_cudnn(json.dumps(changed(path, value, text)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{i\x05nodes[i\x01", "0 bytes|announced"),
        (b"{i\x05nod", "5 bytes are announced, 3 are left"),
        (b"{L\xff\xff\xff\xff\xff\xff\xff\xff", "announced"),
        (b"{i\x01ax", "b'x' is no type"),
        (b"{i\x01a" + b"[" * 100, "nested more than 64 deep"),
        (b"{i\x01\xffZ}", "is no text"),
        (b"{i\x01aHi\x02xx}", "'xx' is no number"),
        (b"{i\x01aZ}}", "1 bytes behind the graph"),
        (b"{i\x01a[$i#i\x02\x01\x02}", r"b'\$' is no type"),
        (b"{}", "has no nodes"),
        ("{", "invalid JSON"),
        ("[" * 100000, "invalid JSON"),
    ],
)
def test_damaged_bytes_say_where(data: bytes | str, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        Graph.from_cudnn(data)


def test_damage_never_does_more_than_raise() -> None:
    """Files of all operations, cut and changed as text, as documents and as bytes."""
    source = random.Random(18)
    files: dict[str, dict[str, Any]] = {}
    for _, case in all_cases():
        _, text = written(case, with_uids=source.random() < 0.5)
        for node in text.get("nodes", []):
            files.setdefault(node["tag"], text)
    refusals: list[str] = []
    for text in files.values():
        plain, binary = json.dumps(text).encode(), ubjson(text)
        variants = [document(source, plain) for _ in range(40)]
        variants += [changed_bytes(source, data) for data in (plain, binary) for _ in range(25)]
        variants += [data[: source.randrange(len(data))] for data in (plain, binary) for _ in range(5)]
        for data in variants:
            try:
                Graph.from_cudnn(data)
            except FusilliError as error:
                refusals.append(str(error))
    assert len(refusals) > 1000
    assert max(map(len, refusals)) < 5000
