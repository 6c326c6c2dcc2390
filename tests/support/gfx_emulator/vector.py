"""Vector arithmetic: one lane of the result from the same lane of the operands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tests.support.gfx_emulator import matrix
from tests.support.gfx_emulator.assembly import Instruction, UnmodelledError
from tests.support.gfx_emulator.state import (
    LANES,
    Array,
    HazardError,
    Wave,
    pack_bits,
    register,
    scalar,
    unpack_bits,
    vector,
)

__all__ = ["decode"]

Action = Callable[[Wave], None]
Read = Callable[[Wave], Array]
Function = Callable[..., Any]

_U, _I, _F, _H, _UH, _IH, _UW, _IW = "u32", "i32", "f32", "f16", "u16", "i16", "u64", "i64"
_NUMPY: Final = {
    _U: np.uint32, _I: np.int32, _F: np.float32, _H: np.float16, _UH: np.uint16, _IH: np.int16, _UW: np.uint64,
    _IW: np.int64, "f64": np.float64,
}  # fmt: skip


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Rounded to float64 before it is rounded to the type."""
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)


def _to_integer(low: int, high: int, kind: type) -> Function:
    return lambda a: (
        np.clip(np.nan_to_num(np.trunc(a.astype(np.float64)), nan=0.0), low, high).astype(np.int64).astype(kind)
    )


def _perm(a: Array, b: Array, selector: Array) -> Array:
    """Each byte of ``selector`` names a byte of (b, a); from 8 on: a sign of its four halves, zero, ones."""
    both = np.concatenate([b[:, None], a[:, None]], axis=1).view(np.uint8)
    signs = np.where(both[:, 1::2] >= 128, 255, 0)
    zero, ones = np.zeros((LANES, 1), np.int64), np.full((LANES, 1), 255)
    choices = np.concatenate([both, signs, zero, ones], axis=1)
    chosen = np.minimum(np.ascontiguousarray(selector)[:, None].view(np.uint8), 13)
    return np.take_along_axis(choices, chosen.astype(np.int64), axis=1).astype(np.uint8).view(np.uint32)[:, 0]


def _low24(a: Array) -> Array:
    return (a & 0xFFFFFF).astype(np.uint64)


def _signed24(a: Array) -> Array:
    return (a.view(np.int32) << 8 >> 8).astype(np.int64)


def _ldexp(a: Array, b: Array) -> Array:
    return np.ldexp(a.astype(np.float64), np.clip(b.view(np.int32), -2000, 2000)).astype(a.dtype)


def _bfi(a: Array, b: Array, c: Array) -> Array:
    return a & b | ~a & c


def _med3(a: Array, b: Array, c: Array) -> Array:
    return np.sort(np.stack([a, b, c]), axis=0)[1]


def _div_fixup(quotient: Array, below: Array, above: Array) -> Array:
    """The quotient, with the special cases of a division put right."""
    with np.errstate(all="ignore"):
        exact = above / below
    sign = np.signbit(below) ^ np.signbit(above)
    plain = np.copysign(np.abs(quotient), np.where(sign, -1, 1)).astype(np.float32)
    special = ~np.isfinite(above) | ~np.isfinite(below) | (above == 0) | (below == 0)
    gap = np.frexp(above)[1] - np.frexp(below)[1]
    return np.where(special | (gap < -149) | (gap > 128), exact, plain).astype(np.float32)


