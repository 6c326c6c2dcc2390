"""Lowering: the final memref module, written by hand, as a program. Run with kernels in numpy."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hipdnn_backend.offload.mlir import ir, new_context
from hipdnn_backend.offload.program.document import from_document, to_document
from hipdnn_backend.offload.program.lowering import Lowered, LoweringError, lower
from hipdnn_backend.offload.program.program import Buffer, Copy, Execute, Program, ProgramError, Space
from hipdnn_backend.offload.program.runner import Prepared, prepare
from tests.hipdnn_backend.fake_plans import FakeGraph, GuardedMemory, compiled, wire

pytestmark = pytest.mark.mlir


@pytest.fixture(scope="module")
def context() -> Any:
    return new_context()


@pytest.fixture
def lowered(context: Any) -> Any:
    """Lowers the text of a module; names follow from the numbers of inputs, constants and outputs."""

    def run(text: str, graphs: list[FakeGraph], counts: tuple[int, int, int], **options: Any) -> Lowered:
        with context, ir.Location.unknown():
            module = ir.Module.parse(text)
        names = [[f"{kind}{number}" for number in range(n)] for kind, n in zip("xwy", counts, strict=True)]
        return lower(
            module,
            {graph.name: graph for graph in graphs},
            inputs=names[0], constants=names[1], outputs=names[2],
            **options,
        )  # fmt: skip

    return run


def ready(made: Lowered, **constants: Any) -> Prepared:
    return prepare(made.program, made.plans, GuardedMemory(), {**made.literals, **constants})


TWO_STEPS = """
func.func @two(%a: memref<2x3xf32>, %w: memref<2x3xf32>, %y: memref<2x3xf32>) {
  %t = memref.alloc() {alignment = 64 : i64} : memref<2x3xf32>
  "hipdnn.execute"(%a, %w, %t) {graph = "g0", operandSegmentSizes = array<i32: 2, 1>}
      : (memref<2x3xf32>, memref<2x3xf32>, memref<2x3xf32>) -> ()
  "hipdnn.execute"(%t, %y) {graph = "g1", operandSegmentSizes = array<i32: 1, 1>}
      : (memref<2x3xf32>, memref<2x3xf32>) -> ()
  return
}"""
ADD = compiled("g0", wire("add", [(2, 3), (2, 3)], (2, 3)), workspace=100)
RELU = compiled("g1", wire("relu", [(2, 3)], (2, 3)), workspace=10)
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
W = np.array([[1, 1, -9], [1, 1, 1]], np.float32)


def test_the_walkthroughs_last_stage(lowered: Any) -> None:
    """Two graphs in a row: the buffer between them is a temporary, the second writes the caller's output."""
    made = lowered(TWO_STEPS, [ADD, RELU], (1, 1, 1))
    program: Program = made.program
    assert [buffer.space for buffer in program.buffers] == [
        Space.INPUT, Space.CONSTANT, Space.OUTPUT, Space.TEMPORARY,
    ]  # fmt: skip
    assert [type(step) for step in program.steps] == [Execute, Execute]
    # The temporary (24 bytes) lives in both steps, the workspaces (100, 10) in one each.
    # The smallest arena has the larger workspace first, then the temporary.
    assert program.arena == 128 + 24
    assert program.naive == 64 + 128 + 64
    assert program.graphs[0].nodes == ("node",)
    assert ready(made, w0=W).run({"x0": X})["y0"].tolist() == [[2, 0, 0], [0, 6, 0]]


def test_equal_graphs_share_a_plan(lowered: Any) -> None:
    relu = compiled("g0", wire("relu", [(2, 3)], (2, 3)))
    again = replace(relu, name="g1")
    text = TWO_STEPS.replace("%a, %w, %t", "%a, %t").replace("2, 1>", "1, 1>")
    text = text.replace("(memref<2x3xf32>, memref<2x3xf32>, memref<2x3xf32>) -> ()", "(memref<2x3xf32>, memref<2x3xf32>) -> ()")  # fmt: skip # noqa: E501
    made = lowered(text, [relu, again], (1, 1, 1))
    assert len(made.plans) == made.program.plans == 1
    assert [graph.plan for graph in made.program.graphs] == [0, 0]


