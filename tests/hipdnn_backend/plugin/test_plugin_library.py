"""Shared libraries as engines, against a small plugin in C that the test compiles, once per rule that it can break."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hipdnn_backend.engine import Engine, Override, Plan, Support, engine_id, engine_name
from hipdnn_backend.errors import EngineError
from hipdnn_backend.plugins.abi import OPTIONAL, REQUIRED, ConstData, DeviceBuffer
from hipdnn_backend.plugins.library import PluginLibrary
from hipdnn_backend.wire import (
    DataType,
    EngineApiVersion,
    EngineConfig,
    EngineDetails,
    KnobSetting,
    decode_graph,
    encode_engine_config,
    encode_graph,
)

SOURCE = Path(__file__).with_name("tiny_plugin.c")
GRAPHS = Path(__file__).resolve().parents[2] / "data" / "hipdnn_graphs"
RELU = (GRAPHS / "pw_relu.bin").read_bytes()  # in the layout of November 2025
CONV = (GRAPHS / "conv.bin").read_bytes()
CONFIG = EngineConfig(engine_id=engine_id("TINY_ENGINE"))

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def compile_plugin(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compiles the plugin with some macros; each combination once, under a name of its own."""
    folder = tmp_path_factory.mktemp("plugin")
    compiler = os.environ.get("CC") or shutil.which("cc") or sysconfig.get_config_var("CC").split()[0]

    def build(*macros: str) -> Path:
        out = folder / ("_".join(["tiny", *macros]).translate({ord('"'): None, ord("="): "-"}) + ".so")
        if not out.exists():
            defines = [f"-D{macro}" for macro in macros]
            flags = ["-shared", "-fPIC", "-fvisibility=hidden", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
            flags += ["-Wno-unused-parameter"]  # the macros leave some out
            subprocess.run([compiler, *flags, "-O1", *defines, "-o", out, SOURCE], check=True, timeout=60)
        return out

    return build


@pytest.fixture
def library(compile_plugin: Compile, tmp_path: Path) -> PluginLibrary:
    """A library of the test's own: a copy, so that its counters start at zero."""
    path = tmp_path / "tiny.so"
    shutil.copy(compile_plugin(), path)
    return PluginLibrary(path)


def alive(library: PluginLibrary) -> dict[str, int]:
    """What the plugin has handed out and not got back."""
    counts = (ctypes.c_int * 4)()
    ctypes.CDLL(str(library.path)).tiny_alive(counts)
    return dict(zip(("handles", "contexts", "details", "serialized"), counts, strict=True))


def test_structs_are_those_of_the_c_compiler(compile_plugin: Compile) -> None:
    sizes = (ctypes.c_size_t * 6)()
    ctypes.CDLL(str(compile_plugin())).tiny_layout(sizes)
    assert list(sizes) == [
        ctypes.sizeof(ConstData),
        ConstData.size.offset,
        ctypes.sizeof(DeviceBuffer),
        DeviceBuffer.ptr.offset,
        ctypes.sizeof(ctypes.c_int),
        ctypes.sizeof(ctypes.c_void_p),
    ]


def test_tables_of_functions() -> None:
    assert len(REQUIRED) == 16
    assert not set(REQUIRED) & set(OPTIONAL)
    assert all(name.startswith("hipdnn") for name in REQUIRED | OPTIONAL)


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("FUSILLI_ENGINE", -3193037706610614382),
        ("MIOPEN_ENGINE", 1563989756945604898),
        ("HIPBLASLT_ENGINE", 8768140637164053035),
        ("", 0),
    ],
)
def test_engine_ids(name: str, id_: int) -> None:
    assert engine_id(name) == id_
    assert not name or engine_name(id_) == name


def test_engines_without_a_name_are_printed_as_hipdnn_does() -> None:
    assert engine_name(-2) == "0xFFFFFFFFFFFFFFFE"