_TABLE: Final[dict[str, tuple[Function, str, tuple[str, ...]]]] = {
    "mov_b32": (lambda a: a, _U, (_U,)),
    "mov_b64": (lambda a: a, _UW, (_UW,)),
    "accvgpr_read_b32": (lambda a: a, _U, (_U,)),
    "accvgpr_write_b32": (lambda a: a, _U, (_U,)),
    "not_b32": (lambda a: ~a, _U, (_U,)),
    "and_b32": (lambda a, b: a & b, _U, (_U, _U)),
    "or_b32": (lambda a, b: a | b, _U, (_U, _U)),
    "xor_b32": (lambda a, b: a ^ b, _U, (_U, _U)),
    "add_u32": (lambda a, b: a + b, _U, (_U, _U)),
    "sub_u32": (lambda a, b: a - b, _U, (_U, _U)),
    "subrev_u32": (lambda a, b: b - a, _U, (_U, _U)),
    "min_u32": (np.minimum, _U, (_U, _U)),
    "max_u32": (np.maximum, _U, (_U, _U)),
    "min_i32": (np.minimum, _I, (_I, _I)),
    "max_i32": (np.maximum, _I, (_I, _I)),
    "med3_i32": (_med3, _I, (_I, _I, _I)),
    "lshlrev_b32": (lambda a, b: b << (a & 31), _U, (_U, _U)),
    "lshrrev_b32": (lambda a, b: b >> (a & 31), _U, (_U, _U)),
    "ashrrev_i32": (lambda a, b: b >> (a & 31), _I, (_I, _I)),
    "lshlrev_b64": (lambda a, b: b << (a & 63).astype(np.uint64), _UW, (_U, _UW)),
    "lshrrev_b64": (lambda a, b: b >> (a & 63).astype(np.uint64), _UW, (_U, _UW)),
    "ashrrev_i64": (lambda a, b: b >> (a & 63).astype(np.int64), _IW, (_U, _IW)),
    "lshlrev_b16": (lambda a, b: b << (a & 15), _UH, (_UH, _UH)),
    "lshrrev_b16": (lambda a, b: b >> (a & 15), _UH, (_UH, _UH)),
    "add_u16": (lambda a, b: a + b, _UH, (_UH, _UH)),
    "sub_u16": (lambda a, b: a - b, _UH, (_UH, _UH)),
    "mul_lo_u16": (lambda a, b: a * b, _UH, (_UH, _UH)),
    "lshl_add_u32": (lambda a, b, c: (a << (b & 31)) + c, _U, (_U, _U, _U)),
    "add_lshl_u32": (lambda a, b, c: (a + b) << (c & 31), _U, (_U, _U, _U)),
    "lshl_or_b32": (lambda a, b, c: a << (b & 31) | c, _U, (_U, _U, _U)),
    "and_or_b32": (lambda a, b, c: a & b | c, _U, (_U, _U, _U)),
    "or3_b32": (lambda a, b, c: a | b | c, _U, (_U, _U, _U)),
    "add3_u32": (lambda a, b, c: a + b + c, _U, (_U, _U, _U)),
    "lshl_add_u64": (lambda a, b, c: (a << (b & 7).astype(np.uint64)) + c, _UW, (_UW, _U, _UW)),
    "bfe_u32": (
        lambda a, b, c: (
            (a >> (b & 31)) & ((np.uint64(1) << (c & 31).astype(np.uint64)) - np.uint64(1)).astype(np.uint32)
        ),
        _U,
        (_U, _U, _U),
    ),
    "bfi_b32": (_bfi, _U, (_U, _U, _U)),
    "perm_b32": (_perm, _U, (_U, _U, _U)),
    "alignbit_b32": (
        lambda a, b, c: (((a.astype(np.uint64) << np.uint64(32)) | b) >> (c & 31).astype(np.uint64)).astype(np.uint32),
        _U,
        (_U, _U, _U),
    ),
    "mul_lo_u32": (lambda a, b: a * b, _U, (_U, _U)),
    "mul_hi_u32": (lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32), _U, (_U, _U)),
    "mul_u32_u24": (lambda a, b: (_low24(a) * _low24(b)).astype(np.uint32), _U, (_U, _U)),
    "mul_hi_u32_u24": (lambda a, b: (_low24(a) * _low24(b) >> np.uint64(32)).astype(np.uint32), _U, (_U, _U)),
    "mul_i32_i24": (lambda a, b: (_signed24(a) * _signed24(b)).astype(np.uint32), _U, (_U, _U)),
    "mad_u32_u24": (lambda a, b, c: (_low24(a) * _low24(b)).astype(np.uint32) + c, _U, (_U, _U, _U)),
    "mad_i32_i24": (lambda a, b, c: (_signed24(a) * _signed24(b)).astype(np.uint32) + c, _U, (_U, _U, _U)),
    "add_f32": (lambda a, b: a + b, _F, (_F, _F)),
    "sub_f32": (lambda a, b: a - b, _F, (_F, _F)),
    "subrev_f32": (lambda a, b: b - a, _F, (_F, _F)),
    "mul_f32": (lambda a, b: a * b, _F, (_F, _F)),
    "fma_f32": (_fma, _F, (_F, _F, _F)),
    "min_f32": (np.fmin, _F, (_F, _F)),
    "max_f32": (np.fmax, _F, (_F, _F)),
    "max3_f32": (lambda a, b, c: np.fmax(np.fmax(a, b), c), _F, (_F, _F, _F)),
    "div_fixup_f32": (_div_fixup, _F, (_F, _F, _F)),
    "rcp_f32": (lambda a: np.float32(1) / a, _F, (_F,)),
    "rsq_f32": (lambda a: (1 / np.sqrt(a.astype(np.float64))).astype(np.float32), _F, (_F,)),
    "sqrt_f32": (np.sqrt, _F, (_F,)),
    "exp_f32": (np.exp2, _F, (_F,)),
    "log_f32": (np.log2, _F, (_F,)),
    "rndne_f32": (np.rint, _F, (_F,)),
    "floor_f32": (np.floor, _F, (_F,)),
    "trunc_f32": (np.trunc, _F, (_F,)),
    "ldexp_f32": (_ldexp, _F, (_F, _U)),
    "add_f16": (lambda a, b: a + b, _H, (_H, _H)),
    "sub_f16": (lambda a, b: a - b, _H, (_H, _H)),
    "mul_f16": (lambda a, b: a * b, _H, (_H, _H)),
    "max_f16": (np.fmax, _H, (_H, _H)),
    "min_f16": (np.fmin, _H, (_H, _H)),
    "cvt_f32_f16": (lambda a: a.astype(np.float32), _F, (_H,)),
    "cvt_f16_f32": (lambda a: a.astype(np.float16), _H, (_F,)),
    "cvt_f32_u32": (lambda a: a.astype(np.float32), _F, (_U,)),
    "cvt_f32_i32": (lambda a: a.astype(np.float32), _F, (_I,)),
    "cvt_i32_f32": (_to_integer(-(1 << 31), (1 << 31) - 1, np.int32), _I, (_F,)),
    "cvt_u32_f32": (_to_integer(0, (1 << 32) - 1, np.uint32), _U, (_F,)),
    "pack_b32_f16": (
        lambda a, b: a.view(np.uint16).astype(np.uint32) | b.view(np.uint16).astype(np.uint32) << 16,
        _U,
        (_H, _H),
    ),
}
"""Name without ``v_`` and encoding → function, kind of its result, kinds of its operands."""

