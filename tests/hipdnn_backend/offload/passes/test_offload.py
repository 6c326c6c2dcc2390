"""``hipdnn-offload``: which operations become one graph, and what the region looks like."""

from __future__ import annotations

import pytest

from hipdnn_backend.offload.session import OffloadOptions
from tests.support.fake_engine import CONV, POINTWISE, FakeEngine
from tests.support.filecheck import check_ir
from tests.support.passes import TWO_CONVS, run_text

IMAGE = "!torch.vtensor<[1,8,8,8],f32>"
WEIGHT = "!torch.vtensor<[8,8,3,3],f32>"
SCALARS = """
  %int1 = torch.constant.int 1
  %int0 = torch.constant.int 0
  %none = torch.constant.none
  %false = torch.constant.bool false
  %ones = torch.prim.ListConstruct %int1, %int1 : (!torch.int, !torch.int) -> !torch.list<int>
  %empty = torch.prim.ListConstruct : () -> !torch.list<int>
"""


def conv(result: str, x: str, w: str = "%w") -> str:
    return (
        f"{result} = torch.aten.convolution {x}, {w}, %none, %ones, %ones, %ones, %false, %empty, %int1 : {IMAGE}, "
        f"{WEIGHT}, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, "
        f"!torch.list<int>, !torch.int -> {IMAGE}\n"
    )


def add(result: str, a: str, b: str) -> str:
    return f"{result} = torch.aten.add.Tensor {a}, {b}, %int1 : {IMAGE}, {IMAGE}, !torch.int -> {IMAGE}\n"


def unary(result: str, x: str, name: str = "relu") -> str:
    return f"{result} = torch.aten.{name} {x} : {IMAGE} -> {IMAGE}\n"


def function(body: str, *returned: str, arguments: str = f"%x: {IMAGE}, %w: {WEIGHT}") -> str:
    types = ", ".join([IMAGE] * len(returned))
    return f"func.func @main({arguments}) -> ({types}) {{\n{SCALARS}{body}return {', '.join(returned)} : {types}\n}}"


def groups(text: str, engine: FakeEngine | None = None, *, fuse: bool = True) -> list[list[str]]:
    """The operations of each region, without constants."""
    ir, _session = run_text(
        text, "cse", "hipdnn-offload", engines=[engine or FakeEngine()], options=OffloadOptions(fuse=fuse)
    )
    found: list[list[str]] = []
    inside = False
    for line in map(str.strip, ir.splitlines()):
        if '"hipdnn.graph"' in line:
            inside = True
            found.append([])
        elif line.startswith("torch.operator_terminator"):
            inside = False
        elif inside and "torch.aten." in line:
            found[-1].append(line.split("torch.aten.")[1].split()[0])
    return found


def test_an_mlp_becomes_one_graph_a_layer() -> None:
    ir, session = run_text(
        """
        func.func @mlp(%x: !torch.vtensor<[4,64],f32>, %w0: !torch.vtensor<[128,64],f32>,
            %b0: !torch.vtensor<[128],f32>, %w1: !torch.vtensor<[128,10],f32>) -> !torch.vtensor<[4,10],f32> {
          %int0 = torch.constant.int 0
          %int1 = torch.constant.int 1
          %0 = torch.aten.transpose.int %w0, %int0, %int1
              : !torch.vtensor<[128,64],f32>, !torch.int, !torch.int -> !torch.vtensor<[64,128],f32>
          %1 = torch.aten.mm %x, %0
              : !torch.vtensor<[4,64],f32>, !torch.vtensor<[64,128],f32> -> !torch.vtensor<[4,128],f32>
          %2 = torch.aten.add.Tensor %1, %b0, %int1
              : !torch.vtensor<[4,128],f32>, !torch.vtensor<[128],f32>, !torch.int -> !torch.vtensor<[4,128],f32>
          %3 = torch.aten.relu %2 : !torch.vtensor<[4,128],f32> -> !torch.vtensor<[4,128],f32>
          %4 = torch.aten.mm %3, %w1
              : !torch.vtensor<[4,128],f32>, !torch.vtensor<[128,10],f32> -> !torch.vtensor<[4,10],f32>
          return %4 : !torch.vtensor<[4,10],f32>
        }
        """,
        "hipdnn-offload",
        engines=[FakeEngine()],
    )
    check_ir(
        ir,
        """
        CHECK: func.func @mlp([[X:%.*]]: !torch.vtensor<[4,64],f32>, [[W0:%.*]]: !torch.vtensor<[128,64],f32>, [[B0:%.*]]: !torch.vtensor<[128],f32>, [[W1:%.*]]: !torch.vtensor<[128,10],f32>)
        CHECK-NEXT: [[H:%.*]] = torch.operator "hipdnn.graph"([[W0]], [[X]], [[B0]])
        CHECK: torch.aten.transpose.int
        CHECK-NEXT: torch.aten.mm
        CHECK-NEXT: torch.aten.add.Tensor
        CHECK-NEXT: [[R:%.*]] = torch.aten.relu
        CHECK-NEXT: torch.operator_terminator [[R]]
        CHECK: [[Y:%.*]] = torch.operator "hipdnn.graph"([[H]], [[W1]])
        CHECK: torch.aten.mm
        CHECK-NOT: torch.aten
        CHECK: return [[Y]]
        """,  # noqa: E501 - one operation a line, as MLIR prints them
    )
    assert session.report.refused == {}


