"""The host: who is asked, who is chosen, what is executed."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from hipdnn_backend import (
    EngineError,
    Host,
    HostMemory,
    LoadingMode,
    NoEngineError,
    Override,
    PackError,
    Policies,
    Registry,
    WireError,
    engine_id,
)
from hipdnn_backend.host.registry import Entry
from hipdnn_backend.wire import (
    KnobSetting,
    SerializedGraphAndPlan,
    decode_graph,
    decode_graph_and_plan,
    decode_plan,
    encode_graph,
    encode_graph_and_plan,
    encode_plan,
)
from tests.hipdnn_backend.toys import CONV, RELU, SHAPE, ToyEngine, tiny_plugin


def host(*engines: ToyEngine, memory: HostMemory | None = None) -> Host:
    registry = Registry([Entry(engine, "test") for engine in engines])
    return Host(registry, memory=memory, policies=Policies())


def arrays() -> dict[int, np.ndarray]:
    return {1: np.linspace(-3, 3, 32, dtype=np.float32).reshape(SHAPE), 3: np.zeros(SHAPE, np.float32)}


def test_a_graph_from_bytes_to_result() -> None:
    engine = ToyEngine("A_ENGINE")
    with host(engine).build(RELU) as plan:
        pack = arrays()
        plan.execute(pack)
        np.testing.assert_array_equal(pack[3], np.where(pack[1] > 0, pack[1], 0))
        assert (plan.engine, plan.workspace_size) == (engine, 0)
        assert plan.order.ids == (engine.id,)
    assert engine.plans[0].closed


def test_records_are_taken_as_well() -> None:
    engine = ToyEngine("A_ENGINE")
    plan = host(engine).build(decode_graph(RELU))
    assert plan.graph == decode_graph(RELU)


def test_why_not_lists_every_engine() -> None:
    found = host(ToyEngine("A_ENGINE"), ToyEngine("B_ENGINE", declines="too small")).why_not(RELU)
    assert found["A_ENGINE"]
    assert (found["B_ENGINE"].node, found["B_ENGINE"].rule, found["B_ENGINE"].reason) == ("n", "toy", "too small")


def test_the_choice_follows_hipdnn() -> None:
    engines = ToyEngine("A_ENGINE"), ToyEngine("MIOPEN_ENGINE"), ToyEngine("B_ENGINE", declines="no")
    here = host(*engines)
    assert here.build(RELU).engine.name == "MIOPEN_ENGINE"
    assert here.build(RELU, preferred="A_ENGINE").engine.name == "A_ENGINE"
    assert here.build(RELU, preferred=engine_id("A_ENGINE")).order.policy == "preferred"
    fallen = here.build(RELU, preferred="B_ENGINE")
    assert fallen.engine.name == "MIOPEN_ENGINE"
    assert "B_ENGINE is not among" in fallen.order.notes[0]
    assert here.build(RELU, engine="A_ENGINE").order.reason == "A_ENGINE was asked for"


def test_nobody_runs_it() -> None:
    here = host(ToyEngine("A_ENGINE", declines="too small"), ToyEngine("B_ENGINE", declines="too large"))
    with pytest.raises(NoEngineError, match="no engine runs it: A_ENGINE: too small; B_ENGINE: too large"):
        here.build(RELU)
    with pytest.raises(NoEngineError, match="A_ENGINE does not run it: too small"):
        here.build(RELU, engine="A_ENGINE")
    with pytest.raises(NoEngineError, match="there is no engine C_ENGINE"):
        here.build(RELU, engine="C_ENGINE")
    with pytest.raises(NoEngineError, match="no engine runs it: there are no engines"):
        host().build(RELU)


def test_what_was_left_out_is_said_when_nobody_runs_it(tmp_path: Path) -> None:
    (tmp_path / "broken.so").touch()
    registry = Registry.find(paths=[tmp_path], mode=LoadingMode.ABSOLUTE, entry_points=False)
    with pytest.raises(NoEngineError, match=r"left out: .*broken.so: cannot be loaded"):
        Host(registry).build(RELU)


def test_the_chosen_engine_fails_and_no_other_is_tried() -> None:
    broken, other = ToyEngine("MIOPEN_ENGINE"), ToyEngine("A_ENGINE")
    broken.broken = "out of registers"
    with pytest.raises(EngineError, match="MIOPEN_ENGINE: out of registers"):
        host(broken, other).build(RELU)
    assert not other.plans


def test_damaged_graphs() -> None:
    with pytest.raises(WireError):
        host(ToyEngine("A_ENGINE")).build(RELU[:50])


def test_knobs_reach_the_engine() -> None:
    engine = ToyEngine("A_ENGINE")
    host(engine).build(RELU, knobs={"a.level": 3, "b": "x"})
    config = engine.plans[0].config
    assert config.engine_id == engine.id
    assert config.knobs == (KnobSetting(knob_id="a.level", value=3), KnobSetting(knob_id="b", value="x"))


def test_bad_packs_run_nothing() -> None:
    engine = ToyEngine("A_ENGINE")
    plan = host(engine).build(RELU)
    with pytest.raises(PackError, match="is float32, the array is float64"):
        plan.execute({1: np.zeros(SHAPE), 3: arrays()[3]})
    assert not engine.plans[0].calls


def test_the_plan_keeps_a_workspace_for_each_stream() -> None:
    memory = HostMemory()
    engine = ToyEngine("A_ENGINE", needs=100)
    plan = host(engine, memory=memory).build(RELU)
    pack = arrays()
    for stream in (0, 7, 0):
        plan.execute(pack, stream=stream)
    (_, first, *_), (_, other, stream, _), (_, again, *_) = engine.plans[0].calls
    assert stream == 7
    assert first == again != other
    assert memory.live_count == 2
    plan.close()
    assert memory.live_count == 0


def test_a_workspace_of_the_callers() -> None:
    memory = HostMemory()
    engine = ToyEngine("A_ENGINE", needs=100)
    plan = host(engine, memory=memory).build(RELU)
    pack = arrays()
    with memory.allocate(100) as workspace, memory.allocate(99) as small:
        plan.execute(pack, workspace=workspace)
        plan.execute(pack, workspace=4096)
        assert [call[1] for call in engine.plans[0].calls] == [workspace.address, 4096]
        with pytest.raises(PackError, match="the plan needs 100 bytes of workspace, not 99"):
            plan.execute(pack, workspace=small)
    assert memory.live_count == 0


def test_overrides_need_a_graph_that_allows_them() -> None:
    engine = ToyEngine("A_ENGINE")
    override = {1: Override(SHAPE, (32, 16, 4, 1))}
    plan = host(engine).build(RELU)
    with pytest.raises(PackError, match="does not allow other dims"):
        plan.execute(arrays(), overrides=override)
    allowed = decode_graph(RELU).replace(is_override_shape_enabled=True)
    host(engine).build(allowed).execute(arrays(), overrides=override)
    assert engine.plans[-1].calls[0][3] == override


def test_plans_survive_as_bytes() -> None:
    engine = ToyEngine("A_ENGINE")
    data = host(engine).build(RELU).serialize()
    both = decode_graph_and_plan(data)
    inside = decode_plan(both.plan_blob)
    assert (inside.engine_id, inside.plugin_payload) == (engine.id, b"plan of A_ENGINE")
    assert sorted(inside.tensor_uids) == [1, 3]
    restored = host(ToyEngine("B_ENGINE"), engine).restore(data)
    pack = arrays()
    restored.execute(pack)
    np.testing.assert_array_equal(pack[3], np.maximum(pack[1], 0))
    assert (restored.engine, restored.order.policy) == (engine, "restored")


def test_plans_that_cannot_be_restored() -> None:
    engine = ToyEngine("A_ENGINE")
    data = host(engine).build(RELU).serialize()
    with pytest.raises(NoEngineError, match="there is no engine"):
        host(ToyEngine("B_ENGINE")).restore(data)
    with pytest.raises(WireError):
        host(engine).restore(data[:40])
    with pytest.raises(WireError, match="a graph and no plan"):
        host(engine).restore(encode_graph_and_plan(SerializedGraphAndPlan(graph_blob=RELU, plan_blob=b"")))
    other = ToyEngine("A_ENGINE")
    both = decode_graph_and_plan(data)
    wrong = decode_plan(both.plan_blob).replace(plugin_payload=b"x")
    with pytest.raises(EngineError, match="no plan of mine"):
        host(other).restore(encode_graph_and_plan(both.replace(plan_blob=encode_plan(wrong))))


def test_threads_share_a_plan() -> None:
    engine = ToyEngine("A_ENGINE", needs=64)
    plan = host(engine).build(RELU)
    wrong: list[int] = []

    def work(number: int) -> None:
        pack = {1: np.full(SHAPE, number, np.float32), 3: np.zeros(SHAPE, np.float32)}
        for _ in range(50):
            plan.execute(pack)
            if not (pack[3] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_plugin_behind_the_host(tmp_path: Path) -> None:
    paths = [tiny_plugin(tmp_path / "tiny.so")]
    with Host(Registry.find(paths=paths, mode=LoadingMode.ABSOLUTE, entry_points=False), policies=Policies()) as here:
        plan = here.build(RELU)
        pack = arrays()
        plan.execute(pack)
        np.testing.assert_array_equal(pack[3].ravel()[:4], pack[1].ravel()[:4] * 2)  # it doubles four elements
        again = here.restore(plan.serialize())
        again.execute(pack)
        del plan, again
        gc.collect()


@pytest.mark.iree_cpu
def test_the_engine_of_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusilli_plugin.engine.engine import FusilliEngine

    here = Host(Registry([Entry(FusilliEngine("cpu"), "test")]), policies=Policies())
    graph = decode_graph(CONV)
    plan = here.build(encode_graph(graph))
    uids = {tensor.name: tensor.uid for tensor in graph.tensors}
    rng = np.random.default_rng(1)
    x, w, b = (rng.standard_normal(graph.tensor(uids[name]).dims) for name in ("x", "w", "b"))
    pack = {uids[name]: value.astype(np.float32) for name, value in (("x", x), ("w", w), ("b", b))}
    pack[uids["y"]] = np.full((1, 3, 4, 4), np.nan, np.float32)
    plan.execute(pack)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    wanted = np.zeros((1, 3, 4, 4))
    for row in range(3):
        for column in range(3):
            window = padded[:, :, row : row + 4, column : column + 4]
            wanted += np.einsum("nchw,kc->nkhw", window, w[:, :, row, column])
    np.testing.assert_allclose(pack[uids["y"]], np.maximum(wanted + b, 0), rtol=1e-5, atol=1e-5)
    first = pack[uids["y"]].copy()
    pack[uids["y"]][...] = np.nan
    here.restore(plan.serialize()).execute(pack)
    np.testing.assert_array_equal(pack[uids["y"]], first)
    bad = decode_graph(CONV).replace(name="other")
    assert here.why_not(bad)["FUSILLI_ENGINE"]