_PACKED: Final[dict[str, tuple[Function, str, int]]] = {
    "pk_add_f32": (lambda a, b: a + b, _F, 2),
    "pk_mul_f32": (lambda a, b: a * b, _F, 2),
    "pk_fma_f32": (_fma, _F, 3),
    "pk_add_f16": (lambda a, b: a + b, _H, 2),
    "pk_mul_f16": (lambda a, b: a * b, _H, 2),
    "pk_fma_f16": (_fma, _H, 3),
    "pk_max_f16": (np.fmax, _H, 2),
    "pk_min_f16": (np.fmin, _H, 2),
    "pk_add_u16": (lambda a, b: a + b, _UH, 2),
    "pk_mul_lo_u16": (lambda a, b: a * b, _UH, 2),
    "pk_lshlrev_b16": (lambda a, b: b << (a & 15), _UH, 2),
    "pk_mad_u16": (lambda a, b, c: a * b + c, _UH, 3),
}

_COMPARE: Final[dict[str, Function]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "lg": lambda a, b: (a < b) | (a > b),
    "ge": lambda a, b: a >= b,
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: ~(a < b),
}

_SDWA: Final = {"dst_sel", "dst_unused", "src0_sel", "src1_sel"}
_ROW: Final = {
    "row_shr",
    "row_shl",
    "row_ror",
    "row_mirror",
    "row_half_mirror",
    "row_newbcast",
    "row_bcast",
    "quad_perm",
}
_DPP: Final = {*_ROW, "row_mask", "bank_mask", "bound_ctrl"}


def decode(instruction: Instruction) -> Action | None:
    """What a vector instruction does; None if this is none that we know."""
    base = re.sub(r"_(e32|e64|sdwa|dpp)$", "", instruction.opcode.removeprefix("v_"))
    if not instruction.opcode.startswith("v_"):
        return None
    if base.startswith("mfma_"):
        return matrix.decode(instruction)
    if base == "fmac_f32":
        destination, *others = instruction.operands
        instruction = Instruction(
            "v_fma_f32", (destination, *others, destination), instruction.modifiers, instruction.text
        )
        base = "fma_f32"
    if instruction.opcode == "v_mov_b32_e32" and register(instruction.operands[1]) is not None:
        return _move(instruction)
    if base in _TABLE:
        return _plain(instruction, *_TABLE[base])
    if base in _PACKED:
        return _packed(instruction, *_PACKED[base])
    if base in _SPECIAL:
        return _SPECIAL[base](instruction)
    if match := re.fullmatch(r"cmp_(\w+)_([fui]\d\d)", base):
        return _compare(instruction, _COMPARE[match[1]], match[2])
    return None


