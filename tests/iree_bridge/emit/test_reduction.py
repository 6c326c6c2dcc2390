"""What reductions look like in IR, and that AMD code becomes of those that once did not compile."""

from __future__ import annotations

from typing import Any

import pytest

from fusilli_plugin.emulator import CHIPS, Emulator
from graph_api import DataType, Graph, PointwiseMode, ReductionMode
from iree_bridge.compile.compiler import compile_code
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.reduction import graph as reduction_graph
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

D, M = DataType, ReductionMode
GFX = Target.parse("gfx942")


def text(*arguments: Any, **options: Any) -> str:
    return emit_module(reduction_graph(*arguments, **options).validate(), GFX).ir


def test_a_half_mean_is_accumulated_in_f32_and_rounded_once() -> None:
    check_ir(
        text(M.AVG, (2, 8, 5, 5), (2, 8, 1, 1), D.HALF),
        """
        CHECK: [[X:%.*]] = torch.prims.convert_element_type {{.*}} -> !torch.vtensor<[2,8,5,5],f32>
        CHECK: [[S:%.*]] = torch.aten.sum.dim_IntList [[X]], {{.*}} -> !torch.vtensor<[2,8,1,1],f32>
        CHECK: torch.aten.div.Scalar [[S]]
        CHECK: torch.prims.convert_element_type {{.*}} -> !torch.vtensor<[2,8,1,1],f16>
        """,
    )


def test_zeros_do_not_count_in_mul_no_zeros() -> None:
    check_ir(
        text(M.MUL_NO_ZEROS, (4, 8), (4, 1)),
        """
        CHECK: [[Z:%.*]] = torch.aten.eq.Scalar
        CHECK: [[X:%.*]] = torch.aten.where.self [[Z]]
        CHECK: torch.aten.prod.dim_int [[X]]
        """,
    )


def test_everything_is_reduced_in_two_stages_and_in_memory_order() -> None:
    check_ir(
        text(M.MAX, (2, 64, 7, 7), (1, 1, 1, 1), stride=(3136, 1, 448, 64)),
        """
        CHECK: [[X:%.*]] = torch.aten.permute {{.*}} -> !torch.vtensor<[2,7,7,64],f32>
        CHECK: [[KEYS:%.*]] = torch_c.from_builtin_tensor {{.*}} -> !torch.vtensor<[2,7,7,64],si32>
        CHECK: [[Y:%.*]] = torch_c.from_builtin_tensor {{.*}} -> !torch.vtensor<[2,7,7,1],si32>
        CHECK: torch_c.from_builtin_tensor {{.*}} -> !torch.vtensor<[1,1,1,1],si32>
        """,
    )
    assert text(M.ADD, (5000,), (1,)).count("torch.aten.sum.dim_IntList") == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", M)
@pytest.mark.parametrize("stride", [None, (3136, 1, 448, 64), (6272, 98, 14, 2)], ids=["nchw", "nhwc", "padded"])
def test_everything_can_be_reduced_on_a_gpu(mode: ReductionMode, stride: Any) -> None:
    """One operation over several dims would fail: "failed to distribute"."""
    found = inspect_graph(reduction_graph(mode, (8, 64, 7, 7), (1, 1, 1, 1), stride=stride).validate(), GFX)
    assert found.spills == 0
    assert found.dispatches is not None
    assert found.dispatches <= 4


@pytest.mark.slow
@pytest.mark.parametrize("y", [(256, 1), (1, 1024)], ids=["rows", "columns"])
def test_one_dispatch(y: Any) -> None:
    found = inspect_graph(reduction_graph(M.ADD, (256, 1024), y, D.HALF).validate(), GFX)
    assert (found.dispatches, found.spills) == (1, 0)


def softmax(dims: tuple[int, ...], axes: tuple[int, ...], dtype: DataType) -> Graph:
    g = Graph("softmax", io_data_type=dtype, compute_data_type=D.FLOAT)
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(dims))
    x = g.tensor("x", dim=dims)
    top = g.reduction(x, mode=M.MAX).set_dim(kept)
    weights = g.pointwise(PointwiseMode.EXP, g.pointwise(PointwiseMode.SUB, x, top))
    g.pointwise(PointwiseMode.DIV, weights, g.reduction(weights, mode=M.ADD).set_dim(kept)).set_output(True)
    return g.validate()


@pytest.mark.a_few("gfx942-(3, 4097)*", "gfx90a-(3, 4096)*")
@pytest.mark.parametrize(
    ("dims", "axes", "dispatches"),
    [
        ((3, 257), (1,), 1),
        ((3, 4096), (1,), 1),
        ((3, 4097), (1,), 2),
        ((3, 16385), (1,), 2),
        ((3, 18385), (1,), 2),
        ((2, 1000, 3, 5), (1,), 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("chip", CHIPS)
def test_long_rows_that_do_not_fill_waves_are_two_kernels(
    chip: str, dims: tuple[int, ...], axes: tuple[int, ...], dispatches: int
) -> None:
    """As one, 2,049 elements took the compiler over 25 s and 4,097 over ten minutes."""
    target = Target.parse(chip)
    assert compile_code(softmax(dims, axes, D.FLOAT), target).dispatches == dispatches
    outcome = Emulator(target).examine(softmax(dims, axes, D.HALF))
    assert outcome.ok, f"{outcome.verdict}: {outcome.text}"