def test_what_a_plugin_says_of_itself(library: PluginLibrary) -> None:
    assert (library.name, library.version, library.api_version) == ("tiny", "0.1", (1, 4, 0))
    (engine,) = library.engines
    assert (engine.id, engine.name) == (engine_id("TINY_ENGINE"), "TINY_ENGINE")
    # loading makes no handle
    assert alive(library)["handles"] == 0
    as_engine: Engine = engine
    assert as_engine.support(RELU) == Support.yes()
    assert engine.details(RELU) == EngineDetails(engine_id=engine.id)
    assert alive(library) == {"handles": 1, "contexts": 0, "details": 0, "serialized": 0}


def test_a_graph_from_build_to_result(library: PluginLibrary) -> None:
    (engine,) = library.engines
    config = EngineConfig(engine_id=engine.id, knobs=(KnobSetting(knob_id="k", value=1),))
    told = len(encode_graph(decode_graph(RELU)))
    assert engine.workspace_size(RELU, config) == told + len(encode_engine_config(config))
    plan: Plan = engine.build(RELU, config)
    assert plan.workspace_size == told
    x, y, workspace = np.arange(4, dtype=np.float32), np.zeros(4, np.float32), bytearray(plan.workspace_size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(workspace))
    plan.execute({3: y.ctypes.data, 77: 0, 1: x.ctypes.data}, workspace=address)
    np.testing.assert_array_equal(y, [0, 2, 4, 6])
    with pytest.raises(EngineError, match=r"tiny.so: hipdnnEnginePluginExecuteOpGraph: BAD_PARAM: uid 1 or 3 is missi"):
        plan.execute({3: y.ctypes.data}, workspace=address)
    with pytest.raises(EngineError, match="no workspace") as caught:
        plan.execute({3: y.ctypes.data, 1: x.ctypes.data})
    assert caught.value.status == 1
    plan.close()
    plan.close()
    with pytest.raises(EngineError, match="the plan is closed"):
        plan.execute({}, workspace=address)
    assert alive(library)["contexts"] == 0


def run(plan: Plan, **options: object) -> None:
    x, y, workspace = np.ones(4, np.float32), np.zeros(4, np.float32), np.zeros(4096, np.uint8)
    plan.execute({1: x.ctypes.data, 3: y.ctypes.data}, workspace=workspace.ctypes.data, **options)  # type: ignore[arg-type]
    np.testing.assert_array_equal(y, 2)


def test_the_stream_of_each_execution(library: PluginLibrary) -> None:
    plan = library.engines[0].build(RELU, CONFIG)
    last = ctypes.CDLL(str(library.path)).tiny_last_stream
    last.restype = ctypes.c_void_p
    for stream in (0, 0x1000, 0x2000, 0x2000, 0):
        run(plan, stream=stream)
        assert (last() or 0) == stream


def test_overrides(library: PluginLibrary) -> None:
    plan = library.engines[0].build(RELU, CONFIG)
    run(plan, overrides={1: Override((2, 3), (3, 1)), -5: Override((7,), (1,))})
    total = ctypes.CDLL(str(library.path)).tiny_override_sum
    total.restype = ctypes.c_int64
    # per dimension: uid * 1000 + dim * 10 + stride
    assert total() == (1000 + 23) + (1000 + 31) + (-5000 + 71)
    with pytest.raises(ValueError, match="override of tensor 1: 1 strides for 2 dims"):
        run(plan, overrides={1: Override((2, 3), (3,))})


def test_saved_plans(library: PluginLibrary) -> None:
    engine = library.engines[0]
    payload = engine.build(RELU, CONFIG).serialize()
    plan = engine.restore(payload)
    assert plan.workspace_size == len(encode_graph(decode_graph(RELU)))
    run(plan)
    with pytest.raises(EngineError, match="INVALID_VALUE: damaged plan"):
        engine.restore(payload[:-1])
    assert alive(library)["serialized"] == 0


