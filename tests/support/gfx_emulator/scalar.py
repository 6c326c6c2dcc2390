"""Scalar instructions, branches, waits and barriers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from tests.support.gfx_emulator.assembly import Instruction, Kernel, UnmodelledError
from tests.support.gfx_emulator.state import HazardError, Wave, scalar

__all__ = ["BARRIER", "END", "decode"]

Action = Callable[[Wave], "str | None"]

BARRIER: Final = "barrier"
END: Final = "end"
_M32: Final = 0xFFFFFFFF
_M64: Final = 0xFFFFFFFFFFFFFFFF
_IGNORED: Final = {"s_nop", "s_setprio", "s_sleep", "s_code_end"}


def _signed(value: int) -> int:
    return value - (1 << 32) if value & 0x80000000 else value


def _nonzero(value: int, bits: int) -> tuple[int, int]:
    value &= (1 << bits) - 1
    return value, int(value != 0)


def _bit_field(a: int, b: int) -> tuple[int, int]:
    return _nonzero(a >> (b & 31) & ((1 << (b >> 16 & 127)) - 1), 32)


def _sum(a: int, b: int) -> tuple[int, int]:
    return (a + b) & _M32, int(a + b > _M32)


def _signed_result(value: int) -> tuple[int, int]:
    return value & _M32, int(not -(1 << 31) <= value < 1 << 31)


def _shifted_sum(shift: int) -> Callable[[int, int], tuple[int, int]]:
    return lambda a, b: _sum((a << shift) & _M32, b) if a << shift <= _M32 else ((a << shift) + b & _M32, 1)


_TWO: Final[dict[str, Callable[[int, int], tuple[int, int | None]]]] = {
    "s_add_u32": _sum,
    "s_sub_u32": lambda a, b: ((a - b) & _M32, int(b > a)),
    "s_add_i32": lambda a, b: _signed_result(_signed(a) + _signed(b)),
    "s_sub_i32": lambda a, b: _signed_result(_signed(a) - _signed(b)),
    "s_mul_i32": lambda a, b: (a * b & _M32, None),
    "s_mul_hi_u32": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32": lambda a, b: (_signed(a) * _signed(b) >> 32 & _M32, None),
    "s_and_b32": lambda a, b: _nonzero(a & b, 32),
    "s_or_b32": lambda a, b: _nonzero(a | b, 32),
    "s_xor_b32": lambda a, b: _nonzero(a ^ b, 32),
    "s_andn2_b32": lambda a, b: _nonzero(a & ~b, 32),
    "s_orn2_b32": lambda a, b: _nonzero(a | ~b, 32),
    "s_lshl_b32": lambda a, b: _nonzero(a << (b & 31), 32),
    "s_lshr_b32": lambda a, b: _nonzero(a >> (b & 31), 32),
    "s_ashr_i32": lambda a, b: _nonzero(_signed(a) >> (b & 31), 32),
    "s_bfe_u32": _bit_field,
    "s_min_u32": lambda a, b: (min(a, b), int(a < b)),
    "s_max_u32": lambda a, b: (max(a, b), int(a > b)),
    "s_min_i32": lambda a, b: (min(_signed(a), _signed(b)) & _M32, int(_signed(a) < _signed(b))),
    "s_max_i32": lambda a, b: (max(_signed(a), _signed(b)) & _M32, int(_signed(a) > _signed(b))),
    "s_pack_ll_b32_b16": lambda a, b: (a & 0xFFFF | (b & 0xFFFF) << 16, None),
    **{f"s_lshl{n}_add_u32": _shifted_sum(n) for n in (1, 2, 3, 4)},
}
_TWO_WIDE: Final[dict[str, Callable[[int, int], tuple[int, int]]]] = {
    "s_and_b64": lambda a, b: _nonzero(a & b, 64),
    "s_or_b64": lambda a, b: _nonzero(a | b, 64),
    "s_xor_b64": lambda a, b: _nonzero(a ^ b, 64),
    "s_andn2_b64": lambda a, b: _nonzero(a & ~b, 64),
    "s_orn2_b64": lambda a, b: _nonzero(a | ~b, 64),
    "s_nand_b64": lambda a, b: _nonzero(~(a & b), 64),
    "s_nor_b64": lambda a, b: _nonzero(~(a | b), 64),
    "s_xnor_b64": lambda a, b: _nonzero(~(a ^ b), 64),
}
_TWO_SHIFT: Final[dict[str, Callable[[int, int], tuple[int, int]]]] = {
    "s_lshl_b64": lambda a, b: _nonzero(a << (b & 63), 64),
    "s_lshr_b64": lambda a, b: _nonzero(a >> (b & 63), 64),
}
_SAVE: Final[dict[str, Callable[[int, int], int]]] = {
    "s_and_saveexec_b64": lambda source, lanes: source & lanes,
    "s_or_saveexec_b64": lambda source, lanes: source | lanes,
    "s_xor_saveexec_b64": lambda source, lanes: source ^ lanes,
    "s_andn2_saveexec_b64": lambda source, lanes: source & ~lanes,
}
_ONE: Final[dict[str, Callable[[int], tuple[int, int | None]]]] = {
    "s_mov_b32": lambda a: (a, None),
    "s_brev_b32": lambda a: (int(f"{a:032b}"[::-1], 2), None),
    "s_not_b32": lambda a: _nonzero(~a, 32),
    "s_abs_i32": lambda a: _nonzero(abs(_signed(a)), 32),
    "s_sext_i32_i16": lambda a: ((a & 0xFFFF ^ 0x8000) - 0x8000 & _M32, None),
}
_ONE_WIDE: Final[dict[str, Callable[[int], tuple[int, int | None]]]] = {
    "s_mov_b64": lambda a: (a, None),
    "s_not_b64": lambda a: _nonzero(~a, 64),
}
_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
_CONDITIONS: Final[dict[str, Callable[[Wave], bool]]] = {
    "s_branch": lambda _: True,
    "s_cbranch_execz": lambda wave: not wave.mask.any(),
    "s_cbranch_execnz": lambda wave: bool(wave.mask.any()),
    "s_cbranch_scc0": lambda wave: wave.scc == 0,
    "s_cbranch_scc1": lambda wave: wave.scc == 1,
    "s_cbranch_vccz": lambda wave: wave.s[106] | wave.s[107] == 0,
    "s_cbranch_vccnz": lambda wave: wave.s[106] | wave.s[107] != 0,
}


def decode(instruction: Instruction, kernel: Kernel) -> Action | None:
    """What a scalar instruction does; None if this is none that we know."""
    name, operands = instruction.opcode, instruction.operands
    if name in _IGNORED:
        return lambda _: None
    if name in _CONDITIONS:
        return _branch(_CONDITIONS[name], kernel.labels[operands[0]])
    if name == "s_endpgm":
        return lambda _: END
    if name == "s_barrier":
        return _barrier
    if name == "s_waitcnt":
        return _wait(operands)
    if name == "s_setreg_imm32_b32":
        return _set_register(operands)
    if name == "s_set_gpr_idx_on":
        return _index(operands)
    if name == "s_set_gpr_idx_off":
        return _no_index
    if name.startswith("s_load_dword"):
        return _load(instruction)
    return _arithmetic(name, operands)


def _arithmetic(name: str, operands: tuple[str, ...]) -> Action | None:
    if name in _TWO:
        return _apply(_TWO[name], operands, (1, 1, 1))
    if name in _TWO_WIDE:
        return _apply(_TWO_WIDE[name], operands, (2, 2, 2))
    if name in _TWO_SHIFT:
        return _apply(_TWO_SHIFT[name], operands, (2, 2, 1))
    if name in _ONE:
        return _apply(_ONE[name], operands, (1, 1))
    if name in _ONE_WIDE:
        return _apply(_ONE_WIDE[name], operands, (2, 2))
    if name in _SAVE:
        return _save(_SAVE[name], operands)
    if name == "s_movk_i32":
        return _apply(_ONE["s_mov_b32"], (operands[0], _extended(operands[1])), (1, 1))
    if name in ("s_addk_i32", "s_mulk_i32"):
        extended = (operands[0], operands[0], _extended(operands[1]))
        return _apply(_TWO[name.replace("k_", "_")], extended, (1, 1, 1))
    if name in ("s_addc_u32", "s_subb_u32"):
        return _carry(operands, subtract=name == "s_subb_u32")
    if match := re.fullmatch(r"s_cselect_b(32|64)", name):
        return _select(operands, int(match[1]) // 32)
    if match := re.fullmatch(r"s_cmpk_(\w\w)_i32", name):
        return _compare(_COMPARE[match[1]], (operands[0], _extended(operands[1])), signed=True, words=1)
    if match := re.fullmatch(r"s_cmpk?_(\w\w)_([iu])(32|64)", name):
        return _compare(_COMPARE[match[1]], operands, signed=match[2] == "i", words=int(match[3]) // 32)
    return None


def _extended(text: str) -> str:
    """A constant of 16 bits as one of 32, with its sign."""
    return str((int(text, 0) & 0xFFFF ^ 0x8000) - 0x8000)


def _apply(
    function: Callable[..., tuple[int, int | None]], operands: tuple[str, ...], words: tuple[int, ...]
) -> Action:
    write = scalar(operands[0], words[0])[1]
    reads = [scalar(text, count)[0] for text, count in zip(operands[1:], words[1:], strict=True)]

    def run(wave: Wave) -> None:
        value, scc = function(*(read(wave) for read in reads))
        write(wave, value)
        if scc is not None:
            wave.scc = scc

    return run


def _save(function: Callable[[int, int], int], operands: tuple[str, ...]) -> Action:
    write, read = scalar(operands[0], 2)[1], scalar(operands[1], 2)[0]

    def run(wave: Wave) -> None:
        source, lanes = read(wave), wave.exec
        write(wave, lanes)
        wave.exec = function(source, lanes) & _M64
        wave.scc = int(wave.mask.any())

    return run


def _carry(operands: tuple[str, ...], *, subtract: bool) -> Action:
    write, left, right = scalar(operands[0])[1], scalar(operands[1])[0], scalar(operands[2])[0]

    def run(wave: Wave) -> None:
        value = left(wave) - right(wave) - wave.scc if subtract else left(wave) + right(wave) + wave.scc
        write(wave, value & _M32)
        wave.scc = int(not 0 <= value <= _M32)

    return run


def _select(operands: tuple[str, ...], words: int) -> Action:
    write = scalar(operands[0], words)[1]
    left, right = scalar(operands[1], words)[0], scalar(operands[2], words)[0]
    return lambda wave: write(wave, left(wave) if wave.scc else right(wave))


def _compare(function: Callable[[int, int], bool], operands: tuple[str, ...], *, signed: bool, words: int) -> Action:
    left, right = scalar(operands[0], words)[0], scalar(operands[1], words)[0]

    def run(wave: Wave) -> None:
        a, b = left(wave), right(wave)
        wave.scc = int(function(_signed(a), _signed(b)) if signed else function(a, b))

    return run


def _branch(condition: Callable[[Wave], bool], target: int) -> Action:
    def run(wave: Wave) -> None:
        if condition(wave):
            wave.pc = target

    return run


def _barrier(wave: Wave) -> str:
    if wave.local_writes:
        raise HazardError("a barrier while the wave's own LDS writes are under way")
    return BARRIER


def _wait(operands: tuple[str, ...]) -> Action:
    limits = dict(re.findall(r"(\w+)\((\d+)\)", operands[0]))
    if not limits or limits.keys() - {"vmcnt", "lgkmcnt", "expcnt"}:
        raise UnmodelledError(f"s_waitcnt {operands}")
    loads, local = int(limits.get("vmcnt", 63)), int(limits.get("lgkmcnt", 15))

    def run(wave: Wave) -> None:
        del wave.loads[: max(0, len(wave.loads) - loads)]
        if local == 0 or not wave.local_is_scalar:
            done = max(0, len(wave.local) - local)
            del wave.local[:done]
            wave.local_writes = max(0, wave.local_writes - done)
        if not wave.local:
            wave.local_is_scalar = False
        wave.note_pending()

    return run


def _set_register(operands: tuple[str, ...]) -> Action:
    """Whether float32 subnormals are kept (they always are here), and to round to nearest."""
    field, value = operands[0].replace(" ", ""), operands[1]
    if field != "hwreg(HW_REG_MODE,4,2)" and (field, value) != ("hwreg(HW_REG_MODE,2,2)", "0"):
        raise UnmodelledError(f"s_setreg_imm32_b32 {operands}")
    return lambda _: None


def _index(operands: tuple[str, ...]) -> Action:
    if operands[1] != "gpr_idx(SRC0)":
        raise UnmodelledError(f"s_set_gpr_idx_on {operands}")
    read, write = scalar(operands[0])[0], scalar("m0")[1]

    def run(wave: Wave) -> None:
        wave.index = read(wave) & 0xFF
        write(wave, wave.index | 1 << 12)

    return run


def _no_index(wave: Wave) -> None:
    wave.index = None


def _load(instruction: Instruction) -> Action:
    size = instruction.opcode.removeprefix("s_load_dword").removeprefix("x") or "1"
    words = int(size)
    base, offset = scalar(instruction.operands[1], 2)[0], scalar(instruction.operands[2])[0]
    first = int(re.findall(r"\d+", instruction.operands[0])[0])
    written = frozenset(range(1000 + first, 1000 + first + words))

    def run(wave: Wave) -> None:
        wave.s[first : first + words] = wave.memory.words(base(wave) + offset(wave), words)
        wave.local.append(written)
        wave.local_is_scalar = True
        wave.note_pending()

    return run
