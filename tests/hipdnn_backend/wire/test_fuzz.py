"""Mutated buffers decode or raise `WireError`, quickly; what decodes can be written again."""

from __future__ import annotations

import random
import re
import struct
import time
from collections.abc import Callable

import pytest

from hipdnn_backend.errors import WireError
from hipdnn_backend.wire import (
    EngineConfig,
    EngineDetails,
    FloatConstraint,
    IntConstraint,
    Knob,
    KnobSetting,
    SerializedExecutionPlan,
    SerializedGraphAndPlan,
    StringConstraint,
    WireGraph,
    decode_engine_config,
    decode_engine_details,
    decode_graph,
    decode_graph_and_plan,
    decode_plan,
    encode_engine_config,
    encode_engine_details,
    encode_graph,
    encode_graph_and_plan,
    encode_plan,
)
from hipdnn_backend.wire.json import graph_from_json, graph_to_json
from tests.hipdnn_backend.wire import flatc
from tests.hipdnn_backend.wire.strategies import one_of_each_operation

_WORDS = [0, 1, 2, 3, 4, 8, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def _mutated(rng: random.Random, data: bytes) -> bytes:
    """One to four edits: bits, words, offsets shifted a little, bytes copied, removed or cut off."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        match rng.randrange(7):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.randrange(256)
            case 2:
                at &= ~3
                out[at : at + 4] = struct.pack("<I", rng.choice(_WORDS))
            case 3:
                at &= ~1
                out[at : at + 2] = struct.pack("<H", rng.choice(_WORDS) & 0xFFFF)
            case 4:
                at = min(at & ~3, max(len(out) - 4, 0))
                (word,) = struct.unpack_from("<I", bytes(out[at : at + 4]).ljust(4, b"\0"))
                out[at : at + 4] = struct.pack("<I", (word + rng.choice((-8, -4, -2, -1, 1, 2, 4, 8))) & 0xFFFFFFFF)
            case 5:
                source = rng.randrange(len(out))
                out[at : at + 16] = out[source : source + 16]
            case _:
                if rng.random() < 0.3:
                    del out[at:]
                else:
                    del out[at : at + rng.choice((1, 2, 4, 8))]
        if not out:
            return b""
    return bytes(out)


def _graph_seeds() -> list[bytes]:
    return [path.read_bytes() for path in sorted(flatc.GRAPHS.glob("*.bin"))] * 3 + [
        encode_graph(decode_graph((flatc.GRAPHS / "bn_training.bin").read_bytes())),
        encode_graph(one_of_each_operation()),
    ]


def _fuzz_graphs(seed: int, count: int) -> None:
    rng = random.Random(seed)
    seeds = _graph_seeds()
    refused = slowest = 0.0
    for _ in range(count):
        data = _mutated(rng, rng.choice(seeds))
        began = time.perf_counter()
        try:
            graph = decode_graph(data)
        except WireError:
            refused += 1
        else:
            assert isinstance(graph, WireGraph)
            assert hash(graph) is not None
        slowest = max(slowest, time.perf_counter() - began)
    assert 0.3 * count < refused < count
    # a pause of the machine may hit one buffer; a loop would take far longer
    assert slowest < 2


@pytest.mark.parametrize("seed", range(4))
def test_mutated_graphs(seed: int) -> None:
    _fuzz_graphs(seed, 5000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_mutated_graphs(seed: int) -> None:
    _fuzz_graphs(seed, 10000)


def _engine_seeds() -> list[tuple[bytes, Callable[[bytes], object]]]:
    knobs = (
        Knob(knob_id="i", default_value=1, constraint=IntConstraint(min_value=0, max_value=4, valid_values=(1, 2))),
        Knob(knob_id="f", default_value=0.5, constraint=FloatConstraint(min_value=0.0, max_value=1.0)),
        Knob(knob_id="s", default_value="x", constraint=StringConstraint(max_length=2, valid_values=("x", "y"))),
    )
    settings = (
        KnobSetting(knob_id="i", value=2),
        KnobSetting(knob_id="f", value=0.5),
        KnobSetting(knob_id="s", value=""),
    )
    plan = SerializedExecutionPlan(
        version=1, engine_id=2, workspace_size=3, tensor_uids=(1, 2), plugin_payload=bytes(range(50))
    )
    config = EngineConfig(engine_id=1, knobs=settings, ranking_metric="time")
    details = EngineDetails(engine_id=1, knobs=knobs, behavior_notes=(0, 4), name="n")
    both = SerializedGraphAndPlan(graph_blob=bytes(30), plan_blob=bytes(20))
    return [
        (encode_engine_config(config), decode_engine_config),
        (encode_engine_details(details), decode_engine_details),
        (encode_plan(plan), decode_plan),
        (encode_graph_and_plan(both), decode_graph_and_plan),
    ]


def test_mutated_engine_records_and_plans() -> None:
    rng = random.Random(7)
    seeds = _engine_seeds()
    decoded = 0
    for _ in range(10000):
        data, decode = rng.choice(seeds)
        try:
            decode(_mutated(rng, data))
        except WireError:
            continue
        decoded += 1
    assert 1000 < decoded < 9000


def test_random_bytes() -> None:
    rng = random.Random(11)
    for _ in range(3000):
        data = rng.randbytes(rng.randrange(200))
        for decode in (decode_graph, decode_engine_config, decode_plan):
            try:
                decode(data)
            except WireError:
                continue


def test_mutated_graphs_that_decode_can_be_written() -> None:
    rng = random.Random(13)
    seeds = _graph_seeds()[:12]
    written = 0
    while written < 60:
        try:
            graph = decode_graph(_mutated(rng, rng.choice(seeds)))
        except WireError:
            continue
        if re.search("UnknownAttributes|TensorValueType.UNKNOWN", repr(graph)):
            # what this version of the schema has no name for
            with pytest.raises(WireError, match=r"unknown type|cannot be written"):
                encode_graph(graph)
            continue
        data = encode_graph(graph)
        # by their text, in which a NaN equals itself
        assert repr(decode_graph(data)) == repr(graph)
        assert repr(graph_from_json(graph_to_json(graph))) == repr(graph)
        written += 1


def test_mutated_json() -> None:
    rng = random.Random(17)
    texts = [graph_to_json(decode_graph(data)).encode() for data in _graph_seeds()[:12]]
    texts += [path.read_bytes() for path in sorted(flatc.GRAPHS.glob("*.json"))]
    decoded = 0
    for _ in range(3000):
        data = bytearray(rng.choice(texts))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.choice(
                [b"", b"0", b"9", b'"', b"[", b"{", b"null", b"-", b"e", b","]
            )
        try:
            graph_from_json(bytes(data))
        except WireError:
            continue
        decoded += 1
    assert 100 < decoded < 2900
