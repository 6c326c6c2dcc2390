"""``canonicalize`` and ``cse``: upstream's, but ``hipdnn.graph`` regions keep their constants."""

from __future__ import annotations

import pytest

from tests.support.filecheck import check_ir
from tests.support.passes import run_text

V = "!torch.vtensor<[4],f32>"
REGION = f"""
func.func @main(%x: {V}) -> ({V}, {V}) {{
  %outer = torch.constant.int 1
  %0 = torch.operator "hipdnn.graph"(%x) : ({V}) -> {V} {{
  ^bb0(%a: {V}):
    %one = torch.constant.int 1
    %again = torch.constant.int 1
    %1 = torch.aten.add.Tensor %a, %a, %one : {V}, {V}, !torch.int -> {V}
    %2 = torch.aten.add.Tensor %1, %a, %again : {V}, {V}, !torch.int -> {V}
    torch.operator_terminator %2 : {V}
  }}
  %3 = torch.aten.add.Tensor %0, %x, %outer : {V}, {V}, !torch.int -> {V}
  return %0, %3 : {V}, {V}
}}
"""


@pytest.mark.parametrize("passes", [("canonicalize",), ("cse",), ("canonicalize", "cse")])
def test_regions_stay_self_contained(passes: tuple[str, ...]) -> None:
    ir, _ = run_text(REGION, *passes)
    check_ir(
        ir,
        """
        CHECK: torch.operator "hipdnn.graph"
        CHECK-NEXT: ^bb0([[A:%.*]]: !torch.vtensor<[4],f32>):
        CHECK: [[ONE:%.*]] = torch.constant.int 1
        CHECK: torch.aten.add.Tensor [[A]], [[A]], [[ONE]]
        CHECK: torch.operator_terminator
        """,
    )


def test_constants_are_merged_inside_a_region() -> None:
    ir, _ = run_text(REGION, "cse")
    assert ir.count("torch.constant.int 1") == 2


def test_onnx_is_converted() -> None:
    ir, _ = run_text(
        f"""func.func @main(%x: {V}) -> {V} attributes {{torch.onnx_meta.opset_version = 17 : si64}} {{
          %0 = torch.operator "onnx.Relu"(%x) : ({V}) -> {V}
          return %0 : {V}
        }}""",
        "torch-onnx-to-torch",
    )
    check_ir(ir, "CHECK: torch.aten.relu")


def test_what_is_torch_already_needs_no_opset() -> None:
    text = f"func.func @main(%x: {V}) -> {V} {{ return %x : {V} }}"
    assert "return %arg0" in run_text(text, "torch-onnx-to-torch")[0]
