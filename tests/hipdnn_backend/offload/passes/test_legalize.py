"""``hipdnn-backend-legalize``, bufferization and ``hipdnn-finalize-memrefs``."""

from __future__ import annotations

import pytest

from hipdnn_backend.offload.errors import PassError
from hipdnn_backend.offload.session import OffloadOptions
from tests.support.fake_engine import FakeEngine
from tests.support.filecheck import check_ir
from tests.support.passes import run_text

END = ("hipdnn-backend-legalize", "empty-tensor-elimination", "one-shot-bufferize", "hipdnn-finalize-memrefs")
V = "!torch.vtensor<[4],f32>"


def executable(result: str, *operands: str, graph: str, kind: str = V, to: str = V) -> str:
    types = ", ".join([kind] * len(operands))
    call = f'torch.operator "hipdnn.executable"({", ".join(operands)}) {{graph = "{graph}"}}'
    return f"{result} = {call} : ({types}) -> {to}\n"


def final(text: str) -> str:
    return run_text(text, *END)[0]


@pytest.mark.parametrize(
    ("torch", "builtin"),
    [("[4],f16", "4xf16"), ("[4],bf16", "4xbf16"), ("[4],si64", "4xi64"), ("[4],ui8", "4xi8"), ("[],f32", "f32"),
     ("[4,1],i1", "4x1xi1"), ("[2,0],si32", "2x0xi32"), ("[3],f8E4M3FN", "3xf8E4M3FN"),
     ("[2],complex<f32>", "2xcomplex<f32>")],
)  # fmt: skip
def test_types(torch: str, builtin: str) -> None:
    kind = f"!torch.vtensor<{torch}>"
    body = executable("%0", "%x", graph="g", kind=kind, to=kind)
    ir, _ = run_text(f"func.func @f(%x: {kind}) -> {kind} {{ {body} return %0 : {kind} }}", "hipdnn-backend-legalize")
    check_ir(
        ir,
        f"""
        CHECK: func.func @f(%arg0: tensor<{builtin}>) -> tensor<{builtin}>
        CHECK-NEXT: [[E:%.*]] = tensor.empty() : tensor<{builtin}>
        CHECK-NEXT: hipdnn.execute graph("g") ins(%arg0 : tensor<{builtin}>) outs([[E]] : tensor<{builtin}>)
        """,
    )


def test_several_results() -> None:
    ir, _ = run_text(
        f"""func.func @f(%x: {V}) -> {V} {{
          %0:2 = torch.operator "hipdnn.executable"(%x) {{graph = "g"}} : ({V}) -> ({V}, {V})
          %1 = torch.operator "hipdnn.executable"(%0#1, %0#0) {{graph = "h"}} : ({V}, {V}) -> {V}
          return %1 : {V}
        }}""",
        "hipdnn-backend-legalize",
    )
    check_ir(
        ir,
        """
        CHECK: [[A:%.*]] = tensor.empty()
        CHECK: [[B:%.*]] = tensor.empty()
        CHECK: [[R:%.*]]:2 = hipdnn.execute graph("g") ins(%arg0 : tensor<4xf32>) outs([[A]], [[B]] : tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
        CHECK: hipdnn.execute graph("h") ins([[R]]#1, [[R]]#0 :
        """,  # noqa: E501
    )


@pytest.mark.parametrize(
    ("old", "new"), [("[2,3,4]", "[6,4]"), ("[2,3,4]", "[24]"), ("[24]", "[4,6]"), ("[1,1]", "[]"), ("[]", "[1,1]"),
                     ("[]", "[1]"), ("[1]", "[]"), ("[2,6]", "[4,3]"), ("[0,3]", "[3,0]"), ("[4]", "[4]")]
)  # fmt: skip
def test_views_cost_nothing(old: str, new: str) -> None:
    a, b = f"!torch.vtensor<{old},f32>", f"!torch.vtensor<{new},f32>"
    body = f'%0 = torch.operator "hipdnn.view"(%x) : ({a}) -> {b}\n' + executable("%1", "%0", graph="g", kind=b, to=b)
    ir = final(f"func.func @f(%x: {a}) -> {b} {{ {body} return %1 : {b} }}")
    assert "memref.alloc" not in ir
    assert "memref.copy" not in ir


def test_graphs_that_need_equal_buffers_get_one_each() -> None:
    body = (
        executable("%0", "%x", graph="g") + executable("%1", "%x", graph="h") + executable("%2", "%0", "%1", graph="i")
    )
    ir = final(f"func.func @f(%x: {V}) -> {V} {{ {body} return %2 : {V} }}")
    assert ir.count("memref.alloc") == 2


def test_an_operation_that_is_no_executable_is_named(tmp_path) -> None:
    text = f'func.func @f(%x: {V}) -> {V} {{ %0 = torch.aten.relu %x : {V} -> {V} loc("act") return %0 : {V} }}'
    with pytest.raises(PassError, match=r"torch.aten.relu at loc\(.act.\) is neither an executable nor a view"):
        run_text(text, "hipdnn-backend-legalize", options=OffloadOptions(reproducers=tmp_path))


# ---- results of functions


def test_an_empty_function() -> None:
    check_ir(final("func.func @empty() { return }"), "CHECK: func.func @empty() {\nCHECK-NEXT: return\nCHECK-NEXT: }")


