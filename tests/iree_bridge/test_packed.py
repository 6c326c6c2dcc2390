"""Tensors whose elements share bytes: what the IR has of them, how executables take them, what becomes of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graph_api import CustomOpAttributes, DataType, ExecutionError, Graph, PointwiseMode, TensorAttr
from iree_bridge import Target, build, support
from iree_bridge.compile.compiler import compile_code
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.runtime import Executable
from iree_bridge.runtime.program import load_module, workspace_size
from iree_bridge.runtime.recorded.recording import record
from tests.cases import all_cases
from tests.cases.custom_op import ADD
from tests.cases.matmul import graph as matmul_graph
from tests.support.filecheck import check_ir

D = DataType
CPU, GFX = Target.parse("cpu"), Target.parse("gfx942")
Array = np.ndarray[Any, Any]


def ir(target: Target, *arguments: Any, **options: Any) -> str:
    return emit_module(matmul_graph(*arguments, **options).validate(), target).ir


# ---- what is declined ------------------------------------------------------------------------------------------------


def test_custom_operations_get_no_int4() -> None:
    g = Graph("custom", io_data_type=D.FLOAT)
    a, b = g.tensor("a", dim=(4,), data_type=D.INT4), g.tensor("b", dim=(4,))
    (y,) = g.custom_op([a, b], 1, CustomOpAttributes(custom_op_id="fusilli.add", data=ADD))
    y.set_output(True).set_dim((4,)).set_data_type(D.FLOAT)
    answer = support(g, CPU)
    assert (answer.ok, answer.rule) == (False, "dtype")
    assert "the torch dialect has no type INT4" in answer.reason


# ---- the IR ----------------------------------------------------------------------------------------------------------


@pytest.mark.mlir
@pytest.mark.parametrize(
    ("target", "least", "every"),
    [(CPU, 7, False), pytest.param(CPU, 80, True, marks=pytest.mark.slow),
     pytest.param(GFX, 80, True, marks=pytest.mark.slow)],
    ids=["cpu-fast", "cpu", "gfx942"],
)  # fmt: skip
def test_no_4_bit_type_is_in_any_ir(target: Target, least: int, every: bool) -> None:
    """The torch dialect aborts the process on them."""
    graphs = [case.graph() for _, case in all_cases() if case.fast or every]
    graphs = [graph for graph in graphs if any(t.data_type is D.INT4 for t in graph.tensors)]
    texts = [emit_module(graph, target).ir for graph in graphs if support(graph, target)]
    assert len(texts) >= least
    for text in texts:
        for name in ("si4", "ui4", "xi4", ": i4"):
            assert name not in text


@pytest.mark.mlir
def test_rows_of_even_length_keep_their_dims_and_others_are_unpacked_flat() -> None:
    check_ir(
        ir(GFX, (9, 34), (34, 8), D.HALF, D.INT4, D.HALF),
        """
        CHECK:     func.func @main({{.*}}, %arg2: !torch.vtensor<[136],si8>)
        CHECK:     torch.aten.view %arg2, {{.*}} -> !torch.vtensor<[34,4],si8>
        CHECK:     call @unpack_0({{.*}}) : (tensor<34x4xi8>) -> tensor<34x4x2xi8>
        CHECK:     torch.aten.view {{.*}} : !torch.vtensor<[34,4,2],si8>, {{.*}} -> !torch.vtensor<[34,8],si8>
        CHECK-NOT: torch.aten.slice
        CHECK:     func.func private @unpack_0
        CHECK:     linalg.index 2
        """,
    )
    check_ir(
        ir(GFX, (9, 33), (33, 7), D.HALF, D.INT4, D.HALF),
        """
        CHECK: func.func @main({{.*}}, %arg2: !torch.vtensor<[116],si8>)
        CHECK: call @unpack_0({{.*}}) : (tensor<116xi8>) -> tensor<116x2xi8>
        CHECK: torch.aten.slice.Tensor {{.*}} : !torch.vtensor<[232],si8>, {{.*}} -> !torch.vtensor<[231],si8>
        CHECK: torch.aten.view {{.*}} -> !torch.vtensor<[33,7],si8>
        """,
    )


@pytest.mark.slow
@pytest.mark.mlir
@pytest.mark.parametrize(
    ("a", "b", "of_a", "of_b", "strides", "dispatches", "matrix"),
    [
        ((128, 256), (256, 128), D.HALF, D.INT4, None, 1, "x16_f16"),
        ((128, 256), (256, 128), D.HALF, D.INT4, (1, 256), 1, "x16_f16"),
        ((128, 256), (256, 128), D.INT4, D.HALF, None, 1, "x16_f16"),
        ((128, 256), (256, 128), D.BFLOAT16, D.INT4, (1, 256), 1, "x16_bf16"),
        ((128, 256), (256, 128), D.FLOAT, D.INT4, (1, 256), 1, "x4_f32"),
        ((4, 128, 256), (1, 256, 128), D.HALF, D.INT4, None, 1, "x16_f16"),
        ((128, 256), (256, 127), D.HALF, D.INT4, None, 2, "x16_f16"),
        ((128, 256), (256, 128), D.INT8, D.INT4, None, 2, "x32_i8"),
        ((128, 256), (256, 128), D.INT4, D.INT4, None, 3, "x32_i8"),
    ],
)
def test_what_an_amd_gpu_makes_of_it(
    a: Any, b: Any, of_a: D, of_b: D, strides: Any, dispatches: int, matrix: str
) -> None:
    """A product with floats unpacks INT4 rows of even length in its own kernel, with matrix instructions."""
    out = D.INT32 if of_a.is_integer and of_b.is_integer else None
    graph = matmul_graph(a, b, of_a, of_b, out or D.HALF, strides=(None, strides, None))
    found = inspect_graph(graph.validate(), GFX)
    assert (found.dispatches, found.spills) == (dispatches, 0)
    assert any(matrix in mnemonic for mnemonic in found.matrix), found.matrix


@pytest.mark.mlir
def test_its_launch_on_hip_is_recorded() -> None:
    """No constant tensor is needed for the shifts, so IREE's driver is not."""
    graph = matmul_graph((8, 32), (32, 16), D.HALF, D.INT4, D.HALF).validate()
    outputs, inputs = graph.arguments()
    code = compile_code(graph, GFX)
    size = workspace_size(load_module(code.vmfb))
    recording = record(code.vmfb, [tensor.nbytes for tensor in (*outputs, *inputs)], size)
    assert len(recording.commands) == len(recording.kernels) == code.dispatches == 1


