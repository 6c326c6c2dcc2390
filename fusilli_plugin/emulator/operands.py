"""Operands of instructions: registers, constants, and the marks that stand around them."""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from fusilli_plugin.emulator.assembly import UnmodelledError
from fusilli_plugin.emulator.layout import Flag, Kind, Operand

__all__ = [
    "Register",
    "constant",
    "nothing",
    "operand",
    "register",
    "scalar_operand",
    "scalar_registers",
    "vector_registers",
    "within",
]

_VCC: Final = 106
_M0: Final = 124
_SCALARS: Final = 106  # of them the last four are flat_scratch and xnack_mask
_VECTORS: Final = 256
_ACCUMULATORS: Final = 256
_WIDE: Final = frozenset("UIF")
_WHOLE: Final = 6
_REGISTER: Final = re.compile(r"([sva])(?:(\d+)|\[(\d+):(\d+)\])")
_SELECTIONS: Final = {f"BYTE_{n}": n for n in range(4)} | {"WORD_0": 4, "WORD_1": 5, "DWORD": _WHOLE}


class Register(NamedTuple):
    """Consecutive registers; accumulators are vectors from 256 on."""

    kind: int
    first: int
    count: int


_NAMED: Final = {
    "vcc": Register(Kind.SCALAR, _VCC, 2),
    "vcc_lo": Register(Kind.SCALAR, _VCC, 1),
    "vcc_hi": Register(Kind.SCALAR, _VCC + 1, 1),
    "m0": Register(Kind.SCALAR, _M0, 1),
    "exec": Register(Kind.EXEC, 0, 2),
    "exec_lo": Register(Kind.EXEC, 0, 1),
    "exec_hi": Register(Kind.EXEC_HIGH, 0, 1),
    "scc": Register(Kind.CONDITION, 0, 1),
    "src_scc": Register(Kind.CONDITION, 0, 1),
    "src_vccz": Register(Kind.CONDITION, 1, 1),
    "src_execz": Register(Kind.CONDITION, 2, 1),
    "flat_scratch": Register(Kind.SCALAR, 102, 2),
}


def register(text: str) -> Register | None:
    """The registers that a text names; None if it is a constant.

    Raises:
        UnmodelledError: registers that no chip has.
    """
    if text in _NAMED:
        return _NAMED[text]
    match = _REGISTER.fullmatch(text)
    if match is None:
        return None
    first = int(match[2] or match[3])
    count = int(match[2] or match[4]) - first + 1
    if count < 1 or first + count > (_SCALARS if match[1] == "s" else _VECTORS):
        raise UnmodelledError(f"registers {text}")
    if match[1] == "s":
        return Register(Kind.SCALAR, first, count)
    return Register(Kind.VECTOR, first + (_ACCUMULATORS if match[1] == "a" else 0), count)


def within(text: str, least: int, most: int) -> int:
    """The number of a text, which must lie in a range.

    Raises:
        UnmodelledError: it does not.
    """
    value = int(text, 0)
    if not least <= value <= most:
        raise UnmodelledError(f"{text}, where {least} to {most} are expected")
    return value


def constant(text: str, kind: str) -> int:
    """The bits of a constant where an operand of a kind (as in ``core/vector.def``) is expected.

    Raises:
        UnmodelledError: it is none.
    """
    mask = (1 << 64) - 1 if kind in _WIDE else (1 << 32) - 1
    try:
        number = int(text, 0)
    except ValueError:
        pass
    else:
        # A literal of 32 bits is the upper half of a double.
        if kind == "F" and not -16 <= number <= 64:
            return (number & 0xFFFFFFFF) << 32
        if not -(1 << 63) <= number < 1 << 64:
            raise UnmodelledError(f"operand {text!r}")
        return number & mask
    try:
        value = float(text)
    except ValueError:
        raise UnmodelledError(f"operand {text!r}") from None
    if kind in _WIDE:
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    if kind in "hw":
        return struct.unpack("<H", struct.pack("<e", value))[0]
    return struct.unpack("<I", struct.pack("<f", value))[0]


def nothing() -> Operand:
    """An operand that is not there."""
    return Operand(kind=Kind.NOTHING, select=_WHOLE)


def operand(text: str, kind: str, *, words: int | None = None, selection: str = "DWORD") -> Operand:
    """A source of vector arithmetic, with its signs and what of it is selected.

    Args:
        text: as the assembly has it.
        kind: as in ``core/vector.def``.
        words: how many registers it must have; by default what the kind has.
        selection: SDWA's ``src_sel``.

    Raises:
        UnmodelledError: it is of another size, or not understood.
    """
    flags = 0
    if text.startswith("sext("):
        flags, text = Flag.SIGN_EXTENDED, text[5:-1]
    if text.startswith("neg("):
        flags, text = flags | Flag.NEGATIVE, text[4:-1]
    if text.startswith("-") and register(text.lstrip("-|").rstrip("|")) is not None:
        flags, text = flags | Flag.NEGATIVE, text[1:]
    if text.startswith("|") or text.startswith("abs("):
        flags, text = flags | Flag.ABSOLUTE, text.strip("|").removeprefix("abs(").removesuffix(")")
    place = register(text)
    count = words or (2 if kind in _WIDE else 1)
    select = _SELECTIONS[selection]
    if place is None:
        return Operand(kind=Kind.CONSTANT, words=count, select=select, flags=flags, value=constant(text, kind))
    if place.count != count and not (place.kind == Kind.EXEC and count == 1):
        raise UnmodelledError(f"operand {text!r}, {count} registers expected")
    return Operand(kind=place.kind, words=count, select=select, flags=flags, index=place.first)


def vector_registers(text: str, words: int | None = None) -> Operand:
    """An operand that must be vector registers, as results must.

    Args:
        text: as the assembly has it.
        words: how many; by default any number.

    Raises:
        UnmodelledError: it is something else.
    """
    place = register(text)
    if place is None or place.kind != Kind.VECTOR or (words and place.count != words):
        raise UnmodelledError(f"{text!r} where {words or 'some'} vector registers are expected")
    return Operand(kind=Kind.VECTOR, words=place.count, select=_WHOLE, index=place.first)


def scalar_registers(text: str, words: int, *, masks: bool = True) -> Operand:
    """An operand that must be scalar registers, as results must.

    Args:
        text: as the assembly has it.
        words: how many.
        masks: whether the mask of lanes is one as well.

    Raises:
        UnmodelledError: it is something else.
    """
    place = register(text)
    kinds = (Kind.SCALAR, Kind.EXEC, Kind.EXEC_HIGH) if masks else (Kind.SCALAR,)
    if place is None or place.kind not in kinds or place.count != words:
        raise UnmodelledError(f"{text!r} where {words} scalar registers are expected")
    return Operand(kind=place.kind, words=words, select=_WHOLE, index=place.first)


def scalar_operand(text: str, words: int) -> Operand:
    """An operand of a scalar instruction, of 1 or 2 words.

    Raises:
        UnmodelledError: it is of another size, or a vector.
    """
    place = register(text)
    if place is None:
        wide = words == 2
        value = constant(text, "U" if wide else "u")
        return Operand(kind=Kind.CONSTANT, words=words, select=_WHOLE, value=value)
    if place.count != words or place.kind == Kind.VECTOR:
        raise UnmodelledError(f"{words}-word scalar operand {text!r}")
    return Operand(kind=place.kind, words=words, select=_WHOLE, index=place.first)