def test_a_residual_block_becomes_two_graphs() -> None:
    body = conv("%0", "%x") + unary("%1", "%0") + conv("%2", "%1") + add("%3", "%2", "%x") + unary("%4", "%3")
    assert groups(function(body, "%4")) == [["convolution", "relu"], ["convolution", "add.Tensor", "relu"]]


def test_the_first_of_two_convolutions_takes_the_sum_and_is_moved_behind_the_second() -> None:
    body = conv("%0", "%x") + conv("%1", "%x", "%v") + add("%2", "%0", "%1") + unary("%3", "%2")
    text = function(body, "%3", arguments=f"%x: {IMAGE}, %w: {WEIGHT}, %v: {WEIGHT}")
    assert groups(text) == [["convolution"], ["convolution", "add.Tensor", "relu"]]


def test_without_fusing_each_operation_gets_its_graph() -> None:
    assert groups(function(conv("%0", "%x") + unary("%1", "%0"), "%1"), fuse=False) == [["convolution"], ["relu"]]


def test_a_value_with_two_users_ends_the_fusion() -> None:
    body = conv("%0", "%x") + unary("%1", "%0") + unary("%2", "%0", "tanh")
    assert groups(function(body, "%1", "%2")) == [["convolution"], ["relu"], ["tanh"]]


def test_a_returned_value_ends_the_fusion() -> None:
    assert groups(function(conv("%0", "%x") + unary("%1", "%0"), "%0", "%1")) == [["convolution"], ["relu"]]


def test_a_value_used_twice_within_the_fusion_does_not_end_it() -> None:
    body = conv("%0", "%x") + unary("%1", "%0", "sigmoid")
    body += f"%2 = torch.aten.mul.Tensor %0, %1 : {IMAGE}, {IMAGE} -> {IMAGE}\n"
    assert groups(function(body, "%2")) == [["convolution", "sigmoid", "mul.Tensor"]]


def test_a_group_that_a_path_leaves_and_enters_again_is_not_made() -> None:
    # conv0 -> relu -> conv1 -> add, and conv0 -> add: {conv0, add} is not convex, since conv1 lies between.
    body = conv("%0", "%x") + conv("%1", "%0") + add("%2", "%0", "%1")
    found = groups(function(body, "%2"))
    assert found == [["convolution"], ["convolution", "add.Tensor"]]


def test_two_groups_that_feed_each_other_are_not_made() -> None:
    # a0 -> b1 and b0 -> a1: {a0, a1} and {b0, b1} are convex, but not both at once.
    body = unary("%a0", "%x", "tanh") + unary("%b0", "%x", "sigmoid")
    body += add("%a1", "%a0", "%b0") + f"%b1 = torch.aten.mul.Tensor %b0, %a0 : {IMAGE}, {IMAGE} -> {IMAGE}\n"
    ir, _ = run_text(function(body, "%a1", "%b1"), "hipdnn-offload", engines=[FakeEngine()])
    assert ir.count("hipdnn.graph") >= 2  # and the module verified: no cycle, every value defined before its use


def test_what_the_engine_declines_ends_the_fusion_and_is_reported() -> None:
    text = function(conv("%0", "%x") + unary("%1", "%0"), "%1")
    ir, session = run_text(text, "hipdnn-offload", engines=[FakeEngine([CONV])])
    check_ir(
        ir,
        """
        CHECK: torch.operator "hipdnn.graph"
        CHECK: torch.aten.convolution
        CHECK: }
        CHECK: torch.aten.relu
        """,
    )
    (reasons,) = session.report.refused.values()
    assert reasons["FAKE_ENGINE"].reason == "no PointwiseAttributes"


def test_the_first_engine_that_takes_a_group_gets_it_and_the_others_are_asked_in_order() -> None:
    first, second = FakeEngine([POINTWISE], name="FIRST"), FakeEngine(name="SECOND")
    text = function(conv("%0", "%x"), "%0")
    _ir, session = run_text(text, engines=[first, second])
    (graph,) = session.graphs.values()
    assert graph.engine is second
    assert graph.declined["FIRST"].reason == "no ConvolutionFwdAttributes"


def test_equal_groups_are_asked_about_once() -> None:
    engine = FakeEngine()
    body = "".join(conv(f"%{n + 1}", f"%{n}" if n else "%x") for n in range(6))
    groups(function(body, "%6"), engine)
    assert engine.asked == 1


def test_nothing_is_offloaded_without_engines() -> None:
    ir, session = run_text(TWO_CONVS, "hipdnn-offload")
    assert "hipdnn.graph" not in ir
    assert {reason.rule for answer in session.report.refused.values() for reason in answer.values()} == {"engines"}


@pytest.mark.parametrize("passes", [("hipdnn-offload",), ("cse", "canonicalize", "hipdnn-offload")])
def test_an_empty_function_stays_as_it_is(passes: tuple[str, ...]) -> None:
    ir, _ = run_text("func.func @empty() { return }", *passes, engines=[FakeEngine()])
    check_ir(ir, "CHECK: func.func @empty() {\nCHECK-NEXT: return\nCHECK-NEXT: }")


def test_the_names_of_the_models_nodes_stay_on_the_graph() -> None:
    text = function(
        conv("%0", "%x").rstrip() + ' loc("conv_0")\n' + unary("%1", "%0").rstrip() + ' loc("relu_0")\n', "%1"
    )
    _ir, session = run_text(text, engines=[FakeEngine()])
    assert session.graphs["hipdnn_graph_0"].nodes == ("conv_0", "relu_0")
