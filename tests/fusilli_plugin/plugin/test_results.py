"""Results that nobody has marked as outputs, and workspaces so small that the plan keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np
import pytest

from fusilli_plugin.engine.built import Built
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph, import_graph, unread_results
from fusilli_plugin.engine.plan import FusilliPlan
from graph_api import DataType, Graph, PointwiseMode
from hipdnn_backend import Host, Registry
from hipdnn_backend.errors import EngineError
from hipdnn_backend.host.registry import Entry
from hipdnn_backend.wire import EngineConfig, WireGraph, decode_graph, encode_graph
from tests.fusilli_plugin.plugin.hosting import GRAPHS

X, MEAN, INV, SCALE, BIAS, Y = 1, 2, 3, 4, 5, 6


pytestmark = pytest.mark.iree_cpu


@pytest.fixture(scope="module")
def engine() -> FusilliEngine:
    return FusilliEngine("cpu")


def batchnorm() -> Graph:
    graph = Graph("bn", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x = graph.tensor("x", dim=(2, 3, 4, 5), uid=X)
    mean, inv, scale, bias = (
        graph.tensor(name, dim=(1, 3, 1, 1), uid=uid)
        for name, uid in (("mean", MEAN), ("inv", INV), ("scale", SCALE), ("bias", BIAS))
    )
    graph.batchnorm_inference(x, mean, inv, scale, bias).set_uid(Y).set_output()
    return graph.validate()


def two_results() -> Graph:
    """Two results of one input: 10 is x + x, 11 its relu; both may be left out."""
    graph = Graph("two", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    x = graph.tensor("x", dim=(7, 5), uid=X)
    graph.pointwise(PointwiseMode.NEG, x).set_uid(10).set_output()
    graph.pointwise(PointwiseMode.RELU_FWD, x).set_uid(11).set_output()
    return graph.validate()


def unmarked(graph: Graph, uids: Iterable[int]) -> WireGraph:
    """The wire graph with some results virtual, as a builder leaves them."""
    source = export_graph(graph)
    tensors = tuple(each.replace(virtual=True) if each.uid in set(uids) else each for each in source.tensors)
    return source.replace(tensors=tensors)


def config(engine: FusilliEngine) -> EngineConfig:
    return EngineConfig(engine_id=engine.id)


def built(engine: FusilliEngine, source: WireGraph) -> FusilliPlan:
    data = encode_graph(source)
    assert engine.support(data), engine.support(data)
    return engine.build(data, config(engine))


def test_which_results_are_unread() -> None:
    assert unread_results(export_graph(two_results())) == frozenset()
    source = unmarked(two_results(), (10, 11))
    assert unread_results(source) == {10, 11}
    assert {tensor.uid for tensor in import_graph(source).arguments().outputs} == {10, 11}
    one = import_graph(unmarked(two_results(), (11,)))
    assert {tensor.uid for tensor in one.arguments().outputs} == {10}
    conv = decode_graph((GRAPHS / "conv_bias_relu.bin").read_bytes())
    assert unread_results(conv) == frozenset()  # what the next node reads is in between


def test_a_result_that_nobody_marked_is_written(engine: FusilliEngine) -> None:
    """AMD's tests of batchnorm inference are written so."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    mean, inv, scale, bias = (rng.uniform(0.5, 2, (1, 3, 1, 1)).astype(np.float32) for _ in range(4))
    y = np.full_like(x, np.nan)
    arrays = {X: x, MEAN: mean, INV: inv, SCALE: scale, BIAS: bias, Y: y}
    built(engine, unmarked(batchnorm(), (Y,))).execute({uid: array.ctypes.data for uid, array in arrays.items()})
    np.testing.assert_allclose(y, (x.astype(float) - mean) * inv * scale + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("marked", "given"),
    [((), (10, 11)), ((), (10,)), ((), (11,)), ((10,), (10, 11)), ((10,), (10,)), ((11,), (10, 11)), ((11,), (11,))],
)
@pytest.mark.parametrize("way", ["execute", "launch", "restored"])
def test_what_the_pack_names_is_written_and_nothing_else(
    engine: FusilliEngine, marked: tuple[int, ...], given: tuple[int, ...], way: str
) -> None:
    x = np.arange(-17, 18, dtype=np.float32).reshape(7, 5)
    right = {10: -x, 11: np.maximum(x, 0)}
    results = {uid: np.full_like(x, np.nan) for uid in right}
    pack = {X: x.ctypes.data, **{uid: results[uid].ctypes.data for uid in given}}
    plan = built(engine, unmarked(two_results(), {10, 11} - set(marked)))
    if way == "restored":
        plan = engine.restore(plan.serialize())
    for _ in range(3):  # the second time on the CPU, a launch is prepared
        if way == "launch":
            plan.launch(np.array(list(pack.items()), np.int64).tobytes(), 0, engine.place(0))
        else:
            plan.execute(pack)
    for uid, array in results.items():
        np.testing.assert_array_equal(array, right[uid] if uid in given else np.full_like(x, np.nan))
    assert plan.specialised <= 1
    plan.close()


