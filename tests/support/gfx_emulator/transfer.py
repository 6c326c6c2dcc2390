"""Vector loads and stores: global memory, buffers and LDS."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from tests.support.gfx_emulator.assembly import Instruction, UnmodelledError
from tests.support.gfx_emulator.state import LANES, Array, Register, Wave, register, scalar, vector

__all__ = ["decode"]

Action = Callable[[Wave], None]

_SIZES: Final = {
    "ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2,
    "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16,
    "b8": 1, "u8": 1, "i8": 1, "b16": 2, "u16": 2, "i16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16,
}  # fmt: skip
_CACHE_HINTS: Final = {"nt", "sc0", "sc1", "glc", "slc"}


def decode(instruction: Instruction) -> Action | None:
    """What a load or store does; None if this is none that we know."""
    name = instruction.opcode
    if match := re.fullmatch(r"global_(load|store)_([a-z]+(?:x\d)?)(_d16)?(_hi)?", name):
        return _far(match, instruction, _global_address(instruction, load=match[1] == "load"))
    if match := re.fullmatch(r"buffer_(load|store)_([a-z]+(?:x\d)?)(_d16)?(_hi)?", name):
        return _far(match, instruction, _buffer_address(instruction, _SIZES[match[2]]))
    if match := re.fullmatch(r"ds_(read|write)(2?)(st64)?_([bui]\d+)(_d16)?(_hi)?", name):
        return _local(match, instruction)
    if name == "ds_bpermute_b32":
        return _permute(instruction)
    if name == "ds_swizzle_b32":
        return _swap(instruction)
    return None


def _check(instruction: Instruction, known: set[str]) -> None:
    if unknown := instruction.modifiers.keys() - known:
        raise UnmodelledError(f"modifiers {sorted(unknown)} of: {instruction.text}")


def _place(text: str) -> Register:
    place = register(text)
    if place is None or place.kind != "v":
        raise UnmodelledError(f"{text!r} where vector registers are expected")
    return place


def _global_address(instruction: Instruction, *, load: bool) -> Callable[[Wave], tuple[Array, Array]]:
    """Addresses, and which of them are accessed, of the lanes that are on."""
    _check(instruction, {"offset", *_CACHE_HINTS})
    text, base = instruction.operands[1 if load else 0], instruction.operands[2]
    offset = int(instruction.modifiers.get("offset", "0"))
    low = vector(text, "u32")
    if base == "off":
        high = vector(text, "u32", 1)

        def wide(wave: Wave) -> tuple[Array, Array]:
            address = low(wave)[wave.mask].astype(np.int64) | high(wave)[wave.mask].astype(np.int64) << 32
            return address + offset, np.ones(len(address), bool)

        return wide
    start = scalar(base, 2)[0]

    def from_base(wave: Wave) -> tuple[Array, Array]:
        address = low(wave)[wave.mask].astype(np.int64) + start(wave) + offset
        return address, np.ones(len(address), bool)

    return from_base


def _buffer_address(instruction: Instruction, size: int) -> Callable[[Wave], tuple[Array, Array]]:
    """As `_global_address` for a raw buffer: words outside, each for itself, read 0 and are not written."""
    _check(instruction, {"offset", "offen", *_CACHE_HINTS})
    text, resource, scalar_offset = instruction.operands[1:]
    place = register(resource)
    assert place is not None
    assert (place.kind, place.count) == ("s", 4)
    fixed = int(instruction.modifiers.get("offset", "0"))
    moving = vector(text, "u32") if "offen" in instruction.modifiers else None
    extra = scalar(scalar_offset)[0]
    step = min(size, 4)

    def address(wave: Wave) -> tuple[Array, Array]:
        words = wave.s[place.first : place.first + 4]
        if words[1] >> 16 & 0x7FFF:
            raise UnmodelledError(f"a buffer with a stride or swizzle: {words}")
        base = words[0] | (words[1] & 0xFFFF) << 32
        own = np.zeros(int(wave.mask.sum()), np.int64) if moving is None else moving(wave)[wave.mask].astype(np.int64)
        total = own + fixed
        wave.counts["buffer offsets past 2**32"] += int((total >> 32).sum())
        if wave.memory.offsets_wrap:
            total &= 0xFFFFFFFF
        offsets = total[:, None] + np.arange(0, size, step)
        limit = words[2] - extra(wave)
        wave.counts["buffer words across the end"] += int(((offsets < limit) & (offsets + step > limit)).sum())
        wave.counts["buffer words outside"] += int((offsets >= limit).sum())
        return base + extra(wave) + total, np.repeat(offsets + step <= limit, step, axis=1)

    return address


def _far(match: re.Match[str], instruction: Instruction, address: Callable[[Wave], tuple[Array, Array]]) -> Action:
    size, half, high = _SIZES[match[2]], match[3] is not None, match[4] is not None
    is_global = instruction.opcode.startswith("global")
    if match[1] == "load":
        place = _place(instruction.operands[0])
        written = frozenset(range(place.first, place.first + place.count))
        signed = match[2].startswith("s") and size < 4 and match[2] != "short"

        def load(wave: Wave) -> None:
            addresses, allowed = address(wave)
            allowed = allowed[:, None].repeat(size, axis=1) if allowed.ndim == 1 else allowed
            data = np.zeros((len(addresses), size), np.uint8)
            rows = allowed.any(axis=1)
            if rows.any():
                data[allowed] = _fetch(wave, addresses, allowed)
            _put(wave, place, data, signed=signed, half=half, high=high)
            wave.loads.append(written)
            wave.note_pending()

        return load
    place = _place(instruction.operands[1 if is_global else 0])

    def store(wave: Wave) -> None:
        addresses, allowed = address(wave)
        allowed = allowed[:, None].repeat(size, axis=1) if allowed.ndim == 1 else allowed
        data = _get(wave, place, size, high=high)
        where = (addresses[:, None] + np.arange(size))[allowed]
        wave.memory.bytes[wave.memory.index(where, 1)[:, 0]] = data[allowed]
        wave.loads.append(frozenset())

    return store


def _fetch(wave: Wave, addresses: Array, allowed: Array) -> Array:
    """The bytes that are allowed. What lies outside all buffers is NaN, and counted: hardware may stop there."""
    where = (addresses[:, None] + np.arange(allowed.shape[1]))[allowed]
    held = wave.memory.holds(where)
    data = np.full(len(where), 0xFF, np.uint8)
    data[held] = wave.memory.bytes[wave.memory.index(where[held], 1)[:, 0]]
    wave.counts["bytes read outside all buffers"] += int((~held).sum())
    return data


def _put(wave: Wave, place: Register, data: Array, *, signed: bool, half: bool, high: bool) -> None:
    """Bytes [n, size] into the registers of the lanes that are on."""
    count, size = data.shape
    if size < 4:
        kind = np.dtype(f"{'i' if signed else 'u'}{size}")
        values = np.ascontiguousarray(data).view(kind)[:, 0].astype(np.int64) if count else np.zeros(0, np.int64)
        values = (values & 0xFFFFFFFF).astype(np.uint32)
        if half:
            old = wave.v[place.first][wave.mask]
            values = old & 0xFFFF | values << 16 if high else old & 0xFFFF0000 | values & 0xFFFF
        wave.v[place.first][wave.mask] = values
        return
    words = np.ascontiguousarray(data).view(np.uint32)
    if place.count != words.shape[1]:
        raise UnmodelledError(f"{size} bytes into {place}")
    for word in range(place.count):
        wave.v[place.first + word][wave.mask] = words[:, word]


def _get(wave: Wave, place: Register, size: int, *, high: bool) -> Array:
    """Bytes [n, size] of the registers of the lanes that are on."""
    words = np.stack([wave.v[place.first + word][wave.mask] for word in range(max(1, size // 4))], axis=1)
    if high:
        words = words >> 16
    return np.ascontiguousarray(words).view(np.uint8).reshape(len(words), -1)[:, :size]


def _local(match: re.Match[str], instruction: Instruction) -> Action:
    _check(instruction, {"offset", "offset0", "offset1"})
    size, two, read = _SIZES[match[4]], match[2] == "2", match[1] == "read"
    half, high, signed = match[5] is not None, match[6] is not None, match[4].startswith("i")
    unit = size * (64 if match[3] else 1) if two else 1
    names = ("offset0", "offset1") if two else ("offset",)
    offsets = [int(instruction.modifiers.get(name, "0")) * unit for name in names]
    base = vector(instruction.operands[1 if read else 0], "u32")
    if read:
        whole = _place(instruction.operands[0])
        each = max(1, size // 4)
        written = frozenset(range(whole.first, whole.first + whole.count))

        def load(wave: Wave) -> None:
            addresses = base(wave)[wave.mask].astype(np.int64)
            data = [wave.lds.read(addresses + offset, size, wave.number) for offset in offsets]
            for i, piece in enumerate(data):
                _put(wave, Register("v", whole.first + i * each, each), piece, signed=signed, half=half, high=high)
            wave.local.append(written)
            wave.note_pending()

        return load
    places = [_place(text) for text in instruction.operands[1:]]

    def store(wave: Wave) -> None:
        addresses = base(wave)[wave.mask].astype(np.int64)
        for offset, place in zip(offsets, places, strict=True):
            wave.lds.write(addresses + offset, _get(wave, place, size, high=high), wave.number)
        wave.local.append(frozenset())
        wave.local_writes = len(wave.local)

    return store


def _permute(instruction: Instruction) -> Action:
    _check(instruction, {"offset"})
    place, index, data = _place(instruction.operands[0]), *(vector(text, "u32") for text in instruction.operands[1:])
    offset = int(instruction.modifiers.get("offset", "0"))

    return lambda wave: _exchange(wave, place.first, data(wave), (index(wave) + np.uint32(offset)) // 4 % LANES)


def _swap(instruction: Instruction) -> Action:
    """Neighbouring groups of ``n`` lanes change places."""
    match = re.fullmatch(r"swizzle\(SWAP,(\d+)\)", instruction.modifiers["offset"])
    if not match or len(instruction.operands) != 2:
        raise UnmodelledError(instruction.text)
    place, data = _place(instruction.operands[0]), vector(instruction.operands[1], "u32")
    source = np.arange(LANES) ^ int(match[1])
    return lambda wave: _exchange(wave, place.first, data(wave), source)


def _exchange(wave: Wave, first: int, data: Array, source: Array) -> None:
    """Each lane gets the word of another; 0 from one that is off."""
    values = np.where(wave.mask, data, 0)[source].astype(np.uint32)
    wave.v[first][wave.mask] = values[wave.mask]
    wave.local.append(frozenset({first}))
    wave.note_pending()
