"""Figures of AMD code without a device: chips beside their data sheets, estimates by hand, one graph compiled."""

from __future__ import annotations

import math

import pytest

from graph_api import CompileError, DataType, Graph
from iree_bridge import Target
from iree_bridge.compile.assembly import Dispatch
from iree_bridge.static import figures as module
from iree_bridge.static.chips import Chip, chip_of
from iree_bridge.static.figures import Figures, KernelFigures, figures

HALF, BF16, FLOAT, INT8 = DataType.HALF, DataType.BFLOAT16, DataType.FLOAT, DataType.INT8


def chip(name: str) -> Chip:
    found = chip_of(Target.parse(name))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("target", "dtype", "peak"),
    [
        ("mi100", HALF, 184.6), ("mi100", BF16, 92.3), ("mi100", FLOAT, 46.1),
        ("mi210", HALF, 181.0), ("mi210", FLOAT, 45.3), ("mi250x", HALF, 383.0 / 2), ("mi300a", HALF, 980.6),
        ("mi300x", HALF, 1307.4), ("mi300x", INT8, 2614.9),
        ("mi300x", FLOAT, 163.4), ("mi325x", BF16, 1307.4), ("mi350x", HALF, 2306.9), ("mi355x", HALF, 2516.6),
        ("mi355x", INT8, 5033.2), ("mi355x", FLOAT, 157.3),
    ],
)  # fmt: skip
def test_peaks_are_those_of_the_data_sheets(target: str, dtype: DataType, peak: float) -> None:
    assert chip(target).matrix_peak(dtype) == pytest.approx(1e12 * peak, rel=1e-3)


def test_what_is_not_known_is_not_said() -> None:
    assert chip_of(Target.parse("gfx1100")) is None
    assert chip_of(Target.parse("mi308x")) is None
    assert chip("gfx942").matrix_peak(DataType.DOUBLE) is None
    assert [chip(name).name for name in ("gfx908", "gfx90a", "gfx942", "gfx950")] == [
        "MI100",
        "MI210",
        "MI300X",
        "MI355X",
    ]


@pytest.mark.parametrize(
    ("target", "given", "waves"),
    [
        ("gfx942", (64, 0, 0, 256, 64), 8),  # 512 / 64
        ("gfx942", (65, 0, 0, 256, 64), 7),  # 512 / 72
        ("gfx942", (512, 256, 0, 256, 64), 1),
        ("gfx942", (16, 0, 0, 256, 64), 8),  # no more than 8
        ("gfx942", (16, 0, 17 * 1024, 256, 64), 3),  # 3 groups of 4 waves on 4 SIMDs
        ("gfx942", (16, 0, 50 * 1024, 64, 64), 1),  # one wave for four SIMDs
        ("gfx950", (16, 0, 50 * 1024, 256, 64), 3),  # 160 KiB
        ("gfx908", (64, 100, 0, 256, 64), 2),  # files of their own: 256 / 100
        ("gfx908", (20, 0, 0, 256, 64), 10),
    ],
)
def test_waves_by_hand(target: str, given: tuple[int, ...], waves: int) -> None:
    assert chip(target).waves(*given) == waves


def product(rows: int, depth: int, columns: int, dtype: DataType = HALF, *, by_columns: bool = True) -> Graph:
    g = Graph("product", io_data_type=dtype, compute_data_type=FLOAT)
    b = g.tensor("b", dim=(depth, columns), stride=(1, depth) if by_columns else None)
    g.matmul(g.tensor("a", dim=(rows, depth)), b).set_output(True)
    return g.validate()


def kernel(loop: dict[str, int], **more: int) -> Dispatch:
    values = {
        "vgprs": 64, "agprs": 0, "sgprs": 20, "vgpr_spills": 0, "sgpr_spills": 0, "lds": 0, "scratch": 0,
        "scratch_instructions": 0, "workgroup": 256, "wavefront": 64,
    } | more  # fmt: skip
    return Dispatch(name="k", matrix={name: n for name, n in loop.items() if "mfma" in name}, loop=loop, **values)


MFMA = "v_mfma_f32_16x16x16_f16"  # 8192 operations, of 512 a cycle: 16 cycles


