"""Damage for what parsers read: of bytes, and by form, so that it gets past the checks of the outermost layer.

Each function takes a source of chance and what a parser understands, and returns something like it.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable, Collection, Iterator
from copy import deepcopy
from itertools import islice
from typing import Any, Final

__all__ = ["Damage", "archive", "changed_bytes", "document", "frame", "onnx_model", "program_text", "tables"]

Damage = Callable[[random.Random, bytes], bytes]

_NUMBERS: Final = (-(2**63), -1, 0, 1, 2, 7, 64, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**64, 1e308, 0.5)
_TEXTS: Final = ("", "\0", "../x", "a" * 300, "\x1b[2K\n", "/dev/zero", "float32", "cpu", "\ud800")
_MAX_PLACES: Final = 50_000
_LITERALS: Final = (
    "1e999", "-0", "NaN", "Infinity", "9" * 5000, "1" + "0" * 300, '"\\ud800"', "[" * 3000 + "]" * 3000,
    '{"a":' * 3000 + "1" + "}" * 3000, "0.1e-400", '{"a": 1, "a": 2}', "[0" + ",0" * 9999 + "]",
)  # fmt: skip


def changed_bytes(source: random.Random, data: bytes) -> bytes:
    """A few bytes changed, copied, cut out or cut off."""
    out = bytearray(data)
    for _ in range(source.randint(1, 5)):
        if not out:
            break
        at, size = source.randrange(len(out)), source.choice((1, 1, 2, 4, 8, 32))
        match source.randrange(6):
            case 0:
                out[at] ^= 1 << source.randrange(8)
            case 1:
                out[at : at + size] = source.randbytes(size)
            case 2:
                out[at : at + size] = source.choice((b"\0", b"\xff", b"\x7f")) * size
            case 3:
                other = source.randrange(len(out))
                out[at : at + size] = out[other : other + size]
            case 4:
                other = source.randrange(len(out))
                out[at:at] = out[other : other + size * 8] * source.choice((1, 1, 1, 50))
            case _:
                del out[at : (None if source.random() < 0.2 else at + size)]
    return bytes(out)


# ---- flat buffers


def tables(source: random.Random, data: bytes) -> bytes:
    """A flat buffer with other numbers in its fields, sizes and offsets, or with offsets that lead elsewhere."""
    if len(data) < 16 or source.random() < 0.2:
        return changed_bytes(source, data)
    out = bytearray(data)
    for _ in range(source.randint(1, 4)):
        size = source.choice((1, 2, 2, 4, 4, 4, 8))
        at = source.randrange(len(out) - size + 1) // size * size
        mask = (1 << 8 * size) - 1
        old = int.from_bytes(out[at : at + size], "little")
        match source.randrange(4):
            case 0:
                new = int(source.choice(_NUMBERS[:-2]))
            case 1:
                new = old + source.choice((-64, -8, -4, -2, -1, 1, 2, 4, 8, 64))
            case 2:
                new = (old << source.randrange(8)) | source.randrange(2)
            case _:
                at, size, mask = at & ~3, 4, 0xFFFFFFFF
                new = _targets(source, out) - at
        if at + size <= len(out):
            out[at : at + size] = (new & mask).to_bytes(size, "little")
    return bytes(out)


def _targets(source: random.Random, out: bytearray) -> int:
    """Where some offset of the buffer leads; they are not told from other numbers."""
    for _ in range(50):
        at = source.randrange(len(out) - 3) & ~3
        (offset,) = struct.unpack_from("<I", out, at) if at + 4 <= len(out) else (0,)
        if 4 <= offset < len(out) - at:
            return at + offset
    return source.randrange(len(out))


# ---- JSON


def document(source: random.Random, data: bytes) -> bytes:
    """JSON with other values, some of which no writer would write."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return changed_bytes(source, data)
    marks: list[str] = []
    for _ in range(source.randint(1, 3)):
        places = list(islice(_places(value), _MAX_PLACES))
        if not places:
            break
        holder, key = source.choice(places)
        match source.randrange(8):
            case 0 | 1:
                holder[key] = source.choice(_NUMBERS)
            case 2:
                holder[key] = source.choice(_TEXTS)
            case 3:
                holder[key] = source.choice(([], {}, None, True, [[]] * 9, {"": {}}))
            case 4:
                other, name = source.choice(places)
                holder[key] = deepcopy(other[name])
            case 5 if isinstance(holder, list):
                holder[key:key] = [holder[key]] * source.choice((1, 2, 50, 2000))
            case 6:
                marks.append(f"mark{source.randrange(10**9)}")
                holder[key] = marks[-1]
            case _:
                del holder[key]
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return changed_bytes(source, data)
    for mark in marks:
        text = text.replace(f'"{mark}"', source.choice(_LITERALS))
    return text.encode()


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth > 40:
        return
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key], depth + 1)


