"""The check of custom operations' text, and what the emitter makes of it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_api import CompileError, CustomOpAttributes, NotSupportedError
from graph_api.ops.custom_op import MAX_TEXT, CustomOpNode
from iree_bridge.emit.custom.template import CustomTextError, checked_text, fill_template
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.custom_op import ADD, GENERIC, REFUSED, TWO, graph
from tests.support.filecheck import check_ir

CPU = Target.parse("cpu")


def node(text: str = ADD) -> CustomOpNode:
    (made,) = graph(text, [(4, 3), (4, 3)], [(4, 3)]).validate().nodes
    assert isinstance(made, CustomOpNode)
    return made


def test_placeholders_are_filled_in() -> None:
    text = "{FUNC_NAME} {IN0_TYPE} {IN1_DTYPE} {OUT0_DIM1} {other} {IN0_TYPE"
    assert fill_template(node(text), "f") == "f !torch.vtensor<[4,3],f32> f32 3 {other} {IN0_TYPE"


@pytest.mark.parametrize("name", REFUSED)
def test_refused_texts_say_why(name: str) -> None:
    rule, text = REFUSED[name]
    with pytest.raises(CustomTextError) as caught:
        checked_text(node(text), "f")
    assert caught.value.rule == rule
    assert str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("grid_sampler", "compiled code would read outside the image"),
        ("linalg_det", "its elimination exchanges no rows"),
    ],
)
def test_operations_that_compile_to_wrong_code_are_refused(name: str, reason: str) -> None:
    text = ADD.replace(
        "%one =", f"%g = torch.aten.{name} %a, %b : {{IN0_TYPE}}, {{IN1_TYPE}} -> {{OUT0_TYPE}}\n  %one ="
    )
    with pytest.raises(CustomTextError, match=f"{name} is refused: {reason}"):
        checked_text(node(text), "f")


@pytest.mark.parametrize("name", ["rand_like", "randint.low", "normal_functional", "bernoulli.p", "multinomial"])
def test_random_operations_are_refused(name: str) -> None:
    """Two that looked alike gave the same numbers, and multinomial ended the process."""
    text = ADD.replace("%one =", f"%g = torch.aten.{name} %a : {{IN0_TYPE}} -> {{OUT0_TYPE}}\n  %one =")
    with pytest.raises(
        CustomTextError, match=rf"torch\.aten\.{name} is refused: compiled code gives draws that look alike"
    ):
        checked_text(node(text), "f")


def test_a_name_cannot_be_passed_through_a_placeholder() -> None:
    with pytest.raises(CustomTextError, match="symbol @f"):
        checked_text(node(ADD.replace("torch.constant.int 1", "torch.constant.int 1 @{FUNC_NAME}")), "f")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.integers(0, len(ADD)))
def test_any_text_is_answered(text: str, at: int) -> None:
    """Whatever is put into it, the check passes or raises its own error."""
    made = node()
    attributes = CustomOpAttributes(custom_op_id="fusilli.x", data=ADD[:at] + text + ADD[at:])
    changed = CustomOpNode(made.name, attributes, made.inputs, made.outputs)
    with contextlib.suppress(CustomTextError):
        checked_text(changed, "f")


@pytest.mark.mlir
def test_the_function_joins_the_module_and_is_called() -> None:
    check_ir(
        emit_module(graph(TWO, [(4, 3)], [(4, 3), (3, 4)]).validate(), CPU).ir,
        """
        CHECK-LABEL: func.func @main
        CHECK:       [[R:%.*]]:2 = call @custom_0({{.*}}) : (!torch.vtensor<[4,3],f32>)
        CHECK-LABEL: func.func private @custom_0
        CHECK:       torch.aten.abs
        """,
    )


@pytest.mark.mlir
def test_builtin_operations_are_allowed() -> None:
    assert "linalg.generic" in emit_module(graph(GENERIC, [(4, 3)], [(4, 3)]).validate(), CPU).ir


@pytest.mark.mlir
def test_what_is_no_mlir_is_a_compile_error_that_names_the_node() -> None:
    text = ADD.replace("return %c", "return %undefined")
    with pytest.raises(CompileError, match="custom_op_0.*fusilli.test.*not valid MLIR"):
        emit_module(graph(text, [(4, 3), (4, 3)], [(4, 3)]).validate(), CPU)


@pytest.mark.mlir
def test_types_that_do_not_agree_with_the_operation_are_a_compile_error() -> None:
    """Folding finds that zeros of 5 x 5 are no tensor of 4 x 3; MLIR's own error got past the emitter."""
    zeros = """
  %five = torch.constant.int 5
  %size = torch.prim.ListConstruct %five, %five : (!torch.int, !torch.int) -> !torch.list<int>
  %none = torch.constant.none
  %c = torch.aten.new_zeros %a, %size, %none, %none, %none, %none : {IN0_TYPE}, !torch.list<int>, !torch.none,
    !torch.none, !torch.none, !torch.none -> {OUT0_TYPE}
"""
    head, rest = ADD.split("\n  %one", 1)
    text = head + zeros + "  return" + rest.split("  return", 1)[1]
    with pytest.raises(CompileError, match="graph 'custom': MLIR refuses what the emitted IR folds to"):
        emit_module(graph(text, [(4, 3), (4, 3)], [(4, 3)]).validate(), CPU)