# Operands


def _known(instruction: Instruction, names: set[str]) -> None:
    if unknown := instruction.modifiers.keys() - names:
        raise UnmodelledError(f"modifiers {sorted(unknown)} of: {instruction.text}")


def _list(instruction: Instruction, name: str, count: int, otherwise: int) -> list[int]:
    if name not in instruction.modifiers:
        return [otherwise] * count
    return [int(digit) for digit in re.findall(r"\d", instruction.modifiers[name])]


def _selected(read: Read, selection: str, *, signed: bool) -> Read:
    """A byte or a half of a word, as SDWA encodes it."""
    kind, _, number = selection.partition("_")
    if kind == "DWORD":
        return read
    bits = {"BYTE": 8, "WORD": 16}[kind]
    shift, mask, sign = bits * int(number), (1 << bits) - 1, 1 << (bits - 1)

    def run(wave: Wave) -> Array:
        value = read(wave) >> shift & mask
        return ((value ^ sign) - np.uint32(sign)).astype(np.uint32) if signed else value

    return run


def _raw(instruction: Instruction, number: int, text: str, kind: str, word: int = 0) -> Read:
    """Word ``word`` of source ``number``, after SDWA's selection or DPP's move."""
    signed = text.startswith("sext(")
    read = vector(text.removeprefix("sext(").removesuffix(")") if signed else text, kind, word)
    if selection := instruction.modifiers.get(f"src{number}_sel"):
        read = _selected(read, selection, signed=signed)
    elif signed:
        raise UnmodelledError(instruction.text)
    if number == 0 and _DPP & instruction.modifiers.keys():
        read = _moved(instruction, read)
    return read


def _source_lanes(instruction: Instruction) -> Array:
    """For each lane the lane that DPP takes it from; -1: none."""
    lane = np.arange(LANES)
    row, place = lane // 16 * 16, lane % 16
    modifiers = instruction.modifiers
    if "quad_perm" in modifiers:
        return lane // 4 * 4 + np.array(_list(instruction, "quad_perm", 4, 0))[lane % 4]
    if "row_mirror" in modifiers:
        return row + 15 - place
    if "row_half_mirror" in modifiers:
        return lane // 8 * 8 + 7 - lane % 8
    if "row_newbcast" in modifiers:
        return row + int(modifiers["row_newbcast"])
    if "row_ror" in modifiers:
        return row + (place - int(modifiers["row_ror"])) % 16
    if "row_shr" in modifiers:
        return np.where(place >= int(modifiers["row_shr"]), lane - int(modifiers["row_shr"]), -1)
    if "row_shl" in modifiers:
        return np.where(place + int(modifiers["row_shl"]) < 16, lane + int(modifiers["row_shl"]), -1)
    if modifiers.get("row_bcast") == "15":
        return np.where(lane >= 16, row - 1, -1)
    if modifiers.get("row_bcast") == "31":
        return np.where(lane >= 32, 31, -1)
    raise UnmodelledError(instruction.text)


def _moved(instruction: Instruction, read: Read) -> Read:
    lanes = _source_lanes(instruction)

    def run(wave: Wave) -> Array:
        return np.where((lanes >= 0) & wave.mask[lanes], read(wave)[lanes], 0).astype(np.uint32)

    return run