@pytest.mark.parametrize("given", [RELU, encode_graph(decode_graph(RELU))], ids=["November 2025", "newest"])
@pytest.mark.parametrize(
    ("macros", "length"),
    [
        # a vtable has 4 bytes and 2 per slot: name, kind and attributes; newer ones also the compute type
        (["NO_OPTIONAL", "NO_API_VERSION", "NO_NAME"], 4 + 2 * 3),
        ([], 4 + 2 * 4),
        (['API_VERSION="1.0.0"'], 4 + 2 * 4),
    ],
)
def test_graphs_are_told_in_the_plugins_layout(
    compile_plugin: Compile, macros: list[str], length: int, given: bytes
) -> None:
    library = PluginLibrary(compile_plugin(*macros))
    (engine,) = library.engines
    assert engine.support(given)
    engine.details(given)
    engine.workspace_size(given, CONFIG)
    run(engine.build(given, CONFIG))
    seen = (ctypes.c_int * 4)()
    ctypes.CDLL(str(library.path)).tiny_node_vtables(seen)
    assert list(seen) == [length] * 4


def test_what_november_2025_has_no_word_for_is_declined(compile_plugin: Compile) -> None:
    """Nodes may compute in a type of their own since then; one that is the graph's can be left out."""
    (engine,) = PluginLibrary(compile_plugin("NO_OPTIONAL", "NO_API_VERSION", "NO_NAME")).engines
    graph = decode_graph(RELU)
    (node,) = graph.nodes
    first = EngineApiVersion(major=1, minor=0, patch=0)
    same = graph.replace(
        nodes=(node.replace(compute_data_type=graph.compute_data_type),), min_required_engine_api_version=first
    )
    assert engine.support(encode_graph(same))
    integers = graph.replace(tensors=tuple(each.replace(data_type=DataType.INT8) for each in graph.tensors))
    declined = engine.support(encode_graph(integers))
    assert (declined.ok, declined.rule) == (False, "wire")
    assert "the layout of November 2025 has no data type INT8" in declined.reason
    for call in (engine.details, lambda data: engine.build(data, CONFIG)):
        with pytest.raises(EngineError, match="the layout of November 2025 has no data type INT8"):
            call(encode_graph(integers))


def test_a_plugin_of_november_2025(compile_plugin: Compile) -> None:
    library = PluginLibrary(compile_plugin("NO_OPTIONAL", "NO_API_VERSION", "NO_NAME"))
    assert library.api_version == (1, 0, 0)
    (engine,) = library.engines
    assert engine.name == engine_name(engine.id) == f"0x{engine.id % 2**64:016X}"
    plan = engine.build(RELU, CONFIG)
    run(plan)
    with pytest.raises(EngineError, match="the plugin has no such function"):
        run(plan, overrides={1: Override((2,), (1,))})
    with pytest.raises(EngineError, match="so it serializes no plans"):
        plan.serialize()
    with pytest.raises(EngineError, match="the plugin has no such function"):
        engine.restore(b"x")


def test_declining(library: PluginLibrary) -> None:
    (engine,) = library.engines
    declined = engine.support(CONV)
    assert not declined
    assert (declined.rule, declined.reason) == ("plugin", "tiny does not list the engine for this graph")
    assert engine.support(RELU[:50]).rule == "wire"
    newer = decode_graph(RELU).replace(min_required_engine_api_version=EngineApiVersion(major=1, minor=5, patch=0))
    declined = engine.support(encode_graph(newer))
    assert (declined.rule, declined.reason) == ("api-version", "the graph needs engine API 1.5.0, the plugin has 1.4.0")
    with pytest.raises(EngineError, match="INVALID_VALUE: not this graph"):
        engine.build(CONV, CONFIG)


def test_declining_with_a_reason_in_the_log(compile_plugin: Compile) -> None:
    """The interface has no other place for it. Asked again, the answer is the same without a call."""
    (engine,) = PluginLibrary(compile_plugin("TELLS")).engines
    for _ in range(2):
        reason = engine.support(CONV).reason
        assert reason == "tiny does not list the engine for this graph; it logged: no convolutions on [gfx942]"
    assert engine.support(RELU)


