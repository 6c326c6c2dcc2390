"""The two convolutions of the walkthrough, stage by stage: the same operations, types and order."""

# ruff: noqa: E501 - one operation a line, as MLIR prints them

from __future__ import annotations

import pytest

from tests.support.fake_engine import CONV, POINTWISE, FakeEngine
from tests.support.filecheck import check_ir
from tests.support.passes import TWO_CONVS, stages


@pytest.fixture(scope="module")
def ir() -> dict[str, str]:
    return stages(TWO_CONVS, [FakeEngine([CONV, POINTWISE])])


def test_each_convolution_is_outlined(ir: dict[str, str]) -> None:
    check_ir(
        ir["hipdnn-offload"],
        """
        CHECK: func.func @two_convs(
        CHECK-SAME: [[X:%.*]]: !torch.vtensor<[1,3,32,32],f32>, [[W0:%.*]]: !torch.vtensor<[16,3,3,3],f32>, [[B0:%.*]]: !torch.vtensor<[16],f32>, [[W1:%.*]]: !torch.vtensor<[32,16,3,3],f32>, [[B1:%.*]]: !torch.vtensor<[32],f32>) -> !torch.vtensor<[1,32,28,28],f32>
        CHECK-NEXT: [[Y0:%.*]] = torch.operator "hipdnn.graph"([[X]], [[W0]], [[B0]]) : (!torch.vtensor<[1,3,32,32],f32>, !torch.vtensor<[16,3,3,3],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[1,16,30,30],f32> {
        CHECK-NEXT: ^bb0([[IN:%.*]]: !torch.vtensor<[1,3,32,32],f32>, [[WEIGHT:%.*]]: !torch.vtensor<[16,3,3,3],f32>, [[BIAS:%.*]]: !torch.vtensor<[16],f32>):
        CHECK-NEXT: [[ONE:%.*]] = torch.constant.int 1
        CHECK-NEXT: [[ZERO:%.*]] = torch.constant.int 0
        CHECK-NEXT: [[STRIDE:%.*]] = torch.prim.ListConstruct [[ONE]], [[ONE]] : (!torch.int, !torch.int) -> !torch.list<int>
        CHECK-NEXT: [[PADDING:%.*]] = torch.prim.ListConstruct [[ZERO]], [[ZERO]] : (!torch.int, !torch.int) -> !torch.list<int>
        CHECK-NEXT: [[DILATION:%.*]] = torch.prim.ListConstruct [[ONE]], [[ONE]] : (!torch.int, !torch.int) -> !torch.list<int>
        CHECK-NEXT: [[CONV:%.*]] = torch.aten.conv2d [[IN]], [[WEIGHT]], [[BIAS]], [[STRIDE]], [[PADDING]], [[DILATION]], [[ONE]] :
        CHECK-NEXT: torch.operator_terminator [[CONV]] : !torch.vtensor<[1,16,30,30],f32>
        CHECK-NEXT: }
        CHECK-NEXT: [[Y1:%.*]] = torch.operator "hipdnn.graph"([[Y0]], [[W1]], [[B1]]) : (!torch.vtensor<[1,16,30,30],f32>, !torch.vtensor<[32,16,3,3],f32>, !torch.vtensor<[32],f32>) -> !torch.vtensor<[1,32,28,28],f32> {
        CHECK: torch.aten.conv2d
        CHECK-NEXT: torch.operator_terminator
        CHECK-NEXT: }
        CHECK-NEXT: return [[Y1]] : !torch.vtensor<[1,32,28,28],f32>
        """,
    )