# ---- archives


def archive(source: random.Random, data: bytes, *, code: Collection[str] = ()) -> bytes:
    """An archive with other content or names, often with the digests that this content has.

    Args:
        source: of chance.
        data: of an artifact or a saved model.
        code: ends of the names of members that are trusted if their digest is right: it never is.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            members = [(info.filename, opened.read(info)) for info in opened.infolist()]
    except Exception:  # what it raises for damage upon damage: all kinds
        return changed_bytes(source, data)
    if not members or source.random() < 0.25:
        return tables(source, data)  # headers and the directory at the end are numbers in fixed places, too
    at = 0 if source.random() < 0.6 else source.randrange(len(members))
    name, old = members[at]
    new = _member(source, name, old)
    members[at] = (name, new)
    if at and not name.endswith(tuple(code)) and source.random() < 0.8:
        members = _redigested(members, at, old)
    match source.randrange(12):
        case 0:
            at = source.randrange(len(members))
            members[at] = (source.choice(("../x", "a", name * 2, "blobs/", name + "\0")), members[at][1])
        case 1:
            members.append(source.choice(members))
        case 2:
            source.shuffle(members)
        case _:
            pass
    return _written(source, members)


def _member(source: random.Random, name: str, data: bytes) -> bytes:
    if data[:1] in (b"{", b"["):
        return document(source, data)
    if name.endswith(".mlir"):
        return program_text(source, data)
    if data[:4] == b"PK\3\4":
        return archive(source, data)
    return tables(source, data) if source.random() < 0.5 else changed_bytes(source, data)


def _redigested(members: list[tuple[str, bytes]], at: int, old: bytes) -> list[tuple[str, bytes]]:
    """The manifest, and the name of a blob, with the digest and the size of what now is there."""
    name, new = members[at]
    before, after = (hashlib.sha256(each).hexdigest() for each in (old, new))
    members[at] = (name.replace(before, after), new)
    head, manifest = members[0]
    text = manifest.replace(before.encode(), after.encode())
    pattern = rb'("%b": \{\s*"size": )%d\b' % (re.escape(name.encode()), len(old))
    members[0] = (head, re.sub(pattern, rb"\g<1>%d" % len(new), text))
    return members


def _written(source: random.Random, members: list[tuple[str, bytes]]) -> bytes:
    kind = zipfile.ZIP_STORED if source.random() < 0.9 else source.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as made:
        for member, content in members:
            made.writestr(zipfile.ZipInfo(member.replace("\0", "")), content, kind)
    return out.getvalue()


# ---- ONNX


def onnx_model(source: random.Random, data: bytes) -> bytes:
    """A model with other numbers, names, operators and dims, with fields repeated, left out or put into one another."""
    import onnx
    from google.protobuf.message import DecodeError, EncodeError

    if source.random() < 0.15:
        return changed_bytes(source, data)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
        for _ in range(source.randint(1, 4)):
            _change_message(source, model)
        return model.SerializeToString()
    except (DecodeError, EncodeError, ValueError, TypeError):  # of damage upon damage, or too deep
        return changed_bytes(source, data)


def _change_message(source: random.Random, model: Any) -> None:
    messages = list(_messages(model))
    message = source.choice(messages)
    fields = message.ListFields()
    if not fields:
        return
    field, value = source.choice(fields)
    if _is_repeated(field):
        _change_repeated(source, message, field, value, messages)
    elif field.type == field.TYPE_MESSAGE:
        alike = [each for each in messages if each.DESCRIPTOR is value.DESCRIPTOR]
        if source.random() < 0.2:
            message.ClearField(field.name)
        else:
            value.CopyFrom(_copied(source.choice(alike)))
    else:
        setattr(message, field.name, _scalar(source, field, value, messages))


def _change_repeated(source: random.Random, message: Any, field: Any, values: Any, messages: list[Any]) -> None:
    at = source.randrange(len(values))
    choice = source.randrange(5)
    if choice == 0:
        del values[at]
    elif field.type == field.TYPE_MESSAGE:
        if choice in (1, 2):
            alike = [each for each in messages if each.DESCRIPTOR is values[at].DESCRIPTOR]
            other = _copied(source.choice(alike))
            if choice == 1:
                values[at].CopyFrom(other)
            else:
                values.extend([other] * source.choice((1, 1, 2, 300)))
        else:
            _mix(source, values)
    elif choice in (1, 2):
        values.extend([values[at]] * source.choice((1, 2, 8, 70, 3000)))
    else:
        values[at] = _scalar(source, field, values[at], messages)


def _mix(source: random.Random, values: Any) -> None:
    """Two of the messages in each other's place."""
    one, other = source.randrange(len(values)), source.randrange(len(values))
    first, second = _copied(values[one]), _copied(values[other])
    values[one].CopyFrom(second)
    values[other].CopyFrom(first)