def test_views_are_looks_at_one_buffer(lowered: Any) -> None:
    """A concatenation: two graphs write into parts of one buffer, which is read as a whole and in another shape."""
    text = """
    func.func @cat(%a: memref<16x4xf32>, %y: memref<128xf32>) {
      %t = memref.alloc() : memref<32x4xf32>
      %lo = memref.subview %t[0, 0] [16, 4] [1, 1] : memref<32x4xf32> to memref<16x4xf32, strided<[4, 1]>>
      %hi = memref.subview %t[16, 0] [16, 4] [1, 1]
          : memref<32x4xf32> to memref<16x4xf32, strided<[4, 1], offset: 64>>
      "hipdnn.execute"(%a, %lo) {graph = "relu", operandSegmentSizes = array<i32: 1, 1>}
          : (memref<16x4xf32>, memref<16x4xf32, strided<[4, 1]>>) -> ()
      "hipdnn.execute"(%a, %hi) {graph = "double", operandSegmentSizes = array<i32: 1, 1>}
          : (memref<16x4xf32>, memref<16x4xf32, strided<[4, 1], offset: 64>>) -> ()
      %flat = memref.collapse_shape %t [[0, 1]] : memref<32x4xf32> into memref<128xf32>
      memref.copy %flat, %y : memref<128xf32> to memref<128xf32>
      return
    }"""
    graphs = [
        compiled("relu", wire("relu", [(16, 4)], (16, 4))),
        compiled("double", wire("double", [(16, 4)], (16, 4))),
    ]
    made = lowered(text, graphs, (1, 0, 1))
    assert [buffer.nbytes for buffer in made.program.buffers] == [256, 512, 512]
    assert [type(step) for step in made.program.steps] == [Execute, Execute, Copy]
    x = np.random.default_rng(0).standard_normal((16, 4), np.float32)
    expected = np.concatenate([np.maximum(x, 0), x * 2]).reshape(-1)
    np.testing.assert_array_equal(ready(made).run({"x0": x})["y0"], expected)


def test_operands_that_a_graph_cannot_use_are_staged(lowered: Any) -> None:
    """Columns of a matrix: neither their strides nor their addresses are what the graph was compiled for."""
    text = """
    func.func @columns(%a: memref<4x8xf32>, %y: memref<4x8xf32>) {
      %lo = memref.subview %a[0, 0] [4, 3] [1, 1] : memref<4x8xf32> to memref<4x3xf32, strided<[8, 1]>>
      %hi = memref.subview %y[0, 5] [4, 3] [1, 1] : memref<4x8xf32> to memref<4x3xf32, strided<[8, 1], offset: 5>>
      memref.copy %a, %y : memref<4x8xf32> to memref<4x8xf32>
      "hipdnn.execute"(%lo, %hi) {graph = "g", operandSegmentSizes = array<i32: 1, 1>}
          : (memref<4x3xf32, strided<[8, 1]>>, memref<4x3xf32, strided<[8, 1], offset: 5>>) -> ()
      return
    }"""
    made = lowered(text, [compiled("g", wire("double", [(4, 3)], (4, 3)))], (1, 0, 1))
    assert [type(step) for step in made.program.steps] == [Copy, Copy, Execute, Copy]
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    expected = x.copy()
    expected[:, 5:] = x[:, :3] * 2
    np.testing.assert_array_equal(ready(made).run({"x0": x})["y0"], expected)


def test_strides_that_the_graph_has_too_need_no_copy(lowered: Any) -> None:
    text = """
    func.func @columns(%a: memref<4x16xf32>, %y: memref<4x3xf32>) {
      %lo = memref.subview %a[0, 0] [4, 3] [1, 1] : memref<4x16xf32> to memref<4x3xf32, strided<[16, 1]>>
      "hipdnn.execute"(%lo, %y) {graph = "g", operandSegmentSizes = array<i32: 1, 1>}
          : (memref<4x3xf32, strided<[16, 1]>>, memref<4x3xf32>) -> ()
      return
    }"""
    made = lowered(text, [compiled("g", wire("double", [(4, 3)], (4, 3), strides={1: (16, 1)}))], (1, 0, 1))
    assert [type(step) for step in made.program.steps] == [Execute]
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    np.testing.assert_array_equal(ready(made).run({"x0": x})["y0"], x[:, :3] * 2)


def test_dense_memory_is_the_graphs_to_arrange(lowered: Any) -> None:
    """Two graphs that agree on column-major order between them: the buffer's own row-major type does not matter."""
    text = TWO_STEPS.replace("%a, %w, %t", "%a, %w, %t")
    columns = {100: (1, 2)}
    first = compiled("g0", wire("add", [(2, 3), (2, 3)], (2, 3), strides=columns))
    second = compiled("g1", wire("relu", [(2, 3)], (2, 3), strides={1: (1, 2)}))
    made = lowered(text, [first, second], (1, 1, 1))
    assert len(made.program.steps) == 2
    np.testing.assert_array_equal(ready(made, w0=W).run({"x0": X})["y0"], np.maximum(X + W, 0))


