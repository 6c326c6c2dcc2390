"""Barriers in AMD assembly that not all waves of a workgroup reach; sums that are not added up; too many tensors."""

from __future__ import annotations

import pytest

from graph_api import DataType, Graph, PointwiseMode
from iree_bridge.compile.compiler import compile_code
from iree_bridge.compile.hazards import crowded_kernels, endless_kernels, lost_sums, split_barriers
from iree_bridge.targets.target import Target

HEAD = "kernel:\n\tv_lshrrev_b32_e32 v1, 6, v0\n\tv_readfirstlane_b32 s16, v1\n"
END = "\tds_read_b64 v[2:3], v1\n\ts_endpgm\nend_of_kernel:\n"


def found(body: str) -> bool:
    names = split_barriers(HEAD + body + END)
    assert names in ([], ["kernel"])
    return bool(names)


@pytest.mark.parametrize(
    "body",
    [
        # Wave 0 alone goes on.
        "\ts_cmp_lg_u32 s16, 0\n\ts_cbranch_scc1 .LBB0_6\n\ts_barrier\n.LBB0_6:\n",
        # Through another scalar, and a branch to code that comes back.
        "\ts_add_i32 s17, s16, 3\n\ts_cmp_gt_u32 s17, 4\n\ts_cbranch_scc1 .LBB0_9\n.LBB0_6:\n"
        "\ts_branch .LBB0_7\n.LBB0_9:\n\ts_barrier\n\ts_branch .LBB0_6\n.LBB0_7:\n",
        # Waves without a lane skip it.
        "\ts_and_saveexec_b64 s[2:3], vcc\n\ts_cbranch_execz .LBB0_6\n\ts_barrier\n.LBB0_6:\n",
        # A loop that some waves leave earlier.
        ".LBB0_5:\n\ts_barrier\n\ts_add_i32 s16, s16, 3\n\ts_cmp_lt_u32 s16, 7\n\ts_cbranch_scc1 .LBB0_5\n",
        # The number of the wave is compared in vector registers.
        "\tv_cmp_ne_u32_e32 vcc, 0, v1\n\ts_cbranch_vccnz .LBB0_6\n\ts_barrier\n.LBB0_6:\n",
        # ... in a loop, which changes it behind the comparison.
        "\tv_mov_b32_e32 v4, 0\n.LBB0_5:\n\tv_cmp_lt_u32_e32 vcc, v4, v2\n\ts_barrier\n\tv_add_u32_e32 v4, v4, v1\n"
        "\ts_cbranch_vccnz .LBB0_5\n",
    ],
)
def test_a_branch_on_the_wave_around_a_barrier(body: str) -> None:
    assert found(body)


@pytest.mark.parametrize(
    "body",
    [
        "\ts_barrier\n",
        # The lanes' own code, before and behind.
        "\ts_and_saveexec_b64 s[2:3], vcc\n\ts_cbranch_execz .LBB0_6\n\tds_write_b64 v1, v[2:3]\n"
        ".LBB0_6:\n\ts_barrier\n",
        # ... laid out at the end.
        "\ts_and_saveexec_b64 s[2:3], vcc\n\ts_cbranch_execnz .LBB0_9\n.LBB0_6:\n\ts_barrier\n\ts_branch .LBB0_7\n"
        ".LBB0_9:\n\tds_write_b64 v1, v[2:3]\n\ts_branch .LBB0_6\n.LBB0_7:\n",
        # A loop whose bounds all waves have.
        "\ts_mov_b32 s4, 0\n.LBB0_5:\n\ts_barrier\n\ts_add_i32 s4, s4, 1\n\ts_cmp_lt_u32 s4, 7\n"
        "\ts_cbranch_scc1 .LBB0_5\n",
        # The scalar that held the wave holds something else by now.
        "\ts_mov_b32 s16, s5\n\ts_cmp_lg_u32 s16, 0\n\ts_cbranch_scc1 .LBB0_6\n\ts_barrier\n.LBB0_6:\n",
        # Vector registers that all waves have alike.
        "\tv_mov_b32_e32 v1, s4\n\tv_cmp_ne_u32_e32 vcc, 0, v1\n\ts_cbranch_vccnz .LBB0_6\n\ts_barrier\n.LBB0_6:\n",
    ],
)
def test_other_barriers(body: str) -> None:
    assert not found(body)


