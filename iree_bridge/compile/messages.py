"""Messages between a process and its compile workers: a JSON header and a binary payload, both length-prefixed."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, Final

__all__ = ["Header", "PeerGoneError", "receive", "send"]

Header = dict[str, Any]

_PREFIX: Final = struct.Struct("<IQ")
_MAX_HEADER: Final = 64 << 20
_MAX_PAYLOAD: Final = 2 << 30
_CHUNK: Final = 1 << 20


class PeerGoneError(Exception):
    """The other end closed the connection or sent something that is no message."""


def send(sock: socket.socket, header: Header, payload: bytes = b"", *, deadline: float | None = None) -> None:
    """Send one message. ``deadline`` is a time of ``time.monotonic``.

    Raises:
        PeerGoneError: the other end is closed. MSG_NOSIGNAL keeps that from being a SIGPIPE, which would end a host
            that does not ignore it (an embedded Python leaves it as it is).
        TimeoutError: the deadline passed.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    try:
        sock.settimeout(_remaining(deadline))
        sock.sendall(_PREFIX.pack(len(text), len(payload)) + text, socket.MSG_NOSIGNAL)
        if payload:
            sock.settimeout(_remaining(deadline))
            sock.sendall(payload, socket.MSG_NOSIGNAL)
    except TimeoutError:
        raise
    except OSError as error:
        raise PeerGoneError(str(error)) from None


def receive(sock: socket.socket, *, deadline: float | None = None) -> tuple[Header, bytes]:
    """Receive one message; waits for it until ``deadline``.

    Raises:
        PeerGoneError: the other end is closed, or what came is no message.
        TimeoutError: the deadline passed.
    """
    header_size, payload_size = _PREFIX.unpack(_exactly(sock, _PREFIX.size, deadline))
    if header_size > _MAX_HEADER or payload_size > _MAX_PAYLOAD:
        raise PeerGoneError(f"a message of {header_size} + {payload_size} bytes is over the limit")
    try:
        header = json.loads(_exactly(sock, header_size, deadline))
    except (ValueError, RecursionError) as error:
        raise PeerGoneError(f"the header of a message is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise PeerGoneError("the header of a message is not an object")
    return header, bytes(_exactly(sock, payload_size, deadline))


def _exactly(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    """So many bytes. Memory is taken as they come: a message may claim more than it has."""
    data = bytearray()
    while len(data) < size:
        part = memoryview(bytearray(min(size - len(data), max(_CHUNK, len(data)))))
        done = 0
        while done < len(part):
            done += _some(sock, part[done:], deadline)
        data += part
    return data


def _some(sock: socket.socket, room: memoryview, deadline: float | None) -> int:
    try:
        sock.settimeout(_remaining(deadline))
        count = sock.recv_into(room)
    except TimeoutError:
        raise
    except OSError as error:
        raise PeerGoneError(str(error)) from None
    if count == 0:
        raise PeerGoneError("the connection was closed")
    return count


def _remaining(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
