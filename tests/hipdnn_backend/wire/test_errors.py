"""Damaged, hostile and unsayable input: a `WireError` that names the field, soon."""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable

import pytest

from hipdnn_backend.errors import WireError
from hipdnn_backend.wire import (
    ConvMode,
    DataType,
    EngineApiVersion,
    EngineConfig,
    EngineDetails,
    Knob,
    KnobSetting,
    Layout,
    MatmulAttributes,
    PointwiseAttributes,
    PointwiseMode,
    SerializedExecutionPlan,
    SerializedGraphAndPlan,
    TensorValue,
    TensorValueType,
    UnknownAttributes,
    WireGraph,
    WireNode,
    WireTensor,
    check_graph,
    decode_engine_config,
    decode_engine_details,
    decode_graph,
    decode_graph_and_plan,
    encode_engine_config,
    encode_engine_details,
    encode_graph,
    encode_graph_and_plan,
    encode_plan,
)
from tests.hipdnn_backend.wire import flatc


def relu(source: int, target: int) -> WireNode:
    attributes = PointwiseAttributes(operation=PointwiseMode.RELU_FWD, in_0_tensor_uid=source, out_0_tensor_uid=target)
    return WireNode(name=f"relu_{target}", attributes=attributes)


def tensor(uid: int) -> WireTensor:
    return WireTensor(uid=uid, name=f"t{uid}", data_type=DataType.FLOAT, dims=(2, 3), strides=(3, 1))


def chain() -> WireGraph:
    """1 → relu → 2 → relu → 3."""
    data_types = dict.fromkeys(("compute_data_type", "intermediate_data_type", "io_data_type"), DataType.FLOAT)
    return WireGraph(
        name="chain", tensors=(tensor(1), tensor(2), tensor(3)), nodes=(relu(1, 2), relu(2, 3)), **data_types
    )


def with_node(position: int, attributes: object) -> WireGraph:
    graph = chain()
    nodes = list(graph.nodes)
    nodes[position] = nodes[position].replace(attributes=attributes)
    return graph.replace(nodes=tuple(nodes))