def test_graphs_become_executables(ir: dict[str, str]) -> None:
    check_ir(
        ir["hipdnn-graph-to-executable"],
        """
        CHECK: func.func @two_convs(
        CHECK-NEXT: [[Y0:%.*]] = torch.operator "hipdnn.executable"(%arg0, %arg1, %arg2) {graph = "hipdnn_graph_0"} : (!torch.vtensor<[1,3,32,32],f32>, !torch.vtensor<[16,3,3,3],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[1,16,30,30],f32>
        CHECK-NEXT: [[Y1:%.*]] = torch.operator "hipdnn.executable"([[Y0]], %arg3, %arg4) {graph = "hipdnn_graph_1"} : (!torch.vtensor<[1,16,30,30],f32>, !torch.vtensor<[32,16,3,3],f32>, !torch.vtensor<[32],f32>) -> !torch.vtensor<[1,32,28,28],f32>
        CHECK-NEXT: return [[Y1]]
        """,
    )


def test_executables_become_destination_passing(ir: dict[str, str]) -> None:
    check_ir(
        ir["hipdnn-backend-legalize"],
        """
        CHECK: func.func @two_convs(%arg0: tensor<1x3x32x32xf32>, %arg1: tensor<16x3x3x3xf32>, %arg2: tensor<16xf32>, %arg3: tensor<32x16x3x3xf32>, %arg4: tensor<32xf32>) -> tensor<1x32x28x28xf32>
        CHECK-NEXT: [[E0:%.*]] = tensor.empty() : tensor<1x16x30x30xf32>
        CHECK-NEXT: [[Y0:%.*]] = hipdnn.execute graph("hipdnn_graph_0") ins(%arg0, %arg1, %arg2 : tensor<1x3x32x32xf32>, tensor<16x3x3x3xf32>, tensor<16xf32>) outs([[E0]] : tensor<1x16x30x30xf32>) -> tensor<1x16x30x30xf32>
        CHECK-NEXT: [[E1:%.*]] = tensor.empty() : tensor<1x32x28x28xf32>
        CHECK-NEXT: [[Y1:%.*]] = hipdnn.execute graph("hipdnn_graph_1") ins([[Y0]], %arg3, %arg4 : tensor<1x16x30x30xf32>, tensor<32x16x3x3xf32>, tensor<32xf32>) outs([[E1]] : tensor<1x32x28x28xf32>) -> tensor<1x32x28x28xf32>
        CHECK-NEXT: return [[Y1]] : tensor<1x32x28x28xf32>
        """,
    )


def test_the_final_form_writes_into_the_callers_buffer(ir: dict[str, str]) -> None:
    check_ir(
        ir["hipdnn-finalize-memrefs"],
        """
        CHECK: func.func @two_convs(%arg0: memref<1x3x32x32xf32>, %arg1: memref<16x3x3x3xf32>, %arg2: memref<16xf32>, %arg3: memref<32x16x3x3xf32>, %arg4: memref<32xf32>, %arg5: memref<1x32x28x28xf32>) {
        CHECK-NEXT: [[A:%.*]] = memref.alloc() {alignment = 64 : i64} : memref<1x16x30x30xf32>
        CHECK-NEXT: hipdnn.execute graph("hipdnn_graph_0") ins(%arg0, %arg1, %arg2 : memref<1x3x32x32xf32>, memref<16x3x3x3xf32>, memref<16xf32>) outs([[A]] : memref<1x16x30x30xf32>)
        CHECK-NEXT: hipdnn.execute graph("hipdnn_graph_1") ins([[A]], %arg3, %arg4 : memref<1x16x30x30xf32>, memref<32x16x3x3xf32>, memref<32xf32>) outs(%arg5 : memref<1x32x28x28xf32>)
        CHECK-NEXT: return
        CHECK-NEXT: }
        """,
    )


def test_bufferization_keeps_the_result_until_it_is_finalized(ir: dict[str, str]) -> None:
    check_ir(
        ir["one-shot-bufferize"],
        """
        CHECK: func.func @two_convs({{.*}}) -> memref<1x32x28x28xf32>
        CHECK-COUNT-2: memref.alloc()
        CHECK: return %{{.*}} : memref<1x32x28x28xf32>
        """,
    )
