"""What attention looks like in IR on a GPU and on a CPU, and what AMD code becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from graph_api import AttentionImplementation, DataType
from iree_bridge.compile.inspect import inspect_graph
from iree_bridge.emit.module import emit_module
from iree_bridge.targets.target import Target
from tests.cases.sdpa import _graph as attention
from tests.support.filecheck import check_ir

pytestmark = pytest.mark.mlir

D = DataType
GFX, CPU = Target.parse("gfx942"), Target.parse("cpu")
GQA: Any = ((1, 8, 128, 64), (1, 4, 96, 64), (1, 2, 96, 32))


def text(target: Target, *arguments: Any, form: str = "", **options: Any) -> str:
    return emit_module(attention(*arguments, **options).validate(), target, form).ir


def test_a_gpu_gets_one_operation_with_repeated_heads_and_rounds_once() -> None:
    check_ir(
        text(GFX, *GQA, D.HALF, generate_stats=True),
        """
        CHECK-LABEL: func.func @main
        CHECK:       [[R:%.*]]:3 = call @attention_0
        CHECK:       torch.aten.div.Tensor {{.*}} -> !torch.vtensor<[1,8,128,32],f32>
        CHECK:       torch.prims.convert_element_type {{.*}} -> !torch.vtensor<[1,8,128,32],f16>
        CHECK-LABEL: func.func private @attention_0
        CHECK-SAME:      tensor<1x2x2x2x128x64xf16>, {{.*}}tensor<1x2x2x96x64xf16>, {{.*}}tensor<1x2x96x32xf16>
        CHECK:       iree_linalg_ext.online_attention
        CHECK-NOT:   torch.aten.bmm
        """,
    )


@pytest.mark.parametrize(
    ("queries", "keys", "dtype", "padded"),
    [
        (197, 197, D.HALF, {"1,2,224,64"}),
        (100, 1000, D.HALF, {"1,2,112,64", "1,2,1024,64"}),
        (17, 64, D.BFLOAT16, {"1,2,32,64"}),
        (208, 224, D.HALF, set()),
        (1, 1000, D.HALF, set()),
        (197, 197, D.FLOAT, set()),
    ],
)
def test_halves_are_filled_up_to_whole_tiles(queries: int, keys: int, dtype: Any, padded: set[str]) -> None:
    """Left to itself, the compiler uses no matrix instructions where a tile ends behind the last query or key."""
    made = text(GFX, (1, 2, queries, 64), (1, 2, keys, 64), (1, 2, keys, 64), dtype, form="plain")
    pads = {line.rpartition("[")[2].partition("]")[0] for line in made.splitlines() if "constant_pad_nd" in line}
    assert pads == padded


RAGGED: Any = ((2, 8, 50, 64), (2, 4, 77, 64), (2, 4, 77, 64))


def test_ends_of_tiles_are_masked_where_the_loops_are_the_fewest() -> None:
    """b and the heads of k lie together, and so do the heads that share one and the queries."""
    check_ir(
        text(GFX, *RAGGED, D.HALF),
        """
        CHECK:       workgroup = [1, 64, 64, 0, 0]
        CHECK-LABEL: func.func private @attention_0
        CHECK-SAME:      tensor<8x100x64xf16>, {{.*}}tensor<8x77x64xf16>, {{.*}}tensor<77xf32>
        CHECK:       subgroup_basis = {{\\[}}[1, 4, 1, 1, 1], [0, 1, 2, 4]]
        CHECK-NOT:   constant_pad_nd
        """,
    )


def test_heads_that_lie_apart_are_a_loop_of_their_own() -> None:
    made = text(GFX, *[(2, 4, 50, 64)] * 3, D.HALF, layout="BSHD")
    assert "workgroup = [1, 1, 64, 64, 0, 0]" in made
    assert "tensor<2x50x4x64xf16>, %arg1" in made


@pytest.mark.parametrize(
    ("target", "q", "kv", "dtype"),
    [
        ("gfx942", (1, 2, 50, 64), (1, 2, 50, 64), D.FLOAT),
        ("gfx908", (1, 2, 50, 64), (1, 2, 50, 64), D.BFLOAT16),  # multiplied as f32 there
        ("gfx942", (1, 2, 50, 80), (1, 2, 50, 80), D.HALF),  # threads do not share 80 out evenly
        ("gfx942", (1, 2, 1, 64), (1, 2, 50, 64), D.HALF),
        ("gfx942", (1, 2, 48, 64), (1, 2, 64, 64), D.HALF),  # nothing is left over
        ("gfx942", (16, 16, 1001, 64), (16, 16, 1001, 64), D.HALF),  # large: filling up costs little
    ],
)
def test_other_attention_has_no_tiles_of_ours(target: str, q: Any, kv: Any, dtype: DataType) -> None:
    assert "compilation_info" not in text(Target.parse(target), q, kv, kv, dtype)


def test_window_and_lengths_become_one_mask() -> None:
    made = text(GFX, *GQA, D.HALF, lengths=D.INT32, diagonal_band_left_bound=3, diagonal_band_right_bound=1)
    check_ir(
        made,
        """
        CHECK:       call @visible_0
        CHECK:       torch.aten.where.self {{.*}} -> !torch.vtensor<[1,1,128,96],f32>
        CHECK-LABEL: func.func private @visible_0
        CHECK-COUNT-1: linalg.generic
        """,
    )
    assert made.count("iree_linalg_ext.online_attention") == 1


@pytest.mark.parametrize(
    ("target", "options", "product"),
    [
        (CPU, {}, "call @product"),
        (GFX, {"implementation": AttentionImplementation.COMPOSITE}, "torch.aten.bmm"),
        (GFX, {"compute_data_type": D.DOUBLE}, "torch.aten.bmm"),
    ],
    ids=["cpu", "composite", "f64"],
)
def test_otherwise_it_is_products_around_a_softmax(target: Target, options: dict[str, Any], product: str) -> None:
    made = text(target, *GQA, D.HALF, **options)
    assert made.count(product) == 2
    assert "online_attention" not in made


@pytest.mark.parametrize(
    "sizes", [((1, 2, 5, 8), (1, 2, 1, 8), (1, 2, 1, 8)), ((1, 1, 1, 8), (1, 1, 7, 8), (1, 1, 7, 8))]
)
def test_sizes_that_the_fused_operation_cannot_do_are_not_given_to_it(sizes: Any) -> None:
    assert "online_attention" not in text(GFX, *sizes)


def test_gfx908_multiplies_bf16_as_f32() -> None:
    assert "tensor<1x2x2x2x128x64xf32>" in text(Target.parse("gfx908"), *GQA, D.BFLOAT16)


_SHAPE = (1, 8, 128, 64)
_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal_mask": True},
    "bias": {"bias": (1, 1, 128, 128)},
    "stats": {"generate_stats": True},
    "window": {"diagonal_band_left_bound": 30, "diagonal_band_right_bound": 5},
    "bshd": {"layout": "BSHD"},
}


def _is_one_matrix_kernel(arch: str, sizes: Any, dtype: DataType, options: dict[str, Any]) -> None:
    q, k, v = sizes
    found = inspect_graph(attention(q, k, v, dtype, **options).validate(), Target.parse(arch))
    assert (found.dispatches, found.spills) == (1, 0)
    assert any("bf16" in name if dtype is D.BFLOAT16 else "_f16" in name for name in found.matrix), found.matrix


_RAGGED_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": (1, 8, 50, 77)},
    "stats": {"generate_stats": True},
    "bshd": {"layout": "BSHD"},
}


@pytest.mark.parametrize(
    ("arch", "dtype", "option"),
    [
        ("gfx942", D.HALF, "plain"),
        *(
            pytest.param(arch, dtype, option, marks=pytest.mark.slow)
            for arch in ("gfx90a", "gfx942", "gfx950")
            for dtype in (D.HALF, D.BFLOAT16)
            for option in _RAGGED_OPTIONS
        ),
    ],
)
def test_ragged_attention_is_one_kernel_too(arch: str, dtype: DataType, option: str) -> None:
    _is_one_matrix_kernel(arch, RAGGED, dtype, _RAGGED_OPTIONS[option])


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", [D.HALF, D.BFLOAT16])
@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
def test_one_dispatch_with_matrix_instructions(arch: str, dtype: DataType, options: dict[str, Any]) -> None:
    _is_one_matrix_kernel(arch, [_SHAPE] * 3, dtype, options)