def with_tensor(position: int, **changes: object) -> WireGraph:
    graph = chain()
    tensors = list(graph.tensors)
    tensors[position] = tensors[position].replace(**changes)
    return graph.replace(tensors=tuple(tensors))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (with_node(1, relu(17, 3).attributes), "nodes[1].attributes.in_0_tensor_uid: 17 is no tensor of this graph"),
        (with_node(1, relu(2, 17).attributes), "nodes[1].attributes.out_0_tensor_uid: 17 is no tensor of this graph"),
        (with_node(1, relu(1, 2).attributes), "nodes[1].attributes.out_0_tensor_uid: tensor 2 is written by nodes[0]"),
        (with_node(1, relu(3, 3).attributes), "nodes[1].attributes.in_0_tensor_uid: tensor 3 is written by nodes[1], "),
        (with_node(0, relu(3, 2).attributes), "nodes[0].attributes.in_0_tensor_uid: tensor 3 is written by nodes[1], "),
        (with_tensor(1, uid=1), "tensors[1].uid: 1 is the uid of an earlier tensor"),
        (with_tensor(1, dims=(6,)), "tensors[1].strides: 2 strides for 1 dims"),
        (with_tensor(1, ragged_offset_tensor_uid=9), "tensors[1].ragged_offset_tensor_uid: 9 is no tensor"),
        (with_node(1, None), "nodes[1].attributes: this is required and missing"),
    ],
)
def test_references_inside_a_graph(graph: WireGraph, message: str) -> None:
    for check in (check_graph, encode_graph):
        with pytest.raises(WireError) as caught:
            check(graph)
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (with_tensor(0, uid=2**63), "tensors[0].uid: 9223372036854775808 does not fit a long"),
        (with_tensor(0, dims=(2, True)), "tensors[0].dims[1]: True is no integer"),
        (with_tensor(0, dims=[2, 3]), "tensors[0].dims: [2, 3] is no tuple"),
        (with_tensor(0, data_type=1), "tensors[0].data_type: 1 is no DataType"),
        (with_tensor(0, name="\ud800"), "tensors[0].name: '\\ud800' cannot be written as UTF-8"),
        (with_tensor(0, name=b"x"), "tensors[0].name: b'x' is no string"),
        (with_tensor(0, virtual=0), "tensors[0].virtual: 0 is no bool"),
        (with_tensor(0, value=1.0), "tensors[0].value: 1.0 is no TensorValue"),
        (
            with_tensor(0, value=TensorValue(type=TensorValueType.Float32Value, value=1e39)),
            "tensors[0].value.value: 1e+39 does not fit a float",
        ),
        (
            with_tensor(0, value=TensorValue(type=TensorValueType(99), value=None)),
            "tensors[0].value.type: <TensorValueType.UNKNOWN_99: 99> cannot be written",
        ),
        (with_node(1, UnknownAttributes(tag=40)), "nodes[1].attributes: an operation of unknown type 40"),
        (
            with_node(1, relu(2, 3).attributes.replace(operation=ConvMode.CONVOLUTION)),
            "nodes[1].attributes.operation: <ConvMode.CONVOLUTION: 1> is no PointwiseMode",
        ),
        (
            with_node(1, relu(2, 3).attributes.replace(elu_alpha="1")),
            "nodes[1].attributes.elu_alpha: '1' is no number",
        ),
        (chain().replace(id=b"short"), "id: b'short' is not 16 bytes"),
        (chain().replace(nodes=(tensor(1),)), "nodes[0]: a WireTensor instead of a WireNode"),
        (
            chain().replace(min_required_engine_api_version=EngineApiVersion(major=1, minor=-1, patch=0)),
            "min_required_engine_api_version.minor: -1 does not fit a uint",
        ),
        (chain().replace(min_required_engine_api_version="1.0.0"), "min_required_engine_api_version: '1.0.0' is no"),
    ],
)
def test_values_that_do_not_fit_their_field(graph: WireGraph, message: str) -> None:
    with pytest.raises(WireError) as caught:
        encode_graph(graph)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (chain().replace(preferred_engine_id=0), "preferred_engine_id: the layout of November 2025 has no such field"),
        (with_tensor(2, alignment=32), "tensors[2].alignment: the layout of November 2025 has no such field"),
        (with_tensor(2, data_type=DataType.INT8), "tensors[2].data_type: the layout of November 2025 has no data type"),
        (
            with_tensor(2, value=TensorValue(type=TensorValueType.BoolValue, value=True)),
            "tensors[2].value.type: the layout of November 2025 has no BoolValue",
        ),
        (
            with_node(1, MatmulAttributes(a_tensor_uid=1, b_tensor_uid=2, c_tensor_uid=3)),
            "nodes[1].attributes: the layout of November 2025 has no MatmulAttributes",
        ),
        (
            chain().replace(nodes=(chain().nodes[0].replace(compute_data_type=DataType.HALF), chain().nodes[1])),
            "nodes[0].compute_data_type: the layout of November 2025 has no such field",
        ),
    ],
)
def test_what_november_2025_cannot_say(graph: WireGraph, message: str) -> None:
    encode_graph(graph)
    with pytest.raises(WireError, match=re.escape(message)):
        encode_graph(graph, layout=Layout.NOVEMBER_2025)


def test_engines_and_plans_are_checked_too() -> None:
    with pytest.raises(WireError, match=r"^knobs\[0\].value: True is none of IntValue, FloatValue, StringValue"):
        encode_engine_config(EngineConfig(engine_id=1, knobs=(KnobSetting(knob_id="k", value=True),)))
    with pytest.raises(WireError, match=r"^knobs\[0\].default_value.value: 9223372036854775808 does not fit a long"):
        encode_engine_details(EngineDetails(engine_id=1, knobs=(Knob(knob_id="k", default_value=2**63),)))
    plan = SerializedExecutionPlan(version=1, engine_id=1, workspace_size=0, tensor_uids=(), plugin_payload=b"")
    with pytest.raises(WireError, match=r"^version: -1 does not fit a uint"):
        encode_plan(plan.replace(version=-1))
    with pytest.raises(WireError, match=r"^plugin_payload: 'x' is not bytes"):
        encode_plan(plan.replace(plugin_payload="x"))
    with pytest.raises(WireError, match="a str instead of a SerializedExecutionPlan"):
        encode_plan("plan")  # pyright: ignore[reportArgumentType]


REAL = (flatc.GRAPHS / "conv_bias_relu.bin").read_bytes()


