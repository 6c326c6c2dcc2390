"""Ranking: times count, and no wrong result gets through."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from hipdnn_backend import Host, NoEngineError, PackError, Policies, Ranking, Registry, Verdict
from hipdnn_backend.host.registry import Entry
from hipdnn_backend.wire import DataType, decode_graph, encode_graph
from tests.hipdnn_backend.toys import RELU, SHAPE, ToyEngine, relu

X = np.linspace(-3, 3, 32, dtype=np.float32).reshape(SHAPE)
RIGHT = np.where(X > 0, X, 0).astype(np.float64)


def slow(x: np.ndarray) -> np.ndarray:
    time.sleep(0.002)
    return relu(x)


def ranked(*engines: ToyEngine, **options: Any) -> tuple[Ranking, dict[int, np.ndarray]]:
    pack = {1: X.copy(), 3: np.zeros(SHAPE, np.float32)}
    registry = Registry([Entry(engine, "test") for engine in engines])
    options = {"rounds": 5, "warmup": 1} | options
    return Host(registry, policies=Policies()).rank(RELU, pack, **options), pack


def test_the_fastest_engine_is_best_and_its_result_stays() -> None:
    ranking, pack = ranked(ToyEngine("SLOW", slow), ToyEngine("FAST"), reference={3: RIGHT})
    assert ranking.best == "FAST"
    assert [entry.engine for entry in ranking.ranks] == ["FAST", "SLOW"]
    assert {entry.verdict for entry in ranking.ranks} == {Verdict.RIGHT}
    assert ranking["SLOW"].median is not None
    assert ranking["SLOW"].median >= 2e6  # ns
    assert len(ranking["SLOW"].times) == 5
    np.testing.assert_array_equal(pack[3], RIGHT)


def test_wrong_engines_are_refused_by_the_reference() -> None:
    wrong = ToyEngine("WRONG", lambda x: np.where(x > 2.9, 0, relu(x)))
    ranking, pack = ranked(wrong, ToyEngine("GOOD"), reference={3: RIGHT})
    assert ranking["WRONG"].verdict is Verdict.WRONG
    assert ranking["WRONG"].median is None
    assert "1 of 32 elements, tensor 3 'y'[0, 1, 3, 3] is 0.0 instead of 3.0" in ranking["WRONG"].reason
    assert ranking["WRONG"].deviation == pytest.approx(1.0)
    assert ranking.best == "GOOD"
    np.testing.assert_array_equal(pack[3], RIGHT)


def test_the_majority_is_right_without_a_reference() -> None:
    engines = ToyEngine("A"), ToyEngine("WRONG", lambda x: x), ToyEngine("B", slow)
    ranking, _ = ranked(*engines)
    assert ranking["A"].verdict is ranking["B"].verdict is Verdict.RIGHT
    assert ranking["WRONG"].verdict is Verdict.WRONG
    assert "it differs from A, B, which agree: " in ranking["WRONG"].reason


def test_two_that_differ_are_both_refused() -> None:
    ranking, _ = ranked(ToyEngine("A"), ToyEngine("B", lambda x: x))
    assert {entry.verdict for entry in ranking.ranks} == {Verdict.UNDECIDED}
    assert ranking["A"].reason == "it and B differ, and without a reference nothing tells which is right"
    with pytest.raises(NoEngineError, match="A undecided: it and B differ"):
        _ = ranking.best


def test_two_against_two_are_undecided() -> None:
    engines = [ToyEngine(name, relu if name in "AB" else lambda x: x) for name in "ABCD"]
    ranking, _ = ranked(*engines)
    assert {entry.verdict for entry in ranking.ranks} == {Verdict.UNDECIDED}


def test_one_engine_is_unchecked_and_timed() -> None:
    ranking, _ = ranked(ToyEngine("A"))
    assert (ranking["A"].verdict, ranking.best) == (Verdict.UNCHECKED, "A")


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda x: np.where(np.arange(32).reshape(SHAPE) == 31, np.nan, relu(x)), "1 of 32 elements"),
        (lambda x: relu(x) + 0.01, "32 of 32 elements"),
        (lambda x: np.full(SHAPE, np.inf), "32 of 32 elements"),
    ],
)
def test_nan_infinities_and_small_errors(function: Any, complaint: str) -> None:
    ranking, _ = ranked(ToyEngine("A", function), reference={3: RIGHT})
    assert ranking["A"].verdict is Verdict.WRONG
    assert complaint in ranking["A"].reason


def test_the_tolerance() -> None:
    rough = ToyEngine("A", lambda x: relu(x) + 0.01)
    assert ranked(rough, reference={3: RIGHT}, tolerance=0.01)[0].best == "A"
    assert ranked(ToyEngine("A", lambda x: relu(x) + 1e-5), reference={3: RIGHT})[0].best == "A"


class Lazy(ToyEngine):
    """Writes all but the last element."""

    def run(self, x: np.ndarray, y: np.ndarray, call: int) -> None:
        y.ravel()[:-1] = relu(x).ravel()[:-1]


class Accumulating(ToyEngine):
    def run(self, x: np.ndarray, y: np.ndarray, call: int) -> None:
        y[...] = relu(x) if call == 1 else y + relu(x)


class Greedy(ToyEngine):
    def run(self, x: np.ndarray, y: np.ndarray, call: int) -> None:
        y[...] = relu(x)
        x[...] = y


class Failing(ToyEngine):
    def run(self, x: np.ndarray, y: np.ndarray, call: int) -> None:
        from hipdnn_backend import EngineError

        if call > 3:
            raise EngineError(self.name, "the device is lost")
        y[...] = relu(x)


def test_elements_that_are_not_written_are_seen() -> None:
    # the pack's outputs hold the right values already
    ranking, _ = ranked(Lazy("A"), reference={3: RIGHT})
    assert "1 of 32 elements, tensor 3 'y'[0, 1, 3, 3] is nan instead of 3.0" in ranking["A"].reason


def test_repeated_runs_must_agree() -> None:
    ranking, _ = ranked(Accumulating("A"), reference={3: RIGHT})
    assert ranking["A"].verdict is Verdict.WRONG
    assert "repeated runs give other results" in ranking["A"].reason


def test_inputs_are_left_alone() -> None:
    ranking, pack = ranked(Greedy("A"), ToyEngine("B"), reference={3: RIGHT})
    assert (ranking["A"].verdict, ranking["A"].reason) == (Verdict.WRONG, "it changes its input, tensor 1")
    assert ranking.best == "B"
    np.testing.assert_array_equal(pack[1], X)


def test_engines_that_fail() -> None:
    broken = ToyEngine("BROKEN")
    broken.broken = "no registers"
    ranking, _ = ranked(broken, Failing("LOST"), ToyEngine("GOOD"), ToyEngine("OTHER", declines="no"))
    assert ranking["BROKEN"].verdict is Verdict.FAILED
    assert "it claims the graph and does not build it: BROKEN: no registers" in ranking["BROKEN"].reason
    assert ranking["LOST"].verdict is Verdict.FAILED
    assert "the device is lost" in ranking["LOST"].reason
    assert ranking.best == "GOOD"
    with pytest.raises(KeyError):
        ranking["OTHER"]  # it was not asked to


def test_nobody_claims_the_graph() -> None:
    ranking, _ = ranked(ToyEngine("A", declines="no"))
    assert ranking.ranks == ()
    with pytest.raises(NoEngineError, match="no engine runs the graph"):
        _ = ranking.best


def test_plans_are_closed() -> None:
    engines = [ToyEngine("A"), Lazy("B")]
    ranked(*engines, reference={3: RIGHT})
    assert [plan.closed for engine in engines for plan in engine.plans] == [True, True]


def test_knobs_by_engine() -> None:
    engine = ToyEngine("A")
    ranked(engine, knobs={"A": {"level": 3}})
    assert engine.plans[0].config.knobs[0].value == 3


@pytest.mark.parametrize(
    ("reference", "complaint"),
    [({1: RIGHT}, "1 is no output of the graph"), ({3: RIGHT[0]}, r"has dims \[1, 2, 4, 4\], the array \[2, 4, 4\]")],
)
def test_references_must_fit(reference: dict[int, Any], complaint: str) -> None:
    with pytest.raises(PackError, match=complaint):
        ranked(ToyEngine("A"), reference=reference)


def test_outputs_in_the_memory_of_inputs() -> None:
    array = np.zeros(SHAPE, np.float32)
    here = Host(Registry([Entry(ToyEngine("A"), "test")]), policies=Policies())
    with pytest.raises(PackError, match="output 3 shares memory with input 1"):
        here.rank(RELU, {1: array, 3: array})


def test_rounds() -> None:
    with pytest.raises(ValueError, match="0 rounds"):
        ranked(ToyEngine("A"), rounds=0)


def with_outputs_of(data_type: DataType, dims: tuple[int, ...]) -> bytes:
    graph = decode_graph(RELU)
    tensors = [t.replace(data_type=data_type, dims=dims) if t.uid == 3 else t for t in graph.tensors]
    return encode_graph(graph.replace(tensors=tuple(tensors)))


class Bytes(ToyEngine):
    """Writes nothing but a byte of its own."""

    def __init__(self, name: str, byte: int) -> None:
        super().__init__(name)
        self._byte = byte

    def run(self, x: np.ndarray, y: np.ndarray, call: int) -> None:
        y.view(np.uint8).ravel()[0] = self._byte


def test_types_below_a_byte_are_compared_as_bytes() -> None:
    here = Host(Registry([Entry(Bytes(*pair), "test") for pair in (("A", 1), ("B", 1), ("C", 2))]), policies=Policies())
    memory = here.memory
    graph = with_outputs_of(DataType.INT4, SHAPE)
    with memory.allocate(128) as output:
        ranking = here.rank(graph, {1: X.copy(), 3: output}, rounds=2)
        assert ranking["C"].verdict is Verdict.WRONG
        assert {ranking["A"].verdict, ranking["B"].verdict} == {Verdict.RIGHT}
        with pytest.raises(PackError, match="arrays have no type INT4; leave out output 3"):
            here.rank(graph, {1: X.copy(), 3: output}, reference={3: RIGHT})


def test_integers_must_be_equal() -> None:
    graph = with_outputs_of(DataType.INT32, SHAPE)
    pack = {1: X.copy(), 3: np.zeros(SHAPE, np.int32)}
    here = Host(Registry([Entry(Bytes("A", 254), "test")]), policies=Policies())
    wanted = np.full(SHAPE, -1)  # what was not written
    assert here.rank(graph, pack, reference={3: wanted}, rounds=2)["A"].verdict is Verdict.WRONG
    wanted[0, 0, 0, 0] = -2
    assert here.rank(graph, pack, reference={3: wanted}, rounds=2)["A"].verdict is Verdict.RIGHT


def test_outputs_without_elements() -> None:
    graph = with_outputs_of(DataType.FLOAT, (1, 0, 4, 4))
    engine = ToyEngine("A")
    engine.run = lambda x, y, call: None  # type: ignore[method-assign]
    here = Host(Registry([Entry(engine, "test")]), policies=Policies())
    with here.memory.allocate(128) as output:
        ranking = here.rank(graph, {1: X.copy(), 3: output}, reference={3: np.zeros((1, 0, 4, 4))}, rounds=2)
    assert ranking["A"].verdict is Verdict.RIGHT
