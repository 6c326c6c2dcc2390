"""hipDNN's JSON: its exact spelling when written, every known dialect when read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from hipdnn_backend.errors import WireError
from hipdnn_backend.wire import (
    ConvMode,
    DataType,
    EngineApiVersion,
    NormFwdPhase,
    ReductionAttributes,
    ReductionMode,
    UnknownAttributes,
    WireGraph,
    decode_graph,
    encode_graph,
    layout,
)
from hipdnn_backend.wire.attributes import Attributes
from hipdnn_backend.wire.json import graph_from_dict, graph_from_json, graph_to_dict, graph_to_json
from tests.hipdnn_backend.wire import flatc
from tests.hipdnn_backend.wire.strategies import graphs, one_of_each_operation

FILES = sorted(flatc.GRAPHS.glob("*.bin"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_real_graphs(path: Path) -> None:
    graph = decode_graph(path.read_bytes())
    assert graph_from_json(path.with_suffix(".json").read_bytes()) == graph
    assert graph_from_json(graph_to_json(graph, indent=2)) == graph


def test_spelling_of_a_convolution_graph() -> None:
    written = graph_to_dict(decode_graph((flatc.GRAPHS / "conv_relu.bin").read_bytes()))
    assert written["compute_data_type"] == written["io_data_type"] == written["intermediate_data_type"] == "float"
    assert written["is_override_shape_enabled"] is False
    assert "id" not in written
    assert "preferred_engine_id" not in written
    assert written["tensors"][2] == {
        "uid": 1,
        "name": "x",
        "data_type": "float",
        "strides": [32, 16, 4, 1],
        "dims": [1, 2, 4, 4],
        "virtual": False,
        "is_runtime_pass_by_value": False,
        "alignment": 16,
    }
    conv, relu = written["nodes"]
    assert conv == {
        "name": "conv",
        "type": "ConvolutionFwdAttributes",
        "compute_data_type": "unset",
        "inputs": {"x_tensor_uid": 1, "w_tensor_uid": 2},
        "outputs": {"y_tensor_uid": 4},
        "parameters": {
            "pre_padding": [1, 1],
            "post_padding": [1, 1],
            "stride": [1, 1],
            "dilation": [1, 1],
            "conv_mode": "CROSS_CORRELATION",
        },
    }
    assert relu["outputs"] == {"out_0_tensor_uid": 5}
    assert relu["inputs"]["operation"] == "relu_fwd"
    # hipDNN asks for every key of a pointwise node
    assert relu["inputs"]["elu_alpha"] is None
    assert set(relu["inputs"]) | set(relu["outputs"]) == set(layout.TABLES["PointwiseAttributes"].defaults)


def _node(written: dict[str, Any], name: str) -> dict[str, Any]:
    return next(node for node in written["nodes"] if node["type"] == name)


def test_places_and_spellings_of_the_other_operations() -> None:
    written = graph_to_dict(one_of_each_operation())
    sdpa = _node(written, "SdpaAttributes")
    assert set(sdpa) == {"inputs", "outputs", "attributes", "name", "type", "compute_data_type"}
    assert sdpa["attributes"]["diagonal_alignment"] == "BOTTOM_RIGHT"
    assert sdpa["attributes"]["mma_core_mode"] == "float"
    assert sdpa["attributes"]["alibi_mask"] is True
    assert "dropout_probability" in _node(written, "SdpaBackwardAttributes")["parameters"]
    layernorm = _node(written, "LayernormAttributes")
    assert layernorm["forward_phase"] == 1
    assert "normalized_dim_count" in layernorm
    assert _node(written, "RMSNormAttributes")["forward_phase"] == "INFERENCE"
    reduction = _node(written, "ReductionAttributes")
    assert {"mode", "in_tensor_uid", "out_tensor_uid", "is_deterministic"} < set(reduction)
    assert "inputs" not in reduction
    resample = _node(written, "ResampleFwdAttributes")
    assert (resample["resample_mode"], resample["padding_mode"]) == (1, 1)
    assert _node(written, "CustomOpAttributes")["data"] == [3, 4, 5, 6, 7]


def test_spelling_of_reduction_modes() -> None:
    graph = one_of_each_operation()
    position = next(i for i, node in enumerate(graph.nodes) if isinstance(node.attributes, ReductionAttributes))
    for mode, text in [(ReductionMode.MIN_OP, "min"), (ReductionMode.MUL_NO_ZEROS, "mul_no_zeros")]:
        attributes = graph.nodes[position].attributes
        assert isinstance(attributes, ReductionAttributes)
        nodes = list(graph.nodes)
        nodes[position] = nodes[position].replace(attributes=attributes.replace(mode=mode))
        written = graph_to_dict(graph.replace(nodes=tuple(nodes)))
        assert written["nodes"][position]["mode"] == text
        assert graph_from_dict(written).nodes == tuple(nodes)


@given(graph=graphs())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_round_trip(graph: WireGraph) -> None:
    assert graph_from_json(graph_to_json(graph)) == graph


def test_what_flatc_prints_is_read(tmp_path: Path) -> None:
    graph = one_of_each_operation().replace(
        id=bytes(range(16)), min_required_engine_api_version=EngineApiVersion(major=1, minor=2, patch=3)
    )
    assert graph_from_dict(flatc.to_json(encode_graph(graph), "graph", tmp_path)) == graph


def test_identity_and_version() -> None:
    graph = one_of_each_operation().replace(
        id=bytes(range(16)),
        preferred_engine_id=-3193037706610614382,
        min_required_engine_api_version=EngineApiVersion(major=1, minor=2, patch=3),
    )
    written = graph_to_dict(graph)
    assert written["id"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert written["preferred_engine_id"] == -3193037706610614382
    assert graph_from_dict(written) == graph


def test_unknown_operations_survive() -> None:
    graph = one_of_each_operation()
    graph = graph.replace(nodes=(graph.nodes[0].replace(attributes=UnknownAttributes(tag=99)),))
    assert graph_to_dict(graph)["nodes"][0]["type"] == 99
    assert graph_from_json(graph_to_json(graph)) == graph


def _minimal() -> dict[str, Any]:
    """The least that is a graph, in a mix of dialects."""
    return {
        "compute_type": "FLOAT",
        "io_data_type": "half",
        "tensors": [
            {"data_type": 1, "dims": [2], "strides": [1]},
            {"uid": 1, "data_type": "Float", "dims": [2], "strides": [1], "value_type": "Float32Value", "value": 0.1},
        ],
        "nodes": [{"type": "ReductionAttributes", "mode": "MAX_OP", "out_tensor_uid": 1, "future_key": 3}],
    }


def test_missing_keys_take_the_schemas_defaults() -> None:
    graph = graph_from_dict(_minimal())
    assert graph.compute_data_type is DataType.FLOAT
    assert graph.intermediate_data_type is DataType.UNSET
    assert graph.io_data_type is DataType.HALF
    assert [tensor.uid for tensor in graph.tensors] == [0, 1]
    assert graph.nodes[0].attributes == ReductionAttributes(
        mode=ReductionMode.MAX_OP, in_tensor_uid=0, out_tensor_uid=1
    )
    value = graph.tensors[1].value
    assert value is not None
    # as it would come off the wire
    assert value.value == 0.10000000149011612


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": {}}, "nodes: {} is no array"),
        ({"nodes": [3]}, "nodes[0]: 3 is no object"),
        ({"nodes": [{"type": "Fancy"}]}, "nodes[0].attributes: 'Fancy' is no operation; known are "),
        (
            {"nodes": [{"type": "MatmullAttributes"}]},
            "nodes[0].attributes: 'MatmullAttributes' is no operation (did you mean MatmulAttributes?); known are ",
        ),
        ({"nodes": [{"type": "Graph"}]}, "nodes[0].attributes: 'Graph' is no operation"),
        ({"nodes": [{"type": 0}]}, "nodes[0].attributes: 0 is no number of an operation"),
        ({"nodes": [{}]}, "nodes[0].attributes: None is no operation"),
        (
            {"nodes": [{"type": "ReductionAttributes", "mode": "most", "out_tensor_uid": 1}]},
            "nodes[0].attributes.mode: 'most' is no ReductionMode; known are NOT_SET, ADD",
        ),
        (
            {"nodes": [{"type": "ReductionAttributes", "out_tensor_uid": 7}]},
            "nodes[0].attributes.out_tensor_uid: 7 is no tensor of this graph",
        ),
        (
            {"nodes": [{"type": "ReductionAttributes", "mode": 1, "inputs": {"mode": 1}}]},
            "nodes[0].attributes.mode: the field is there twice",
        ),
        ({"nodes": [{"type": "MatmulAttributes", "inputs": 3}]}, "nodes[0].attributes.inputs: 3 is no object"),
        ({"io_data_type": 4096}, "io_data_type: 4096 is no number of a DataType"),
        ({"io_data_type": True}, "io_data_type: True is no DataType"),
        ({"name": 3}, "name: 3 is no string"),
        ({"id": "0102"}, "id: '0102' is no UUID"),
        ({"id": "zz"}, "id: 'zz' is no UUID"),
        ({"preferred_engine_id": 1.5}, "preferred_engine_id: 1.5 is no integer"),
        ({"tensors": [{"dims": [2.0]}]}, "tensors[0].dims[0]: 2.0 is no integer"),
        ({"tensors": [{"value": 1}]}, "tensors[0].value: a value without a value_type"),
        ({"tensors": [{"value_type": 1}]}, "tensors[0].value: None is no number"),
        ({"tensors": [{"value_type": 5, "value": 2**31}]}, "tensors[0].value: 2147483648 does not fit a int"),
    ],
)
def test_what_is_no_graph(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError) as caught:
        graph_from_dict(_minimal() | change)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "text", ["", "{", "3", "[]", "null", "[" * 100000, '{"name": ' + "9" * 5000 + "}", b"\xff\xfe", b"\x00\x01"]
)
def test_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(WireError):
        graph_from_json(text)


def test_every_place_that_hipdnn_uses_is_known() -> None:
    for cls in Attributes.__subclasses__():
        assert cls.JSON_SECTION in ("", "inputs", "parameters", "attributes")
    assert NormFwdPhase.TRAINING == ConvMode.CROSS_CORRELATION  # equal numbers of different enums
    assert json.loads(graph_to_json(one_of_each_operation()))["name"] == "all"