def _scalar(source: random.Random, field: Any, value: Any, messages: list[Any]) -> Any:
    if field.cpp_type == field.CPPTYPE_ENUM:
        return source.choice([each.number for each in field.enum_type.values])
    if isinstance(value, int):
        bits = 64 if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 32
        low = -(2 ** (bits - 1)) if field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_INT32) else 0
        chosen = source.choice((*_NUMBERS[:-2], 3, 4, 5, 6, 10, 13, 17, 1000, 10**5, 10**7, value + 1, value * 2))
        return min(max(int(chosen), low), 2 ** (bits - 1) - 1)
    if isinstance(value, float):
        return source.choice((0.0, -1.0, 1e30, float("inf"), float("nan")))
    if isinstance(value, bytes):
        return source.choice((b"", value * 2, changed_bytes(source, value), b"\xff" * 8, value[:-1]))
    if field.name == "op_type" and source.random() < 0.8:
        return source.choice(_operators())
    texts = [t for each in messages for f, t in each.ListFields() if f.name in ("name", "key", "value") and t]
    texts += [t for each in messages for f, ts in each.ListFields() if f.name in ("input", "output") for t in ts]
    texts = [text for text in texts if isinstance(text, str)]
    if texts and source.random() < 0.8:
        return source.choice(texts)
    return source.choice([text for text in _TEXTS if text != "\ud800"])


def _operators() -> list[str]:
    from onnx import defs

    if not _OPERATORS:
        _OPERATORS.extend(sorted({schema.name for schema in defs.get_all_schemas() if not schema.domain}))
    return _OPERATORS


_OPERATORS: Final[list[str]] = []


def _copied(message: Any) -> Any:
    made = type(message)()
    made.CopyFrom(message)
    return made


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _messages(message: Any, depth: int = 0) -> Iterator[Any]:
    yield message
    if depth > 60:
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for each in value if _is_repeated(field) else (value,):
                yield from _messages(each, depth + 1)


# ---- programs


_TOKEN: Final = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[%@#!^]?[\w.$]+|->|\s+|.', re.DOTALL)
_WORDS: Final = (
    b"-1", b"0", b"18446744073709551616", b"9223372036854775807", b"4611686018427387904", b"1e400", b"?", b"f32",
    b"!torch.int", b"!torch.vtensor<[65536,65536,65536],f32>", b"!torch.none", b"tensor<2xf32>", b"module {", b"}",
    b"torch.aten.relu", b"torch.constant.none", b"torch.aten.mm", b"memref<?xi8>", b"dense<0>", b"dense_resource<x>",
    b"affine_map<(d0) -> (d0)>", b"loc(unknown)", b"0xFFFFFFFF", b"\0",
)  # fmt: skip
_PAIRS: Final = (
    (b"module {", b"}"),
    (b"tuple<", b">"),
    (b"[", b"]"),
    (b"(", b")"),
    (b"!torch.list<", b">"),
    (b"-", b""),
)


def program_text(source: random.Random, data: bytes) -> bytes:
    """A program with tokens exchanged, repeated, left out, or wrapped again and again."""
    if source.random() < 0.15:
        return changed_bytes(source, data)
    tokens = _TOKEN.findall(data)
    for _ in range(source.choice((1, 1, 2, 4))):
        if not tokens:
            break
        at = source.randrange(len(tokens))
        match source.randrange(6):
            case 0:
                tokens[at] = source.choice(_WORDS)
            case 1 | 2:
                tokens[at] = source.choice(tokens)
            case 3:
                end = min(len(tokens), at + source.choice((1, 4, 16, 64)))
                tokens[at:at] = tokens[at:end] * source.choice((1, 1, 20, 400))
            case 4:
                first, last = source.choice(_PAIRS)
                count = source.choice((1, 10, 150, 199, 3000))
                tokens[at : at + 1] = [first] * count + [tokens[at]] + [last] * count
            case _:
                del tokens[at : at + source.choice((1, 1, 4))]
    return b"".join(tokens)


# ---- messages


def frame(source: random.Random, data: bytes) -> bytes:
    """A message of `iree_bridge.compile.messages` whose sizes lie, or whose header is another."""
    prefix = struct.Struct("<IQ")
    if len(data) < prefix.size or source.random() < 0.3:
        return changed_bytes(source, data)
    size, _ = prefix.unpack_from(data)
    header, payload = data[prefix.size : prefix.size + size], data[prefix.size + size :]
    if source.random() < 0.7:
        header = document(source, header)
    sizes = [len(header), len(payload)]
    if source.random() < 0.4:
        sizes[source.randrange(2)] = int(source.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 64 << 20, size + 1)))
    return prefix.pack(*sizes) + header + payload[:1000] * source.choice((1, 1, 0, 1000))
