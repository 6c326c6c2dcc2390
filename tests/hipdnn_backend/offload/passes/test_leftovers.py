"""``hipdnn-outline-leftovers``: maximal convex runs of what no engine takes, views for reshapes at their edges."""

from __future__ import annotations

import pytest

from hipdnn_backend.offload.session import OffloadOptions
from hipdnn_backend.wire import MatmulAttributes
from tests.support.fake_engine import FakeEngine
from tests.support.filecheck import check_ir
from tests.support.passes import run_text

V = "!torch.vtensor<[4,4],f32>"
PASSES = ("hipdnn-offload", "hipdnn-outline-leftovers")


def unary(result: str, x: str, name: str) -> str:
    return f"{result} = torch.aten.{name} {x} : {V} -> {V}\n"


def cumsum(result: str, x: str) -> str:
    return f"{result} = torch.aten.cumsum {x}, %int1, %none : {V}, !torch.int, !torch.none -> {V}\n"


def function(body: str, *returned: str) -> str:
    types = ", ".join([V] * len(returned))
    return f"""
        func.func @main(%x: {V}) -> ({types}) {{
          %int1 = torch.constant.int 1
          %none = torch.constant.none
          {body}
          return {", ".join(returned)} : {types}
        }}"""


def outlined(text: str) -> str:
    return run_text(text, *PASSES, engines=[FakeEngine()])[0]


def test_a_run_between_graphs_is_one_custom_graph() -> None:
    body = unary("%0", "%x", "relu") + cumsum("%1", "%0") + cumsum("%2", "%1") + unary("%3", "%2", "relu")
    check_ir(
        outlined(function(body, "%3")),
        """
        CHECK: [[A:%.*]] = torch.operator "hipdnn.graph"(%arg0) :
        CHECK: torch.aten.relu
        CHECK: [[B:%.*]] = torch.operator "hipdnn.graph"([[A]]) {hipdnn.custom} :
        CHECK: torch.constant.int 1
        CHECK: torch.aten.cumsum
        CHECK-NEXT: torch.aten.cumsum
        CHECK-NEXT: torch.operator_terminator
        CHECK: [[C:%.*]] = torch.operator "hipdnn.graph"([[B]]) :
        CHECK: torch.aten.relu
        CHECK: return [[C]]
        """,
    )


def test_what_nothing_uses_is_in_no_graph() -> None:
    """Upstream keeps dead operations that it knows no effects of; training code has ``aten.empty``."""
    body = cumsum("%0", "%x") + cumsum("%1", "%0") + unary("%2", "%1", "relu") + unary("%3", "%x", "relu")
    ir = outlined(function(body, "%3"))
    assert ir.count("hipdnn.graph") == 1
    assert "cumsum" not in ir


def test_an_elementwise_operation_between_leftovers_goes_with_them() -> None:
    ir = outlined(function(cumsum("%0", "%x") + unary("%1", "%0", "relu") + cumsum("%2", "%1"), "%2"))
    assert ir.count("hipdnn.graph") == 1
    assert ir.count("hipdnn.custom") == 1


def test_runs_with_a_graph_between_them_are_not_joined() -> None:
    # cumsum -> mm -> cumsum, and a path from the first to the last: one run of both would depend on itself.
    body = cumsum("%0", "%x") + f"%1 = torch.aten.mm %0, %x : {V}, {V} -> {V}\n" + cumsum("%2", "%1")
    body += f"%3 = torch.aten.add.Tensor %0, %2, %int1 : {V}, {V}, !torch.int -> {V}\n"
    ir, _ = run_text(function(body, "%3"), *PASSES, engines=[FakeEngine([MatmulAttributes])])
    check_ir(
        ir,
        """
        CHECK: [[A:%.*]] = torch.operator "hipdnn.graph"(%arg0) {hipdnn.custom}
        CHECK: [[B:%.*]] = torch.operator "hipdnn.graph"([[A]], %arg0) :
        CHECK: torch.aten.mm
        CHECK: [[C:%.*]] = torch.operator "hipdnn.graph"([[B]], [[A]]) {hipdnn.custom}
        CHECK: return [[C]]
        """,
    )


