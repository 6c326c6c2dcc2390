"""What matrix products look like in IR, and what AMD code becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from graph_api import DataType, PointwiseMode
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.matmul import matmul_types
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.matmul import bias_then
from tests.cases.matmul import graph as matmul_graph
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

D, M = DataType, PointwiseMode
CPU, GFX = Target.parse("cpu"), Target.parse("gfx942")


def text(target: Target, *arguments: Any, **options: Any) -> str:
    return emit_module(matmul_graph(*arguments, **options).validate(), target).ir


def test_half_operands_are_multiplied_as_they_are_and_the_result_is_rounded_once() -> None:
    check_ir(
        text(GFX, (9, 33), (33, 7), D.HALF, strides=(None, (1, 33), None), epilogue=bias_then((1, 7), M.RELU_FWD)),
        """
        CHECK-LABEL: func.func @main
        CHECK:       [[B:%.*]] = torch.aten.permute {{.*}} -> !torch.vtensor<[33,7],f16>
        CHECK:       torch.aten.mm {{.*}}, [[B]] : {{.*}}[9,33],f16>, {{.*}}[33,7],f16> -> !torch.vtensor<[9,7],f32>
        CHECK:       torch.aten.add.Tensor
        CHECK:       torch.aten.relu
        CHECK:       torch.prims.convert_element_type {{.*}} -> !torch.vtensor<[9,7],f16>
        CHECK-NOT:   torch.prims.convert_element_type
        """,
    )


def test_repeated_batch_dims_become_rows_or_columns_and_nothing_is_copied() -> None:
    check_ir(
        text(GFX, (2, 6, 7, 8), (2, 3, 8, 5)),
        """
        CHECK:     torch.aten.bmm {{.*}} : !torch.vtensor<[6,14,8],f32>, !torch.vtensor<[6,8,5],f32>
        CHECK-NOT: torch.aten.permute
        """,
    )
    check_ir(
        text(GFX, (2, 3, 7, 8), (2, 6, 8, 5)),
        """
        CHECK: torch.aten.permute {{.*}} -> !torch.vtensor<[2,3,8,2,5],f32>
        CHECK: torch.aten.bmm {{.*}} : !torch.vtensor<[6,7,8],f32>, !torch.vtensor<[6,8,10],f32>
        CHECK: torch.aten.permute {{.*}} -> !torch.vtensor<[2,3,2,7,5],f32>
        """,
    )
    assert "broadcast_to" not in text(GFX, (4, 1, 7, 9), (1, 6, 9, 5))


def test_one_shared_matrix_is_a_plain_product() -> None:
    check_ir(
        text(GFX, (4, 7, 9), (1, 9, 5)),
        "CHECK: torch.aten.mm {{.*}} : !torch.vtensor<[28,9],f32>, !torch.vtensor<[9,5],f32>",
    )


@pytest.mark.parametrize(
    ("target", "a", "b", "dtype", "padded"),
    [
        (GFX, (3, 5, 9), (3, 9, 7), D.HALF, "[3,16,7],f16"),
        (GFX, (2, 6, 7, 20), (2, 3, 20, 5), D.BFLOAT16, "[6,32,5],bf16"),
        (GFX, (3, 5, 9), (3, 9, 7), D.FLOAT, "[3,12,7],f32"),
        (GFX, (3, 5, 80), (3, 80, 7), D.HALF, ""),
        (GFX, (3, 5, 12), (3, 12, 7), D.FLOAT, ""),
        (GFX, (3, 1, 9), (3, 9, 7), D.HALF, ""),
        (GFX, (3, 5, 9), (3, 9, 1), D.HALF, ""),
        (GFX, (3, 5, 9), (1, 9, 7), D.HALF, ""),
        (GFX, (3, 5, 9), (3, 9, 7), D.INT8, ""),
        (CPU, (3, 5, 9), (3, 9, 7), D.HALF, ""),
    ],
)
def test_a_gpu_gets_batched_products_in_whole_steps(target: Target, a: Any, b: Any, dtype: Any, padded: str) -> None:
    """Else its kernels read rows that are not there, and what they find may be NaN."""
    ir = text(target, a, b, dtype, None, D.INT32 if dtype is D.INT8 else None)
    assert ir.count("torch.aten.constant_pad_nd") == ir.count("util.optimization_barrier") == (2 if padded else 0)
    if padded:
        assert any("constant_pad_nd" in line and line.endswith(f"!torch.vtensor<{padded}>") for line in ir.splitlines())


def test_a_gpu_keeps_widened_operands_apart_from_their_conversion() -> None:
    """Otherwise the conversion is folded into the product, which has operands of two types then."""
    mixed = ((9, 33), (33, 7), D.HALF, D.BFLOAT16, D.FLOAT)
    assert text(GFX, *mixed).count("torch.aten.add.Scalar") == 2
    assert "torch.aten.add.Scalar" not in text(CPU, *mixed)
    assert text(GFX, (9, 33), (33, 7), D.INT8, D.INT32, D.INT32).count("util.optimization_barrier") == 2


def test_gfx908_multiplies_bf16_as_f32() -> None:
    arguments = ((9, 33), (33, 7), D.BFLOAT16)
    check_ir(
        text(Target.parse("gfx908"), *arguments),
        "CHECK: torch.aten.mm {{.*}} : !torch.vtensor<[9,33],f32>, !torch.vtensor<[33,7],f32>",
    )
    check_ir(
        text(GFX, *arguments), "CHECK: torch.aten.mm {{.*}} : !torch.vtensor<[9,33],bf16>, !torch.vtensor<[33,7],bf16>"
    )


@pytest.mark.parametrize(
    ("a", "b", "compute", "terms", "expected"),
    [
        (D.HALF, D.HALF, D.FLOAT, 8, (D.HALF, D.FLOAT)),
        (D.INT8, D.BFLOAT16, D.FLOAT, 8, (D.BFLOAT16, D.FLOAT)),
        (D.HALF, D.BFLOAT16, D.FLOAT, 8, (D.FLOAT, D.FLOAT)),
        (D.INT32, D.HALF, D.FLOAT, 8, (D.FLOAT, D.FLOAT)),
        (D.HALF, D.HALF, D.DOUBLE, 8, (D.DOUBLE, D.DOUBLE)),
        (D.INT8, D.INT8, D.INT32, 10**6, (D.INT8, D.INT32)),
        (D.INT8, D.BOOLEAN, D.INT32, 8, (D.INT8, D.INT32)),
        (D.INT8, D.UINT8, D.INT32, 8, (D.INT32, D.INT32)),
        (D.UINT8, D.UINT8, D.FLOAT, 2**15 - 1, (D.INT32, D.INT32)),
        (D.UINT8, D.UINT8, D.FLOAT, 2**15, (D.FLOAT, D.FLOAT)),
        (D.INT8, D.INT8, D.FLOAT, 2**17 - 1, (D.INT8, D.INT32)),
        (D.INT8, D.INT8, D.INT64, 2**17, (D.INT64, D.INT64)),
        (D.INT64, D.INT8, D.INT64, 8, (D.INT64, D.INT64)),
    ],
)
def test_operand_and_result_types(
    a: Any, b: Any, compute: Any, terms: int, expected: tuple[DataType, DataType]
) -> None:
    assert matmul_types(a, b, compute, terms) == expected


_PLAIN = ((256, 128), (128, 256))
_GRAPHS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": (_PLAIN, {}),
    "bias_gelu": (_PLAIN, {"epilogue": bias_then((1, 256), M.GELU_APPROX_TANH_FWD)}),
    "transposed_b": (_PLAIN, {"strides": (None, (1, 128), None), "epilogue": bias_then((1, 256), M.RELU_FWD)}),
    "transposed_a": (_PLAIN, {"strides": ((1, 256), None, None)}),
    "transposed_c": (_PLAIN, {"strides": (None, None, (1, 256))}),
    "gqa": (((4, 16, 128, 64), (4, 4, 64, 128)), {}),
    "gqa_of_a": (((4, 4, 128, 64), (4, 16, 64, 128)), {}),
}
_MATRIX = {D.HALF: "x16_f16", D.BFLOAT16: "x16_bf16", D.FLOAT: "x4_f32"}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", _MATRIX)
@pytest.mark.parametrize("name", _GRAPHS)
def test_one_dispatch_with_matrix_instructions(name: str, dtype: DataType) -> None:
    (a, b), options = _GRAPHS[name]
    found = inspect_graph(matmul_graph(a, b, dtype, **options).validate(), GFX)
    assert (found.dispatches, found.spills) == (1, 0)
    assert any(_MATRIX[dtype] in mnemonic for mnemonic in found.matrix), found.matrix


@pytest.mark.slow
@pytest.mark.parametrize(
    ("types", "arch", "matrix"),
    [
        ((D.INT8, D.INT8, D.INT32), "gfx942", "i32_16x16x32_i8"),
        ((D.HALF, D.BFLOAT16, D.FLOAT), "gfx942", "x4_f32"),
        ((D.INT8, D.HALF, D.HALF), "gfx942", "x16_f16"),
        ((D.DOUBLE, D.DOUBLE, D.DOUBLE), "gfx942", "x4_f64"),
        ((D.BFLOAT16, D.BFLOAT16, D.BFLOAT16), "gfx908", "x4f32"),
        ((D.HALF, D.HALF, D.HALF), "gfx950", "x32_f16"),
    ],
)
def test_matrix_instructions_of_other_types(types: tuple[DataType, ...], arch: str, matrix: str) -> None:
    a, b, out = types
    found = inspect_graph(matmul_graph(*_PLAIN, a, b, out).validate(), Target.parse(arch))
    assert (found.dispatches, found.spills) == (1, 0)
    assert any(matrix in mnemonic for mnemonic in found.matrix), found.matrix