@pytest.mark.mlir
def test_the_emitter_checks_the_text_itself() -> None:
    with pytest.raises(NotSupportedError, match="hal.executable"):
        emit_module(graph(REFUSED["hal"][1], [(4, 3), (4, 3)], [(4, 3)]).validate(), CPU)


LOOP = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}, %y: {IN1_TYPE}) -> {OUT0_TYPE} {
  %n = torch.constant.int 5
  %true = torch.constant.bool true
  %int-1 = torch.constant.int -1
  %r = torch.prim.Loop %n, %true, init(%x) {
  ^bb0(%i: !torch.int, %acc: {IN0_TYPE}):
    %one = torch.constant.int 1
    %next = torch.aten.add.Tensor %acc, %y, %one : {IN0_TYPE}, {IN1_TYPE}, !torch.int -> {IN0_TYPE}
    torch.prim.Loop.condition %true, iter(%next : {IN0_TYPE})
  } : (!torch.int, !torch.bool, {IN0_TYPE}) -> {OUT0_TYPE}
  return %r : {OUT0_TYPE}
}
"""


def test_loops_of_constant_length_pass() -> None:
    assert checked_text(node(LOOP), "f")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%n = torch.constant.int 5", "%n = torch.constant.int -5", "is no earlier constant"),
        ("%n = torch.constant.int 5", "%n = torch.aten.item %x : {IN0_TYPE} -> !torch.int", "is no earlier constant"),
        ("%n = torch.constant.int 5", "%n = torch.constant.int 999999999", "999999999 rounds"),
        ("Loop %n", "Loop %one", "%one, is no earlier constant"),
        ("Loop %n", "Loop %i", "%i, is no earlier constant"),
        ("Loop %n", "Loop %n-1", "%n-1, is no earlier constant"),  # another name, not a difference
    ],
)
def test_other_loops_do_not(old: str, new: str, message: str) -> None:
    with pytest.raises(CustomTextError, match=message):
        checked_text(node(LOOP.replace(old, new)), "f")


NESTED = """
func.func private @{FUNC_NAME}(%x: {IN0_TYPE}, %y: {IN1_TYPE}) -> {OUT0_TYPE} {
  %m = torch.constant.int 1024
  %n = torch.constant.int INNER
  %true = torch.constant.bool true
  %r = torch.prim.Loop %m, %true, init(%x) {
  ^bb0(%i: !torch.int, %outer: {IN0_TYPE}):
    %s = torch.prim.Loop %n, %true, init(%outer) {
    ^bb1(%j: !torch.int, %inner: {IN0_TYPE}):
      torch.prim.Loop.condition %true, iter(%inner : {IN0_TYPE})
    } : (!torch.int, !torch.bool, {IN0_TYPE}) -> {IN0_TYPE}
    torch.prim.Loop.condition %true, iter(%s : {IN0_TYPE})
  } : (!torch.int, !torch.bool, {IN0_TYPE}) -> {OUT0_TYPE}
  return %r : {OUT0_TYPE}
}
"""


def test_rounds_of_nested_loops_multiply() -> None:
    assert checked_text(node(NESTED.replace("INNER", "1024")), "f")
    with pytest.raises(CustomTextError, match="its loops make 1049600 rounds, at most 1048576"):
        checked_text(node(NESTED.replace("INNER", "1025")), "f")


@pytest.mark.a_few("1x", "0x")
@pytest.mark.parametrize("filler", ["1x", "0x", "()", "%a:1"])
def test_the_longest_texts_are_answered(filler: str) -> None:
    """In time that grows with the length alone; with its square these would run into the time limit of tests."""
    head, tail = ADD.split("\n", 2)[1] + "\n", "\n}"
    text = head + filler * ((MAX_TEXT - len(head + tail)) // len(filler)) + tail
    with contextlib.suppress(CustomTextError):
        checked_text(node(text), "f")


@pytest.mark.parametrize(
    "line",
    [
        "%f-Inf = torch.constant.float 0xFFF0000000000000",
        "%l = torch.vtensor.literal(dense<0xFF800000> : tensor<f32>) : !torch.vtensor<[],f32>",
        '%l = torch.vtensor.literal(dense<"0x00ABCDEF"> : tensor<2xf16>) : !torch.vtensor<[2],f16>',
        '%s = torch.constant.str "bij,bjk->bik"',
        "%d = torch.aten.tanh %x : !torch.vtensor<[?,3],f32> -> !torch.vtensor<[?,3],f32>",
        "%q = torch.aten.int_repr %x : !torch.vtensor<[2],!torch.quint8> -> !torch.vtensor<[2],ui8>",
        "%o = torch.derefine %x : !torch.none to !torch.optional<int>",
        "%c = torch.aten.view_as_complex %x : !torch.vtensor<[2,2],f32> -> !torch.vtensor<[2],complex<f32>>",
    ],
)
def test_what_importers_of_models_write_passes(line: str) -> None:
    assert checked_text(node(ADD.replace("%one =", line + "\n  %one =")), "f")
