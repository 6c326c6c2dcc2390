"""`FusilliEngine`: claims, knobs, plans, overrides, verification; on the CPU."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from fusilli_plugin.cli import cli
from fusilli_plugin.engine import claim, quarantine
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph, import_graph
from fusilli_plugin.engine.other_plugins import Company
from fusilli_plugin.engine.plan import FusilliPlan, specialise
from fusilli_plugin.errors import BadParamError
from graph_api import ConvolutionMode, DataType, Graph, GraphError, PointwiseMode, ResampleMode
from graph_api.numerics import check
from hipdnn_backend import Host, Policies, Registry
from hipdnn_backend.engine import Engine, Override, Plan, engine_id
from hipdnn_backend.errors import EngineError
from hipdnn_backend.host.registry import Entry
from hipdnn_backend.plugins.abi import Status
from hipdnn_backend.wire import EngineConfig, IntConstraint, KnobSetting, decode_graph, encode_graph
from iree_bridge import Options, Target
from iree_bridge.compile import versions
from iree_bridge.compile.options import CompileMode
from tests.fusilli_plugin.plugin.hosting import GRAPHS

CONV = (GRAPHS / "conv_bias_relu.bin").read_bytes()
RELU = (GRAPHS / "pw_relu.bin").read_bytes()
BATCHNORM = (GRAPHS / "bn_training.bin").read_bytes()


@pytest.fixture
def engine() -> FusilliEngine:
    return FusilliEngine("cpu")


def config(*knobs: tuple[str, Any]) -> EngineConfig:
    settings = tuple(KnobSetting(knob_id=name, value=value) for name, value in knobs)
    return EngineConfig(engine_id=engine_id("FUSILLI_ENGINE"), knobs=settings)


def run(plan: FusilliPlan, graph: Graph, **arguments: Any) -> list[str]:
    """Execute a plan on seeded inputs for ``graph``; what is wrong with the results."""
    inputs = graph.random_inputs(3)
    outputs = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
    workspace = np.zeros(plan.workspace_size + 64, np.uint8)
    pack = {tensor.uid: array.ctypes.data for tensor, array in (inputs | outputs).items()}
    address = workspace.ctypes.data + -workspace.ctypes.data % 64
    plan.execute(pack, workspace=address if plan.workspace_size else 0, **arguments)
    return [str(found) for found in check(graph, inputs, outputs) if not found.ok]


def test_it_is_an_engine_and_makes_plans(engine: FusilliEngine) -> None:
    as_engine: Engine = engine
    assert as_engine.id == -3193037706610614382
    assert as_engine.name == "FUSILLI_ENGINE"


def test_damaged_bytes_are_declined(engine: FusilliEngine) -> None:
    assert engine.support(RELU)
    for data in (b"", b"\0" * 64, RELU[:-9], os.urandom(200)):
        answer = engine.support(data)
        assert not answer
        assert answer.rule == "wire"
    with pytest.raises(EngineError, match="not served") as caught:
        engine.details(b"\0" * 64)
    assert caught.value.status == Status.INVALID_VALUE


def test_an_unknown_device_is_declined_not_raised() -> None:
    engine = FusilliEngine("cuda:97")
    answer = engine.support(RELU)
    assert not answer
    assert answer.rule == "device"


def test_applicability_is_quick(engine: FusilliEngine) -> None:
    """2 ms for a new graph of three nodes, 0.2 ms for one seen before; the bounds here allow for a busy machine."""
    engine.support(RELU)
    source = decode_graph(CONV)
    new, again = [], []
    for number in range(10):
        data = encode_graph(source.replace(name=f"graph {number}"))
        start = time.perf_counter()
        assert engine.support(data)
        new.append(time.perf_counter() - start)
        start = time.perf_counter()
        assert engine.support(data)
        again.append(time.perf_counter() - start)
    assert min(new) < 0.02
    assert min(again) < 0.002


def test_details_are_true(engine: FusilliEngine) -> None:
    details = engine.details(RELU)
    assert details.engine_id == engine.id
    assert details.behavior_notes == (0, 3, 4)
    assert {knob.knob_id for knob in details.knobs} >= {"global.workspace_size_limit", "global.deterministic"}
    for knob in details.knobs:
        assert isinstance(knob.constraint, IntConstraint)
        assert isinstance(knob.default_value, int)
        assert knob.constraint.min_value <= knob.default_value <= knob.constraint.max_value
    never = FusilliEngine("cpu", options=replace(engine.options, compile=CompileMode.NEVER, claim="all"))
    if never.support(RELU):
        assert 0 not in never.details(RELU).behavior_notes


@pytest.mark.iree_cpu
def test_a_plan_computes_what_the_graph_says(engine: FusilliEngine) -> None:
    graph = import_graph(decode_graph(CONV))
    size = engine.workspace_size(CONV, config())
    plan = engine.build(CONV, config())
    as_plan: Plan = plan
    assert as_plan.workspace_size == size
    assert run(plan, graph) == []
    plan.close()
    plan.close()
    with pytest.raises(EngineError, match="closed"):
        run(plan, graph)


@pytest.mark.iree_cpu
def test_knobs_are_part_of_what_is_compiled(engine: FusilliEngine) -> None:
    plain, lower = (engine.build(RELU, config(*knobs))._built for knobs in ((), [("fusilli.opt_level", 1)]))
    assert "--iree-opt-level=O1" in lower.code.flags
    assert plain.code.key != lower.code.key
    same = engine.build(RELU, config(("fusilli.opt_level", 3), ("global.deterministic", 1), ("their.knob", 7)))
    assert same._built.code.key == plain.code.key


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ([("fusilli.opt_level", 9)], "9 is none of 1, 2, 3"),
        ([("fusilli.opt_level", "fast")], "takes an integer"),
        ([("fusilli.opt_level", 1), ("fusilli.opt_level", 2)], "set twice"),
        ([("global.workspace_size_limit", -1)], "outside"),
    ],
)
def test_knobs_out_of_bounds(engine: FusilliEngine, knobs: list[tuple[str, Any]], message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        engine.build(RELU, config(*knobs))
    assert caught.value.status == Status.BAD_PARAM


@pytest.mark.iree_cpu
def test_the_workspace_limit_is_kept(engine: FusilliEngine) -> None:
    graph = Graph(io_data_type=DataType.FLOAT)
    graph.matmul(graph.matmul(graph.tensor(dim=(96, 96)), graph.tensor(dim=(96, 96))), graph.tensor(dim=(96, 96)))
    graph.nodes[-1].outputs["c"].set_output()
    data = encode_graph(export_graph(graph))
    size = engine.workspace_size(data, config())
    assert size > 0
    assert engine.workspace_size(data, config(("global.workspace_size_limit", size))) == size
    with pytest.raises(EngineError, match=f"needs {size} bytes of workspace, the limit is {size - 1}"):
        engine.build(data, config(("global.workspace_size_limit", size - 1)))


def test_the_config_of_another_engine(engine: FusilliEngine) -> None:
    with pytest.raises(EngineError, match="the config is for engine 5"):
        engine.build(RELU, EngineConfig(engine_id=5))


def dynamic() -> Graph:
    """y = relu(a + b), b a row."""
    g = Graph("dynamic", io_data_type=DataType.FLOAT)
    a = g.tensor("a", dim=(4, 8), uid=1)
    b = g.tensor("b", dim=(1, 8), uid=2)
    y = g.pointwise(PointwiseMode.RELU_FWD, g.pointwise(PointwiseMode.ADD, a, b)).set_output(True)
    y.set_uid(3)
    return g.validate()


@pytest.mark.iree_cpu
def test_overrides_specialise(engine: FusilliEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    data = encode_graph(export_graph(dynamic(), is_override_shape_enabled=True))
    plan = engine.build(data, config())
    wider = {1: Override((6, 8), (1, 6)), 3: Override((6, 8), (8, 1))}
    other = specialise(plan.graph, wider)
    assert other.find(1).strides == (1, 6)
    assert other.find(3).dims == (6, 8)
    for _ in range(3):
        assert run(plan, other, overrides=wider) == []
    assert plan.specialised == 1
    assert "specialised for other dims, the 1. time" in caplog.text
    assert run(plan, plan.graph) == []
    same = {1: Override((4, 8), (8, 1))}
    assert run(plan, plan.graph, overrides=same) == []
    assert plan.specialised == 1
    for rows in range(2, 20):
        plan.variant({1: Override((4, 8), (8, 1)), 2: Override((1, 8), (8 * rows, 1))})
    assert len(plan._variants) <= 16


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({9: Override((1,), (1,))}, "no tensor 9"),
        ({1: Override((4, 8), (8,))}, "1 strides, 2 dims"),
        ({1: Override((4, 7), (7, 1))}, "broadcast"),
        ({1: Override((4, 8), (0, -1))}, "0 or positive"),
    ],
)
def test_overrides_that_do_not_fit(overrides: dict[int, Override], message: str) -> None:
    with pytest.raises((BadParamError, GraphError), match=message):
        specialise(dynamic(), overrides)


@pytest.mark.iree_cpu
def test_serialized_plans_compile_nothing(engine: FusilliEngine, tmp_path: Path) -> None:
    plan = engine.build(CONV, config(("fusilli.opt_level", 2)))
    payload = plan.serialize()
    empty = Options(cache_dir=tmp_path / "none", compile=CompileMode.NEVER, device="cpu")
    restored = FusilliEngine("cpu", options=empty).restore(payload)
    assert restored.workspace_size == plan.workspace_size
    assert run(restored, plan.graph) == []
    assert restored.serialize() == payload
    assert not (tmp_path / "none").exists()


@pytest.mark.iree_cpu
def test_plans_for_others_are_refused(engine: FusilliEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = engine.build(RELU, config()).serialize()
    with monkeypatch.context() as patch:
        patch.setattr("fusilli_plugin.engine.engine.missing_features", lambda names: ("avx2048",))
        with pytest.raises(EngineError, match=r"extensions that this machine lacks \(avx2048\)") as caught:
            engine.restore(payload)
    assert caught.value.status == Status.INVALID_VALUE
    monkeypatch.setitem(engine.__dict__, "target", Target.parse("gfx942"))
    with pytest.raises(EngineError, match="this device is gfx942"):
        engine.restore(payload)
    monkeypatch.undo()
    made_by = versions.iree_version()
    monkeypatch.setattr(versions, "iree_version", lambda: "9.9.9")
    with pytest.raises(EngineError, match=rf"made by IREE {re.escape(made_by)}, this is 9\.9\.9"):
        engine.restore(payload)


@pytest.mark.iree_cpu
def test_damaged_plans_are_refused(engine: FusilliEngine) -> None:
    payload = engine.build(RELU, config()).serialize()
    random_ = random.Random(5)
    for _ in range(300):
        data = bytearray(payload)
        for _ in range(random_.randint(1, 4)):
            data[random_.randrange(len(data))] = random_.randrange(256)
        if random_.random() < 0.3:
            data = data[: random_.randrange(len(data))]
        if bytes(data) == payload:
            continue
        with pytest.raises(EngineError) as caught:
            engine.restore(bytes(data))
        assert caught.value.status == Status.INVALID_VALUE


@pytest.mark.iree_cpu
@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, "no serialized plan"),
        (8, "of version"),
        (12, "of kind"),
        (16, "header of"),
        (20, "damaged"),
        (-1, "damaged"),
    ],
    ids=["magic", "version", "kind", "size", "digest", "payload"],
)
def test_each_field_of_a_plans_header_is_checked(engine: FusilliEngine, at: int, message: str) -> None:
    data = bytearray(engine.build(RELU, config()).serialize())
    data[at] ^= 0x10
    with pytest.raises(EngineError, match=message) as caught:
        engine.restore(bytes(data))
    assert caught.value.status == Status.INVALID_VALUE
    with pytest.raises(EngineError, match="no serialized plan"):
        engine.restore(bytes(data[:40]))


def test_without_the_compiler_nothing_is_claimed(
    engine: FusilliEngine, monkeypatch: pytest.MonkeyPatch, cold_cache: Path
) -> None:
    engine = FusilliEngine("cpu")
    assert engine.support(RELU)
    monkeypatch.setattr("iree_bridge.compile.versions.compiler_version", lambda: None)
    answer = engine.support(RELU)
    assert (answer.ok, answer.rule) == (False, "installation")
    monkeypatch.setattr("iree_bridge.compile.versions.runtime_version", lambda: None)
    assert engine.support(RELU).reason == "iree-base-runtime is not installed"


@pytest.mark.iree_cpu
def test_never_compiling(cold_cache: Path) -> None:
    never = FusilliEngine("cpu", options=replace(Options.from_env(), compile=CompileMode.NEVER))
    assert never.support(RELU).rule == "not-compiled"
    FusilliEngine("cpu").build(RELU, config())
    assert never.support(RELU)
    assert run(never.build(RELU, config()), import_graph(decode_graph(RELU))) == []
    assert not never.support(CONV)


# ---- claims


def conv(dtype: DataType = DataType.HALF, *modes: PointwiseMode, **attributes: Any) -> Graph:
    g = Graph("conv", io_data_type=dtype)
    y = g.conv_fprop(g.tensor(dim=(1, 4, 8, 8)), g.tensor(dim=(4, 4, 3, 3)), **attributes)
    for mode in modes:
        y = g.pointwise(mode, y)
    y.set_output(True)
    return g.validate()


def pointwise(mode: PointwiseMode, dtype: DataType = DataType.FLOAT) -> Graph:
    g = Graph("pointwise", io_data_type=dtype)
    g.pointwise(mode, g.tensor(dim=(2, 3))).set_output(True)
    return g.validate()


@pytest.mark.parametrize(
    ("graph", "claimed"),
    [
        (lambda: conv(), False),
        (lambda: conv(DataType.HALF, PointwiseMode.RELU_FWD), False),
        (lambda: conv(DataType.DOUBLE), True),
        (lambda: conv(convolution_mode=ConvolutionMode.CONVOLUTION), True),
        (lambda: conv(DataType.FLOAT, PointwiseMode.ERF), True),
        (lambda: conv(DataType.FLOAT, *[PointwiseMode.RELU_FWD] * 5), True),
        (lambda: pointwise(PointwiseMode.RELU_FWD), False),
        (lambda: pointwise(PointwiseMode.ERF), True),
        (lambda: pointwise(PointwiseMode.RELU_FWD, DataType.DOUBLE), True),
    ],
)
def test_fallback_leaves_to_others_what_they_may_take(graph: Callable[[], Graph], claimed: bool) -> None:
    policy = claim.parse("fallback")
    target = Target.parse("gfx942")
    assert bool(policy.decide(graph(), target, lambda: True, lambda: UNKNOWN)) is claimed
    assert policy.decide(graph(), target, lambda: False, Company)  # alone, nobody else can take it


def beside(*names: str) -> Company:
    return Company((("libother.so", tuple(map(engine_id, names))),))


UNKNOWN = beside("SOME_ENGINE")


@pytest.mark.parametrize(
    ("graph", "takers"),
    [
        (lambda: conv(), {"MIOPEN_ENGINE", "ROCKE_ENGINE"}),
        (lambda: conv(DataType.HALF, PointwiseMode.RELU_FWD), {"MIOPEN_ENGINE", "ROCKE_ENGINE"}),
        (lambda: pointwise(PointwiseMode.RELU_FWD), {"MIOPEN_ENGINE"}),
        (lambda: product(), {"HIPBLASLT_ENGINE", "ROCKE_ENGINE"}),
        (lambda: pooled(), {"HIP_MLOPS_ENGINE"}),
        (lambda: attended(), {"ASM_SDPA_ENGINE", "HIP_FLASH2_ENGINE", "ROCKE_ENGINE"}),
    ],
)
def test_what_is_left_depends_on_which_engines_are_there(graph: Callable[[], Graph], takers: set[str]) -> None:
    """By hipDNN's published table of operations and providers."""
    policy, target = claim.parse(""), Target.parse("gfx942")
    engines = ("MIOPEN", "HIPBLASLT", "HIP_MLOPS", "ASM_SDPA", "HIP_FLASH2", "ROCKE")
    for name in (f"{each}_ENGINE" for each in engines):
        answer = policy.decide(graph(), target, lambda: False, partial(beside, name))
        assert bool(answer) is (name not in takers), name
        assert answer or answer.reason.startswith(f"{name} may accept this graph")
    assert not policy.decide(graph(), target, lambda: False, lambda: UNKNOWN)
    silent = Company((("/somewhere/libsilent.so", ()),))
    assert "libsilent.so may accept" in policy.decide(graph(), target, lambda: False, lambda: silent).reason


