"""Damaged graphs, configs and plans from reader to answer: served or refused in bounded time, never a crash."""

from __future__ import annotations

import hashlib
import io
import json
import random
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph
from fusilli_plugin.engine.knobs import settings_of
from fusilli_plugin.engine.plan_frame import seal, unseal
from graph_api import FusilliError
from hipdnn_backend.errors import EngineError, WireError
from hipdnn_backend.plugins.abi import Status
from hipdnn_backend.wire import (
    Attributes,
    EngineConfig,
    KnobSetting,
    WireGraph,
    decode_engine_config,
    decode_graph,
    encode_engine_config,
    encode_graph,
)
from iree_bridge import Options
from tests.cases import all_cases
from tests.support.damage import changed_bytes

GRAPHS = Path(__file__).resolve().parents[2] / "data" / "hipdnn_graphs"
SECONDS = 1.0  # per input; a busy machine is slow, a loop that does not end is slower
ODD = (-(2**63), -1, 0, 1, 2, 3, 5, 7, 8, 16, 64, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1)


@cache
def _graphs() -> tuple[WireGraph, ...]:
    """One graph of each operation and attribute that cases have, and those of a real backend."""
    found = [decode_graph(path.read_bytes()) for path in sorted(GRAPHS.glob("*.bin"))]
    for _, case in all_cases():
        try:
            found.append(export_graph(case.graph()))
        except FusilliError:  # the schema has no word for it
            continue
    return tuple(found)


@cache
def _bytes() -> tuple[bytes, ...]:
    old = [path.read_bytes() for path in sorted(GRAPHS.glob("*.bin"))]
    return (*old * 8, *map(encode_graph, _graphs()))  # 12 in the layout of 2025, the others in the newest


def _distorted(source: random.Random, graph: WireGraph) -> bytes:
    """A graph that is well formed and says something odd: of a tensor, of a node, or about both."""
    for _ in range(source.randint(1, 3)):
        tensors, nodes = list(graph.tensors), list(graph.nodes)
        at = source.randrange(len(tensors))
        tensor, other = tensors[at], source.choice(tensors)
        match source.randrange(8):
            case 0 | 1 if tensor.dims:
                dims = list(tensor.dims)
                dims[source.randrange(len(dims))] = source.choice(ODD)
                tensors[at] = tensor.replace(dims=tuple(dims))
            case 2 if tensor.strides:
                strides = list(tensor.strides)
                strides[source.randrange(len(strides))] = source.choice(ODD)
                tensors[at] = tensor.replace(strides=tuple(strides))
            case 3:
                tensors[at] = tensor.replace(dims=other.dims, strides=source.choice((other.strides, tensor.strides)))
            case 4:
                tensors[at] = tensor.replace(data_type=other.data_type, virtual=source.random() < 0.5)
            case 5:
                tensors[at] = tensor.replace(value=other.value, is_runtime_pass_by_value=source.random() < 0.3)
            case 6 if nodes:
                place = source.randrange(len(nodes))
                nodes[place] = _other_attribute(source, nodes[place], [tensor.uid for tensor in tensors])
            case _:
                nodes = source.sample(nodes, source.randint(0, len(nodes)))
        graph = graph.replace(tensors=tuple(tensors), nodes=tuple(nodes))
    return encode_graph(graph)


def _other_attribute(source: random.Random, node: Any, uids: list[int]) -> Any:
    """The node with another value of one field: another tensor, an odd number, or none."""
    table = node.attributes
    names = list(table.FIELDS) if isinstance(table, Attributes) else []
    if not names:
        return node
    name = source.choice(names)
    value = getattr(table, name)
    if name.endswith("_uid"):
        new = source.choice(uids)
    elif isinstance(value, tuple) and value and isinstance(value[0], int):
        new = (*value[:-1], source.choice(ODD)) if source.random() < 0.7 else value[1:]
    elif isinstance(value, bool):
        new = not value
    elif isinstance(value, float):
        new = source.choice((0.0, -1.0, 1e30, float("inf"), float("nan")))
    elif type(value) is int:
        new = source.choice(ODD)
    else:
        return node
    return node.replace(attributes=table.replace(**{name: new}))


