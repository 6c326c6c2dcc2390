"""Code for AMD targets is as good as it was: figures of 96 graphs against those in ``tests/data/golden_gfx.json``."""

from __future__ import annotations

import pytest

from tests.support import golden
from tests.support.golden_graphs import GRAPHS, ONE_MATRIX_KERNEL

_PAIRS = [(name, target) for name in GRAPHS for target in golden.GOLDEN_TARGETS]
_HINT = f"if the change is meant: {golden.UPDATE}"
_SAMPLE = [
    ("conv_bias_relu_f16_nhwc", "gfx942"),
    ("matmul_bf16_bias_gelu", "gfx950"),
    ("attention_f16_causal", "gfx942"),
    ("residual_rmsnorm_f16", "gfx942"),
    ("gelu_fp8_amax_f16", "gfx942"),
    ("conv_3x3_fp8_e4m3_fnuz_nhwc", "gfx942"),
]


def test_the_file_is_complete_and_stable() -> None:
    assert len(GRAPHS) == 96
    table = golden.load()
    assert sorted(table) == sorted(_PAIRS)
    text = golden.FILE.read_text("utf-8")
    assert golden.dumps(golden.load(text)).splitlines()[2:] == text.splitlines()[2:]  # line 2 names the compiler


@pytest.mark.parametrize("target", golden.GOLDEN_TARGETS)
@pytest.mark.parametrize("name", ONE_MATRIX_KERNEL)
def test_matrix_work_is_one_kernel_without_spills(name: str, target: str) -> None:
    figures = golden.load()[name, target]
    assert figures["dispatches"] == 1
    assert sum(figures["matrix"].values()) > 0
    assert figures["spills"] == 0


def test_the_promise_covers_types_and_layouts() -> None:
    for dtype in ("f16", "bf16"):
        names = {
            *(f"conv_bias_relu_{dtype}_{layout}" for layout in ("nchw", "nhwc")),
            *(f"matmul_{dtype}{form}" for form in ("", "_transposed")),
            *(f"attention_{dtype}_{layout}" for layout in ("bhsd", "bshd")),
        }
        assert names <= set(ONE_MATRIX_KERNEL)


def test_a_change_reads_as_one_line() -> None:
    old = {
        ("a", "gfx942"): {"dispatches": 1, "vgprs": 8, "spills": 0, "lds": 0, "scratch": 0, "matrix": {"v_mfma_x": 4}}
    }
    new = {
        ("a", "gfx942"): {**old["a", "gfx942"], "vgprs": 9, "matrix": {"v_mfma_y": 2}},
        ("b", "gfx950"): {"matrix": {}},
    }
    assert golden.differences(old, old) == ""
    assert golden.differences(old, new).splitlines() == [
        "a on gfx942: vgprs 8 -> 9, v_mfma_x 4 -> 0, v_mfma_y 0 -> 2",
        "b on gfx950: is not in the file",
    ]


@pytest.mark.a_few("residual_rmsnorm_f16-gfx942", "conv_bias_relu_f16_nhwc-gfx942")
@pytest.mark.mlir
@pytest.mark.parametrize(("name", "target"), _SAMPLE)
def test_a_sample(name: str, target: str) -> None:
    changes = golden.differences(golden.load(), golden.measure([(name, target)]))
    assert not changes, f"\n{changes}\n{_HINT}"


@pytest.mark.mlir
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything(request: pytest.FixtureRequest) -> None:
    measured = golden.measure()
    if request.config.getoption("--update-golden"):
        golden.FILE.write_text(golden.dumps(measured), encoding="utf-8")
    changes = golden.differences(golden.load(), measured)
    assert not changes, f"\n{changes}\n{_HINT}"