def _dpp_writes(instruction: Instruction) -> Callable[[Wave], Array]:
    """The lanes that are written."""
    if not _DPP & instruction.modifiers.keys():
        return lambda wave: wave.mask
    lanes = _source_lanes(instruction)
    row_mask, bank_mask = (int(instruction.modifiers.get(name, "0xf"), 0) for name in ("row_mask", "bank_mask"))
    lane = np.arange(LANES)
    chosen = (row_mask >> lane // 16 & 1).astype(bool) & (bank_mask >> lane % 16 // 4 & 1).astype(bool)
    if "bound_ctrl" in instruction.modifiers:
        return lambda wave: wave.mask & chosen
    return lambda wave: wave.mask & chosen & (lanes >= 0) & wave.mask[lanes]


def _operand(instruction: Instruction, number: int, text: str, kind: str, *, high: bool = False) -> Read:
    """Source ``number`` as an array of its kind, with its sign modifiers; ``high``: the upper half of the word."""
    bare, negate, absolute = text, False, False
    if kind.startswith("f") or kind == _U:
        negate = bare.startswith("-") and register(bare.strip("-|")) is not None
        bare = bare.removeprefix("-") if negate else bare
        absolute = bare.startswith("|")
        bare = bare.strip("|")
    numpy_kind = _NUMPY[kind]
    low = _raw(instruction, number, bare, kind)
    if kind.endswith("64"):
        upper = _raw(instruction, number, bare, kind, 1)

        def read(wave: Wave) -> Array:
            return (low(wave).astype(np.uint64) | upper(wave).astype(np.uint64) << np.uint64(32)).view(numpy_kind)

    elif kind.endswith("16"):
        shift = 16 if high else 0

        def read(wave: Wave) -> Array:
            return (low(wave) >> shift & 0xFFFF).astype(np.uint16).view(numpy_kind)

    else:

        def read(wave: Wave) -> Array:
            return low(wave).view(numpy_kind)

    if not (negate or absolute):
        return read
    if kind == _U:
        keep, flip = np.uint32(0x7FFFFFFF if absolute else 0xFFFFFFFF), np.uint32(0x80000000 if negate else 0)
        return lambda wave: read(wave) & keep ^ flip

    def changed(wave: Wave) -> Array:
        value = np.abs(read(wave)) if absolute else read(wave)
        return -value if negate else value

    return changed


# Results


def _words(value: Array) -> list[Array]:
    """The registers of a result: 16-bit results clear the upper half."""
    value = np.ascontiguousarray(np.broadcast_to(value, LANES))
    if value.dtype.itemsize == 8:
        bits = value.view(np.uint64)
        return [(bits & 0xFFFFFFFF).astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)]
    if value.dtype.itemsize == 2:
        return [value.view(np.uint16).astype(np.uint32)]
    return [value.view(np.uint32)]


def _vector_place(text: str, count: int) -> int:
    place = register(text)
    if place is None or place.kind != "v" or place.count != count:
        raise UnmodelledError(f"{count}-word vector destination {text!r}")
    return place.first


def _store(wave: Wave, first: int, words: list[Array], mask: Array) -> None:
    for number, word in enumerate(words):
        np.copyto(wave.v[first + number], word, where=mask)


def _plain(instruction: Instruction, function: Function, kind: str, kinds: tuple[str, ...]) -> Action:
    _known(instruction, {"clamp", "op_sel", *_SDWA, *_DPP})
    destination, *sources = instruction.operands
    first = _vector_place(destination, 2 if kind.endswith("64") else 1)
    selected = _list(instruction, "op_sel", len(kinds) + 1, 0)
    if (selected[-1] and len(selected) > len(kinds)) or instruction.modifiers.get("dst_sel", "DWORD") != "DWORD":
        raise UnmodelledError(f"part of a register as destination: {instruction.text}")
    reads = [
        _operand(instruction, number, text, each, high=bool(selected[number]))
        for number, (text, each) in enumerate(zip(sources, kinds, strict=True))
    ]
    clamp = _clamped(instruction) if "clamp" in instruction.modifiers else None
    writes = _dpp_writes(instruction)

    def run(wave: Wave) -> None:
        values = [read(wave) for read in reads]
        result = np.asarray(clamp(*values) if clamp else function(*values))
        _store(wave, first, _words(result.astype(_NUMPY[kind], copy=False)), writes(wave))

    return run


def _clamped(instruction: Instruction) -> Function:
    base = re.sub(r"_e64$", "", instruction.opcode)
    if base == "v_sub_u32":
        return lambda a, b: np.where(a > b, a - b, 0)
    if base == "v_add_u32":
        return lambda a, b: np.where(a + b < a, np.uint32(0xFFFFFFFF), a + b)
    raise UnmodelledError(f"clamp: {instruction.text}")