def _fuzz(make: Callable[[random.Random], bytes], count: int, seed: int) -> None:
    engine = FusilliEngine("cpu", options=Options(device="cpu", claim="all"))
    source = random.Random(seed)
    slowest, claimed, done = 0.0, 0, 0
    while done < count:
        try:
            data = make(source)
        except WireError:  # too odd to be written
            continue
        done += 1
        start = time.perf_counter()
        answer = engine.support(data)
        spent = time.perf_counter() - start
        if spent > SECONDS:  # a pause of the machine happens once
            start = time.perf_counter()
            engine.support(data + b"\0")
            spent = time.perf_counter() - start
        slowest = max(slowest, spent)
        assert answer.ok or answer.reason
        claimed += answer.ok
    assert slowest < SECONDS, f"{slowest:.3f} s"
    assert 0 < claimed < count


def _damaged(source: random.Random) -> bytes:
    return changed_bytes(source, source.choice(_bytes()))


def _odd(source: random.Random) -> bytes:
    return _distorted(source, source.choice(_graphs()))


@pytest.mark.parametrize("count", [5_000, pytest.param(15_000, marks=pytest.mark.thorough)])
def test_damaged_graphs_are_served_or_declined(count: int) -> None:
    _fuzz(_damaged, count, 1)


@pytest.mark.parametrize("count", [1_500, pytest.param(5_000, marks=pytest.mark.thorough)])
def test_odd_graphs_are_served_or_declined(count: int) -> None:
    _fuzz(_odd, count, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 14))
def test_many_damaged_graphs_are_served_or_declined(seed: int) -> None:
    _fuzz(_damaged, 40_000, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 22))
def test_many_odd_graphs_are_served_or_declined(seed: int) -> None:
    _fuzz(_odd, 20_000, seed)


def test_damaged_configs_are_read_or_refused() -> None:
    engine, source = FusilliEngine("cpu"), random.Random(3)
    knobs = (
        KnobSetting(knob_id="fusilli.opt_level", value=2),
        KnobSetting(knob_id="global.workspace_size_limit", value=1 << 40),
        KnobSetting(knob_id="their.knob", value="text"),
    )
    original = encode_engine_config(EngineConfig(engine_id=engine.id, knobs=knobs))
    outcomes = {True: 0, False: 0}
    for _ in range(10_000):
        try:
            settings_of(decode_engine_config(changed_bytes(source, original)), engine.target)
            outcomes[True] += 1
        except (WireError, FusilliError):
            outcomes[False] += 1
    assert min(outcomes.values()) > 0


def _forged(source: random.Random, payload: bytes) -> bytes:
    """A plan whose manifest was changed by somebody who knows the format: all sizes and digests fit."""
    with zipfile.ZipFile(io.BytesIO(unseal(payload))) as file:
        members = {name: file.read(name) for name in file.namelist()}
    name = source.choice([name for name in members if name.endswith(".json")])
    text = bytearray(members[name])
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(text))
        text[at : at + source.randrange(4)] = source.choice(
            (b"", b"0", b"-1", b"9" * 30, b'"', b"[", b"{}", b"null", b"true", b"1e999", b",", b"\xff")
        )
    members[name] = bytes(text)
    if name != "manifest.json":
        manifest = json.loads(members["manifest.json"])
        manifest["members"][name] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        members["manifest.json"] = json.dumps(manifest).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for each, data in members.items():
            file.writestr(each, data)
    return seal(out.getvalue())


def _fuzz_plans(count: int, seed: int) -> None:
    engine, source = FusilliEngine("cpu"), random.Random(seed)
    data = (GRAPHS / "pw_relu.bin").read_bytes()
    payload = engine.build(data, EngineConfig(engine_id=engine.id)).serialize()
    slowest, statuses = 0.0, Counter[int]()
    for number in range(count):
        match number % 4:
            case 0:
                plan = _forged(source, payload)
            case 1:
                plan = seal(changed_bytes(source, unseal(payload)))
            case _:
                plan = changed_bytes(source, payload)
        start = time.perf_counter()
        try:
            engine.restore(plan).close()
        except EngineError as error:
            statuses[error.status] += 1
        slowest = max(slowest, time.perf_counter() - start)
    assert slowest < SECONDS, f"{slowest:.3f} s"
    assert set(statuses) == {Status.INVALID_VALUE}
    assert 0.5 * count < statuses[Status.INVALID_VALUE] <= count


@pytest.mark.iree_cpu
def test_damaged_plans_are_refused() -> None:
    _fuzz_plans(10_000, 5)