def test_operands_that_a_graph_does_not_read_are_left_out(lowered: Any) -> None:
    graph = replace(compiled("g0", wire("relu", [(2, 3)], (2, 3))), inputs=(1, None))
    made = lowered(TWO_STEPS, [graph, RELU], (1, 1, 1))
    assert len(made.program.steps[0].operands) == 2
    np.testing.assert_array_equal(ready(made, w0=W).run({"x0": X})["y0"], np.maximum(X, 0))


def test_literals_of_the_module_are_constants(lowered: Any) -> None:
    text = """
    memref.global "private" constant @c : memref<2x3xf32> = dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]>
    memref.global "private" constant @splat : memref<2x3xf32> = dense<-1.0>
    func.func @f(%a: memref<2x3xf32>, %y: memref<2x3xf32>, %z: memref<2x3xf32>) {
      %c = memref.get_global @c : memref<2x3xf32>
      %again = memref.get_global @c : memref<2x3xf32>
      %s = memref.get_global @splat : memref<2x3xf32>
      "hipdnn.execute"(%c, %s, %y) {graph = "g", operandSegmentSizes = array<i32: 2, 1>}
          : (memref<2x3xf32>, memref<2x3xf32>, memref<2x3xf32>) -> ()
      memref.copy %again, %z : memref<2x3xf32> to memref<2x3xf32>
      return
    }"""
    made = lowered(text, [replace(ADD, name="g")], (1, 0, 2))
    results = ready(made).run({"x0": X})
    assert results["y0"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert results["y1"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert sorted(made.literals) == ["@c", "@splat"]


@pytest.mark.parametrize(
    ("kind", "text", "dtype", "values"),
    [
        ("2xbf16", "dense<[1.5, -2.0]>", "bfloat16", [1.5, -2.0]),
        ("3xbf16", "dense<[0x7F80, 0xFF80, 1.0]>", "bfloat16", [float("inf"), float("-inf"), 1.0]),
        ("2xbf16", "dense<0.5>", "bfloat16", [0.5, 0.5]),
        ("2xf16", "dense<[1.5, -2.0]>", "float16", [1.5, -2.0]),
        ("2xf64", "dense<[1.5, -2.0]>", "float64", [1.5, -2.0]),
        ("3xi1", "dense<[true, false, true]>", "bool", [True, False, True]),
        ("9xi1", "dense<true>", "bool", [True] * 9),
        ("2xi64", "dense<[-5, 7]>", "int64", [-5, 7]),
        ("2xi8", "dense<[-5, 7]>", "int8", [-5, 7]),
        ("2xui8", "dense<[200, 7]>", "uint8", [200, 7]),
        ("2xf8E4M3FN", "dense<[1.5, -2.0]>", "float8_e4m3fn", [1.5, -2.0]),
        ("2xf8E5M2", "dense<[1.5, -2.0]>", "float8_e5m2", [1.5, -2.0]),
        ("bf16", "dense<0.5>", "bfloat16", 0.5),
        ("f8E4M3FN", "dense<-2.0>", "float8_e4m3fn", -2.0),
        ("0xf32", "dense<>", "float32", []),
    ],
)
def test_literals_of_every_type(lowered: Any, kind: str, text: str, dtype: str, values: Any) -> None:
    module = f"""
    memref.global "private" constant @c : memref<{kind}> = {text}
    func.func @f(%y: memref<{kind}>) {{
      %c = memref.get_global @c : memref<{kind}>
      memref.copy %c, %y : memref<{kind}> to memref<{kind}>
      return
    }}"""
    result = ready(lowered(module, [], (0, 0, 1))).run({})["y0"]
    assert result.dtype.name == dtype
    assert result.tolist() == values


def test_a_scalar_is_a_tensor_without_dims(lowered: Any) -> None:
    text = (
        "func.func @f(%a: memref<f32>, %y: memref<f32>) {\n memref.copy %a, %y : memref<f32> to memref<f32>\n return }"
    )
    assert ready(lowered(text, [], (1, 0, 1))).run({"x0": np.array(3, np.float32)})["y0"] == 3


def test_an_empty_function(lowered: Any) -> None:
    program = lowered("func.func @f() { return }", [], (0, 0, 0)).program
    assert (program.steps, program.arena) == ((), 0)


def test_gpus_get_their_alignment(lowered: Any) -> None:
    made = lowered(TWO_STEPS, [ADD, RELU], (1, 1, 1), alignment=256)
    assert made.program.alignment == 256
    assert made.program.arena == 256 + 24


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"hipdnn.execute"(%t, %y)', '"other.op"(%t, %y)', "operation other.op is none that a program can have"),
        ('graph = "g1"', 'graph = "g7"', r"graph 'g7' was not compiled; there are \['g0', 'g1'\]"),
        ("%y: memref<2x3xf32>)", "%y: memref<2x3xf32>, %more: memref<1xf32>)", "it takes 4 arguments"),
        ("array<i32: 1, 1>", "array<i32: 2, 0>", "hipdnn.execute g1: 2 ins and 0 outs; the graph has 1 and 1"),
        ("func.func @two", "func.func @other() { return }\nfunc.func @two", "two public functions"),
        ("func.func @two", "func.func private @two", "it has no public function"),
    ],
)
def test_modules_that_are_no_programs(lowered: Any, old: str, new: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lowered(TWO_STEPS.replace(old, new), [ADD, RELU], (1, 1, 1))


@pytest.mark.parametrize("kind", ["?xf32", "4xf32, strided<[?], offset: ?>", "4xi7", "4xindex"])
def test_types_that_have_no_memory(lowered: Any, kind: str) -> None:
    with pytest.raises(LoweringError, match="x0"):
        lowered(f"func.func @f(%a: memref<{kind}>) {{ return }}", [], (1, 0, 0))


def test_inputs_and_constants_are_not_written(lowered: Any) -> None:
    for counts, what in (((3, 0, 0), "input 'x2'"), ((0, 3, 0), "constant 'w2'")):
        with pytest.raises(ProgramError, match=rf"step 1 \(g1\) writes {what}"):
            lowered(TWO_STEPS, [ADD, RELU], counts)


def test_an_operand_smaller_than_the_graphs_tensor(lowered: Any) -> None:
    with pytest.raises(LoweringError, match=r"hipdnn.execute g1: tensor 1: 't1' has dims \(2, 4\)"):
        lowered(TWO_STEPS, [ADD, compiled("g1", wire("relu", [(2, 4)], (2, 3)))], (1, 1, 1))


# ---- JSON


def test_a_program_survives_json(lowered: Any) -> None:
    program = lowered(TWO_STEPS, [ADD, RELU], (1, 1, 1)).program
    assert from_document(json.loads(json.dumps(to_document(program)))) == program


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 1, "version 1 of a program is unknown"),
        (("views", 0, 0), 99, "view 0: there is no buffer 99"),
        (("views", 0, 1), 1, r"view 0 reaches to byte 28 of 'x0', which has 24"),
        (("views", 0, 3), [3, -1], r"views\[0\]: -1 is no number"),
        (("views", 0, 4), "object", "element type 'object' is unknown"),
        (("steps", 0, "operands", 0), 77, "step 0: there is no view 77"),
        (("steps", 0, "graph"), 7, None),
        (("steps", 0, "execute"), 7, "step 0: there is no graph 7"),
        (("steps", 0, "operands"), [0], "step 0: 1 operands for graph 'g0'"),
        (("steps", 0, "workspace"), 64, "the memory plan of program 'main' is wrong"),
        (("arena",), 10, "sticks out of the arena of 10 bytes"),
        (("alignment",), 48, "no power of two"),
        (("buffers", 3, 0), "secret", "'secret' is no kind of memory"),
        (("inputs", 0, 1), 2, "input 'x0' lies in memory of another kind: output"),
        (("inputs",), "x", "inputs: an array is expected"),
        (("graphs", 0, "plan"), True, "True is no number"),
    ],
)
def test_documents_that_are_no_programs(lowered: Any, path: tuple[Any, ...], value: Any, message: str | None) -> None:
    document = to_document(lowered(TWO_STEPS, [ADD, RELU], (1, 1, 1)).program)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    if message is None:
        from_document(document)
        return
    with pytest.raises(ProgramError, match=message):
        from_document(document)


def test_the_planner_is_not_trusted(lowered: Any) -> None:
    program = lowered(TWO_STEPS, [ADD, RELU], (1, 1, 1)).program
    moved = tuple(replace(b, offset=0) if b.space is Space.TEMPORARY else b for b in program.buffers)
    assert isinstance(moved[0], Buffer)
    with pytest.raises(ProgramError, match="memory plan"):
        replace(program, buffers=moved).check()