def product() -> Graph:
    g = Graph("product", io_data_type=DataType.HALF)
    g.matmul(g.tensor("a", dim=(1, 8, 8)), g.tensor("b", dim=(1, 8, 8))).set_output(True)
    return g.validate()


def pooled() -> Graph:
    g = Graph("pooled", io_data_type=DataType.HALF)
    y, _ = g.resample_fwd(g.tensor("x", dim=(1, 2, 8, 8)), mode=ResampleMode.MAXPOOL, window=2, stride=2)
    y.set_output(True)
    return g.validate()


def attended() -> Graph:
    g = Graph("attended", io_data_type=DataType.HALF)
    g.sdpa(*(g.tensor(name, dim=(1, 2, 8, 8)) for name in "qkv"), attn_scale=0.125).o.set_output(True)
    return g.validate()


def test_the_default_waits_for_the_selftest() -> None:
    target = Target.parse("gfx942")
    assert not claim.parse("").decide(conv(), target, lambda: False, lambda: UNKNOWN)
    assert "fusilli selftest" in claim.parse("").decide(conv(), target, lambda: False, lambda: UNKNOWN).reason
    assert claim.parse("").decide(conv(), target, lambda: True, lambda: UNKNOWN)
    assert claim.parse("all").decide(conv(), target, lambda: False, lambda: UNKNOWN)
    assert not claim.parse("off").decide(conv(DataType.DOUBLE), target, lambda: True, lambda: UNKNOWN)