def _packed(instruction: Instruction, function: Function, kind: str, count: int) -> Action:
    """Two results at once: of the halves of a word, or of the words of a pair."""
    _known(instruction, {"op_sel", "op_sel_hi", "neg_lo", "neg_hi"})
    destination, *sources = instruction.operands
    wide = kind.endswith("32")
    first = _vector_place(destination, 2 if wide else 1)
    parts: list[list[Read]] = []
    for selection, negation, default in (("op_sel", "neg_lo", 0), ("op_sel_hi", "neg_hi", 1)):
        chosen = _list(instruction, selection, count, default)
        negated = _list(instruction, negation, count, 0)
        each = zip(sources, chosen, negated, strict=True)
        parts.append([_half(instruction, text, kind, bool(high), bool(minus)) for text, high, minus in each])

    def run(wave: Wave) -> None:
        low, high = (_words(np.asarray(function(*(read(wave) for read in part))))[0] for part in parts)
        _store(wave, first, [low, high] if wide else [low | high << 16], wave.mask)

    return run


def _half(instruction: Instruction, text: str, kind: str, high: bool, minus: bool) -> Read:
    narrow = kind.endswith("16")
    read = _operand(instruction, 0, text, kind, high=high) if narrow else _one_word(text, kind, int(high))
    return (lambda wave: -read(wave)) if minus else read


def _one_word(text: str, kind: str, word: int) -> Read:
    """A word of a pair; a constant fills the low one."""
    numpy_kind = _NUMPY[kind]
    if word and register(text) is None:
        zero = np.zeros(LANES, numpy_kind)
        return lambda _: zero
    raw = vector(text, kind, word)
    return lambda wave: raw(wave).view(numpy_kind)


# What reads or writes masks


def _compare(instruction: Instruction, function: Function, kind: str) -> Action:
    _known(instruction, _SDWA)
    destination, left, right = instruction.operands
    reads = [_operand(instruction, number, text, kind) for number, text in enumerate((left, right))]
    return _to_mask(destination, lambda wave: function(*(read(wave) for read in reads)))


def _to_mask(destination: str, value: Callable[[Wave], Array]) -> Action:
    write = scalar(destination, 2)[1]
    return lambda wave: write(wave, pack_bits(value(wave) & wave.mask))


def _class(instruction: Instruction) -> Action:
    _known(instruction, set())
    destination, value, classes = instruction.operands
    read, wanted = _operand(instruction, 0, value, _F), vector(classes, _U)

    def run(wave: Wave) -> Array:
        number, bits = read(wave), wanted(wave)
        small = (np.abs(number) < np.finfo(np.float32).tiny) & (number != 0)
        minus, quiet = np.signbit(number), (number.view(np.uint32) & 0x400000) != 0
        normal = np.isfinite(number) & (number != 0) & ~small
        found = [
            np.isnan(number) & ~quiet,
            np.isnan(number) & quiet,
            np.isinf(number) & minus,
            normal & minus,
            small & minus,
            (number == 0) & minus,
            (number == 0) & ~minus,
            small & ~minus,
            normal & ~minus,
            np.isinf(number) & ~minus,
        ]
        return np.any([which & (bits >> n & 1).astype(bool) for n, which in enumerate(found)], axis=0)

    return _to_mask(destination, run)


def _cndmask(instruction: Instruction) -> Action:
    _known(instruction, _SDWA)
    destination, no, yes, mask = instruction.operands
    first, choose = _vector_place(destination, 1), scalar(mask, 2)[0]
    otherwise, then = (_operand(instruction, number, text, _U) for number, text in enumerate((no, yes)))
    if instruction.modifiers.get("dst_sel", "DWORD") != "DWORD":
        raise UnmodelledError(instruction.text)

    def run(wave: Wave) -> None:
        _store(wave, first, [np.where(unpack_bits(choose(wave)), then(wave), otherwise(wave))], wave.mask)

    return run


def _carrying(instruction: Instruction) -> Action:
    """v_add_co_u32, v_addc_co_u32 and their differences."""
    _known(instruction, set())
    name = re.sub(r"_(e32|e64)$", "", instruction.opcode)
    destination, carry_out, left, right, *carry_in = instruction.operands
    if name == "v_subrev_co_u32":
        left, right = right, left
    first, out = _vector_place(destination, 1), scalar(carry_out, 2)[1]
    a, b = vector(left, _U), vector(right, _U)
    carry = scalar(carry_in[0], 2)[0] if carry_in else None
    sign = -1 if name.startswith("v_sub") else 1

    def run(wave: Wave) -> None:
        more = unpack_bits(carry(wave)).astype(np.int64) if carry else 0
        total = a(wave).astype(np.int64) + sign * (b(wave).astype(np.int64) + more)
        out(wave, pack_bits(((total < 0) | (total > 0xFFFFFFFF)) & wave.mask))
        _store(wave, first, [(total & 0xFFFFFFFF).astype(np.uint32)], wave.mask)

    return run


