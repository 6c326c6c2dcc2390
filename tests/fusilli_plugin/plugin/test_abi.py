"""Exceptions as statuses and texts, handles, bytes that a host reads."""

from __future__ import annotations

import ctypes
import threading

import pytest

from fusilli_plugin.edge.handles import Buffers, HandleTable
from fusilli_plugin.engine.statuses import error_text, status_of
from fusilli_plugin.errors import BadParamError
from graph_api import CompileError, ExecutionError, FusilliError, GraphError, NotSupportedError
from hipdnn_backend.errors import EngineError, WireError
from hipdnn_backend.plugins.abi import Status


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BadParamError("x"), Status.BAD_PARAM),
        (WireError("a", "b"), Status.INVALID_VALUE),
        (GraphError("x"), Status.INVALID_VALUE),
        (NotSupportedError("n", "r", "x"), Status.INVALID_VALUE),
        (CompileError("x"), Status.INTERNAL_ERROR),
        (ExecutionError("x"), Status.INTERNAL_ERROR),
        (ExecutionError("... hipErrorOutOfMemory ..."), Status.ALLOC_FAILED),
        (MemoryError(), Status.ALLOC_FAILED),
        (EngineError("w", "r", Status.BAD_PARAM), Status.BAD_PARAM),
        (EngineError("w", "r", 0), Status.INTERNAL_ERROR),
        (EngineError("w", "r", 99), Status.INTERNAL_ERROR),
        (FusilliError("x"), Status.INTERNAL_ERROR),
        (SystemExit(0), Status.INTERNAL_ERROR),
        (KeyboardInterrupt(), Status.INTERNAL_ERROR),
        (RecursionError(), Status.INTERNAL_ERROR),
    ],
)
def test_each_exception_has_a_status(error: BaseException, status: Status) -> None:
    assert status_of(error) == status


def test_texts_fit_the_hosts_buffer() -> None:
    assert error_text(ValueError("x")) == b"ValueError: x"
    assert error_text(GraphError("what is wrong")) == b"what is wrong"
    assert error_text(GraphError("")) == b"GraphError: "
    assert b"\0" not in error_text(GraphError("a\0b"))
    long = error_text(GraphError("é" * 4000))
    assert len(long) <= 2047
    assert long.decode().strip("é") == ""
    assert error_text(GraphError("\udcff"))


def test_handles_are_never_used_again() -> None:
    table: HandleTable[str] = HandleTable()
    first, second = table.add("a"), table.add("b")
    assert first != second
    assert first % 16 == 0 != first
    assert table.get(first) == "a"
    assert table.remove(first) == "a"
    assert table.add("c") not in (first, second)
    for call in (table.get, table.remove):
        with pytest.raises(BadParamError, match="was destroyed"):
            call(first)
    with pytest.raises(BadParamError):
        table.get(0)


def test_bytes_stay_until_they_are_handed_back() -> None:
    buffers = Buffers()
    address, size = buffers.keep(b"some bytes")
    assert ctypes.string_at(address, size) == b"some bytes"
    assert address % 8 == 0
    buffers.free(address)
    assert len(buffers) == 0
    with pytest.raises(BadParamError, match="not of this plugin"):
        buffers.free(address)


def test_bytes_of_many_threads() -> None:
    buffers = Buffers()

    def work() -> None:
        for number in range(300):
            data = bytes([number % 256]) * 50
            address, size = buffers.keep(data)
            assert ctypes.string_at(address, size) == data
            buffers.free(address)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(buffers) == 0
