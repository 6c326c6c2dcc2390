"""Graphs compiled for AMD chips, emulated and compared with the reference; faults put into their code are found.

The sample has one graph for each form that the compiler emits. No GPU is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fusilli_plugin.checks.selftest import GRAPHS, SMALL
from fusilli_plugin.emulator import Assembled, Emulator, Verdict
from graph_api import DataType, Graph, NormFwdPhase, NotSupportedError, PointwiseMode, ReductionMode
from iree_bridge import Options, Target

pytestmark = [pytest.mark.mlir]


def _graph(io: DataType = DataType.HALF) -> Graph:
    return Graph("g", io_data_type=io, compute_data_type=DataType.FLOAT)


def _product(m: int, n: int, k: int, *, batch: int = 1, io: DataType = DataType.HALF) -> Graph:
    g = _graph(io)
    g.matmul(g.tensor("a", dim=(batch, m, k)), g.tensor("b", dim=(batch, k, n))).set_output(True)
    return g.validate()


def _conv(
    x: tuple[int, ...], w: tuple[int, ...], *, layout: str, padding: int = 0, io: DataType = DataType.HALF
) -> Graph:
    g = _graph(io)
    y = g.conv_fprop(g.tensor("x", dim=x, layout=layout), g.tensor("w", dim=w, layout=layout), padding=padding)
    g.pointwise(PointwiseMode.RELU_FWD, y).set_output(True)
    return g.validate()


def _dgrad() -> Graph:
    g = _graph()
    dx = g.conv_dgrad(g.tensor("dy", dim=(2, 8, 5, 5)), g.tensor("w", dim=(8, 8, 3, 3)), padding=1)
    dx.set_output(True).set_dim((2, 8, 5, 5))
    return g.validate()


def _wgrad() -> Graph:
    g = _graph(DataType.FLOAT)
    dw = g.conv_wgrad(g.tensor("dy", dim=(2, 8, 5, 5)), g.tensor("x", dim=(2, 8, 5, 5)), padding=1)
    dw.set_output(True).set_dim((8, 8, 3, 3))
    return g.validate()


def _attention() -> Graph:
    g = _graph()
    q, k, v = (g.tensor(name, dim=(1, 1, 17, 16)) for name in "qkv")
    g.sdpa(q, k, v, attn_scale=0.25, causal_mask=True).o.set_output(True)
    return g.validate()


def _norm() -> Graph:
    g = _graph()
    x, scale, bias = (g.tensor(n, dim=d) for n, d in (("x", (3, 5, 70)), ("s", (1, 1, 70)), ("b", (1, 1, 70))))
    y, _, _ = g.layernorm(x, scale, bias, epsilon=1e-5, forward_phase=NormFwdPhase.INFERENCE)
    y.set_output(True)
    return g.validate()


def _reduction() -> Graph:
    g = _graph(DataType.FLOAT)
    y = g.reduction(g.tensor("x", dim=(3, 5, 300)), mode=ReductionMode.MAX)
    y.set_output(True).set_dim((3, 5, 1))
    return g.validate()


def _gelu() -> Graph:
    g = _graph(DataType.BFLOAT16)
    g.pointwise(PointwiseMode.GELU_FWD, g.tensor("x", dim=(3, 7, 11))).set_output(True)
    return g.validate()


SAMPLE: dict[str, Callable[[], Graph]] = {
    "product of whole tiles": lambda: _product(64, 64, 64),
    "product with ragged sizes": lambda: _product(33, 29, 37),
    "batched products with odd rows": lambda: _product(5, 9, 7, batch=2, io=DataType.FLOAT),
    "product of doubles": lambda: _product(17, 16, 20, io=DataType.DOUBLE),
    "convolution, channels last": lambda: _conv((2, 16, 6, 6), (16, 16, 3, 3), layout="NHWC", padding=1),
    "1x1 convolution, odd pixels": lambda: _conv((2, 5, 4, 7), (6, 5, 1, 1), layout="NCHW", io=DataType.FLOAT),
    "gradient of the input": _dgrad,
    "gradient of the filters": _wgrad,
    "attention of odd length": _attention,
    "layer norm": _norm,
    "maximum": _reduction,
    "pointwise": _gelu,
}  # fmt: skip


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    return Emulator(Target.parse("gfx942"))


@pytest.mark.a_few("1x1 convolution, odd pixels", "gradient of the filters", "pointwise")
@pytest.mark.parametrize("name", SAMPLE)
def test_sample_is_right(name: str, emulator: Emulator) -> None:
    outcome = emulator.examine(SAMPLE[name]())
    assert outcome.ok, f"{outcome.verdict}: {outcome.text}"
    assert outcome.ratio is not None
    assert outcome.ratio <= 1
    assert sum(outcome.counts.values())


@pytest.mark.parametrize("chip", ["gfx90a", "gfx950"])
def test_the_other_chips_run(chip: str) -> None:
    outcome = Emulator(Target.parse(chip)).examine(_product(64, 64, 64))
    assert outcome.ok, outcome.text
    assert any(name.startswith("v_mfma") for name in outcome.counts)


def _code(emulator: Emulator, graph: Graph, change: Callable[[str], str]) -> Assembled:
    code = emulator.code(graph)
    changed = change(code.assembly)
    assert changed != code.assembly
    return replace(code, assembly=changed)


def _shift_first_store(text: str) -> str:
    """Adds 16 bytes to the immediate offset of the first store to memory."""

    def moved(match: re.Match[str]) -> str:
        line = match[0]
        if "offset:" in line:
            return re.sub(r"offset:(\d+)", lambda m: f"offset:{int(m[1]) + 16}", line)
        return f"{line} offset:16"

    return re.sub(r"\t(global|buffer)_store_\w+ .*", moved, text, count=1)


CONTROLS: dict[str, tuple[Callable[[str], str], tuple[Verdict, ...], str]] = {
    "swapped operands": (
        lambda text: re.sub(r"(v_mfma\S+ \S+ )(v\[\S+), (v\[\S+),", r"\1\3, \2,", text),
        (Verdict.WRONG,),
        "",
    ),
    "removed barriers": (lambda text: text.replace("\ts_barrier\n", ""), (Verdict.HAZARD,), "since the last barrier"),
    "removed waits for memory": (
        lambda text: re.sub(r"\ts_waitcnt vmcnt.*\n", "", text),
        (Verdict.HAZARD,),
        "before what was loaded has come",
    ),
    "removed waits for LDS": (
        lambda text: re.sub(r"\ts_waitcnt lgkmcnt.*\n", "", text),
        (Verdict.HAZARD,),
        "before what was loaded has come|under way",
    ),
    "a shifted offset": (_shift_first_store, (Verdict.WRONG, Verdict.HAZARD), ""),
    "an instruction without a model": (
        lambda text: text.replace("v_mfma_f32_16x16x16_f16", "v_mfma_f32_16x16x16_f17", 1),
        (Verdict.UNMODELLED,),
        "v_mfma_f32_16x16x16_f17",
    ),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_a_fault_in_the_code_is_found(name: str, emulator: Emulator) -> None:
    change, verdicts, message = CONTROLS[name]
    graph = _product(64, 64, 64)
    outcome = emulator.examine(graph, code=_code(emulator, graph, change))
    assert outcome.verdict in verdicts, outcome.text
    assert re.search(message, outcome.text)


def test_an_unmasked_tail_is_found(emulator: Emulator) -> None:
    """37 steps along K are no whole number of tiles: lanes beyond them must not load. Here they do."""
    graph = _product(33, 29, 37)

    def unmasked(text: str) -> str:
        loads, last, stores = text.rpartition("\tv_mfma")
        return re.sub(r"(\ts_and_saveexec_b64 \S+), \S+", r"\1, exec", loads) + last + stores

    outcome = emulator.examine(graph, code=_code(emulator, graph, unmasked))
    assert outcome.verdict in (Verdict.OUTSIDE, Verdict.WRONG), outcome.text


def test_a_chip_without_a_model_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="gfx1100.*cannot be emulated"):
        Emulator(Target.parse("gfx1100"))


def test_a_chip_is_named_by_a_string_too() -> None:
    assert str(Emulator("mi300x")) == "gfx942 (emulated)"
    with pytest.raises(NotSupportedError, match="unknown"):
        Emulator("nonsense")


def test_a_declined_graph_and_a_failed_compile_are_told_apart(emulator: Emulator) -> None:
    g = _graph(DataType.FP8_E8M0)
    q, k, v = (g.tensor(name, dim=(1, 1, 16, 16)) for name in "qkv")
    g.sdpa(q, k, v, attn_scale=0.25).o.set_output(True)
    declined = emulator.examine(g.validate())
    assert declined.verdict is Verdict.DECLINED
    assert "FP8_E8M0" in declined.text
    bad = replace(Options.from_env(), extra_flags=("--iree-no-such-flag",))
    outcome = Emulator(Target.parse("gfx942"), bad).examine(_gelu())
    assert outcome.verdict is Verdict.FAILED
    assert "iree-no-such-flag" in outcome.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pack, a: pack.pop(a), "no array for input 'a'"),
        (lambda pack, a: pack.update({a: pack[a][:, :-1]}), r"input 'a': dims: expected \(1, 4, 8\), got \(1, 3, 8\)"),
        (
            lambda pack, a: pack.update({a: pack[a].astype(np.float32)}),
            "input 'a': dtype: expected float16, got float32",
        ),
        (lambda pack, a: pack.update({a: np.asfortranarray(pack[a])}), "input 'a': strides"),
    ],
)
def test_inputs_that_do_not_fit_are_no_fault_of_the_code(
    change: Callable[[dict[Any, Any], Any], Any], message: str, emulator: Emulator
) -> None:
    graph = _product(4, 4, 8)
    pack = graph.random_inputs(seed=0)
    change(pack, next(iter(pack)))
    outcome = emulator.examine(graph, pack)
    assert outcome.verdict is Verdict.FAILED
    assert re.match(message, outcome.text)


@pytest.mark.thorough
def test_threads_emulate_at_once(emulator: Emulator) -> None:
    graphs = [_product(5 + n, 7, 33) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(emulator.examine, graphs))
    assert [outcome.verdict for outcome in outcomes] == [Verdict.RIGHT] * 4, outcomes


def test_the_selftest_has_the_same_graphs_in_small() -> None:
    assert set(SMALL) == set(GRAPHS)
    for name, build in SMALL.items():
        small, large = (sum(t.volume for t in g.arguments().inputs) for g in (build(), GRAPHS[name]()))
        assert small <= large
