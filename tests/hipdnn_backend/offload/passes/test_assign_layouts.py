"""``hipdnn-assign-layouts``: channels-last between graphs where everybody takes it."""

from __future__ import annotations

import pytest

from hipdnn_backend.offload.session import CompiledGraph, Layout, OffloadOptions
from hipdnn_backend.wire import WireGraph, decode_graph
from tests.support.fake_engine import FakeEngine
from tests.support.filecheck import check_ir
from tests.support.passes import TWO_CONVS, run_text

LAST = OffloadOptions(layout=Layout.CHANNELS_LAST)


def strides(graph: CompiledGraph, uid: int | None) -> tuple[int, ...]:
    assert uid is not None
    return decode_graph(graph.wire).tensor(uid).strides


def test_a_tensor_between_convolutions_is_channels_last_for_both() -> None:
    ir, session = run_text(TWO_CONVS, engines=[FakeEngine()], options=LAST)
    first, second = session.graphs.values()
    expected = (16 * 30 * 30, 1, 30 * 16, 16)
    assert strides(first, first.outputs[0]) == expected
    assert strides(second, second.inputs[0]) == expected
    # the model's own input, weights and output stay row-major, and so do the types
    assert strides(first, first.inputs[0]) == (3 * 32 * 32, 32 * 32, 32, 1)
    assert strides(second, second.outputs[0]) == (32 * 28 * 28, 28 * 28, 28, 1)
    assert "memref<1x16x30x30xf32>" in ir
    assert session.report.layout == "packed; channels-last for 1 tensors between graphs, row-major else"


def test_the_decision_is_in_the_ir() -> None:
    passes = ("cse", "hipdnn-offload", "hipdnn-assign-layouts")
    ir, _ = run_text(TWO_CONVS, *passes, engines=[FakeEngine()], options=LAST)
    assert ir.count("hipdnn.channels_last = array<i64: ") == 2
    row_major = OffloadOptions(layout=Layout.ROW_MAJOR)
    ir, _ = run_text(TWO_CONVS, *passes, engines=[FakeEngine()], options=row_major)
    assert "channels_last" not in ir


@pytest.mark.parametrize(("layout", "count"), [(Layout.AUTO, 2), (Layout.ROW_MAJOR, 0)])
def test_convolutions_decide_if_it_is_left_to_the_pass(layout: Layout, count: int) -> None:
    passes = ("hipdnn-offload", "hipdnn-assign-layouts")
    ir, _ = run_text(TWO_CONVS, *passes, engines=[FakeEngine()], options=OffloadOptions(layout=layout))
    assert ir.count("hipdnn.channels_last") == count


def is_last(graph: WireGraph) -> bool:
    return any(len(tensor.dims) == 4 and tensor.strides[3] == tensor.dims[1] > 1 for tensor in graph.tensors)


def test_an_engine_that_does_not_take_it_gets_row_major() -> None:
    engine = FakeEngine(accept=lambda graph: "row-major only" if is_last(graph) else "")
    _ir, session = run_text(TWO_CONVS, engines=[engine], options=LAST)
    assert not any(is_last(decode_graph(graph.wire)) for graph in session.graphs.values())
    assert not any(graph.custom for graph in session.graphs.values())
    assert session.report.layout == "packed row-major"


def test_graphs_that_do_not_compile_so_are_compiled_row_major() -> None:
    engine = FakeEngine(fail=lambda graph: "out of registers" if is_last(graph) else "")
    _ir, session = run_text(TWO_CONVS, engines=[engine], options=LAST)
    assert not any(is_last(decode_graph(graph.wire)) for graph in session.graphs.values())
    assert not any(graph.custom for graph in session.graphs.values())
    assert session.report.splits[0].action == "tried again with row-major tensors between graphs"


def test_returned_values_and_those_of_custom_operations_stay_row_major() -> None:
    image = "!torch.vtensor<[1,8,4,4],f32>"
    text = f"""func.func @main(%x: {image}) -> ({image}, {image}) {{
      %int1 = torch.constant.int 1
      %none = torch.constant.none
      %0 = torch.aten.relu %x : {image} -> {image}
      %1 = torch.aten.cumsum %0, %int1, %none : {image}, !torch.int, !torch.none -> {image}
      %2 = torch.aten.tanh %1 : {image} -> {image}
      %3 = torch.aten.sigmoid %2 : {image} -> {image}
      return %2, %3 : {image}, {image}
    }}"""
    passes = ("hipdnn-offload", "hipdnn-outline-leftovers", "hipdnn-assign-layouts")
    ir, _ = run_text(text, *passes, engines=[FakeEngine()], options=LAST)
    check_ir(ir, "CHECK: hipdnn.graph\nCHECK-NOT: channels_last")
