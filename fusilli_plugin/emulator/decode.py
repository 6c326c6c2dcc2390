"""From a line of assembly to what the core executes. What has no model raises, and the message names it."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fusilli_plugin.emulator import moves
from fusilli_plugin.emulator.assembly import Instruction, UnmodelledError
from fusilli_plugin.emulator.layout import Decoded, Flag, Operand
from fusilli_plugin.emulator.library import Core
from fusilli_plugin.emulator.matrix import decode_matrix
from fusilli_plugin.emulator.operands import (
    operand,
    register,
    scalar_operand,
    scalar_registers,
    vector_registers,
    within,
)
from fusilli_plugin.emulator.transfer import decode_transfer

__all__ = ["decode"]

_SUFFIX: Final = re.compile(r"_(e32|e64|sdwa|dpp|e64_dpp)$")
_SDWA: Final = {"dst_sel", "dst_unused", "src0_sel", "src1_sel"}
_NARROW: Final = frozenset("hws")
_FLOATS: Final = frozenset("fFh")
_SELECTIONS: Final = {f"BYTE_{n}": n for n in range(4)} | {"WORD_0": 4, "WORD_1": 5, "DWORD": 6}
_FIRST_BITS: Final = {"BYTE_0": 0, "BYTE_1": 8, "BYTE_2": 16, "BYTE_3": 24, "WORD_0": 0, "WORD_1": 16, "DWORD": 0}
_UNUSED: Final = {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2}
_IGNORED: Final = {
    "s_nop", "s_setprio", "s_sleep", "s_code_end", "s_icache_inv", "s_dcache_wb", "s_dcache_inv", "buffer_wbinvl1",
    "buffer_wbl2", "buffer_inv", "s_inst_prefetch", "s_sethalt", "s_ttracedata", "s_incperflevel", "s_decperflevel",
}  # fmt: skip
_BRANCHES: Final = {
    "s_branch": 0, "s_cbranch_execz": 1, "s_cbranch_execnz": 2, "s_cbranch_scc0": 3, "s_cbranch_scc1": 4,
    "s_cbranch_vccz": 5, "s_cbranch_vccnz": 6,
}  # fmt: skip
# Those keep the upper half of their destination; other 16-bit arithmetic of these chips clears it.
_KEEPING: Final = re.compile(r"v_(mad|fma|div_fixup|min3|max3|med3)_[fiu]16|v_cvt_pk_.*")
_PACKED: Final = {
    "add_f16", "mul_f16", "fma_f16", "min_f16", "max_f16", "add_u16", "sub_u16", "mul_lo_u16", "mad_u16", "mad_i16",
    "min_u16", "max_u16", "min_i16", "max_i16", "lshlrev_b16", "lshrrev_b16", "ashrrev_i16", "add_i16", "sub_i16",
    "add_f32", "mul_f32", "fma_f32", "minimum3_f16", "maximum3_f16",
}  # fmt: skip
_CARRIES: Final = {"add_co": 0, "addc_co": 0, "sub_co": 1, "subb_co": 1, "subrev_co": 2, "subbrev_co": 2}
_MIXED: Final = {"v_fma_mix_f32": 0, "v_fma_mixlo_f16": 1, "v_fma_mixhi_f16": 2}
_FAR_AWAY: Final = 1 << 30
_RELATIVE: Final = re.compile(r"([.\w$]+)@rel32@(?:(lo)\+4|(hi)\+12)")  # counted from where s_getpc_b64 ends


def decode(
    instruction: Instruction, labels: Mapping[str, int], core: Core, chip: str, places: Mapping[str, int] | None = None
) -> Decoded:
    """What the core executes for an instruction.

    Args:
        instruction: a line of assembly.
        labels: label → index of the instruction behind it.
        core: the core.
        chip: architecture.
        places: label → address of constants beside the code.

    Raises:
        UnmodelledError: an opcode, modifier or operand that has no model.
    """
    decoded = Decoded(result_select=6, result_unused=0, rows=15, banks=15)
    for each in (*decoded.result, *decoded.source):
        each.select = 6
    try:
        _Decoder(_absolute(instruction, places or {}), labels, core, chip, decoded).fill()
    except (LookupError, ValueError, TypeError, ArithmeticError, StopIteration, struct.error) as error:
        raise UnmodelledError(f"{error!r} in: {instruction.text}") from error
    except UnmodelledError as error:
        if instruction.text in str(error):
            raise
        raise UnmodelledError(f"{error} in: {instruction.text}") from error
    return decoded


class _Decoder:
    def __init__(
        self, instruction: Instruction, labels: Mapping[str, int], core: Core, chip: str, decoded: Decoded
    ) -> None:
        self.at, self.labels, self.core, self.chip, self.to = instruction, labels, core, chip, decoded
        self.operands, self.modifiers = instruction.operands, instruction.modifiers

    def fill(self) -> None:
        name = self.at.opcode
        if name in _IGNORED:
            self._handle("nothing")
        elif name in _BRANCHES:
            self._handle("branch", self.labels[self.operands[0]], _BRANCHES[name])
        elif name in _CONTROL:
            _CONTROL[name](self)
        elif name.startswith("s_"):
            self._scalar(name)
        elif name.startswith("v_mfma") or name.startswith("v_smfmac"):
            self._handle("matrix")
            decode_matrix(self.at, self.to, self.chip)
        elif name.startswith("v_"):
            self._vector(_SUFFIX.sub("", name))
        else:
            decode_transfer(self.at, self.to, self.core)

    # ---- parts

    def _handle(self, handler: str, *numbers: int) -> None:
        self.to.handler = self.core.handlers[handler]
        for place, number in enumerate(numbers):
            self.to.numbers[place] = number

    def _known(self, *names: str) -> None:
        if unknown := self.modifiers.keys() - {*names}:
            raise UnmodelledError(f"modifiers {sorted(unknown)}")

    def _sources(self, operands: Sequence[Operand]) -> None:
        self.to.sources = len(operands)
        for place, each in enumerate(operands):
            self.to.source[place] = each

    def _results(self, *operands: Operand) -> None:
        self.to.results = len(operands)
        for place, each in enumerate(operands):
            self.to.result[place] = each

    def _list(self, name: str, count: int, otherwise: int) -> list[int]:
        if name not in self.modifiers:
            return [otherwise] * count
        match = re.fullmatch(r"\[([01](?:,[01])*)\]", self.modifiers[name].replace(" ", ""))
        if match is None:
            raise UnmodelledError(f"{name}:{self.modifiers[name]}")
        return [int(digit) for digit in match[1].split(",")]

    def _bits(self, name: str, count: int, otherwise: int) -> int:
        return sum(bit << place for place, bit in enumerate(self._list(name, count, otherwise)[:count]))

    # ---- scalar

    def _scalar(self, name: str) -> None:
        if match := re.fullmatch(r"s_(buffer_)?load_dword(?:x(2|4|8|16))?", name):
            self._load_scalar(int(match[2] or 1), buffer=match[1] is not None)
            return
        self._known()
        operands = list(self.operands)
        # These have an immediate of 16 bits in the instruction and work on 32.
        if match := re.fullmatch(r"s_cmpk_(\w\w)_([iu])32", name):
            name, operands[1] = f"s_cmp_{match[1]}_{match[2]}32", _extended(operands[1], signed=match[2] == "i")
        elif name in ("s_movk_i32", "s_addk_i32", "s_mulk_i32", "s_cmovk_i32"):
            operands[1] = _extended(operands[1], signed=True)
        if name not in self.core.scalars:
            raise UnmodelledError(f"opcode {name}")
        number, signature = self.core.scalars[name]
        self._handle("scalar")
        self.to.function, self.to.signature = number, signature.encode()
        result, _, kinds = signature.partition("=")
        if result != "-":
            self._results(scalar_registers(operands.pop(0), 2 if result == "U" else 1))
        texts = iter(operands)
        sources = [
            self.to.result[0] if kind == "d" else scalar_operand(next(texts), 1 + (kind == "U")) for kind in kinds
        ]
        if next(texts, None) is not None:
            raise UnmodelledError("too many operands")
        self._sources(sources)

    def _load_scalar(self, words: int, *, buffer: bool) -> None:
        self._known("offset", "glc")
        result, base, offset = self.operands
        self._handle(
            "buffer_scalar" if buffer else "load_scalar",
            words,
            within(self.modifiers.get("offset", "0"), -(1 << 20), (1 << 20) - 1),
        )
        self._results(scalar_registers(result, words, masks=False))
        self._sources([scalar_registers(base, 4 if buffer else 2, masks=False), scalar_operand(offset, 1)])

    def _wait(self) -> None:
        limits = dict(re.findall(r"(\w+)\((\d+)\)", self.operands[0]))
        if not limits or limits.keys() - {"vmcnt", "lgkmcnt", "expcnt"}:
            raise UnmodelledError("a wait for something else")
        far, near = (int(limits.get(name, _FAR_AWAY)) for name in ("vmcnt", "lgkmcnt"))
        if max(far, near) > _FAR_AWAY:
            raise UnmodelledError("a limit")
        self._handle("wait", far, near)

    def _program_counter(self) -> None:
        """Only constants are addressed from it, and `_absolute` has put their addresses in."""
        self._handle("pc")
        self._results(scalar_registers(self.operands[0], 2))

    def _mode(self) -> None:
        field, value = self.operands[0].replace(" ", ""), int(self.operands[1], 0)
        if field == "hwreg(HW_REG_MODE,4,2)":
            if value not in (0, 3):
                raise UnmodelledError("subnormals flushed on one side only")
            self._handle("mode", 1, value)
        elif (field, value) == ("hwreg(HW_REG_MODE,2,2)", 0) or (field, value) == ("hwreg(HW_REG_MODE,0,2)", 0):
            self._handle("mode", 0, 0)  # round to nearest, as always
        else:
            raise UnmodelledError("a mode")

    def _index_on(self) -> None:
        wanted = re.fullmatch(r"gpr_idx\((.*)\)", self.operands[1].replace(" ", ""))
        names = {"SRC0": 1, "SRC1": 2, "SRC2": 4, "DST": 8}
        if wanted is None:
            raise UnmodelledError("an index")
        self._handle("index_on", sum(names[name] for name in wanted[1].split(",") if name))
        self._sources([scalar_operand(self.operands[0], 1)])

    # ---- vector

    def _vector(self, name: str) -> None:
        special = next((action for pattern, action in _SPECIAL if pattern.fullmatch(name)), None)
        if special is not None:
            special(self, name)
        elif name.removeprefix("v_pk_") in _PACKED and name.startswith("v_pk_"):
            self._packed(name)
        else:
            self._plain(name)

    def _plain(self, name: str) -> None:
        comparing_lanes = name.startswith("v_cmpx_")
        name = name.replace("v_cmpx_", "v_cmp_")
        if name not in self.core.vectors:
            raise UnmodelledError(f"opcode {name}")
        number, signature = self.core.vectors[name]
        result = signature[0]
        if "clamp" in self.modifiers and result not in _FLOATS:
            number, signature = self.core.vectors[f"{name}__clamp"]
        elif "clamp" in self.modifiers:
            self.to.flags |= Flag.CLAMP
        self._known("clamp", "op_sel", "bitop3", *_SDWA, *moves.MODIFIERS)
        self._handle("vector", int(comparing_lanes))
        self.to.function = number
        self._arithmetic(signature)
        if _KEEPING.fullmatch(name) and result in _NARROW:
            self.to.flags |= Flag.KEEP_HIGH
        self._lanes()

    def _arithmetic(self, signature: str) -> None:
        """Result and sources of plain arithmetic."""
        result, kinds = signature[0], signature[2:]
        destination, *texts = self.operands
        selected = self._list("op_sel", len(kinds) + 1, 0)
        self._destination(destination, result)
        if "bitop3" in self.modifiers:
            texts.append(self.modifiers["bitop3"])
        given = iter(texts)
        sources: list[Operand] = []
        for place, kind in enumerate(kinds):
            if kind == "d":
                sources.append(self._as_source(result))
                continue
            selection = self.modifiers.get(f"src{place}_sel", "DWORD")
            source = operand(next(given), kind, selection=selection)
            if selected[place]:
                if kind not in _NARROW or "op_sel" not in self.modifiers:
                    raise UnmodelledError("op_sel of a whole register")
                source.select = 5
            sources.append(source)
        if next(given, None) is not None:
            raise UnmodelledError("too many operands")
        if "op_sel" in self.modifiers and len(selected) > len(kinds) and selected[-1]:
            if result not in _NARROW:
                raise UnmodelledError("op_sel of a whole result")
            self.to.flags |= Flag.RESULT_HIGH
        self._sources(sources)
        self.to.signature = f"{result}={kinds.replace('d', result)}".encode()

    def _as_source(self, kind: str) -> Operand:
        """The destination as a source."""
        result = self.to.result[0]
        return Operand(kind=result.kind, words=result.words, select=6, index=result.index)

    def _destination(self, text: str, kind: str) -> None:
        if kind == "m":
            self._results(scalar_registers(text, 2))
            return
        self._results(vector_registers(text, 2 if kind in "UIF" else 1))
        self.to.result_select = _SELECTIONS[self.modifiers.get("dst_sel", "DWORD")]
        self.to.result_unused = _UNUSED[self.modifiers.get("dst_unused", "UNUSED_PAD")]

    def _lanes(self) -> None:
        lanes = moves.source_lanes(self.modifiers)
        if lanes is None:
            return
        self.to.moved = 1
        self.to.lanes[:] = lanes
        self.to.rows = int(self.modifiers.get("row_mask", "0xf"), 0) & 15
        self.to.banks = int(self.modifiers.get("bank_mask", "0xf"), 0) & 15
        if "bound_ctrl" in self.modifiers:
            self.to.flags |= Flag.ZERO_INVALID

    def _packed(self, name: str) -> None:
        self._known("op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp")
        number, signature = self.core.vectors[name.replace("v_pk_", "v_").replace("add_i16", "add_u16")]
        if "clamp" in self.modifiers:
            if signature[0] not in _FLOATS:
                number, signature = self.core.vectors[f"{name.replace('v_pk_', 'v_')}__clamp"]
            self.to.flags |= Flag.CLAMP
        kind, kinds = signature[0], signature[2:]
        self._handle("packed")
        self.to.function, self.to.signature = number, signature.encode()
        self._halves(len(kinds))
        wide = kind == "f"
        self._results(vector_registers(self.operands[0], 2 if wide else 1))
        texts = self.operands[1:]
        if len(texts) != len(kinds):
            raise UnmodelledError("operands")
        self._sources([operand(text, each, words=2 if wide else 1) for text, each in zip(texts, kinds, strict=True)])

    def _halves(self, count: int) -> None:
        for name, otherwise in (("op_sel", 0), ("op_sel_hi", 1), ("neg_lo", 0), ("neg_hi", 0)):
            setattr(self.to, name, self._bits(name, count, otherwise))

    def _mixed(self, name: str) -> None:
        self._known("op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp")
        self._handle("mixed", _MIXED[name])
        self._halves(3)
        self.to.op_sel_hi = self._bits("op_sel_hi", 3, 0)
        self.to.flags |= Flag.CLAMP if "clamp" in self.modifiers else 0
        self._results(vector_registers(self.operands[0], 1))
        halves = [self.to.op_sel_hi >> n & 1 for n in range(3)]
        self._sources([
            operand(text, "h" if half else "f") for text, half in zip(self.operands[1:], halves, strict=True)
        ])  # fmt: skip

    def _carry(self, name: str) -> None:
        self._known(*_SDWA, *moves.MODIFIERS)
        kind = _CARRIES[name.removeprefix("v_").removesuffix("_u32")]
        destination, carry, *texts = self.operands
        self._handle("carry", kind)
        self._destination(destination, "u")
        self.to.results = 2
        self.to.result[1] = scalar_registers(carry, 2)
        if len(texts) != (2 if name.endswith(("add_co_u32", "sub_co_u32", "subrev_co_u32")) else 3):
            raise UnmodelledError("operands")
        sources = [
            operand(text, "u", selection=self.modifiers.get(f"src{place}_sel", "DWORD"))
            for place, text in enumerate(texts[:2])
        ]
        self._sources([*sources, *(scalar_operand(text, 2) for text in texts[2:])])
        self._lanes()

    def _wide_mad(self, name: str) -> None:
        self._known()
        destination, carry, *texts = self.operands
        self._handle("wide_mad", int(name == "v_mad_i64_i32"))
        self._results(vector_registers(destination, 2), scalar_registers(carry, 2))
        self._sources([operand(text, kind) for text, kind in zip(texts, "uuU", strict=True)])

    def _select(self, name: str) -> None:
        self._known(*_SDWA, *moves.MODIFIERS)
        destination, *texts = self.operands
        if len(texts) != 3:
            raise UnmodelledError("a mask is missing")
        signed = any(re.match(r"-|\||neg|abs", text) and register(text) is None for text in texts[:2])
        kind = "f" if signed and any(register(text.strip("-|")) for text in texts[:2]) else "u"
        self._handle("select")
        self._destination(destination, "u")
        self.to.signature = kind.encode()
        sources = [
            operand(text, kind, selection=self.modifiers.get(f"src{place}_sel", "DWORD"))
            for place, text in enumerate(texts[:2])
        ]
        self._sources([*sources, scalar_operand(texts[2], 2)])
        self._lanes()

    def _division(self, name: str) -> None:
        self._known("clamp")
        if "clamp" in self.modifiers:
            raise UnmodelledError("clamp")
        kind, words = ("F", 2) if name.endswith("64") else ("f", 1)
        self.to.signature = kind.encode()
        if "scale" in name:
            destination, flag, *texts = self.operands
            self._handle("div_scale")
            self._results(vector_registers(destination, words), scalar_registers(flag, 2))
        else:
            destination, *texts = self.operands
            self._handle("div_fmas")
            self._results(vector_registers(destination, words))
        self._sources([operand(text, each) for text, each in zip(texts, 3 * kind, strict=True)])

    def _move_pair(self, _name: str) -> None:
        self._known("op_sel", "op_sel_hi")
        if self._list("op_sel_hi", 2, 1) != [1, 1]:
            raise UnmodelledError("op_sel_hi")
        self._handle("move_pair")
        self.to.op_sel = self._bits("op_sel", 2, 0)
        destination, first, second = self.operands
        self._results(vector_registers(destination, 2))
        self._sources([operand(first, "U"), operand(second, "U")])

    def _first_lane(self, _name: str) -> None:
        self._known()
        self._handle("first_lane")
        destination, source = self.operands
        self._results(scalar_registers(destination, 1))
        self._sources([vector_registers(source, 1)])

    def _one_lane(self, name: str) -> None:
        self._known()
        destination, source, lane = self.operands
        if name == "v_readlane_b32":
            self._handle("read_lane")
            self._results(scalar_registers(destination, 1))
            self._sources([vector_registers(source, 1), scalar_operand(lane, 1)])
        else:
            self._handle("write_lane")
            self._results(vector_registers(destination, 1))
            self._sources([scalar_operand(source, 1), scalar_operand(lane, 1)])

    def _swap(self, name: str) -> None:
        self._known()
        match = re.fullmatch(r"v_permlane(16|32)_swap_b32", name)
        self._handle("exchange" if match else "swap", int(match[1]) if match else 0)
        first, second = (vector_registers(text, 1) for text in self.operands)
        self._results(first)
        self._sources([second])

    def _count_below(self, name: str) -> None:
        self._known()
        self._handle("mbcnt", 32 if "hi" in name else 0)
        destination, mask, added = self.operands
        self._results(vector_registers(destination, 1))
        self._sources([operand(mask, "u"), operand(added, "u")])

    def _small_floats(self, name: str) -> None:
        """Conversions of 8-bit floats."""
        self._known("op_sel", "src0_sel", "src1_sel", "dst_sel", "dst_unused")
        match = re.fullmatch(r"v_cvt_(pk_)?(f32_(fp8|bf8)|(fp8|bf8)_f32)", name)
        if match is None or (match[4] and not match[1]):
            raise UnmodelledError(f"opcode {name}")
        shape = (5, 2) if "bf8" in name else (4, 3)
        fnuz = int(self.chip in ("gfx940", "gfx941", "gfx942"))
        for modifier, plain in (("src1_sel", "DWORD"), ("dst_sel", "DWORD"), ("dst_unused", "UNUSED_PAD")):
            if self.modifiers.get(modifier, plain) != plain:
                raise UnmodelledError(f"{modifier}:{self.modifiers[modifier]}")
        chosen = self._list("op_sel", 3, 0)
        if len(chosen) > 4:
            raise UnmodelledError("op_sel")
        if match[3]:
            wide = match[1] is not None
            at = 16 * chosen[0]
            if selection := self.modifiers.get("src0_sel"):
                at = _FIRST_BITS[selection]
            elif not wide and "op_sel" in self.modifiers:
                at = 8 * (chosen[1] << 1 | chosen[0]) if len(chosen) > 1 else 8 * chosen[0]
            self._handle("small", *shape, fnuz, int(wide), at)
            destination, source = self.operands
            self._results(vector_registers(destination, 1 + wide))
            self._sources([operand(source, "u")])
            return
        self._handle("small", *shape, fnuz, 2, 16 * chosen[-1])
        destination, low, high = self.operands
        self._results(vector_registers(destination, 1))
        self._sources([operand(low, "f"), operand(high, "f")])


def _absolute(instruction: Instruction, places: Mapping[str, int]) -> Instruction:
    """An address relative to the program counter, which reads as 0 here, as an absolute one."""

    def number(text: str) -> str:
        match = _RELATIVE.fullmatch(text)
        if match is None:
            return text
        return str(places[match[1]] >> (32 if match[3] else 0) & 0xFFFFFFFF)

    if not any("@rel32" in text for text in instruction.operands):
        return instruction
    operands = tuple(number(text) for text in instruction.operands)
    return Instruction(instruction.opcode, operands, instruction.modifiers, instruction.text)


def _extended(text: str, *, signed: bool) -> str:
    """A constant of 16 bits as one of 32."""
    value = int(text, 0) & 0xFFFF
    return str((value ^ 0x8000) - 0x8000 if signed else value)


_CONTROL: Final[dict[str, Callable[[_Decoder], None]]] = {
    "s_endpgm": lambda d: d._handle("end"),
    "s_barrier": lambda d: d._handle("barrier"),
    "s_waitcnt": _Decoder._wait,
    "s_setreg_imm32_b32": _Decoder._mode,
    "s_set_gpr_idx_on": _Decoder._index_on,
    "s_getpc_b64": _Decoder._program_counter,
    "s_set_gpr_idx_off": lambda d: d._handle("index_off"),
    "v_nop": lambda d: d._handle("nothing"),
}
_SPECIAL: Final[tuple[tuple[re.Pattern[str], Callable[[_Decoder, str], None]], ...]] = tuple(
    (re.compile(pattern), action)
    for pattern, action in (
        (r"v_(add|addc|sub|subb|subrev|subbrev)_co_u32", _Decoder._carry),
        (r"v_mad_(u64_u32|i64_i32)", _Decoder._wide_mad),
        (r"v_cndmask_b32", _Decoder._select),
        (r"v_div_(scale|fmas)_f(32|64)", _Decoder._division),
        (r"v_pk_mov_b32", _Decoder._move_pair),
        (r"v_readfirstlane_b32", _Decoder._first_lane),
        (r"v_(read|write)lane_b32", _Decoder._one_lane),
        (r"v_swap_b32|v_permlane(16|32)_swap_b32", _Decoder._swap),
        (r"v_mbcnt_(lo|hi)_u32_b32", _Decoder._count_below),
        (r"v_fma_mix(lo|hi)?_f(16|32)", _Decoder._mixed),
        (r"v_cvt_(pk_)?(f32_(fp8|bf8)|(fp8|bf8)_f32)", _Decoder._small_floats),
    )
)