@pytest.mark.parametrize(
    "data", [b"", b"\x00", bytes(4), bytes(64), b"\xff" * 64, b'{"nodes": []}', b"\x04\x00\x00\x00"]
)
def test_what_is_no_buffer_at_all(data: bytes) -> None:
    for decode in (decode_graph, decode_engine_config, decode_engine_details, decode_graph_and_plan):
        with pytest.raises(WireError):
            decode(data)


def test_every_truncation_of_a_real_graph() -> None:
    assert REAL[-1] == 0  # padding: without it the graph is still whole
    for size in range(len(REAL) - 1):
        with pytest.raises(WireError):
            decode_graph(REAL[:size])


def patched(find: Callable[[bytes], int], code: str, value: int, data: bytes = REAL) -> bytes:
    """The real graph with a number replaced at a position."""
    out = bytearray(data)
    struct.pack_into("<" + code, out, find(data), value)
    return bytes(out)


def behind(text: bytes) -> Callable[[bytes], int]:
    """Position of the length in front of a string."""
    return lambda data: data.index(struct.pack("<I", len(text)) + text + b"\x00")


def slot(path: list[int], data: bytes = REAL) -> int:
    """Position of a field: slots and, for vectors of tables, indices in turn."""
    at = struct.unpack_from("<I", data, 0)[0]
    for depth, step in enumerate(path):
        if depth % 2 == 0:
            vtable = at - struct.unpack_from("<i", data, at)[0]
            at += struct.unpack_from("<H", data, vtable + 4 + 2 * step)[0]
        else:
            at += struct.unpack_from("<I", data, at)[0] + 4 + 4 * step
        if depth + 1 < len(path) and depth % 2:
            at += struct.unpack_from("<I", data, at)[0]
    return at


TENSORS, NODES = 4, 5


