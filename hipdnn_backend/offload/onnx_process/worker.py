"""The process that `hipdnn_backend.offload.onnx_process.client` asks; it is started by this file's path.

It imports nothing but onnx's extension module, which needs neither numpy nor protobuf's Python, so it starts in
hundredths of a second. A message is a JSON list and bytes, with the sizes of both in front.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

SIZES = struct.Struct("<IQ")
MOST = (64 << 20, 2 << 30)
"""Bytes of a list and of what follows it; protobuf ends at the latter."""
_IDLE = 60
_POLL = 2


def main() -> None:
    """Serve the socket that is the standard input, until nobody asks any more."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path, parent, room, times = sys.argv[1], *map(int, sys.argv[2:])
    functions = _functions(path)
    sock = socket.socket(fileno=0)
    until = time.monotonic() + _IDLE
    while time.monotonic() < until and os.getppid() == parent:
        if select.select([sock], [], [], _POLL)[0]:
            (name, *arguments), data = receive(sock)
            _limit_memory(room + times * len(data))
            send(sock, *_answer(functions[name], data, arguments))
            until = time.monotonic() + _IDLE


def _functions(path: str) -> dict[str, Any]:
    """What the process can be asked for, from onnx's extension module alone: the package would take longer to load."""
    spec = importlib.util.spec_from_file_location("onnx.onnx_cpp2py_export", path)
    assert spec is not None
    assert spec.loader is not None
    onnx: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(onnx)

    def inline_operators(data: bytes, names: list[list[str]]) -> bytes:
        return onnx.inliner.inline_selected_functions2(data, [tuple(name) for name in names], False)

    def body_of(data: bytes, operator: list[str], opset: int, version: int, types: list[str]) -> bytes:
        schema = onnx.defs.get_schema(operator[1], opset, operator[0])
        known = [bytes.fromhex(each) for each in types]
        return schema.get_context_dependent_function_with_opset_version(version, data, known)

    return {
        "check_model": lambda data: onnx.checker.check_model(data, False, False, False) or b"",
        "infer_shapes": onnx.shape_inference.infer_shapes,
        "convert_version": onnx.version_converter.convert_version,
        "inline_functions": lambda data: onnx.inliner.inline_local_functions(data, True),
        "inline_operators": inline_operators,
        "body_of": body_of,
    }


def _limit_memory(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def _answer(function: Any, data: bytes, arguments: list[Any]) -> tuple[list[Any], bytes]:
    try:
        return [""], function(data, *arguments)
    except MemoryError:
        raise
    except Exception as error:  # each part of onnx has a class of its own, and asks the others
        return [str(error) or type(error).__name__], b""


def send(sock: socket.socket, header: list[Any], data: bytes) -> None:
    """Send a message."""
    text = json.dumps(header).encode()
    sock.sendall(SIZES.pack(len(text), len(data)) + text, socket.MSG_NOSIGNAL)
    sock.sendall(data, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[list[Any], bytes]:
    """Receive a message.

    Raises:
        EOFError: what came is none, or claims more than any has.
    """
    sizes = SIZES.unpack(_exactly(sock, SIZES.size))
    if any(size > most for size, most in zip(sizes, MOST, strict=True)):
        raise EOFError
    header, data = (_exactly(sock, size) for size in sizes)
    try:
        return json.loads(header), data
    except (ValueError, RecursionError):
        raise EOFError from None


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        count = sock.recv_into(view[done:])
        if not count:
            raise EOFError
        done += count
    return bytes(data)


if __name__ == "__main__":
    main()