# ---- executables -----------------------------------------------------------------------------------------------------

VALUES = np.array([[-8, 7, -1], [0, 3, -5], [6, 1, -2]])
BYTES = [0x78, 0x0F, 0xB3, 0x16, 0x0E]


@pytest.fixture(scope="module")
def doubled() -> tuple[Executable, TensorAttr, TensorAttr]:
    """y = 2 x for x of INT4."""
    g = Graph("doubled", io_data_type=D.INT32)
    x = g.tensor("x", dim=(3, 3), data_type=D.INT4)
    y = g.pointwise(PointwiseMode.ADD, x, x).set_output(True)
    return build(g.validate(), device="cpu"), x, y


@pytest.mark.iree_cpu
def test_values_and_bytes_are_taken(doubled: tuple[Executable, TensorAttr, TensorAttr]) -> None:
    executable, x, y = doubled
    for given in (VALUES.astype(ml_dtypes.int4), np.array(BYTES, np.uint8), np.array([*BYTES[:4], 0xAE], np.uint8)):
        result = y.empty()
        for _ in range(2):  # the second time by the quick way, if there is one
            result[...] = 77
            executable.run({x: given, y: result})
            np.testing.assert_array_equal(result, 2 * VALUES)
    turned = np.asfortranarray(VALUES.astype(ml_dtypes.int4))
    executable.run({x: turned, y: result})
    np.testing.assert_array_equal(result, 2 * VALUES)


@pytest.mark.iree_cpu
def test_a_bound_call_reads_bytes_each_time_and_values_only_of_constants(
    doubled: tuple[Executable, TensorAttr, TensorAttr],
) -> None:
    executable, x, y = doubled
    memory, result = x.pack(VALUES), y.empty()
    call = executable.bind({x: memory, y: result})
    call()
    np.testing.assert_array_equal(result, 2 * VALUES)
    memory[...] = x.pack(VALUES[::-1])
    call()
    np.testing.assert_array_equal(result, 2 * VALUES[::-1])
    values = VALUES.astype(ml_dtypes.int4)
    with pytest.raises(ExecutionError, match=r"input 'x': memory: expected uint8 \[5\], got values of int4; a bound"):
        executable.bind({x: values, y: result})
    executable.bind({x: values, y: result}, constants=[x])()
    np.testing.assert_array_equal(result, 2 * VALUES)


@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (VALUES.astype(np.int8), r"dtype: expected uint8 \(its bytes\) or int4 \(its values\), got int8; give its byt"),
        (VALUES.astype(np.float32), "dtype: .* got float32"),
        (np.zeros((3, 3), np.uint8), r"rank: expected 1, got 2"),
        (np.zeros(4, np.uint8), r"dims: expected \(5,\), got \(4,\)"),
        (np.zeros(10, np.uint8)[::2], r"strides: expected \(1,\), got \(2,\)"),
        (np.zeros((3, 4), ml_dtypes.int4), r"dims: expected \(3, 3\), got \(3, 4\); reshape"),
    ],
)
def test_what_is_no_int4_tensor(doubled: tuple[Executable, TensorAttr, TensorAttr], given: Array, message: str) -> None:
    executable, x, y = doubled
    with pytest.raises(ExecutionError, match=rf"input 'x': {message}"):
        executable.run({x: given, y: y.empty()})
