"""Each parser of foreign bytes for a moment, and what the fuzzer found before; `tests.support.fuzz` runs for longer."""

from __future__ import annotations

import random
import socket
import struct
import time
from pathlib import Path

import pytest

from iree_bridge.compile import messages
from tests.support import fuzz

pytestmark = pytest.mark.iree_cpu


_FEWER = {"torch": 8, "emitted": 8}
"""Of the parsers that take a tenth of a second and more for one input."""


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, _FEWER.get(name, 120)) for name in fuzz.PARSERS),
        *(pytest.param(name, 120, marks=pytest.mark.thorough) for name in _FEWER),
    ],
)
def test_damaged_bytes_are_read_or_refused(name: str, count: int, tmp_path: Path) -> None:
    text, well = fuzz.child(name, 1, count, 20, tmp_path)
    assert well, text
    assert '"inputs": ' in text


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.PARSERS)
def test_more_damaged_bytes(name: str, tmp_path: Path) -> None:
    text, well = fuzz.child(name, random.SystemRandom().randrange(2**32), 1 << 62, 120, tmp_path)
    assert well, text


def test_the_fuzzer_finds_what_there_is_to_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of another kind, time and memory each are a finding, and the input is kept."""
    monkeypatch.setattr(fuzz, "SECONDS", 0.5)
    monkeypatch.setattr(fuzz.resource, "setrlimit", lambda *_: None)
    for read in (lambda _: 1 // 0, lambda _: sum(range(10**8)), lambda _: bytearray(400 << 20).find(b"x")):
        parser = fuzz.Parser([b"seed"], lambda data, read=read: data == b"seed" or read(data), (KeyError,))
        monkeypatch.setitem(fuzz.PARSERS, "made up", lambda parser=parser: parser)
        with pytest.raises((ZeroDivisionError, AssertionError)):
            fuzz.run("made up", 0, 5, 60, tmp_path / "current")
        assert (tmp_path / "current").read_bytes()


def test_a_message_takes_the_memory_that_it_has() -> None:
    """One of 12 bytes that claimed 2 GiB took them, and two seconds."""
    left, right = socket.socketpair()
    with left, right:
        left.sendall(struct.pack("<IQ", 2, 2 << 30) + b"{}" + b"x" * 10)
        left.close()
        begin = time.process_time()
        with pytest.raises(messages.PeerGoneError, match="closed"):
            messages.receive(right, deadline=time.monotonic() + 60)
        assert time.process_time() - begin < 0.5


def test_a_deep_header_is_no_message() -> None:
    left, right = socket.socketpair()
    with left, right:
        text = b"[" * 100_000
        left.sendall(struct.pack("<IQ", len(text), 0) + text)
        with pytest.raises(messages.PeerGoneError, match="not JSON"):
            messages.receive(right, deadline=time.monotonic() + 60)