def test_unconnected_leftovers_stay_apart() -> None:
    ir = outlined(
        function(
            cumsum("%0", "%x") + unary("%a", "%0", "relu") + cumsum("%b", "%x").replace("cumsum", "cumprod"), "%a", "%b"
        )
    )
    assert ir.count("hipdnn.custom") == 2


def test_reshapes_at_the_edge_of_a_run_become_views() -> None:
    body = """
          %int16 = torch.constant.int 16
          %d = torch.prim.ListConstruct %int16 : (!torch.int) -> !torch.list<int>
          %0 = torch.aten.view %x, %d : !torch.vtensor<[4,4],f32>, !torch.list<int> -> !torch.vtensor<[16],f32>
          %1 = torch.aten.cumsum %0, %int0, %none
              : !torch.vtensor<[16],f32>, !torch.int, !torch.none -> !torch.vtensor<[16],f32>
          %int4 = torch.constant.int 4
          %e = torch.prim.ListConstruct %int4, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
          %2 = torch.aten.view %1, %e : !torch.vtensor<[16],f32>, !torch.list<int> -> !torch.vtensor<[4,4],f32>
    """
    text = function(body, "%2").replace("%int1 = torch.constant.int 1", "%int0 = torch.constant.int 0")
    ir, session = run_text(text, *PASSES, engines=[FakeEngine()])
    check_ir(
        ir,
        """
        CHECK: func.func
        CHECK-NEXT: [[A:%.*]] = torch.operator "hipdnn.view"(%arg0) : (!torch.vtensor<[4,4],f32>) -> !torch.vtensor<[16],f32>
        CHECK-NEXT: [[B:%.*]] = torch.operator "hipdnn.graph"([[A]]) {hipdnn.custom}
        CHECK: [[C:%.*]] = torch.operator "hipdnn.view"([[B]]) : (!torch.vtensor<[16],f32>) -> !torch.vtensor<[4,4],f32>
        CHECK-NEXT: return [[C]]
        """,  # noqa: E501 - one operation a line
    )
    assert len(session.report.views) == 2


def test_a_list_of_tensors_goes_into_the_region() -> None:
    body = f"""
          %0 = torch.aten.relu %x : {V} -> {V}
          %l = torch.prim.ListConstruct %0, %x : ({V}, {V}) -> !torch.list<vtensor>
          %1 = torch.aten.cat %l, %int1 : !torch.list<vtensor>, !torch.int -> !torch.vtensor<[4,8],f32>
          %2 = torch.aten.cumsum %1, %int1, %none
              : !torch.vtensor<[4,8],f32>, !torch.int, !torch.none -> !torch.vtensor<[4,8],f32>
    """
    text = (
        function(body, "%2")
        .replace(f"({V}) {{", "(!torch.vtensor<[4,8],f32>) {")
        .replace(f"return %2 : {V}", "return %2 : !torch.vtensor<[4,8],f32>")
    )
    check_ir(
        outlined(text),
        """
        CHECK: [[A:%.*]] = torch.operator "hipdnn.graph"(%arg0) :
        CHECK: torch.operator "hipdnn.graph"([[A]], %arg0) {hipdnn.custom}
        CHECK-NEXT: ^bb0([[P:%.*]]: !torch.vtensor<[4,4],f32>, [[Q:%.*]]: !torch.vtensor<[4,4],f32>):
        CHECK: [[L:%.*]] = torch.prim.ListConstruct [[P]], [[Q]]
        CHECK-NEXT: torch.aten.cat [[L]]
        """,
    )


