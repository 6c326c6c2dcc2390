"""hipDNN's own backend through its C API: against a stand-in that the test compiles, and the real one where it is."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hipdnn_backend.engine import Override, engine_id
from hipdnn_backend.errors import EngineError, NoEngineError, PackError
from hipdnn_backend.host.native import NativeHost
from hipdnn_backend.host.native_api import NativeStatus
from hipdnn_backend.plugins.search import LoadingMode, find_backend_library
from hipdnn_backend.wire import (
    BehaviorNote,
    DataType,
    EngineConfig,
    Layout,
    MatmulAttributes,
    SerializedExecutionPlan,
    WireNode,
    decode_graph,
    encode_graph,
    encode_plan,
    graph_layout,
)
from tests.hipdnn_backend.toys import CONV, GRAPHS, HERE, RELU, SHAPE, compile_c, tiny_plugin

DOUBLE, TRIPLE, TINY = engine_id("DOUBLE_ENGINE"), engine_id("TRIPLE_ENGINE"), engine_id("TINY_ENGINE")


class Control:
    """The stand-in's own functions, and its path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.standin_get.restype = ctypes.c_int64
        self._library.standin_set.argtypes = (ctypes.c_char_p, ctypes.c_int64)
        self._library.standin_text.restype = ctypes.c_char_p
        self._library.standin_graph.restype = ctypes.c_size_t

    def set(self, name: str, value: int) -> None:
        self._library.standin_set(name.encode(), value)

    def get(self, name: str) -> int:
        return self._library.standin_get(name.encode())

    def text(self, name: str) -> str:
        return self._library.standin_text(name.encode()).decode()

    def fail(self, function: str = "") -> None:
        self._library.standin_fail(function.encode())

    def graph(self) -> bytes:
        """What was deserialized last."""
        buffer = ctypes.create_string_buffer(1 << 16)
        size = self._library.standin_graph(buffer)
        return buffer.raw[:size]

    def set_plan(self, data: bytes) -> None:
        self._library.standin_set_plan(data, ctypes.c_size_t(len(data)))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The stand-in in its newest form, and as of November 2025, which has TINY_ENGINE of a plugin."""
    folder, source = tmp_path_factory.mktemp("backend"), HERE / "standin_backend.c"
    newest = compile_c(source, folder / "new.so", f"ENGINE_A={DOUBLE}LL", f"ENGINE_B={TRIPLE}LL")
    older = compile_c(source, folder / "old.so", f"ENGINE_A={TINY}LL", f"ENGINE_B={TRIPLE}LL", "NOVEMBER_2025")
    return {True: newest, False: older}


@pytest.fixture
def load(libraries: dict[bool, Path], tmp_path: Path) -> Callable[..., Control]:
    """A stand-in of the test's own: a copy, so that its counters start at zero.

    It does not have hipDNN's name: a search for the real one finds what is mapped.
    """

    def make(*, newest: bool = True) -> Control:
        path = tmp_path / ("newest.so" if newest else "older.so")
        path.write_bytes(libraries[newest].read_bytes())
        return Control(path)

    return make


@pytest.fixture
def standin(load: Callable[..., Control]) -> Control:
    return load()


def arrays() -> dict[int, np.ndarray]:
    return {1: np.arange(32, dtype=np.float32).reshape(SHAPE), 3: np.zeros(SHAPE, np.float32)}


def test_a_graph_from_build_to_result(standin: Control) -> None:
    with NativeHost(standin.path) as host:
        assert (host.version, host.layout) == ("9.8.7.6", Layout.NEWEST)
        assert [(e.engine.name, e.engine.id, e.origin, e.version) for e in host.registry.entries] == [
            ("DOUBLE_ENGINE", DOUBLE, "stand-in", "1.2"),
            ("TRIPLE_ENGINE", TRIPLE, "stand-in", "1.2"),
        ]
        plan = host.build(RELU)
        assert (plan.engine.id, plan.order.policy) == (DOUBLE, "backend")
        pack = arrays()
        plan.execute(pack)
        np.testing.assert_array_equal(pack[3], pack[1] * 2)
        plan.close()
        plan.close()
        with pytest.raises(EngineError, match="the descriptor is closed"):
            plan.execute(pack)
        assert (standin.get("handles"), standin.get("descriptors")) == (1, 0)
    assert standin.get("handles") == 0
    host.close()


def test_the_choice(standin: Control) -> None:
    with NativeHost(standin.path) as host:
        preferred = host.build(RELU, preferred="TRIPLE_ENGINE")
        assert (preferred.engine.id, preferred.order.reason) == (TRIPLE, "TRIPLE_ENGINE is the preferred engine")
        pack = arrays()
        preferred.execute(pack)
        np.testing.assert_array_equal(pack[3], pack[1] * 3)
        assert host.build(RELU, engine=TRIPLE).engine.id == TRIPLE
        assert host.select(RELU).ids == (DOUBLE, TRIPLE)
        wish = decode_graph(RELU).replace(preferred_engine_id=TRIPLE)
        assert host.select(wish).ids == (TRIPLE, DOUBLE)
        standin.set("applicable", 1)
        found = host.select(RELU, preferred="TRIPLE_ENGINE")
        assert found.ids == (DOUBLE,)
        assert "the preferred engine TRIPLE_ENGINE is not among" in found.notes[0]
        answers = host.why_not(RELU)
        assert answers["DOUBLE_ENGINE"]
        assert answers["TRIPLE_ENGINE"].rule == "backend"
        assert "BAD_PARAM: the engine is not applicable" in answers["TRIPLE_ENGINE"].reason
        standin.set("applicable", 0)
        with pytest.raises(NoEngineError, match=r"no engine runs it: DOUBLE_ENGINE: .*the engine is not applicable"):
            host.build(RELU)


def test_graphs_go_in_the_backends_layout(load: Callable[..., Control]) -> None:
    newest, older = encode_graph(decode_graph(RELU)), encode_graph(decode_graph(RELU), layout=Layout.NOVEMBER_2025)
    for standin, layout in ((load(), Layout.NEWEST), (load(newest=False), Layout.NOVEMBER_2025)):
        with NativeHost(standin.path) as host:
            assert host.layout is layout
            for data in (newest, older):
                host.heuristic_choice(data)
                assert graph_layout(standin.graph()) is layout
                assert decode_graph(standin.graph()) == decode_graph(RELU)


def test_what_the_older_layout_says_otherwise(load: Callable[..., Control]) -> None:
    graph = decode_graph(CONV)
    typed = tuple(node.replace(compute_data_type=DataType.FLOAT) for node in graph.nodes)
    standin = load(newest=False)
    with NativeHost(standin.path) as host:
        host.select(graph.replace(nodes=typed, compute_data_type=DataType.HALF, preferred_engine_id=5, id=bytes(16)))
        host.heuristic_choice(encode_graph(graph.replace(nodes=typed, compute_data_type=DataType.HALF)))
        assert decode_graph(standin.graph()) == graph.replace(compute_data_type=DataType.FLOAT)
        mixed = (typed[0].replace(compute_data_type=DataType.DOUBLE), *typed[1:])
        with pytest.raises(EngineError, match="November 2025 has no such field") as caught:
            host.heuristic_choice(encode_graph(graph.replace(nodes=mixed)))
        assert caught.value.status == NativeStatus.NOT_SUPPORTED
        matmul = MatmulAttributes(a_tensor_uid=1, b_tensor_uid=1, c_tensor_uid=3)
        other = decode_graph(RELU).replace(nodes=(WireNode(name="m", attributes=matmul),))
        standin.set("applicable", 3)
        assert all(answer.rule == "wire" for answer in host.why_not(encode_graph(other)).values())


def test_engines_of_november_2025_are_asked_of_the_plugins(load: Callable[..., Control], tmp_path: Path) -> None:
    standin, plugin = load(newest=False), tiny_plugin(tmp_path / "tiny.so")
    with NativeHost(standin.path, paths=[plugin], mode=LoadingMode.ABSOLUTE) as host:
        assert standin.text("paths") == f"{plugin};"
        assert standin.get("paths_mode") == 1
        assert (host.version, host.plugins) == ("", (plugin,))
        (entry,) = host.registry.entries
        assert (entry.engine.name, entry.engine.id, entry.origin) == ("TINY_ENGINE", TINY, str(plugin))
        assert host.build(RELU).engine.id == TINY
        assert host.registry.engine(TINY).details(RELU).behavior_notes == ()


def test_plugins_that_do_not_answer_are_problems(load: Callable[..., Control], tmp_path: Path) -> None:
    other = load()  # a library, and no plugin
    with NativeHost(load(newest=False).path, paths=[other.path]) as host:
        assert not host.registry.entries
        (problem,) = host.registry.problems
        assert "it lacks hipdnnPluginGetName" in problem.reason


def test_paths_only_while_no_handle_lives(standin: Control, tmp_path: Path) -> None:
    with NativeHost(standin.path):
        with pytest.raises(EngineError, match="NOT_SUPPORTED: a handle is alive"):
            NativeHost(standin.path, paths=[tmp_path])
        with NativeHost(standin.path) as second:
            assert second.build(RELU)
    with NativeHost(standin.path, mode=LoadingMode.ABSOLUTE):
        assert (standin.text("paths"), standin.get("paths_mode")) == ("", 1)


def test_workspaces_and_streams(standin: Control) -> None:
    standin.set("workspace", 4096)
    with NativeHost(standin.path) as host:
        plan = host.build(RELU)
        assert plan.workspace_size == 4096
        assert host.registry.engines[0].workspace_size(RELU, EngineConfig(engine_id=DOUBLE)) == 4096
        plan.execute(arrays())
        plan.execute(arrays(), stream=0xABC0)
        assert standin.get("stream") == 0xABC0
        plan.execute(arrays())
        assert standin.get("stream") == 0
        raw = {uid: array.ctypes.data for uid, array in arrays().items()}
        with pytest.raises(EngineError, match="PLUGIN_ERROR: the workspace is missing") as caught:
            plan.plan.execute(raw)
        assert caught.value.status == NativeStatus.PLUGIN_ERROR


@pytest.mark.parametrize(("value", "seen"), [(7, 7), (0.5, 1000), ("x", 2000)])
def test_knobs(standin: Control, value: float | str, seen: int) -> None:
    with NativeHost(standin.path) as host:
        host.build(RELU, knobs={"toy.level": value})
    assert (standin.text("knob"), standin.get("knob")) == ("toy.level", seen)


def test_overrides(standin: Control) -> None:
    graph = decode_graph(RELU).replace(is_override_shape_enabled=True)
    with NativeHost(standin.path) as host:
        host.build(graph).execute(arrays(), overrides={1: Override(SHAPE, (32, 16, 4, 1))})
    assert standin.get("overrides") == 1


def test_details(standin: Control) -> None:
    with NativeHost(standin.path) as host:
        details = host.registry.engine("TRIPLE_ENGINE").details(RELU)
    assert details.engine_id == TRIPLE
    notes = (BehaviorNote.EXTERNAL_LIBRARY_DEPENDENCY, BehaviorNote.SUPPORTS_EXECUTION_PLAN_SERIALIZATION)
    assert details.behavior_notes == notes


def test_plans_survive_as_bytes(standin: Control) -> None:
    blob = SerializedExecutionPlan(
        version=3, engine_id=TRIPLE, workspace_size=0, tensor_uids=(1, 3), plugin_payload=b"opaque"
    )
    with NativeHost(standin.path) as host:
        plan = host.build(RELU, engine=TRIPLE)
        with pytest.raises(EngineError, match="the engine serializes no plans"):
            plan.serialize()
        standin.set_plan(encode_plan(blob))
        restored = host.restore(plan.serialize())
        pack = arrays()
        restored.execute(pack)
        np.testing.assert_array_equal(pack[3], pack[1] * 3)
        standin.set_plan(encode_plan(blob.replace(version=4)))
        with pytest.raises(EngineError, match="BAD_PARAM: no plan of this backend"):
            host.registry.engine(TRIPLE).restore(b"other")


def test_what_november_2025_cannot(load: Callable[..., Control], tmp_path: Path) -> None:
    with NativeHost(load(newest=False).path, paths=[tiny_plugin(tmp_path / "tiny.so")]) as host:
        plan = host.build(RELU)
        with pytest.raises(EngineError, match="has no such function; it needs a newer hipDNN"):
            plan.serialize()
        with pytest.raises(EngineError, match="this type is not supported") as caught:
            host.build(RELU, knobs={"level": 1})
        assert caught.value.status == NativeStatus.NOT_SUPPORTED
        with pytest.raises(EngineError, match="attributeName not supported"):
            plan.plan.execute({1: 16, 3: 16}, overrides={1: Override((1,), (1,))})


@pytest.mark.a_few("hipdnnBackendCreateAndDeserializeGraph_ext")
@pytest.mark.parametrize(
    "function",
    [
        "hipdnnBackendCreateDescriptor",
        "hipdnnBackendCreateAndDeserializeGraph_ext",
        "hipdnnBackendFinalize",
        "hipdnnBackendSetAttribute",
        "hipdnnBackendGetAttribute",
    ],
)
def test_failures_while_building_leave_nothing_behind(standin: Control, function: str) -> None:
    with NativeHost(standin.path) as host:
        engine = host.registry.engines[0]
        standin.fail(function)
        with pytest.raises(EngineError, match="PLUGIN_ERROR: told to fail"):
            engine.build(RELU, EngineConfig(engine_id=DOUBLE))
        standin.fail()
        gc.collect()
        assert standin.get("descriptors") == 0
        assert engine.build(RELU, EngineConfig(engine_id=DOUBLE)).workspace_size == 0


def test_failures_while_executing(standin: Control) -> None:
    with NativeHost(standin.path) as host:
        plan, pack = host.build(RELU), arrays()
        for function in ("hipdnnBackendExecute", "hipdnnSetStream", "hipdnnBackendCreateDescriptor"):
            standin.fail(function)
            with pytest.raises(EngineError, match=f"{function}: PLUGIN_ERROR: told to fail"):
                plan.execute(pack, stream=7 if function == "hipdnnSetStream" else 0)
        standin.fail()
        plan.execute(pack)
        np.testing.assert_array_equal(pack[3], pack[1] * 2)
        with pytest.raises(PackError, match="lacks tensor 3"):
            plan.execute({1: pack[1]})
        with pytest.raises(EngineError, match="the variant pack is empty"):
            plan.plan.execute({})


def test_no_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standin: Control) -> None:
    monkeypatch.setattr("hipdnn_backend.host.native.find_backend_library", lambda: None)
    with pytest.raises(EngineError, match="there is no libhipdnn_backend.so; install hipDNN, or set HIPDNN_BACKEND"):
        NativeHost()
    (tmp_path / "text.so").write_text("x")
    with pytest.raises(EngineError, match="cannot be loaded"):
        NativeHost(tmp_path / "text.so")
    with pytest.raises(EngineError, match="is no backend of hipDNN: it lacks hipdnnCreate"):
        NativeHost(tiny_plugin(tmp_path / "tiny.so"))
    standin.fail("hipdnnCreate")
    with pytest.raises(EngineError, match="hipdnnCreate: PLUGIN_ERROR: told to fail"):
        NativeHost(standin.path)


def test_a_closed_host(standin: Control) -> None:
    host = NativeHost(standin.path)
    plan = host.build(RELU)
    host.close()
    for act in (lambda: plan.execute(arrays()), lambda: host.build(RELU), lambda: host.select(RELU)):
        with pytest.raises(EngineError, match="the host is closed"):
            act()
    plan.close()
    assert standin.get("descriptors") == 0


def test_threads_take_turns(standin: Control) -> None:
    wrong: list[object] = []
    with NativeHost(standin.path) as host:

        def work(number: int) -> None:
            plan = host.build(RELU, engine=(DOUBLE, TRIPLE)[number % 2])
            pack = arrays()
            for _ in range(30):
                plan.execute(pack, stream=number)
                if not np.array_equal(pack[3], pack[1] * (2 + number % 2)):
                    wrong.append(number)
            plan.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
        gc.collect()
        assert standin.get("descriptors") == 0


def test_ranking(standin: Control) -> None:
    with NativeHost(standin.path) as host:
        pack = arrays()
        ranking = host.rank(RELU, pack, reference={3: pack[1] * 3.0}, rounds=3)
    assert ranking.best == "TRIPLE_ENGINE"
    assert "it differs from the reference" in ranking["DOUBLE_ENGINE"].reason


# ---- the real one


@pytest.mark.iree_cpu
def test_the_real_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin of this project in hipDNN's backend, on the CPU device."""
    library = find_backend_library()
    if library is None or not library.exists():
        pytest.skip("there is no libhipdnn_backend.so here; HIPDNN_BACKEND_LIBRARY names one")
    from fusilli_plugin import plugin_dir

    monkeypatch.setenv("FUSILLI_DEVICE", "cpu")
    assert os.environ["FUSILLI_CACHE_DIR"]
    with NativeHost(library, paths=[plugin_dir()], mode=LoadingMode.ABSOLUTE) as host:
        for name, slope in (("pw_relu", 0.0), ("pw_leaky", 0.1)):
            data = (GRAPHS / f"{name}.bin").read_bytes()
            plan = host.build(data)
            assert plan.engine.name == "FUSILLI_ENGINE"
            x = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
            pack = {1: x, 3: np.full(SHAPE, np.nan, np.float32)}
            plan.execute(pack)
            np.testing.assert_allclose(pack[3], np.where(x > 0, x, x.astype(np.float64) * slope), rtol=1e-6)
            raw = {uid: array.ctypes.data for uid, array in pack.items()}
            with pytest.raises(EngineError, match="has no buffer for tensor 3"):
                plan.plan.execute({1: raw[1]})
            plan.close()
