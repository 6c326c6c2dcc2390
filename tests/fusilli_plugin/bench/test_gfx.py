"""``fusilli bench --suite gfx``: goals and pages by hand; one row read from code that was compiled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fusilli_plugin.bench.gfx import GfxRow, gfx_html, gfx_markdown, gfx_summary, missed_goals, roof
from fusilli_plugin.bench.graphs import GraphRow, Kind, gfx_rows
from fusilli_plugin.cli.main import cli
from iree_bridge import Target
from iree_bridge.compile.assembly import Dispatch
from iree_bridge.compile.inspect import Inspection
from iree_bridge.static.chips import chip_of
from iree_bridge.static.figures import Figures, KernelFigures

ROWS = {row.name: row for row in gfx_rows()}
GFX942 = Target.parse("gfx942")
MFMA = "v_mfma_f32_16x16x16_f16"


def figures(loop: dict[str, int], *, kernels: int = 1, **more: Any) -> Figures:
    values = {
        "vgprs": 64, "agprs": 0, "sgprs": 20, "vgpr_spills": 0, "sgpr_spills": 0, "lds": 0, "scratch": 0,
        "scratch_instructions": 0, "workgroup": 256, "wavefront": 64,
    } | more  # fmt: skip
    kernel = Dispatch(name="k", matrix={name: n for name, n in loop.items() if "mfma" in name}, loop=loop, **values)
    launches = (KernelFigures(kernel, 304, 2),) * kernels
    return Figures(
        GFX942, "plain", chip_of(GFX942), Inspection(GFX942, kernels, (kernel,)), launches, 1, 1, 1, 1.0, True
    )


def missed(row: GraphRow, found: Figures) -> list[str]:
    return list(missed_goals(row, found))


@pytest.mark.parametrize(("kind", "limit"), [(Kind.PRODUCT, 2), (Kind.CONVOLUTION, 3), (Kind.ATTENTION, 4)])
def test_goals_by_hand(kind: Kind, limit: int) -> None:
    row = replace(ROWS["product f16 1024x1024x1024 rr"], kind=kind)
    assert missed(row, figures({MFMA: 10, "s_nop": 10 * limit})) == []
    assert missed(row, figures({MFMA: 10, "s_nop": 10 * limit + 1})) == [
        f"{limit + 0.1:.1f} others per matrix instruction (at most {limit})"
    ]
    assert missed(row, figures({MFMA: 1}, kernels=2)) == ["2 dispatches (at most 1)"]
    assert missed(replace(row, is_gradient=True), figures({MFMA: 1}, kernels=2)) == []
    assert missed(replace(row, is_gradient=True), figures({MFMA: 1}, kernels=3)) == ["3 dispatches (at most 2)"]
    assert missed(row, figures({MFMA: 1}, sgpr_spills=3, scratch=8)) == [
        "spills: 11 registers and bytes of private memory (none)"
    ]
    without = [] if kind is Kind.ATTENTION else ["no matrix instructions"]
    assert missed(row, figures({})) == without
    assert missed(replace(row, channels=15), figures({})) == []


def test_goals_of_instructions_are_for_16_bits() -> None:
    assert missed(ROWS["product f32 1024x1024x1024 rr"], figures({MFMA: 1, "s_nop": 9})) == []
    assert missed(ROWS["product bf16 1024x1024x1024 rr"], figures({MFMA: 1, "s_nop": 9})) != []


def test_the_suite_has_what_goals_are_set_for() -> None:
    names = "\n".join(ROWS)
    for order in ("rr", "rc", "cr", "cc"):
        assert f"product f16 4096x4096x4096 {order}" in ROWS
    for kind in ("fprop", "dgrad", "wgrad"):
        for layout in ("nchw", "nhwc"):
            assert f"{kind} f16 {layout} 8x64x56x56, 64 of 3x3" in ROWS
            assert f"{kind} bf16 {layout} 8x64x56x56, 64 of 3x3" in ROWS
    assert {row.kind for row in ROWS.values()} == set(Kind) - {Kind.POINTWISE}
    for dtype in (" f16 ", " bf16 ", " f32 ", " int8 "):
        assert f"product{dtype}" in names
        assert f"fprop{dtype}" in names
    assert ROWS["fprop f16 nchw 8x128x28x28, 128 of 3x3 in 32 groups"].channels == 4
    assert ROWS["product f16 1x4096x4096 rc"].channels == 1


def rows() -> list[GfxRow]:
    good = GfxRow(
        "good", "product", "gfx942", "plain", 1, 0, {MFMA: 4}, 1.5, 64, 0, 20, 1024, 2, 608, 304, 2 * 10**12, 10**9,
        1500.0, "operations", 1800.0, (), (),
    )  # fmt: skip
    slow = replace(
        good, name="<slow>", estimate_us=15000.0, causes=("2 kernels",), missed=("2 dispatches (at most 1)",)
    )
    busy = replace(good, name="busy", missed=("9.0 others per matrix instruction (at most 2)",))
    none = GfxRow("none", "convolution", "gfx942", missed=("no code",), problem="it did not compile")
    return [good, slow, busy, none]


def test_what_rows_come_to() -> None:
    found = gfx_summary(rows())
    assert found["rows"] == 4
    assert found["rows that meet all goals"] == 1
    assert found["rows that miss the goal for dispatches"] == 1
    assert found["rows that miss the goal for matrix instructions"] == 0
    assert found["rows that miss the goal for code"] == 1
    assert found["product: rows with more than 2 others per matrix instruction, 16 bits"] == 1
    assert found["rows estimated at more than 3 times their bound"] == 1


def test_pages_say_what_rows_say() -> None:
    text = gfx_markdown(rows(), {"version": "1"})
    assert "| good | plain | 1 | 0 | 4 | 1.5 | 64/0/20 | 1024 | 2 | 608/304 | 1.5e+03 | 1.2 |" in text
    assert "* none: no code: it did not compile" in text
    assert "* <slow>: 10.0: 2 kernels" in text
    page = gfx_html(rows(), {"version": "<1>"})
    assert "&lt;slow&gt;" in page
    assert "&lt;1&gt;" in page
    assert page.count("<circle") == 3
    assert page.count('class="met"') == 1


def test_the_roof_by_hand() -> None:
    found = roof(rows(), GFX942)
    assert found is not None
    (left, low, ridge, top), (start, high, right, end) = found.lines
    # 1307.3 TFLOP/s and 5.3 TB/s meet at 246.7 operations for a byte: 4.39 of 6 decades from 0.01
    assert (left, top, high, end, right) == (0, 0, 0, 0, 100)
    assert ridge == start == pytest.approx(100 * 4.392 / 6, abs=0.05)
    assert low == pytest.approx(100 * 4.392 / 7, abs=0.05)
    name, x, y, met = found.points[0]
    assert (name, met) == ("good", True)
    assert x == pytest.approx(100 * (3.301 + 2) / 6, abs=0.05)  # 2000 operations for a byte
    assert y == pytest.approx(100 * 0.0704 / 7, abs=0.05)  # 2e12 operations in 1.8 ms: 10 ** -0.0704 of the peak
    assert len(found.points) == 3
    assert roof(rows(), Target.parse("gfx1100")) is None


@pytest.mark.mlir
def test_a_row_is_read_and_written(tmp_path: Path) -> None:
    files = {name: tmp_path / f"rows.{name}" for name in ("json", "markdown", "html")}
    arguments = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    done = CliRunner().invoke(cli, ["bench", "--suite", "gfx", "--filter", "f16 1024x1024x1024 rc", *arguments])
    assert done.exit_code == 0, done.output
    document = json.loads(files["json"].read_text())
    (found,) = document["rows"]
    assert (found["dispatches"], found["spills"], found["units"]) == (1, 0, 304)
    assert found["flops"] == 2 * 1024**3
    assert found["bytes"] == 3 * 2 * 1024**2
    assert found["bound_us"] == pytest.approx(1.643, rel=1e-3)  # 2.147e9 / 1307.4e12
    assert found["estimate_us"] >= found["bound_us"]
    assert 0 < found["others_per_matrix"] <= 2
    assert found["missed"] == []
    assert document["summary"]["gfx942"]["rows that meet all goals"] == 1
    assert "| product f16 1024x1024x1024 rc | plain |" in files["markdown"].read_text()
    assert "MI300X: 1307 TFLOP/s" in files["html"].read_text()


def test_usage() -> None:
    for arguments, message in ((["--target", "cpu"], "is no chip of AMD's"), (["--filter", "nonesuch"], "no row has")):
        done = CliRunner().invoke(cli, ["bench", "--suite", "gfx", *arguments])
        assert done.exit_code == 2
        assert message in done.output