def test_a_value_that_is_no_tensor_does_not_leave_its_run() -> None:
    body = f"""
          %l = torch.aten.split.Tensor %x, %int2, %int1
              : {V}, !torch.int, !torch.int -> !torch.list<vtensor<[4,2],f32>>
          %a, %b = torch.prim.ListUnpack %l
              : !torch.list<vtensor<[4,2],f32>> -> !torch.vtensor<[4,2],f32>, !torch.vtensor<[4,2],f32>
          %0 = torch.aten.relu %a : !torch.vtensor<[4,2],f32> -> !torch.vtensor<[4,2],f32>
          %1 = torch.aten.mm %0, %b2 : !torch.vtensor<[4,2],f32>, !torch.vtensor<[2,4],f32> -> {V}
    """
    text = function(body, "%1").replace("%none = torch.constant.none", "%int2 = torch.constant.int 2")
    text = text.replace(f"%x: {V}", f"%x: {V}, %b2: !torch.vtensor<[2,4],f32>")
    check_ir(
        outlined(text),
        """
        CHECK: [[A:%.*]] = torch.operator "hipdnn.graph"(%arg0) {hipdnn.custom} : (!torch.vtensor<[4,4],f32>) -> !torch.vtensor<[4,2],f32>
        CHECK: torch.aten.split.Tensor
        CHECK: torch.prim.ListUnpack
        CHECK-NEXT: torch.operator_terminator
        """,  # noqa: E501
    )


def test_a_tensor_of_unknown_dims_does_not_leave_its_run() -> None:
    body = f"""
          %0 = torch.aten.relu %x : {V} -> {V}
          %m = torch.constant.int -1
          %d = torch.prim.ListConstruct %m : (!torch.int) -> !torch.list<int>
          %1 = torch.aten.view %0, %d : {V}, !torch.list<int> -> !torch.vtensor<[?],f32>
          %int4 = torch.constant.int 4
          %e = torch.prim.ListConstruct %int4, %int4 : (!torch.int, !torch.int) -> !torch.list<int>
          %2 = torch.aten.view %1, %e : !torch.vtensor<[?],f32>, !torch.list<int> -> {V}
    """
    check_ir(
        outlined(function(body, "%2")),
        """
        CHECK-NOT: hipdnn.view
        CHECK: hipdnn.custom
        CHECK: torch.aten.view
        CHECK: torch.aten.view
        CHECK-NEXT: torch.operator_terminator
        """,
    )


def test_a_list_of_computed_numbers_stays_behind_what_computes_them() -> None:
    body = f"""
          %0 = torch.aten.relu %x : {V} -> {V}
          %n = torch.aten.size.int %0, %int1 : {V}, !torch.int -> !torch.int
          %l = torch.prim.ListConstruct %n : (!torch.int) -> !torch.list<int>
          %1 = torch.aten.flip %x, %l : {V}, !torch.list<int> -> {V}
    """
    check_ir(
        outlined(function(body, "%1")),
        """
        CHECK: hipdnn.custom
        CHECK: [[N:%.*]] = torch.aten.size.int
        CHECK: [[L:%.*]] = torch.prim.ListConstruct [[N]]
        CHECK: torch.aten.flip %{{.*}}, [[L]]
        CHECK-NEXT: torch.operator_terminator
        """,
    )


def test_large_literals_stay_outside_and_small_ones_go_in() -> None:
    body = f"""
          %small = torch.vtensor.literal(dense<[1, 0, 3, 2]> : tensor<4xsi64>) : !torch.vtensor<[4],si64>
          %0 = torch.aten.index_select %x, %int1, %small : {V}, !torch.int, !torch.vtensor<[4],si64> -> {V}
    """
    ir = outlined(function(body, "%0"))
    check_ir(
        ir,
        """
        CHECK: torch.operator "hipdnn.graph"(%arg0) {hipdnn.custom}
        CHECK-NEXT: ^bb0
        CHECK: torch.vtensor.literal
        """,
    )


def test_what_carries_onnx_takes_literals_as_buffers() -> None:
    body = f"""
          %small = torch.vtensor.literal(dense<1.5> : tensor<4x4xf32>) : {V}
          %0 = torch.operator "hipdnn.onnx"(%x, %small) : ({V}, {V}) -> {V}
    """
    check_ir(
        outlined(function(body, "%0")),
        """
        CHECK: [[L:%.*]] = torch.vtensor.literal
        CHECK: torch.operator "hipdnn.graph"(%arg0, [[L]]) {hipdnn.custom}
        CHECK-NEXT: ^bb0([[A:%.*]]: !torch.vtensor<[4,4],f32>, [[B:%.*]]: !torch.vtensor<[4,4],f32>):
        CHECK-NEXT: torch.operator "hipdnn.onnx"([[A]], [[B]])
        """,
    )


