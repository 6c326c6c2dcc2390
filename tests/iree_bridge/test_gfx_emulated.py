"""Code for gfx942, emulated instruction by instruction and compared with the float64 reference. No GPU is needed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fusilli_plugin.checks.selftest import GRAPHS
from graph_api import DataType, Graph, numerics
from tests.cases import family_cases
from fusilli_plugin.emulator import UnmodelledError
from tests.support.gfx_emulator.graphs import compile_graph, emulate
from tests.support.gfx_emulator.launch import Machine
from tests.support.gfx_emulator.state import HazardError

pytestmark = [pytest.mark.mlir, pytest.mark.slow]

_SELFTEST = [
    "conv 1x1+bias+ReLU, 7x7 pixels HALF",
    "conv 1x1+bias+ReLU, 7x7 pixels BFLOAT16",
    "product HALF",
    "product, transposed HALF",
    "layer norm HALF",
    "dgrad HALF",
]
_CASES = [("conv", "c309_fprop"), ("matmul", "all_transposed_bf16"), ("matmul", "batch_nan_behind_f16")]


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


@pytest.mark.parametrize(("family", "name"), _CASES)
def test_case_of_the_tables(family: str, name: str, tmp_path: Path) -> None:
    case = next(case for case in family_cases(family) if case.name == name)
    graph = case.graph()
    pack = case.pack(graph)
    results = emulate(graph, pack, compile_graph(graph, tmp_path), Machine())
    for comparison in numerics.check(graph, pack, results):
        assert comparison.ok, str(comparison)


@pytest.mark.parametrize("sink", [False, True])
def test_attention(sink: bool, tmp_path: Path) -> None:
    _assert_right(_attention(128, 64, sink=sink), tmp_path)


@pytest.mark.parametrize("sink", [False, True])
def test_attention_of_odd_length(sink: bool, tmp_path: Path) -> None:
    """It is filled up to whole tiles; scalar code had negative offsets that count on wrapping."""
    machine = _assert_right(_attention(17, 16, sink=sink), tmp_path)
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
