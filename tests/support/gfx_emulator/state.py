"""What instructions read and write: memory, the registers of a wave, and operands."""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tests.support.gfx_emulator.assembly import UnmodelledError

__all__ = [
    "LANES",
    "Array",
    "HazardError",
    "Lds",
    "Memory",
    "Register",
    "Wave",
    "constant",
    "registers",
    "scalar",
    "vector",
]

Array = np.ndarray[Any, Any]
LANES: Final = 64
_VCC: Final = 106
_M0: Final = 124
_ACCUMULATORS: Final = 256
_GUARD: Final = 4096


class HazardError(Exception):
    """The code depends on an order that nothing makes sure of, or touches memory that is not its own."""


class Memory:
    """Global memory: buffers at addresses of its own, with guards between them.

    Attributes:
        offsets_wrap: whether the sum of a buffer instruction's vector and immediate offsets is taken modulo 2**32
            before it is compared with the buffer's size. If not, an access with a negative vector offset is outside.
    """

    BASE: Final = 0x7F12_3400_0000

    def __init__(self, size: int = 1 << 26) -> None:
        self.bytes = np.zeros(size, np.uint8)
        self.owned = np.zeros(size, bool)
        self.next = _GUARD
        self.offsets_wrap = True

    def allocate(self, size: int) -> int:
        """The address of ``size`` new bytes."""
        start = self.next
        self.next = -(-(start + size) // 256) * 256 + _GUARD
        if self.next > len(self.bytes):
            raise UnmodelledError(f"memory of {len(self.bytes)} bytes is full")
        self.owned[start : start + size] = True
        return self.BASE + start

    def view(self, address: int, size: int) -> Array:
        """The bytes at an address."""
        start = address - self.BASE
        return self.bytes[start : start + size]

    def words(self, address: int, count: int) -> list[int]:
        """The words at an address."""
        index = self.index(np.array([address]), 4 * count)[0]
        return self.bytes[index].view(np.uint32).tolist()

    def holds(self, addresses: Array) -> Array:
        """Whether each address is that of a byte of a buffer."""
        place = addresses.astype(np.int64) - self.BASE
        inside = (place >= 0) & (place < len(self.bytes))
        return inside & self.owned[np.where(inside, place, 0)]

    def index(self, addresses: Array, size: int) -> Array:
        """Indices [n, size] of the bytes at each address, which belong to buffers."""
        found = addresses.astype(np.int64)[:, None] + np.arange(size)
        held = self.holds(found)
        if not held.all():
            raise HazardError(f"{int((~held).sum())} bytes outside all buffers, the first at {int(found[~held][0]):#x}")
        return found - self.BASE


class Lds:
    """The memory of a workgroup, full of NaN at first; knows who touched which byte since the last barrier."""

    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, 0xFF, np.uint8)
        self.forget()

    def forget(self) -> None:
        """All waves have met at a barrier."""
        self.writer = np.full(len(self.bytes), -1, np.int16)
        self.reader = np.full(len(self.bytes), -1, np.int16)  # -2: several

    def index(self, addresses: Array, size: int) -> Array:
        """Indices [n, size] of the bytes at each address."""
        found = addresses.astype(np.int64)[:, None] + np.arange(size)
        if found.size and found.max() >= len(self.bytes):
            raise HazardError(f"LDS address {found.max()} of {len(self.bytes)} bytes")
        return found

    def read(self, addresses: Array, size: int, wave: int) -> Array:
        """Bytes [n, size]."""
        index = self.index(addresses, size)
        writer = self.writer[index]
        if ((writer != wave) & (writer != -1)).any():
            raise HazardError(f"wave {wave} reads LDS that wave {writer.max()} wrote since the last barrier")
        reader = self.reader[index]
        self.reader[index] = np.where((reader == -1) | (reader == wave), wave, -2)
        return self.bytes[index]

    def write(self, addresses: Array, data: Array, wave: int) -> None:
        """Writes bytes [n, size]."""
        index = self.index(addresses, data.shape[1])
        writer, reader = self.writer[index], self.reader[index]
        if ((writer != wave) & (writer != -1)).any() or ((reader != wave) & (reader != -1)).any():
            raise HazardError(f"wave {wave} writes LDS that another wave touched since the last barrier")
        self.bytes[index] = data
        self.writer[index] = wave