def test_leftovers_may_be_kept() -> None:
    options = OffloadOptions(leftovers=False)
    ir, _ = run_text(function(cumsum("%0", "%x"), "%0"), *PASSES, engines=[FakeEngine()], options=options)
    assert "hipdnn.graph" not in ir
    assert "torch.aten.cumsum" in ir


def test_an_operation_that_could_not_be_converted_stands_alone() -> None:
    body = cumsum("%0", "%x") + f'%1 = torch.operator "onnx.Strange"(%0) : ({V}) -> {V}\n' + cumsum("%2", "%1")
    assert outlined(function(body, "%2")).count("hipdnn.custom") == 3


def concat(*dims: tuple[str, str], axis: int, result: str) -> str:
    """A function that concatenates relu and tanh of its two arguments of these dims."""
    a, b = (f"!torch.vtensor<{each[0]},{each[1]}>" for each in dims)
    to = f"!torch.vtensor<{result}>"
    return f"""
        func.func @main(%x: {a}, %y: {b}) -> {to} {{
          %axis = torch.constant.int {axis}
          %0 = torch.aten.relu %x : {a} -> {a}
          %1 = torch.aten.tanh %y : {b} -> {b}
          %l = torch.prim.ListConstruct %0, %1 : ({a}, {b}) -> !torch.list<vtensor>
          %2 = torch.aten.cat %l, %axis : !torch.list<vtensor>, !torch.int -> {to}
          %3 = torch.aten.relu %2 : {to} -> {to}
          return %3 : {to}
        }}"""


@pytest.mark.parametrize("axis", [1, -2])
def test_parts_that_follow_each_other_in_memory_are_written_in_place(axis: int) -> None:
    ir, session = run_text(
        concat(("[1,4,8]", "f32"), ("[1,2,8]", "f32"), axis=axis, result="[1,6,8],f32"), engines=[FakeEngine()]
    )
    assert len(session.graphs) == 3
    check_ir(
        ir,
        """
        CHECK: [[A:%.*]] = memref.alloc() {alignment = 64 : i64} : memref<1x6x8xf32>
        CHECK: [[X:%.*]] = memref.subview [[A]][0, 0, 0] [1, 4, 8] [1, 1, 1]
        CHECK: hipdnn.execute graph("hipdnn_graph_0") ins(%arg0 : memref<1x4x8xf32>) outs([[X]] :
        CHECK: [[Y:%.*]] = memref.subview [[A]][0, 4, 0] [1, 2, 8] [1, 1, 1]
        CHECK: hipdnn.execute graph("hipdnn_graph_1") ins(%arg1 : memref<1x2x8xf32>) outs([[Y]] :
        CHECK-NOT: memref.copy
        CHECK: hipdnn.execute graph("hipdnn_graph_2") ins([[A]] : memref<1x6x8xf32>) outs(%arg2 :
        """,
    )


@pytest.mark.parametrize(
    ("a", "b", "axis", "result"),
    [
        ("[2,4,8]", "[2,2,8]", 1, "[2,6,8],f32"),  # interleaved in memory
        ("[1,4,8]", "[1,4,8]", 2, "[1,4,16],f32"),
        ("[3,5]", "[2,5]", 0, "[5,5],f32"),  # the second part would start at an unaligned address
    ],
)
def test_other_concatenations_are_custom_operations(a: str, b: str, axis: int, result: str) -> None:
    ir, session = run_text(concat((a, "f32"), (b, "f32"), axis=axis, result=result), engines=[FakeEngine()])
    assert [graph.custom for graph in session.graphs.values()].count(True) == 1
    assert "memref.subview" not in ir
