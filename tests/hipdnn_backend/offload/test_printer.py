"""The syntax of ``hipdnn.execute``, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hipdnn_backend.offload import printer
from hipdnn_backend.offload.errors import ModelError
from hipdnn_backend.offload.mlir import new_context
from tests.support.fake_engine import FakeEngine
from tests.support.passes import TWO_CONVS, parsed, stages

SPREAD = """
func.func @two(%a: tensor<4xf32>, %e: tensor<2x?xf32>, // hipdnn.execute graph("no") is a comment here
    %s: memref<1x2xf32, strided<[8, 1], offset: 4>>) -> (tensor<4xf32>, tensor<2x?xf32>)
    attributes {note = "hipdnn.execute graph(\\"x\\") ins() outs()"} {
  %0:2 = hipdnn.execute graph("g")
      ins(%a, %s :
          tensor<4xf32>, memref<1x2xf32, strided<[8, 1], offset: 4>>)
      outs(%a, %e : tensor<4xf32>, tensor<2x?xf32>)
      -> (tensor<4xf32>, tensor<2x?xf32>)
  hipdnn.execute graph("h") ins() outs()
  return %0#0, %0#1 : tensor<4xf32>, tensor<2x?xf32>
}
"""


def test_every_stage_parses_back_to_itself() -> None:
    for name, text in stages(TWO_CONVS, [FakeEngine()]).items():
        assert printer.to_text(parsed(text), local_scope=True) == text, name


def test_an_operation_may_spread_over_lines() -> None:
    text = printer.to_text(parsed(SPREAD), local_scope=True)
    assert (
        'hipdnn.execute graph("g") ins(%arg0, %arg2 : tensor<4xf32>, memref<1x2xf32, strided<[8, 1], offset: 4>>) '
        "outs(%arg0, %arg1 : tensor<4xf32>, tensor<2x?xf32>) -> (tensor<4xf32>, tensor<2x?xf32>)"
    ) in text
    assert 'hipdnn.execute graph("h") ins() outs()\n' in text
    assert printer.to_text(parsed(text), local_scope=True) == text


def test_the_generic_form_is_read_too() -> None:
    generic = printer.generic(SPREAD)
    assert '"hipdnn.execute"(%a, %s, %a, %e) {graph = "g", operandSegmentSizes = array<i32: 2, 2>}' in generic
    assert printer.to_text(parsed(generic)) == printer.to_text(parsed(SPREAD))


def test_locations_survive() -> None:
    execute = 'hipdnn.execute graph("g") ins() outs(%a : memref<4xf32>) loc("n")'
    text = f"func.func @f(%a: memref<4xf32>) {{\n{execute}\nreturn }}"
    printed = printer.to_text(parsed(text), locations=True)
    assert printer.to_text(parsed(printed), locations=True) == printed
    assert '"n"' in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @f() {\n  hipdnn.execute\n return }", r'line 2: hipdnn.execute: expected graph\("name"\)'),
        ('func.func @f() { hipdnn.execute graph("g") outs() return }', r"expected ins\(...\)"),
        ('func.func @f() { hipdnn.execute graph("g") ins( outs() return }', "is not closed"),
        ('func.func @f() { hipdnn.execute graph("g") ins(%a : ) outs() return }', "1 operands and 0 types"),
        ('func.func @f() { hipdnn.execute graph("g") ins() outs() -> tensor<4xf32> return }', "0 outs and 1 results"),
        ('func.func @f() { hipdnn.execute graph("g") ins() outs() -> return }', "expected a type behind '->'"),
        ("func.func @f( {", "no valid MLIR module"),
        ("\0", "NUL character at offset 0"),
        ("func.func @f() { %0 = torch.aten.nonsense return }", "torch.aten.nonsense"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        printer.parse(text, new_context(), source="x.mlir")


@given(st.text(alphabet='hipdnn.execute graph("g") ins(outs:%<>,->{}\n', max_size=60))
@settings(max_examples=200)
def test_any_text_is_translated_or_refused(text: str) -> None:
    try:
        printer.generic(f"hipdnn.execute {text}")
    except ValueError as error:
        message = str(error)
    else:
        message = "line 1"
    assert message.startswith("line ")