@pytest.mark.parametrize(
    ("position", "code", "value", "message"),
    [
        (slot([TENSORS]), "I", 0x7FFFFFF0, "tensors: offset 2147483632 at byte"),
        (slot([TENSORS]), "I", 0, "tensors: offset 0 at byte"),
        (slot([TENSORS]), "I", 0xFFFFFFFC, "tensors: offset 4294967292 at byte"),
        (slot([TENSORS, 2]), "I", 2, "tensors[2]: offset 2 at byte"),
        (slot([TENSORS, 2, 3]), "I", 0x00100000, "tensors[2].strides: offset 1048576 at byte"),
        (slot([NODES, 1, 1]), "B", 0, "nodes[1].attributes: union tag 0 is not one of"),
        (behind(b"conv_out")(REAL), "I", 0xFFFFFFFF, "tensors[2].name: a vector of 4294967295 x 1 bytes"),
        (behind(b"conv_out")(REAL), "I", 7, "tensors[2].name: the string of 7 bytes at byte"),
        (behind(b"conv_out")(REAL) + 4, "B", 0xFF, "tensors[2].name: the string at byte"),
        (slot([NODES, 2, 2]), "I", 0x7FFFFFF0, "nodes[2].attributes: offset 2147483632"),
    ],
)
def test_damage_is_named_where_it_is(position: int, code: str, value: int, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_graph(patched(lambda _: position, code, value))
    assert str(caught.value).startswith(message)


def test_a_vtable_outside_the_buffer() -> None:
    root = struct.unpack_from("<I", REAL, 0)[0]
    with pytest.raises(WireError, match="has its vtable at byte -"):
        decode_graph(patched(lambda _: root, "i", 0x7FFFFFF0))
    vtable = root - struct.unpack_from("<i", REAL, root)[0]
    with pytest.raises(WireError, match=r"the vtable at byte \d+ of \d+ has length 5"):
        decode_graph(patched(lambda _: vtable, "H", 5))
    with pytest.raises(WireError, match="has 65532 bytes"):
        decode_graph(patched(lambda _: vtable + 2, "H", 65532))
    with pytest.raises(WireError, match=r"^name: vtable entry 3 does not fit"):
        decode_graph(patched(lambda _: vtable + 4, "H", 3))


def test_unknown_numbers_are_kept_not_refused() -> None:
    # an operation, a data type and a mode of the future
    graph = decode_graph(patched(lambda _: slot([NODES, 2, 1]), "B", 200))
    assert graph.nodes[2].attributes == UnknownAttributes(tag=200)
    graph = decode_graph(patched(lambda _: slot([TENSORS, 0, 2]), "B", 100))
    assert graph.tensors[0].data_type.name == "UNKNOWN_100"
    assert not graph.tensors[0].data_type.known


def test_nodes_of_both_layouts_in_one_graph() -> None:
    graph = chain()
    # a compute type of its own keeps the first node's vtable apart from the second's
    data = encode_graph(graph.replace(nodes=(graph.nodes[0].replace(compute_data_type=DataType.HALF), graph.nodes[1])))
    position = slot([NODES, 1], data)
    table = position + struct.unpack_from("<I", data, position)[0]
    vtable = table - struct.unpack_from("<i", data, table)[0]
    length, inline, name, compute, tag, value = struct.unpack_from("<6H", data, vtable)
    assert (length, compute) == (12, 0)
    out = bytearray(data)
    struct.pack_into("<5H", out, vtable, 10, inline, name, tag, value)
    with pytest.raises(WireError, match="some nodes have the layout of November 2025 and some the newest"):
        decode_graph(bytes(out))


def test_sharing_one_vector_many_times_is_refused_soon() -> None:
    # 4,000 offsets to one table whose two vectors have 60,000 bytes each: 480 MB to read from 130 kB
    count, numbers = 4000, 7500
    vtable = struct.pack("<8H", 14, 24, 0, 0, 0, 8, 12, 0)
    vector = struct.pack("<I", numbers) + bytes(8 * numbers)
    table = struct.pack("<i4xII8x", len(vtable), 16, 16 + len(vector) - 4)
    graph_vtable = struct.pack("<10H", 16, 12, 0, 0, 0, 0, 4, 8, 0, 0)
    start = 4 + len(graph_vtable)
    tensors_at = start + 12 + 4
    tables_at = tensors_at + 4 + 4 * count + len(vtable)
    offsets = b"".join(struct.pack("<I", tables_at - (tensors_at + 4 + 4 * i)) for i in range(count))
    data = (
        struct.pack("<I", start)
        + graph_vtable
        + struct.pack("<iII", len(graph_vtable), tensors_at - start - 4, start + 12 - start - 8)
        + struct.pack("<I", 0)
        + struct.pack("<I", count)
        + offsets
        + vtable
        + table
        + vector
        + vector
    )
    began = time.perf_counter()
    with pytest.raises(WireError, match=r"^tensors\[\d+\]\.(dims|strides): reading costs more than"):
        decode_graph(data)
    assert time.perf_counter() - began < 5


def test_buffers_beyond_any_honest_size() -> None:
    with pytest.raises(WireError, match="more than the 8388608"):
        decode_graph(bytes((8 << 20) + 1))
    with pytest.raises(WireError, match="more than the 1048576"):
        decode_engine_config(bytes((1 << 20) + 1))


def test_files_of_another_kind() -> None:
    data = encode_graph_and_plan(SerializedGraphAndPlan(graph_blob=b"a", plan_blob=b"b"))
    with pytest.raises(WireError, match="the file identifier is b'HDGX' instead of b'HDGP'"):
        decode_graph_and_plan(data.replace(b"HDGP", b"HDGX"))


def test_knobs_without_a_value() -> None:
    config = encode_engine_config(EngineConfig(engine_id=1, knobs=(KnobSetting(knob_id="k", value=7),)))
    at = slot([1, 0, 1], config)
    with pytest.raises(WireError, match=r"^knobs\[0\].value: union tag 9 is not one of \[1, 2, 3\]"):
        decode_engine_config(patched(lambda _: at, "B", 9, config))
    vtable = struct.unpack_from("<I", config, slot([1, 0], config))[0] + slot([1, 0], config)
    vtable -= struct.unpack_from("<i", config, vtable)[0]
    # no tag and no value
    data = patched(lambda _: vtable + 6, "I", 0, config)
    with pytest.raises(WireError, match=r"^knobs\[0\].value: this is required and missing"):
        decode_engine_config(data)
    # a value without a tag
    data = patched(lambda _: vtable + 6, "H", 0, config)
    with pytest.raises(WireError, match=r"^knobs\[0\].value: union tag 0 is not one of"):
        decode_engine_config(data)


def test_errors_carry_their_parts() -> None:
    error = WireError("x", "is wrong").under("[3]").under("nodes")
    assert (error.path, error.reason, str(error)) == ("nodes[3].x", "is wrong", "nodes[3].x: is wrong")
    assert WireError("", "all").under("a").path == "a"
    assert isinstance(error, ValueError)
