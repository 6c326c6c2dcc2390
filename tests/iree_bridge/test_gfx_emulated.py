"""Code for AMD chips, emulated instruction by instruction and compared with the float64 reference. No GPU is needed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fusilli_plugin.checks.selftest import GRAPHS
from fusilli_plugin.emulator import CHIPS, Emulator, UnmodelledError
from fusilli_plugin.testing import graphs
from graph_api import DataType, Graph, numerics
from iree_bridge import Target
from tests.cases import OpCase, all_cases
from tests.support.cases import is_declined
from tests.support.gfx_emulator.graphs import compile_graph, emulate
from tests.support.gfx_emulator.launch import Machine
from tests.support.gfx_emulator.state import HazardError
from tests.support.outcomes import case_id

pytestmark = [pytest.mark.mlir, pytest.mark.slow]

_SELFTEST = [
    "conv 1x1+bias+ReLU, 7x7 pixels HALF",
    "conv 1x1+bias+ReLU, 7x7 pixels BFLOAT16",
    "product HALF",
    "product, transposed HALF",
    "layer norm HALF",
    "dgrad HALF",
]
_CASES = [
    pytest.param(case, chip, id=f"{chip}-{case_id(family, case)}") for family, case in all_cases() for chip in CHIPS
]
_SEEDS = 25
"""Random graphs of a test."""


@pytest.mark.parametrize(("case", "chip"), _CASES)
def test_case(case: OpCase, chip: str) -> None:
    target = Target.parse(chip)
    if is_declined(case, target):
        return
    graph = case.graph()
    outcome = Emulator(target).examine(graph, case.pack(graph))
    assert outcome.ok, f"{outcome.verdict}: {outcome.text}"


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("start", range(0, 500, _SEEDS))
def test_random_graphs(chip: str, start: int) -> None:
    """As ``python -m tests.support.gfx_sweep``; ``docs/gpu_findings.md`` has the counts of longer ones."""
    emulator = Emulator(Target.parse(chip))
    for seed in range(start, start + _SEEDS):
        graph = graphs.graph(seed)
        outcome = emulator.examine(graph, graphs.inputs(graph, seed))
        assert outcome.ok, f"seed {seed}: {outcome.verdict}: {outcome.text}"


def _product(m: int, n: int, k: int, *, batch: int = 1) -> Graph:
    g = Graph("product", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    g.matmul(g.tensor("a", dim=(batch, m, k)), g.tensor("b", dim=(batch, k, n))).set_output(True)
    return g.validate()


def _attention(length: int, width: int, *, sink: bool) -> Graph:
    g = Graph("attention", io_data_type=DataType.HALF, compute_data_type=DataType.FLOAT)
    q, k, v = (g.tensor(name, dim=(1, heads, length, width)) for name, heads in (("q", 2), ("k", 1), ("v", 1)))
    token = g.tensor("sink", dim=(1, 2, 1, 1), data_type=DataType.FLOAT) if sink else None
    g.sdpa(q, k, v, attn_scale=0.125, causal_mask=not sink, sink_token=token).o.set_output(True)
    return g.validate()


def _assert_right(graph: Graph, folder: Path, *, matrix: bool = True) -> Machine:
    pack, machine = graph.random_inputs(seed=0), Machine()
    results = emulate(graph, pack, compile_graph(graph, folder), machine)
    for comparison in numerics.check(graph, pack, results):
        assert comparison.ok, str(comparison)
    assert any(name.startswith("v_mfma") for name in machine.counts) == matrix
    return machine


@pytest.mark.parametrize("sizes", [(64, 64, 64), (33, 48, 72), (37, 49, 64)], ids=str)
def test_product(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    assert not _assert_right(_product(*sizes), tmp_path).counts["bytes read outside all buffers"]


@pytest.mark.parametrize("name", _SELFTEST)
def test_graph_of_the_selftest(name: str, tmp_path: Path) -> None:
    machine = _assert_right(GRAPHS[name](), tmp_path, matrix="norm" not in name)
    assert not machine.counts["bytes read outside all buffers"]


@pytest.mark.parametrize("sink", [False, True])
def test_attention(sink: bool, tmp_path: Path) -> None:
    _assert_right(_attention(128, 64, sink=sink), tmp_path)


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("width", [8, 16], ids=["filled up", "masked"])
def test_attention_of_odd_length(width: int, sink: bool, tmp_path: Path) -> None:
    """In whole tiles, or in masked ones; scalar code had negative offsets that count on wrapping."""
    machine = _assert_right(_attention(17, width, sink=sink), tmp_path)
    assert not machine.counts["buffer offsets past 2**32"]
    assert not machine.counts["bytes read outside all buffers"]


def test_batched_products_of_odd_rows_stay_inside_their_operands(tmp_path: Path) -> None:
    """Without buffer instructions the last batch read a row behind the last of 37."""
    assert not _assert_right(_product(37, 49, 64, batch=2), tmp_path).counts["bytes read outside all buffers"]


def test_faults_of_the_code_are_found(tmp_path: Path) -> None:
    graph = _product(64, 64, 64)
    pack = graph.random_inputs(seed=0)
    commands, assembly = compile_graph(graph, tmp_path)

    def check(changed: str) -> numerics.Comparison:
        assert changed != assembly
        return numerics.check(graph, pack, emulate(graph, pack, (commands, changed), Machine()))[0]

    with pytest.raises(HazardError, match="since the last barrier"):
        check(assembly.replace("\ts_barrier\n", ""))
    with pytest.raises(HazardError, match="before what was loaded has come"):
        check(re.sub(r"\ts_waitcnt vmcnt.*\n", "", assembly))
    with pytest.raises(UnmodelledError, match="v_mfma_f32_16x16x16_f17"):
        check(assembly.replace("v_mfma_f32_16x16x16_f16", "v_mfma_f32_16x16x16_f17", 1))
    swapped = re.sub(r"(v_mfma\S+ \S+ )(v\[\S+), (v\[\S+),", r"\1\3, \2,", assembly)
    comparison = check(swapped)
    assert not comparison.ok
    assert np.isfinite(comparison.got)