def _mad64(instruction: Instruction) -> Action:
    _known(instruction, set())
    destination, carry_out, left, right, addend = instruction.operands
    first, out = _vector_place(destination, 2), scalar(carry_out, 2)[1]
    a, b, c = vector(left, _U), vector(right, _U), _operand(instruction, 2, addend, _UW)

    def run(wave: Wave) -> None:
        product = a(wave).astype(np.uint64) * b(wave).astype(np.uint64)
        total = product + c(wave)
        out(wave, pack_bits((total < product) & wave.mask))
        _store(wave, first, _words(total), wave.mask)

    return run


def _div_scale(instruction: Instruction) -> Action:
    _known(instruction, set())
    destination, flag, *sources = instruction.operands
    first, out = _vector_place(destination, 1), scalar(flag, 2)[1]
    reads = [_operand(instruction, number, text, _F) for number, text in enumerate(sources)]

    def run(wave: Wave) -> None:
        value, below, above = (read(wave) for read in reads)
        tiny = np.finfo(np.float32).tiny
        gap = np.frexp(above)[1] - np.frexp(below)[1]
        ordinary = np.isfinite(above) & np.isfinite(below) & (above != 0) & (below != 0)
        rare = (
            (gap >= 96)
            | (gap < -125)
            | (np.abs(below) < tiny)
            | (np.abs(below) > 2.0**126)
            | (np.abs(above) < 2.0**-103)
        )
        if (ordinary & rare & wave.mask).any():
            raise UnmodelledError("a division that needs scaling")
        out(wave, 0)
        _store(wave, first, _words(np.where((above == 0) | (below == 0), np.float32(np.nan), value)), wave.mask)

    return run


def _div_fmas(instruction: Instruction) -> Action:
    plain = _plain(instruction, _fma, _F, (_F, _F, _F))
    flag = scalar("vcc", 2)[0]

    def run(wave: Wave) -> None:
        if flag(wave) & wave.exec:
            raise UnmodelledError("a division that was scaled")
        plain(wave)

    return run


def _move(instruction: Instruction) -> Action:
    """A move, from another register where ``s_set_gpr_idx_on`` says so."""
    _known(instruction, set())
    destination, source = instruction.operands
    first, place, read = _vector_place(destination, 1), register(source), vector(source, _U)
    assert place is not None

    def run(wave: Wave) -> None:
        if wave.index is None:
            _store(wave, first, [read(wave)], wave.mask)
            return
        moved = place.first + wave.index
        if place.kind != "v" or place.first >= 256 or moved >= 256 or moved in wave.pending:
            raise HazardError(f"v{moved} as the indexed source")
        _store(wave, first, [wave.v[moved]], wave.mask)

    return run


def _packed_move(instruction: Instruction) -> Action:
    """One word of each of two pairs."""
    _known(instruction, {"op_sel"})
    destination, *sources = instruction.operands
    first, chosen = _vector_place(destination, 2), _list(instruction, "op_sel", 2, 0)
    reads = [vector(text, _U, high) for text, high in zip(sources, chosen, strict=True)]
    return lambda wave: _store(wave, first, [read(wave).copy() for read in reads], wave.mask)


def _first_lane(instruction: Instruction) -> Action:
    _known(instruction, set())
    write, read = scalar(instruction.operands[0])[1], vector(instruction.operands[1], _U)
    return lambda wave: write(wave, int(read(wave)[int(np.argmax(wave.mask))]))


_SPECIAL: Final[dict[str, Callable[[Instruction], Action]]] = {
    "cmp_class_f32": _class,
    "cndmask_b32": _cndmask,
    **dict.fromkeys(("add_co_u32", "addc_co_u32", "sub_co_u32", "subb_co_u32", "subrev_co_u32"), _carrying),
    "mad_u64_u32": _mad64,
    "div_scale_f32": _div_scale,
    "div_fmas_f32": _div_fmas,
    "pk_mov_b32": _packed_move,
    "readfirstlane_b32": _first_lane,
}