@pytest.mark.parametrize(
    ("loop", "waves", "share"),
    [
        ({MFMA: 4, "ds_read_b64": 4}, 1, 16 / 20),  # another instruction each, 4 cycles
        ({MFMA: 4, "ds_read_b64": 4}, 2, 1.0),  # hidden
        ({MFMA: 4, "ds_read_b64": 32}, 2, 0.5),  # 8 of 4 cycles for each of 16
        ({"v_mfma_f32_4x4x4_16b_f16": 2, "s_nop": 8}, 2, 0.25),  # 2048 operations: 4 cycles
        ({"v_mfma_i32_16x16x32_i8": 1, "s_nop": 8}, 2, 0.5),  # 16384 operations of 1024: 16 cycles
        ({"v_mfma_f32_16x16x4_f32": 1, "s_nop": 8}, 2, 1.0),  # 2048 of 64: 32 cycles
        ({"v_mfma_f32_16x16x32_fp8_fp8": 1, "s_nop": 99}, 2, 1.0),  # not in the table
    ],
)
def test_the_share_of_matrix_instructions_by_hand(loop: dict[str, int], waves: int, share: float) -> None:
    assert module._matrix_share(kernel(loop), waves, chip("gfx942")) == pytest.approx(share)


def made(loop: dict[str, int], workgroups: int, graph: Graph, *, waves: int = 2, launches: int = 1) -> Figures:
    at, one = chip("gfx942"), KernelFigures(kernel(loop), workgroups, waves)
    nbytes = sum(tensor.nbytes for tensor in (*graph.arguments().outputs, *graph.arguments().inputs))
    bound, by_operations = module._bound(graph, nbytes, at)
    inspection = module.Inspection(Target.parse("gfx942"), launches, (one.kernel,))
    found = Figures(
        Target.parse("gfx942"),
        "plain",
        at,
        inspection,
        (one,) * launches,
        graph.flops(),
        nbytes,
        nbytes,
        bound,
        by_operations,
    )
    return module._with_estimate(found, graph, at)


def test_bounds_and_estimates_by_hand() -> None:
    graph = product(4096, 4096, 4096)
    found = made({MFMA: 4, "ds_read_b64": 32}, 304, graph)
    peak = 2048 * 304 * 2.1e9
    assert found.is_compute_bound
    assert found.bound is not None
    assert found.bound == pytest.approx(2 * 4096**3 / peak)
    assert found.estimate == pytest.approx(2 * found.bound)  # half of the cycles
    assert found.causes() == ["8.0 other instructions for each matrix instruction"]
    half = made({MFMA: 4}, 152, graph)  # half of the compute units
    assert half.estimate == pytest.approx(2 * found.bound)
    assert half.causes() == ["152 workgroups for 304 compute units"]
    late = made({MFMA: 4}, 305, graph)  # two rounds, the second of one workgroup
    assert late.far == pytest.approx(608 / 305)
    assert late.causes() == ["a last round of workgroups for a part of 304 compute units"]
    thrice = made({MFMA: 4}, 304, graph, launches=3)
    assert thrice.estimate == pytest.approx(found.bound + 2 * 2.5e-6)
    assert thrice.causes() == ["3 kernels"]


def test_a_product_of_one_row_is_bound_by_its_bytes() -> None:
    graph = product(1, 4096, 4096)
    found = made({}, 512, graph)
    nbytes = 2 * (4096 * 4096 + 2 * 4096)
    assert not found.is_compute_bound
    assert found.bytes_least == nbytes
    assert found.bound == pytest.approx(nbytes / 5.3e12)
    assert found.others_per_matrix is None
    narrow = made({}, 16, product(512, 512, 512))
    assert narrow.causes() == ["no matrix instructions", "16 workgroups for 304 compute units"]


@pytest.mark.mlir
def test_a_graph_that_is_compiled() -> None:
    """A product whose second operand lies by rows is gathered by halves: the figure that the form is judged by."""
    found = figures(product(256, 256, 512, by_columns=False), Target.parse("gfx942"))
    assert found.main is not None
    assert (found.form, found.dispatches, found.spills) == ("plain", 1, 0)
    assert found.flops == 2 * 256 * 256 * 512
    assert found.bytes_least == found.bytes_moved == 2 * (256 * 256 + 256 * 512 + 256 * 512)
    tiles = found.main.workgroups
    assert 1 <= tiles <= 256 // 16 * 512 // 16
    assert math.log2(tiles) % 1 == 0
    assert any(name.startswith("ds_read_u16") for name in found.main.kernel.loop)
    assert found.others_per_matrix is not None
    assert found.others_per_matrix > 2
    assert found.far is not None
    assert found.far > 1
    assert f"{tiles} workgroups for 304 compute units" in found.causes()


def test_other_targets_have_no_figures() -> None:
    with pytest.raises(CompileError, match="name a gfx target"):
        figures(product(8, 8, 8), Target.parse("cpu"))
