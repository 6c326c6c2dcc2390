"""The frame of a serialized plan: what it is, and a digest, since nothing else in it says so of every byte.

0: 8 bytes of magic; 8: version; 12: kind; 16: size of this header; 20: SHA-256 of what follows; 52: the payload, which
is a compiled artifact or, if ONNX Runtime runs it, a graph. Numbers are little-endian, of 32 bits. The digest finds
damage; it does not tell who made the plan.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from graph_api import NotSupportedError

__all__ = ["ARTIFACT", "ONNX_GRAPH", "seal", "unseal"]

_HEADER: Final = struct.Struct("<8sIII32s")
_MAGIC: Final = b"FUSIPLAN"
_VERSION: Final = 1
# Kinds; the provider before this one kept graphs, under 1.
ARTIFACT: Final = 2
ONNX_GRAPH: Final = 3
_KINDS: Final = {ARTIFACT: "compiled code", ONNX_GRAPH: "ONNX nodes"}


def seal(payload: bytes, kind: int = ARTIFACT) -> bytes:
    """A payload with the header in front."""
    digest = hashlib.sha256(payload).digest()
    return _HEADER.pack(_MAGIC, _VERSION, kind, _HEADER.size, digest) + payload


def unseal(data: bytes, wanted: int = ARTIFACT) -> bytes:
    """The payload in a serialized plan of the kind that is wanted.

    Raises:
        NotSupportedError: it is none, of another version or kind, or damaged.
    """
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        raise NotSupportedError("", "plan", f"these {len(data)} bytes are no serialized plan of this engine")
    _, version, kind, size, digest = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise NotSupportedError("", "plan", f"the serialized plan is of version {version}, this engine has {_VERSION}")
    if kind != wanted:
        reason = f"the serialized plan is of kind {kind}; {wanted} holds {_KINDS[wanted]}"
        raise NotSupportedError("", "plan", reason)
    if size != _HEADER.size:
        raise NotSupportedError("", "plan", f"the serialized plan has a header of {size} bytes, not {_HEADER.size}")
    payload = data[size:]
    if hashlib.sha256(payload).digest() != digest:
        raise NotSupportedError("", "plan", "the serialized plan is damaged: its bytes do not fit its digest")
    return payload