def test_a_pack_without_any_result(engine: FusilliEngine) -> None:
    x = np.zeros((7, 5), np.float32)
    plan = built(engine, unmarked(two_results(), (10, 11)))
    with pytest.raises(EngineError, match="the variant pack has no buffer for any result of graph 'two': 10 .*, 11 "):
        plan.execute({X: x.ctypes.data, 10: 0})
    other = built(engine, unmarked(two_results(), (11,)))
    with pytest.raises(EngineError, match="the variant pack has no buffer for tensor 10"):
        other.execute({X: x.ctypes.data, 11: x.ctypes.data})


def test_our_host_takes_them_too(engine: FusilliEngine) -> None:
    host = Host(Registry([Entry(engine, "here")]))
    x = np.arange(-17, 18, dtype=np.float32).reshape(7, 5)
    plan = host.build(unmarked(two_results(), (10, 11)))
    y = np.empty_like(x)
    plan.execute({X: x, 11: y})
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    plan.execute({X: x, 10: y})
    np.testing.assert_array_equal(y, -x)


# ---- small workspaces


def scratch_of(plan: FusilliPlan) -> Built:
    return plan._built


def chain(size: int) -> Graph:
    """Two products, so that the first result needs a place."""
    graph = Graph("chain", io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)
    a, b, c = (graph.tensor(name, dim=(size, size)) for name in "abc")
    graph.matmul(graph.matmul(a, b), c).set_output()
    return graph.validate()


@pytest.mark.parametrize(("size", "others"), [(16, 1), (256, 0)], ids=["small", "told-but-not-given"])
def test_no_workspace_is_needed_where_it_is_little(engine: FusilliEngine, size: int, others: int) -> None:
    """AMD's samples of batchnorm pass none. Executions at the same time are kept apart."""
    data = encode_graph(export_graph(chain(size)))
    plan = engine.build(data, config(engine))
    scratch = scratch_of(plan).scratch_size
    assert 4 * size * size <= scratch <= 1 << 20
    assert plan.workspace_size == engine.workspace_size(data, config(engine)) == (0 if scratch <= 32 << 10 else scratch)
    graph = plan.graph
    inputs = graph.random_inputs(1)
    expected = graph.reference(inputs)
    failures: list[str] = []

    def work(workspace: int) -> None:
        outputs = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
        pack = {tensor.uid: array.ctypes.data for tensor, array in (inputs | outputs).items()}
        for _ in range(20):
            plan.execute(pack, workspace=workspace)  # 1 is no address: nothing was asked for, so it is not used
            for tensor, array in outputs.items():
                if not np.allclose(array, expected[tensor], rtol=1e-3, atol=1e-3):
                    failures.append(tensor.name)

    threads = [threading.Thread(target=work, args=(number % 2 * others,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_large_workspace_is_asked_for_and_named(engine: FusilliEngine) -> None:
    data = encode_graph(export_graph(chain(520)))
    plan = engine.build(data, config(engine))
    assert plan.workspace_size >= 520 * 520 * 4
    memory = np.zeros(520 * 520, np.float32)
    pack = {tensor.uid: memory.ctypes.data for tensor in (*plan.graph.arguments().inputs,)}
    result = np.zeros((520, 520), np.float32)
    pack[plan.graph.arguments().outputs[0].uid] = result.ctypes.data
    with pytest.raises(EngineError, match=rf"needs {plan.workspace_size} bytes of workspace, and the pointer is NULL"):
        plan.execute(pack)
