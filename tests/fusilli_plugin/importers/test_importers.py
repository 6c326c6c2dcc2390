"""Wire graphs and graphs of the graph API: what every case table's graph and every real graph become."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fusilli_plugin.engine.importers import EXPORTERS, IMPORTERS, Reading, export_graph, import_graph
from graph_api import DataType, Graph, GraphError, NotSupportedError, PointwiseMode
from graph_api.node import OPS
from graph_api.ops.pointwise import MODES, PointwiseNode
from hipdnn_backend import wire
from hipdnn_backend.wire import WireGraph, decode_graph, encode_graph
from tests.cases import OpCase, all_cases

GRAPHS = Path(__file__).resolve().parents[2] / "data" / "hipdnn_graphs"
SERVED = sorted(path.name for path in GRAPHS.glob("*.bin"))
CASES = [
    pytest.param(case, id=f"{family}-{case.name}", marks=() if case.fast else pytest.mark.thorough)
    for family, case in all_cases()
]


def real(name: str) -> WireGraph:
    return decode_graph((GRAPHS / name).read_bytes())


def add(**changes: object) -> WireGraph:
    """c = a + b with some fields of the tensor a changed."""
    graph = real("pw_add.bin")
    tensors = tuple(t.replace(**changes) if t.uid == 1 else t for t in graph.tensors)
    return graph.replace(tensors=tensors)


@pytest.mark.parametrize("name", SERVED)
def test_real_graphs_keep_their_uids_and_layouts(name: str) -> None:
    source = real(name)
    graph = import_graph(source)
    for tensor in source.tensors:
        ours = graph.find(tensor.uid)
        assert (ours.name, ours.dims, ours.strides, ours.is_virtual) == (
            tensor.name, tensor.dims, tensor.strides, tensor.virtual,
        )  # fmt: skip
        assert ours.data_type.name == tensor.data_type.name


@pytest.mark.parametrize("case", CASES)
def test_every_case_survives_the_wire(case: OpCase) -> None:
    graph = case.graph()
    scalars = {tensor.data_type.name for tensor in graph.tensors if tensor.value is not None}
    if any(tensor.data_type is DataType.UINT4 for tensor in graph.tensors):
        with pytest.raises(NotSupportedError, match="hipDNN's schema has no data type UINT4"):
            export_graph(graph)
        return
    if scalars & {"UINT8", "INT8", "INT4"}:
        with pytest.raises(NotSupportedError, match="hipDNN's schema has no scalar of"):
            export_graph(graph)
        return
    source = export_graph(graph)
    reading = Reading(newest_dtypes=True)
    again = import_graph(decode_graph(encode_graph(source)), reading)
    assert _rounded(again) == _rounded(graph)
    assert [t.uid for t in again.arguments().inputs] == [t.uid for t in graph.arguments().inputs]
    once_more = import_graph(decode_graph(encode_graph(export_graph(again))), reading)
    assert once_more.canonical_json() == again.canonical_json()


def _rounded(graph: Graph) -> str:
    """The canonical form with its numbers as the wire holds them: parameters of operations are 32-bit floats."""
    return json.dumps(json.loads(graph.canonical_json(), parse_float=lambda text: float(np.float32(text))))


def test_every_operation_has_both_directions() -> None:
    missing = [op for op, node in OPS.items() if node not in EXPORTERS]
    assert missing == []
    assert len(IMPORTERS) >= len(EXPORTERS)


@pytest.mark.parametrize("number", [mode for mode in wire.PointwiseMode if mode is not wire.PointwiseMode.UNSET])
def test_every_pointwise_mode_is_known(number: wire.PointwiseMode) -> None:
    source = real("pw_add.bin")
    (node,) = source.nodes
    arity = MODES[PointwiseMode[number.name.removesuffix("_OP")]].arity
    operands = {f"in_{index}_tensor_uid": 1 if index < arity else None for index in range(1, 3)}
    table = node.attributes.replace(operation=number, axis_tensor_uid=1, **operands)
    imported = import_graph(source.replace(nodes=(node.replace(attributes=table),)))
    assert len(imported.nodes[0].inputs) == arity


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda: add(ragged_offset_tensor_uid=2), "ragged"),
        (lambda: add(data_type=wire.DataType.BOOLEAN), "FUSILLI_WIRE_DTYPES=newest"),
        (lambda: add(data_type=wire.DataType.FP8_E4M3_FNUZ), "FUSILLI_WIRE_DTYPES=newest"),
        (lambda: add(data_type=wire.DataType(77)), "data type 77"),
        (lambda: add(dims=(1, 2, 4, 5), strides=(40, 20, 5, 1)), "broadcast"),
        (lambda: add(virtual=True), "no node"),
        (lambda: add(strides=(0, 0, 0, -1)), "0 or positive"),
        (lambda: add(dims=(1, 2, 0, 4)), "at least 1"),
        (lambda: add(value=wire.TensorValue(type=wire.TensorValueType.Float32Value, value=1.0)), "needs 1 element"),
    ],
)
def test_what_cannot_be_served_says_why(graph: Callable[[], WireGraph], message: str) -> None:
    with pytest.raises((GraphError, NotSupportedError), match=message):
        import_graph(graph())


def test_a_negative_uid_is_refused() -> None:
    graph = real("pw_relu.bin")
    tensors = tuple(t.replace(uid=-5) if t.uid == 1 else t for t in graph.tensors)
    (node,) = graph.nodes
    nodes = (node.replace(attributes=node.attributes.replace(in_0_tensor_uid=-5)),)
    with pytest.raises(GraphError, match="uid -5 is negative"):
        import_graph(graph.replace(tensors=tensors, nodes=nodes))


def test_operations_of_later_schemas_are_named() -> None:
    graph = real("pw_relu.bin")
    nodes = (graph.nodes[0].replace(attributes=wire.UnknownAttributes(tag=99)),)
    with pytest.raises(NotSupportedError, match="operation 99"):
        import_graph(graph.replace(nodes=nodes))


def test_names_need_not_be_unique_or_there() -> None:
    graph = real("conv_bias_relu.bin")
    tensors = tuple(t.replace(name="same" if t.uid < 4 else "") for t in graph.tensors)
    nodes = tuple(node.replace(name="node") for node in graph.nodes)
    imported = import_graph(graph.replace(tensors=tensors, nodes=nodes, name=""))
    assert len({t.name for t in imported.tensors}) == len(imported.tensors)
    assert imported.canonical_json() == import_graph(graph).canonical_json()


def test_unset_types_come_from_the_graph() -> None:
    graph = real("conv_bias_relu.bin")
    unset = tuple(t.replace(data_type=wire.DataType.UNSET) for t in graph.tensors)
    imported = import_graph(graph.replace(tensors=unset, intermediate_data_type=wire.DataType.DOUBLE))
    assert {t.data_type for t in imported.tensors if t.is_virtual} == {DataType.DOUBLE}
    assert {t.data_type for t in imported.tensors if not t.is_virtual} == {DataType.FLOAT}


def test_tensors_that_no_node_uses_are_left_out() -> None:
    graph = real("pw_relu.bin")
    extra = graph.tensors[0].replace(uid=77, name="extra")
    imported = import_graph(graph.replace(tensors=(*graph.tensors, extra)))
    assert imported.canonical_json() == import_graph(graph).canonical_json()


def test_intermediate_tensors_may_have_no_dims() -> None:
    graph = real("conv_bias_relu.bin")
    bare = tuple(t.replace(dims=(), strides=()) if t.virtual else t for t in graph.tensors)
    assert import_graph(graph.replace(tensors=bare)).find(4).dims == (1, 3, 4, 4)


def test_parameters_of_other_modes_are_ignored() -> None:
    graph = real("pw_relu.bin")
    (node,) = graph.nodes
    table = node.attributes.replace(swish_beta=2.0, elu_alpha=3.0, relu_upper_clip=6.0)
    (ours,) = import_graph(graph.replace(nodes=(node.replace(attributes=table),))).nodes
    assert isinstance(ours, PointwiseNode)
    assert ours.attributes.relu_upper_clip == 6.0
    assert ours.attributes.swish_beta is None


def _backward(reading: Reading) -> Graph:
    graph = real("pw_add.bin")
    (node,) = graph.nodes
    table = node.attributes.replace(operation=wire.PointwiseMode.SIGMOID_BWD)
    return import_graph(graph.replace(nodes=(node.replace(attributes=table),)), reading)


def test_the_order_of_backward_operands_is_a_choice() -> None:
    assert [t.uid for t in _backward(Reading()).nodes[0].inputs.values()] == [1, 2]
    assert [t.uid for t in _backward(Reading(backward_x_first=True)).nodes[0].inputs.values()] == [2, 1]


def test_the_place_of_the_predicate_is_a_choice() -> None:
    graph = real("pw_add.bin")
    (node,) = graph.nodes
    third = graph.tensors[1].replace(uid=9, name="third")
    select = wire.PointwiseMode.BINARY_SELECT
    table = node.attributes.replace(operation=select, in_2_tensor_uid=9)
    graph = graph.replace(nodes=(node.replace(attributes=table),), tensors=(*graph.tensors, third))
    assert [t.uid for t in import_graph(graph).nodes[0].inputs.values()] == [1, 2, 9]
    first = Reading(select_predicate_first=True)
    assert [t.uid for t in import_graph(graph, first).nodes[0].inputs.values()] == [2, 9, 1]


def test_scalars_of_every_kind() -> None:
    kinds = wire.TensorValueType
    for dtype, kind, value in (
        (wire.DataType.FLOAT, kinds.Float32Value, 0.5),
        (wire.DataType.HALF, kinds.Float16Value, 0.5),
        (wire.DataType.BFLOAT16, kinds.BFloat16Value, 0.5),
        (wire.DataType.DOUBLE, kinds.Float64Value, 0.5),
        (wire.DataType.INT32, kinds.Int32Value, 3),
        (wire.DataType.INT4, kinds.Int32Value, -8),
        (wire.DataType.INT64, kinds.Int64Value, 3),
        (wire.DataType.FP8_E4M3, kinds.Float8Value, 0x38),
    ):
        scalar = wire.TensorValue(type=kind, value=value)
        graph = import_graph(add(dims=(1,), strides=(1,), data_type=dtype, value=scalar))
        expected = 1.0 if kind is kinds.Float8Value else value
        assert graph.find(1).value == expected
        assert 1 not in [t.uid for t in graph.arguments().inputs]


def test_a_runtime_scalar_is_an_argument_and_a_default_is_baked() -> None:
    runtime = import_graph(add(dims=(1,), strides=(1,), is_runtime_pass_by_value=True))
    assert runtime.find(1).is_pass_by_value
    assert 1 in [t.uid for t in runtime.arguments().inputs]
    value = wire.TensorValue(type=wire.TensorValueType.Float32Value, value=2.0)
    baked = import_graph(add(dims=(1,), strides=(1,), is_runtime_pass_by_value=True, value=value))
    assert 1 not in [t.uid for t in baked.arguments().inputs]


def test_readings_are_words() -> None:
    assert Reading.parse(["backward-x-first", "newest-dtypes"]) == Reading(newest_dtypes=True, backward_x_first=True)
    with pytest.raises(Exception, match="'sideways' means nothing"):
        Reading.parse(["sideways"])


def test_modes_have_equal_names_but_two() -> None:
    assert {mode.name for mode in PointwiseMode} ^ {mode.name for mode in wire.PointwiseMode} == {
        "MAX", "MIN", "MAX_OP", "MIN_OP", "UNSET",
    }  # fmt: skip