def test_a_returned_argument_is_copied() -> None:
    check_ir(
        final(f"func.func @f(%x: {V}) -> {V} {{ return %x : {V} }}"),
        """
        CHECK: func.func @f([[X:%.*]]: memref<4xf32>, [[Y:%.*]]: memref<4xf32>) {
        CHECK-NEXT: memref.copy [[X]], [[Y]]
        CHECK-NEXT: return
        """,
    )


def test_a_value_returned_twice_is_computed_once_and_copied() -> None:
    ir = final(
        f"func.func @f(%x: {V}) -> ({V}, {V}) {{ {executable('%0', '%x', graph='g')} return %0, %0 : {V}, {V} }}"
    )
    check_ir(
        ir,
        """
        CHECK: func.func @f([[X:%.*]]: memref<4xf32>, [[Y:%.*]]: memref<4xf32>, [[Z:%.*]]: memref<4xf32>) {
        CHECK-NEXT: hipdnn.execute graph("g") ins([[X]] : memref<4xf32>) outs([[Y]] : memref<4xf32>)
        CHECK-NEXT: memref.copy [[Y]], [[Z]]
        CHECK-NEXT: return
        """,
    )


def test_a_value_and_a_view_of_it() -> None:
    w = "!torch.vtensor<[2,2],f32>"
    body = executable("%0", "%x", graph="g") + f'%1 = torch.operator "hipdnn.view"(%0) : ({V}) -> {w}\n'
    check_ir(
        final(f"func.func @f(%x: {V}) -> ({w}, {V}) {{ {body} return %1, %0 : {w}, {V} }}"),
        """
        CHECK: func.func @f([[X:%.*]]: memref<4xf32>, [[VIEW:%.*]]: memref<2x2xf32>, [[Y:%.*]]: memref<4xf32>) {
        CHECK-NEXT: hipdnn.execute graph("g") ins([[X]] : memref<4xf32>) outs([[Y]] : memref<4xf32>)
        CHECK-NEXT: [[E:%.*]] = memref.expand_shape [[Y]]
        CHECK-NEXT: memref.copy [[E]], [[VIEW]]
        CHECK-NEXT: return
        """,
    )


def test_a_returned_view_of_a_fresh_value_is_written_in_place() -> None:
    w = "!torch.vtensor<[2,2],f32>"
    body = executable("%0", "%x", graph="g") + f'%1 = torch.operator "hipdnn.view"(%0) : ({V}) -> {w}\n'
    check_ir(
        final(f"func.func @f(%x: {V}) -> {w} {{ {body} return %1 : {w} }}"),
        """
        CHECK: func.func @f([[X:%.*]]: memref<4xf32>, [[Y:%.*]]: memref<2x2xf32>) {
        CHECK-NEXT: [[E:%.*]] = memref.collapse_shape [[Y]]
        CHECK-NEXT: hipdnn.execute graph("g") ins([[X]] : memref<4xf32>) outs([[E]] : memref<4xf32>)
        CHECK-NEXT: return
        """,
    )


def test_a_returned_constant_is_copied() -> None:
    body = f"%0 = torch.vtensor.literal(dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>) : {V}"
    check_ir(
        final(f"func.func @f() -> {V} {{ {body} return %0 : {V} }}"),
        """
        CHECK: memref.global "private" constant [[G:@.*]] : memref<4xf32> = dense<[1.000000e+00, 2.000000e+00
        CHECK: func.func @f([[Y:%.*]]: memref<4xf32>) {
        CHECK-NEXT: [[C:%.*]] = memref.get_global [[G]]
        CHECK-NEXT: memref.copy [[C]], [[Y]]
        """,
    )


def test_the_whole_pipeline_on_arguments_duplicates_and_views() -> None:
    w = "!torch.vtensor<[2,2],f32>"
    ir, session = run_text(
        f"""func.func @main(%x: {V}) -> ({V}, {V}, {w}, {V}) {{
          %int2 = torch.constant.int 2
          %d = torch.prim.ListConstruct %int2, %int2 : (!torch.int, !torch.int) -> !torch.list<int>
          %0 = torch.aten.relu %x : {V} -> {V}
          %1 = torch.aten.view %0, %d : {V}, !torch.list<int> -> {w}
          return %x, %0, %1, %0 : {V}, {V}, {w}, {V}
        }}""",
        engines=[FakeEngine()],
    )
    assert len(session.graphs) == 1
    check_ir(
        ir,
        """
        CHECK: func.func @main([[X:%.*]]: memref<4xf32>, [[A:%.*]]: memref<4xf32>, [[B:%.*]]: memref<4xf32>, [[C:%.*]]: memref<2x2xf32>, [[D:%.*]]: memref<4xf32>) {
        CHECK-NEXT: hipdnn.execute graph("hipdnn_graph_0") ins([[X]] : memref<4xf32>) outs([[B]] : memref<4xf32>)
        CHECK-NEXT: [[E:%.*]] = memref.expand_shape [[B]]
        CHECK-DAG: memref.copy [[X]], [[A]]
        CHECK-DAG: memref.copy [[E]], [[C]]
        CHECK-DAG: memref.copy [[B]], [[D]]
        CHECK: return
        """,  # noqa: E501
    )
