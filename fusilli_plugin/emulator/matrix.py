"""Decoding matrix instructions; how they lay out matrices stands in ``core/matrix.h``."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from fusilli_plugin.emulator.assembly import Instruction, UnmodelledError
from fusilli_plugin.emulator.layout import LANES, Decoded, Flag, Kind, Operand
from fusilli_plugin.emulator.operands import constant, register, within

__all__ = ["decode_matrix"]

_NAME: Final = re.compile(r"v_mfma_(f32|f64|i32)_(\d+)x(\d+)x(\d+)_?(?:\d+b_)?([a-z][a-z0-9_]*)")
_SCALED: Final = re.compile(r"v_mfma_(scale_)?f32_(\d+)x(\d+)x(\d+)_f8f6f4")
_BITS: Final = (32, 64, 16, 16, 8, 8, 8, 8, 8, 32, 6, 6, 4)  # of the elements, in the order of the core
_F32, _F64, _F16, _BF16, _I8, _FP8, _BF8, _FP8_FNUZ, _BF8_FNUZ, _XF32, _FP6, _BF6, _FP4 = range(13)
_KINDS: Final = {"f32": _F32, "f64": _F64, "f16": _F16, "bf16": _BF16, "bf16_1k": _BF16, "i8": _I8}
_SPARSE: Final = re.compile(r"v_smfmac_(f32|i32)_(\d+)x(\d+)x(\d+)_([a-z][a-z0-9_]*)")
_RESULTS: Final = {"f32": 0, "f64": 1, "i32": 2}
# Rows and columns, depth and blocks of what the chips have, by elements.
_SHAPES_F32: Final = {(32, 1, 2), (16, 1, 4), (4, 1, 16), (32, 2, 1), (16, 4, 1)}
_SHAPES_16: Final = {(32, 4, 2), (16, 4, 4), (4, 4, 16), (32, 8, 1), (16, 16, 1), (32, 16, 1), (16, 32, 1)}
_SHAPES_F8: Final = {(32, 16, 1), (16, 32, 1)}
_SHAPES: Final[dict[int, set[tuple[int, int, int]]]] = {
    _F32: _SHAPES_F32,
    _F64: {(16, 4, 1), (4, 4, 4)},
    _F16: _SHAPES_16,
    _BF16: _SHAPES_16 | {(32, 2, 2), (16, 2, 4), (4, 2, 16), (32, 4, 1), (16, 8, 1)},
    _I8: _SHAPES_16 | {(32, 32, 1), (16, 64, 1)},
    **dict.fromkeys((_FP8, _BF8, _FP8_FNUZ, _BF8_FNUZ), _SHAPES_F8),
}
_SHAPES_F8F6F4: Final = {(32, 64, 1), (16, 128, 1)}
_SHAPES_SPARSE: Final = {16: {(32, 16), (16, 32), (32, 32), (16, 64)}, 8: {(32, 32), (16, 64), (32, 64), (16, 128)}}
_FNUZ: Final = ("gfx940", "gfx941", "gfx942")
_FORMATS: Final = (_FP8, _BF8, _FP6, _BF6, _FP4)  # cbsz and blgp of f8f6f4


def decode_matrix(instruction: Instruction, decoded: Decoded, chip: str) -> None:
    """Fills in a matrix instruction.

    Raises:
        UnmodelledError: another form of it.
    """
    if (scaled := _SCALED.fullmatch(instruction.opcode)) is not None:
        _f8f6f4(scaled, instruction, decoded)
        return
    if (sparse := _SPARSE.fullmatch(instruction.opcode)) is not None:
        _sparse(sparse, instruction, decoded, chip)
        return
    match = _NAME.fullmatch(instruction.opcode)
    if match is None or match[2] != match[3]:
        raise UnmodelledError(f"opcode {instruction.opcode}")
    if instruction.modifiers:
        raise UnmodelledError(f"modifiers {sorted(instruction.modifiers)}")
    left, right = _element_kinds(match[5], chip)
    if (match[1] == "f64", match[1] == "i32") != (left == _F64, left == _I8):
        raise UnmodelledError(f"opcode {instruction.opcode}")
    shapes = _SHAPES[left]
    _fill(instruction, decoded, _RESULTS[match[1]], int(match[2]), int(match[4]), left, right, shapes)


def _element_kinds(name: str, chip: str) -> tuple[int, int]:
    if name in _KINDS:
        return _KINDS[name], _KINDS[name]
    small = {"fp8": (_FP8, _FP8_FNUZ), "bf8": (_BF8, _BF8_FNUZ)}
    parts = name.split("_")
    if len(parts) != 2 or not all(part in small for part in parts):
        raise UnmodelledError(f"elements {name}")
    fnuz = chip in _FNUZ
    return small[parts[0]][fnuz], small[parts[1]][fnuz]


def _sparse(match: re.Match[str], instruction: Instruction, decoded: Decoded, chip: str) -> None:
    """Two of four consecutive elements of A are there; an index register says which."""
    if unknown := instruction.modifiers.keys() - {"abid"}:
        raise UnmodelledError(f"modifiers {sorted(unknown)}")
    rows, depth, (left, right) = int(match[2]), int(match[4]), _element_kinds(match[5], chip)
    each = rows * depth // LANES  # elements of B in a lane, twice those of A
    if match[2] != match[3] or (rows, depth) not in _SHAPES_SPARSE.get(_BITS[left], ()):
        raise UnmodelledError(f"opcode {instruction.opcode}")
    destination, a, b, index = instruction.operands
    for number, value in enumerate((rows, depth, 1, left, right, _RESULTS[match[1]])):
        decoded.numbers[number] = value
    count = rows * rows // LANES
    decoded.results, decoded.sources = 1, 4
    decoded.result[0] = decoded.source[2] = _matrix_operand(destination, count)
    decoded.source[0] = _matrix_operand(a, each * _BITS[left] // 64)
    decoded.source[1] = _matrix_operand(b, each * _BITS[right] // 32)
    decoded.source[3] = _matrix_operand(index, 1)
    decoded.flags |= Flag.SPARSE
    # An element takes two bits of the index; which part of the register, `abid` says.
    decoded.op_sel = within(instruction.modifiers.get("abid", "0"), 0, 32 // each - 1) * each


def _f8f6f4(match: re.Match[str], instruction: Instruction, decoded: Decoded) -> None:
    modifiers = instruction.modifiers
    if unknown := modifiers.keys() - {"cbsz", "blgp", "op_sel", "op_sel_hi"}:
        raise UnmodelledError(f"modifiers {sorted(unknown)}")
    left, right = (_FORMATS[within(modifiers.get(name, "0"), 0, 4)] for name in ("cbsz", "blgp"))
    operands = instruction.operands
    plain = Instruction(instruction.opcode, operands[:4], {}, instruction.text)
    _fill(plain, decoded, 0, int(match[2]), int(match[4]), left, right, _SHAPES_F8F6F4)
    if len(operands) != (6 if match[1] else 4):
        raise UnmodelledError(f"{len(operands)} operands")
    if not match[1]:
        return
    decoded.flags |= Flag.SCALED
    for place, text in enumerate(operands[4:]):
        decoded.source[3 + place] = _matrix_operand(text, 1)
    decoded.sources = 5
    for name in ("op_sel", "op_sel_hi"):
        bits = [int(digit) for digit in re.findall(r"\d", modifiers.get(name, ""))]
        setattr(decoded, name, sum(bit << place for place, bit in enumerate(bits[:2])))


def _fill(
    instruction: Instruction,
    decoded: Decoded,
    result: int,
    rows: int,
    depth: int,
    left: int,
    right: int,
    shapes: Collection[tuple[int, int, int]],
) -> None:
    """Shape and operands of a matrix instruction. The blocks follow from the registers that operand A takes."""
    destination, a, b, c = instruction.operands
    place = register(a)
    if place is None or place.kind != Kind.VECTOR:
        raise UnmodelledError(f"matrix operand {a!r}")
    each = place.count * 32 // _BITS[left]
    blocks, rest = divmod(each * LANES, rows * depth)
    count = rows * rows * blocks // LANES * (2 if result == 1 else 1)
    if rest or (rows, depth, blocks) not in shapes:
        raise UnmodelledError(f"{place.count} registers of operand A")
    for number, value in enumerate((rows, depth, blocks, left, right, result)):
        decoded.numbers[number] = value
    decoded.results, decoded.sources = 1, 3
    decoded.result[0] = _matrix_operand(destination, count)
    decoded.source[0] = _matrix_operand(a, place.count)
    decoded.source[1] = _matrix_operand(b, each * _BITS[right] // 32)
    decoded.source[2] = _matrix_operand(c, count, constants="F" if result == 1 else "f")


def _matrix_operand(text: str, count: int, constants: str = "") -> Operand:
    place = register(text)
    if place is None and constants:
        return Operand(kind=Kind.CONSTANT, words=count, select=6, value=constant(text, constants))
    if place is None or place.kind != Kind.VECTOR or place.count != count:
        raise UnmodelledError(f"matrix operand {text!r}, {count} registers expected")
    return Operand(kind=Kind.VECTOR, words=count, select=6, index=place.first)