def test_rules_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    rules = [
        {"op": "conv_*", "dtype": "HALF", "target": "gfx942", "claim": True},
        {"op": "pointwise", "claim": True},
        {"op": "conv_*", "claim": False},
    ]
    path.write_text(json.dumps({"default": "off", "rules": rules}))
    policy = claim.parse(str(path))
    assert policy.decide(conv(), Target.parse("mi300x"), lambda: False, lambda: UNKNOWN)
    assert policy.decide(conv(DataType.HALF, PointwiseMode.ERF), Target.parse("gfx942"), lambda: False, lambda: UNKNOWN)
    declined = policy.decide(conv(), Target.parse("gfx90a"), lambda: True, lambda: UNKNOWN)
    assert not declined
    assert "leaves conv_fprop to others" in declined.reason


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"default": "some"}',
        '{"rules": [{"claim": 1}]}',
        '{"rules": [{"op": 3, "claim": true}]}',
        '{"x": 1}',
    ],
)
def test_files_of_rules_that_mean_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "claims.json"
    path.write_text(text)
    with pytest.raises(BadParamError, match="FUSILLI_CLAIM"):
        claim.parse(str(path))


# ---- verification


@pytest.mark.iree_cpu
def test_code_is_verified_once(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(Options.from_env(), verify_first=True)
    plan = FusilliEngine("cpu", options=options).build(RELU, config())
    plan.prepare((0, None))
    assert len(list((cold_cache / "verified").glob("*.json"))) == 1
    monkeypatch.setattr("iree_bridge.artifact.vectors.make_sampled_vector", lambda *_: pytest.fail("verified twice"))
    FusilliEngine("cpu", options=options).build(RELU, config()).prepare((0, None))


@pytest.mark.iree_cpu
def test_wrong_code_is_quarantined(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iree_bridge.artifact import vectors

    make = vectors.make_sampled_vector

    def wrong(graph: Graph, seed: int) -> Any:
        vector = make(graph, seed)
        assert not isinstance(vector, str)
        samples = {uid: replace(s, expected=s.expected + 1.0) for uid, s in vector.samples.items()}
        return replace(vector, samples=samples)

    monkeypatch.setattr(vectors, "make_sampled_vector", wrong)
    monkeypatch.setattr(quarantine, "_wrong_in_this_process", set())
    monkeypatch.setattr(quarantine, "_right_in_this_process", set())
    options = replace(Options.from_env(), verify_first=True)
    engine = FusilliEngine("cpu", options=options)
    assert engine.support(RELU)
    with pytest.raises(Exception, match="gives wrong results on cpu"):
        engine.build(RELU, config()).prepare((0, None))
    assert engine.support(RELU).rule == "quarantine"
    quarantine._wrong_in_this_process.clear()
    fresh = FusilliEngine("cpu", options=replace(options, verify_first=False))
    assert fresh.support(RELU).rule == "quarantine"
    assert quarantine.release(options) == 1
    assert fresh.support(RELU)


@pytest.mark.iree_cpu
def test_what_was_checked_costs_little(cold_cache: Path) -> None:
    options = replace(Options.from_env(), verify_first=True)
    engine = FusilliEngine("cpu", options=options)
    built = engine._built(CONV, config())
    executable = built.executable(engine.device)
    seconds: list[float] = []
    for _ in range(20):
        quarantine._right_in_this_process.clear()  # as another process has it
        start = time.perf_counter()
        quarantine.verify(built.graph, built.code, executable, options)
        seconds.append(time.perf_counter() - start)
    assert sorted(seconds)[10] < 0.005


@pytest.mark.iree_cpu
def test_a_wrong_graph_leaves_a_capsule(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sines of another device: the data in the folder are right here, and the folder says how to look."""
    from iree_bridge.artifact import vectors
    from iree_bridge.compile import reproducer

    make = vectors.make_sampled_vector

    def wrong(graph: Graph, seed: int) -> Any:
        vector = make(graph, seed)
        assert not isinstance(vector, str)
        return replace(
            vector, samples={uid: replace(s, expected=s.expected + 1.0) for uid, s in vector.samples.items()}
        )

    monkeypatch.setattr(vectors, "make_sampled_vector", wrong)
    monkeypatch.setattr(quarantine, "_wrong_in_this_process", set())
    monkeypatch.setattr(quarantine, "_right_in_this_process", set())
    engine = FusilliEngine("cpu", options=replace(Options.from_env(), verify_first=True))
    assert engine.claims(RELU, (0, None)).rule == "quarantine"
    assert engine.support(RELU).rule == "quarantine", "at the next question nothing is compiled"
    (folder,) = (cold_cache / "failures").iterdir()
    found = reproducer.load(folder)
    assert found.graph_json is not None
    assert "wrong results on cpu" in found.diagnostics
    words = next(line for line in found.diagnostics.splitlines() if "fusilli run" in line).partition("fusilli ")[2]
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(cli, words.replace("cpu:0", "cpu").split())
    assert done.exit_code == 0, done.output
    assert (folder / "results.npz").is_file()
    assert CliRunner().invoke(cli, ["replay", str(folder)]).exit_code == 0


def test_the_selftest_counts_for_one_device_and_driver(tmp_path: Path) -> None:
    from iree_bridge import Device

    options = Options(cache_dir=tmp_path / "cache", device="cpu")
    device = Device.parse("cpu")
    assert not quarantine.has_passed_selftest(device, options)
    quarantine.record_selftest(device, options)
    assert quarantine.has_passed_selftest(device, options)
    (record,) = (tmp_path / "cache" / "selftest").iterdir()
    record.chmod(0o666)
    assert not quarantine.has_passed_selftest(device, options), "others may have written it"


@pytest.mark.thorough
def test_int4_operands_through_the_host(engine: FusilliEngine) -> None:
    """As values and as bytes, from a restored plan, and with other dims; b takes 24 bytes, then 20."""
    g = Graph("int4", io_data_type=DataType.INT32)
    a = g.tensor("a", dim=(4, 8), data_type=DataType.INT8, uid=1)
    g.matmul(a, g.tensor("b", dim=(8, 6), data_type=DataType.INT4, uid=2)).set_output(True).set_uid(3)
    host = Host(Registry([Entry(engine, "test")]), policies=Policies())
    rng = np.random.default_rng(0)
    left, right = rng.integers(-128, 128, (4, 8)), rng.integers(-8, 8, (8, 6))
    nibbles = (right.reshape(-1, 2) & 15).astype(np.uint8)
    packed = nibbles[:, 0] + 16 * nibbles[:, 1]
    plan = host.build(export_graph(g.validate()).replace(is_override_shape_enabled=True))
    for each in (plan, host.restore(plan.serialize())):
        for given in (right.astype(ml_dtypes.int4), packed):
            result = np.zeros((4, 6), np.int32)
            each.execute({1: left.astype(np.int8), 2: given, 3: result})
            np.testing.assert_array_equal(result, left @ right)
    narrow = np.zeros((4, 5), np.int32)
    dims = {2: Override((8, 5), (5, 1)), 3: Override((4, 5), (5, 1))}
    pack = {1: left.astype(np.int8), 2: right[:, :5].astype(ml_dtypes.int4), 3: narrow}
    plan.execute(pack, overrides=dims)
    np.testing.assert_array_equal(narrow, left @ right[:, :5])