@dataclass
class Wave:
    """64 lanes. Registers that nothing has written hold NaN.

    Attributes:
        v: vector registers, then accumulators, [512, 64].
        s: scalar registers; VCC is at 106.
        mask: the lanes that are on.
        index: what is added to the numbers of vector sources, where the code has asked for that.
        loads, local: memory operations under way, oldest first: the registers that each will write.
    """

    number: int
    memory: Memory
    lds: Lds
    v: Array = field(default_factory=lambda: np.full((512, LANES), 0xFFFFFFFF, np.uint32))
    s: list[int] = field(default_factory=lambda: [0xFFFFFFFF] * 128)
    scc: int = 0
    pc: int = 0
    mask: Array = field(default_factory=lambda: np.ones(LANES, bool))
    loads: list[frozenset[int]] = field(default_factory=list)
    local: list[frozenset[int]] = field(default_factory=list)
    local_is_scalar: bool = False
    local_writes: int = 0
    pending: frozenset[int] = frozenset()
    index: int | None = None
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def exec(self) -> int:
        """The lanes that are on, as a number."""
        return pack_bits(self.mask)

    @exec.setter
    def exec(self, value: int) -> None:
        self.mask = unpack_bits(value)

    def note_pending(self) -> None:
        """To be called when ``loads`` or ``local`` have changed."""
        self.pending = frozenset().union(*self.loads, *self.local)


def pack_bits(mask: Array) -> int:
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def unpack_bits(value: int) -> Array:
    raw = np.frombuffer(value.to_bytes(8, "little"), np.uint8)
    return np.unpackbits(raw, bitorder="little").astype(bool)


@dataclass(frozen=True)
class Register:
    """Consecutive registers: ``kind`` is ``s``, ``v`` (accumulators from 256 on) or ``exec``."""

    kind: str
    first: int
    count: int


_NAMED: Final = {
    "vcc": Register("s", _VCC, 2),
    "vcc_lo": Register("s", _VCC, 1),
    "vcc_hi": Register("s", _VCC + 1, 1),
    "m0": Register("s", _M0, 1),
    "exec": Register("exec", 0, 2),
}


def register(text: str) -> Register | None:
    """The registers that an operand names; None if it is a constant."""
    if text in _NAMED:
        return _NAMED[text]
    match = re.fullmatch(r"([sva])(?:(\d+)|\[(\d+):(\d+)\])", text)
    if not match:
        return None
    first = int(match[2] or match[3])
    last = int(match[2] or match[4])
    base = _ACCUMULATORS if match[1] == "a" else 0
    return Register("s" if match[1] == "s" else "v", base + first, last - first + 1)


def registers(operands: tuple[str, ...]) -> frozenset[int]:
    """All registers that operands name; scalar ones count from 1000."""
    found: set[int] = set()
    for text in operands:
        place = register(text.strip("-|").removeprefix("sext(").removesuffix(")").strip("|"))
        if place and place.kind != "exec":
            base = 1000 if place.kind == "s" else 0
            found.update(range(base + place.first, base + place.first + place.count))
    return frozenset(found)


def constant(text: str, kind: str) -> int:
    """The bits of a constant where an operand of ``kind`` is expected; 64 bits for 64-bit kinds."""
    wide = kind.endswith("64")
    try:
        return int(text, 0) & (0xFFFFFFFFFFFFFFFF if wide else 0xFFFFFFFF)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        raise UnmodelledError(f"operand {text!r}") from None
    if kind == "f64":
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    if kind in ("f16", "pk16"):
        return struct.unpack("<H", struct.pack("<e", value))[0]
    return struct.unpack("<I", struct.pack("<f", value))[0]


def scalar(text: str, words: int = 1) -> tuple[Callable[[Wave], int], Callable[[Wave, int], None]]:
    """How to read and write an operand of a scalar instruction, of 1 or 2 words."""
    place = register(text)
    if place is None:
        value = constant(text, "u64" if words == 2 else "u32")
        return lambda _: value, _unwritable
    if place.kind == "exec":
        return lambda wave: wave.exec, lambda wave, new: setattr(wave, "exec", new)
    if place.kind != "s" or place.count != words:
        raise UnmodelledError(f"{words}-word scalar operand {text!r}")
    first = place.first
    if words == 1:

        def write(wave: Wave, new: int) -> None:
            wave.s[first] = new & 0xFFFFFFFF

        return lambda wave: wave.s[first], write

    def write_two(wave: Wave, new: int) -> None:
        wave.s[first], wave.s[first + 1] = new & 0xFFFFFFFF, (new >> 32) & 0xFFFFFFFF

    return lambda wave: wave.s[first] | wave.s[first + 1] << 32, write_two


def vector(text: str, kind: str, word: int = 0) -> Callable[[Wave], Array]:
    """How to read word ``word`` of an operand of a vector instruction, as uint32 [64]."""
    place = register(text)
    if place is None:
        value = np.full(LANES, constant(text, kind) >> (32 * word) & 0xFFFFFFFF, np.uint32)
        return lambda _: value
    if word >= place.count:
        raise UnmodelledError(f"word {word} of operand {text!r}")
    index = place.first + word
    if place.kind == "v":
        return lambda wave: wave.v[index]
    if place.kind == "exec":
        return lambda wave: np.full(LANES, wave.exec >> (32 * word) & 0xFFFFFFFF, np.uint32)
    return lambda wave: np.full(LANES, wave.s[index], np.uint32)


def _unwritable(wave: Wave, new: int) -> None:
    raise UnmodelledError("a constant as destination")