@pytest.mark.parametrize(
    ("macros", "message"),
    [
        (["MISSING_CREATE"], "is no engine plugin: it lacks hipdnnEnginePluginCreate"),
        (["HEURISTIC"], r"the plugin's type is 2, not 1 \(engine\)"),
        (["NO_ENGINES"], "the plugin has 0 engines"),
        (["DUPLICATE_IDS"], "first 2 engines, then 2"),
        (["CHANGING_COUNT"], "first 1 engines, then 2"),
        (['API_VERSION="2.0.0"'], "version 2.0.0; this host knows major 1"),
        (['API_VERSION="1.4"'], "'1.4' is no version"),
    ],
)
def test_plugins_that_are_refused(compile_plugin: Compile, macros: list[str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        PluginLibrary(compile_plugin(*macros))


def test_files_that_are_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be loaded"):
        PluginLibrary(tmp_path / "absent.so")
    text = tmp_path / "text.so"
    text.write_text("not a library", encoding="utf-8")
    with pytest.raises(EngineError, match="cannot be loaded"):
        PluginLibrary(text)


def test_an_engine_with_a_wrong_name_is_left_out(compile_plugin: Compile, caplog: pytest.LogCaptureFixture) -> None:
    library = PluginLibrary(compile_plugin('ENGINE_NAME="OTHER"'))
    assert library.engines == ()
    assert f"'OTHER' hashes to {engine_id('OTHER')}" in caplog.text


def test_an_engine_may_decline_to_be_named(compile_plugin: Compile) -> None:
    (engine,) = PluginLibrary(compile_plugin("UNNAMED")).engines
    assert engine.name.startswith("0x")


@pytest.mark.parametrize(
    ("macros", "reason"),
    [
        (["FAIL_APPLICABLE"], "INTERNAL_ERROR: cannot say: ä"),
        (["FAIL_APPLICABLE", "NULL_ERROR"], "INTERNAL_ERROR: the plugin gave no reason"),
        (["FOREIGN_IDS"], r"ids \[12\], but the plugin has"),
        (["TOO_MANY"], "2 engines, but the plugin has 1"),
        (["NULL_HANDLE"], "success without a handle"),
    ],
)
def test_plugins_that_fail_when_asked_decline(compile_plugin: Compile, macros: list[str], reason: str) -> None:
    (engine,) = PluginLibrary(compile_plugin(*macros)).engines
    support = engine.support(RELU)
    assert support.rule == "plugin"
    with pytest.raises(EngineError, match=reason):
        engine.library.applicable(RELU)


@pytest.mark.parametrize(
    ("macro", "reason"), [("BAD_DETAILS", "damaged EngineDetails"), ("NO_DETAILS", "without bytes")]
)
def test_bad_details_go_back_to_the_plugin(compile_plugin: Compile, macro: str, reason: str) -> None:
    library = PluginLibrary(compile_plugin(macro))
    with pytest.raises(EngineError, match=reason):
        library.engines[0].details(RELU)
    assert alive(library)["details"] == 0


def test_messages_of_the_plugin_are_logged(library: PluginLibrary, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(EngineError):
        library.engines[0].build(CONV, CONFIG)
    record = next(record for record in caplog.records if record.message == "not this graph")
    assert (record.name, record.levelno) == ("hipdnn_backend.plugins.library.tiny", logging.ERROR)


def test_closing_returns_everything(library: PluginLibrary) -> None:
    (engine,) = library.engines
    kept = engine.build(RELU, CONFIG)
    abandoned = engine.build(RELU, CONFIG)
    assert alive(library)["contexts"] == 2
    del abandoned
    gc.collect()
    # a collected plan is destroyed by the next call
    engine.details(RELU)
    assert alive(library)["contexts"] == 1
    library.close()
    library.close()
    assert alive(library) == {"handles": 0, "contexts": 0, "details": 0, "serialized": 0}
    kept.close()
    with pytest.raises(EngineError, match="closed"):
        run(kept)
    with pytest.raises(EngineError, match="the plugin is closed"):
        engine.build(RELU, CONFIG)


def test_many_threads_share_an_engine(library: PluginLibrary) -> None:
    (engine,) = library.engines
    failures: list[BaseException] = []

    def work(stream: int) -> None:
        try:
            for _ in range(30):
                plan = engine.build(RELU, CONFIG)
                run(plan, stream=stream)
                plan.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(stream,)) for stream in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert alive(library) == {"handles": 1, "contexts": 0, "details": 0, "serialized": 0}
