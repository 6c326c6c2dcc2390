"""Damaged graphs and configs from reader to answer: served or declined in bounded time, never a crash."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from fusilli_plugin.engine import FusilliEngine
from fusilli_plugin.knobs import settings_of
from graph_api import FusilliError
from hipdnn_backend.errors import WireError
from hipdnn_backend.wire import (
    EngineConfig,
    KnobSetting,
    decode_engine_config,
    decode_graph,
    encode_engine_config,
    encode_graph,
)

GRAPHS = Path(__file__).resolve().parents[2] / "data" / "hipdnn_graphs"
SECONDS = 0.5  # per input; a busy machine is slow, a loop that does not end is slower


def _mutated(source: random.Random, data: bytes) -> bytes:
    """A few bytes changed, copied, cut out or cut off."""
    out = bytearray(data)
    for _ in range(source.randint(1, 6)):
        at, size = source.randrange(len(out)), source.choice((1, 1, 1, 2, 4, 8))
        match source.randrange(5):
            case 0:
                out[at] ^= 1 << source.randrange(8)
            case 1:
                out[at : at + size] = source.randbytes(size)
            case 2:
                out[at : at + size] = source.choice((b"\0", b"\xff", b"\x7f")) * size
            case 3:
                other = source.randrange(len(out))
                out[at : at + size] = out[other : other + size]
            case _:
                del out[at : at + size]
        if len(out) < 8:
            return bytes(out)
    return bytes(out)


def _fuzz(count: int, seed: int) -> None:
    engine = FusilliEngine("cpu")
    source = random.Random(seed)
    originals = [path.read_bytes() for path in sorted(GRAPHS.glob("*.bin"))]
    originals += [encode_graph(decode_graph(data)) for data in originals]  # the newest layout
    slowest, claimed = 0.0, 0
    for _ in range(count):
        data = _mutated(source, source.choice(originals))
        start = time.perf_counter()
        answer = engine.support(data)
        slowest = max(slowest, time.perf_counter() - start)
        assert answer.ok or answer.reason
        claimed += answer.ok
    assert slowest < SECONDS, f"{slowest:.3f} s"
    assert 0 < claimed < count


def test_damaged_graphs_are_served_or_declined() -> None:
    _fuzz(20_000, 1)


@pytest.mark.slow
def test_many_damaged_graphs_are_served_or_declined() -> None:
    _fuzz(200_000, 2)


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
            settings_of(decode_engine_config(_mutated(source, original)), engine.target)
            outcomes[True] += 1
        except (WireError, FusilliError):
            outcomes[False] += 1
    assert min(outcomes.values()) > 0