def test_a_barrier_at_the_end_does_no_harm() -> None:
    text = f"{HEAD}\ts_cbranch_execz .LBB0_6\n\ts_barrier\n.LBB0_6:\n\ts_endpgm\nend_of_kernel:\n"
    assert split_barriers(text) == []


def test_a_kernel_without_an_end() -> None:
    """What the compiler takes for unreachable has no code: it runs into whatever lies behind."""
    declared = "\t.amdhsa_kernel kernel\n\t.end_amdhsa_kernel\n"
    empty = "kernel:\n\ts_branch .LBB0_0\n\t.p2align 8\n.LBB0_0:\n.Lfunc_end0:\n"
    assert endless_kernels(empty + declared) == ["kernel"]
    assert endless_kernels(HEAD + END + declared) == []


def _configured(kinds: str, lanes: str, subgroups: str) -> str:
    return (
        "func.func @main$async_dispatch_0() attributes {translation_info = <subgroup_size = 32>} {\n"
        f"  %1 = linalg.generic {{iterator_types = [{kinds}]}} ins(%0 : tensor<4x3xf32>) attrs = {{lowering_config = "
        f"#iree_gpu.lowering_config<{{lane_basis = [[{lanes}], [0, 1]], "
        f"subgroup_basis = [[{subgroups}], [0, 1]]}}>}}\n}}\n"
    )


@pytest.mark.parametrize(
    ("lanes", "subgroups", "is_lost"),
    [
        ("1, 1", "1, 3", True),
        ("1, 2", "1, 3", True),
        ("1, 1", "1, 1", False),
        ("1, 32", "1, 3", False),
        ("1, 1", "3, 1", False),
    ],
)
def test_sums_that_subgroups_of_one_thread_share(lanes: str, subgroups: str, is_lost: bool) -> None:
    text = _configured('"parallel", "reduction"', lanes, subgroups)
    assert lost_sums(text) == ["main$async_dispatch_0"] * is_lost
    assert not lost_sums(_configured('"parallel", "parallel"', lanes, subgroups))


@pytest.mark.parametrize(("count", "is_crowded"), [(16, False), (17, True)])
def test_drivers_take_so_many_tensors(count: int, is_crowded: bool) -> None:
    bindings = ", ".join(['#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">'] * count)
    text = (
        "  hal.executable.export public @main$async_dispatch_0_elementwise ordinal(0) "
        f"layout(#hal.pipeline.layout<bindings = [{bindings}], flags = Indirect>) count(%arg0: !hal.device) {{\n"
    )
    assert crowded_kernels(text) == ["main$async_dispatch_0_elementwise"] * is_crowded


@pytest.mark.mlir
@pytest.mark.a_few("sm_80-False")
@pytest.mark.parametrize(("target", "is_one"), [("sm_80", False), ("gfx942", True)])
def test_a_graph_of_more_tensors_than_a_driver_takes_is_made_of_several_kernels(target: str, is_one: bool) -> None:
    """Chain 11000007001389 of `fusilli fuzz`: no kernel of 17 tensors is loaded but where launches are ours."""
    g = Graph("sum", io_data_type=DataType.FLOAT)
    total = g.tensor("x", dim=(4, 4))
    for _ in range(16):
        total = g.pointwise(PointwiseMode.ADD, total, g.tensor(dim=(4, 4)))
    total.set_output(True)
    code = compile_code(g.validate(), Target.parse(target))
    assert (code.dispatches == 1) == is_one
