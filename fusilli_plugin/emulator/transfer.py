"""Decoding loads, stores and atomics; what they do stands in ``core/transfer.h``."""

from __future__ import annotations

import re
from typing import Final

from fusilli_plugin.emulator.assembly import Instruction, UnmodelledError
from fusilli_plugin.emulator.layout import Decoded, Flag, Kind, Operand
from fusilli_plugin.emulator.library import Core
from fusilli_plugin.emulator.moves import swizzled_lanes
from fusilli_plugin.emulator.operands import nothing, scalar_operand, scalar_registers, vector_registers, within

__all__ = ["decode_transfer"]

_SIZES: Final = {
    "ubyte": 1, "sbyte": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2,
    "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16,
    "b8": 1, "u8": 1, "i8": 1, "b16": 2, "u16": 2, "i16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16,
}  # fmt: skip
_HINTS: Final = {"nt", "sc0", "sc1", "glc", "slc", "scc"}
_FAR: Final = re.compile(r"(global|flat|buffer|scratch)_(load|store)_(lds_)?([a-z]+(?:x\d)?)(_d16)?(_hi)?")
_LOCAL: Final = re.compile(r"ds_(read|write)(2?)(st64)?_([bui]\d+)(_d16)?(_hi)?")
_TRANSPOSED: Final = re.compile(r"ds_read_b64_tr_b(4|8|16)")
_LOCAL_ATOMIC: Final = re.compile(r"ds_([a-z_]+?)(_rtn)?_([a-z0-9]+)")
_ATOMIC: Final = re.compile(r"(global|flat|buffer)_atomic_([a-z0-9_]+?)(_x2)?")
_OPERATIONS: Final = {
    name: number
    for number, name in enumerate((
        "add", "sub", "umin", "umax", "smin", "smax", "and", "or", "xor", "swap", "cmpswap", "add_f32", "add_f64",
        "pk_add_f16", "pk_add_bf16", "max_f64", "min_f64", "inc", "dec",
    ))
}  # fmt: skip
_LOCAL_NAMES: Final = {
    ("add", "u32"): "add", ("add", "u64"): "add", ("sub", "u32"): "sub", ("min", "u32"): "umin", ("max", "u32"): "umax",
    ("min", "i32"): "smin", ("max", "i32"): "smax", ("and", "b32"): "and", ("or", "b32"): "or", ("xor", "b32"): "xor",
    ("add", "f32"): "add_f32", ("add", "f64"): "add_f64", ("wrxchg", "b32"): "swap", ("cmpst", "b32"): "cmpswap",
    ("cmpst", "b64"): "cmpswap", ("max", "f64"): "max_f64", ("min", "f64"): "min_f64", ("pk_add", "f16"): "pk_add_f16",
    ("pk_add", "bf16"): "pk_add_bf16",
}  # fmt: skip


def decode_transfer(instruction: Instruction, decoded: Decoded, core: Core) -> None:
    """Fills in an access to memory or LDS.

    Raises:
        UnmodelledError: another form of it.
    """
    name = instruction.opcode
    if (match := _FAR.fullmatch(name)) is not None:
        _far(match, instruction, decoded, core)
    elif (match := _LOCAL.fullmatch(name)) is not None:
        _local(match, instruction, decoded, core)
    elif (match := _TRANSPOSED.fullmatch(name)) is not None:
        _transposed(int(match[1]), instruction, decoded, core)
    elif name in ("ds_bpermute_b32", "ds_permute_b32"):
        _permute(instruction, decoded, core)
    elif name == "ds_swizzle_b32":
        _swizzle(instruction, decoded, core)
    elif (match := _ATOMIC.fullmatch(name)) is not None:
        _far_atomic(match, instruction, decoded, core)
    elif (match := _LOCAL_ATOMIC.fullmatch(name)) is not None:
        _local_atomic(match, instruction, decoded, core)
    else:
        raise UnmodelledError(f"opcode {name}")


def _check(instruction: Instruction, *known: str) -> None:
    if unknown := instruction.modifiers.keys() - {*known, *_HINTS}:
        raise UnmodelledError(f"modifiers {sorted(unknown)}")


def _address(text: str, words: int) -> Operand:
    return nothing() if text == "off" else vector_registers(text, words)


def _base(text: str, words: int) -> Operand:
    return nothing() if text == "off" else scalar_registers(text, words, masks=False)


def _offset(instruction: Instruction) -> int:
    """The immediate offset; its field has 16 bits for LDS, 12 for buffers, 13 with a sign elsewhere."""
    name = instruction.opcode
    least, most = (0, 65535) if name.startswith("ds_") else (0, 4095) if name.startswith("buffer_") else (-4096, 4095)
    return within(instruction.modifiers.get("offset", "0"), least, most)


def _far(match: re.Match[str], instruction: Instruction, decoded: Decoded, core: Core) -> None:
    space, way, kind = match[1], match[2], match[4]
    size, load = _SIZES[kind], way == "load"
    _check(instruction, "offset", *(("offen", "lds") if space == "buffer" else ()))
    to_lds = match[3] is not None or "lds" in instruction.modifiers
    decoded.handler = core.handlers[{"buffer": "buffer", "scratch": "private"}.get(space, "far")]
    decoded.numbers[:3] = [size, _offset(instruction), int(load)]
    decoded.flags |= Flag.D16 if match[5] and size < 4 else 0
    decoded.flags |= Flag.HIGH if match[6] else 0
    decoded.flags |= Flag.SIGNED if kind in ("sbyte", "sshort") else 0
    decoded.flags |= Flag.TO_LDS if to_lds else 0
    if space == "buffer":
        decoded.flags |= Flag.OFFSET_ENABLED if "offen" in instruction.modifiers else 0
    words = max(1, size // 4)
    # (data, address, base, scalar offset), in the orders in which the assembly has them
    texts = list(instruction.operands)
    if to_lds:
        data = None
    elif load or space == "buffer":
        data = texts.pop(0)
    else:
        data = texts.pop(1)
    if space == "flat":
        texts.append("off")
    if kind == "short" and load and not match[5]:
        raise UnmodelledError("a load of this name")
    address, base = texts[0], texts[1]
    if space == "buffer":
        sources = [_address(address, 1), scalar_registers(base, 4, masks=False), scalar_operand(texts[2], 1)]
    elif space == "scratch":
        sources = [_address(address, 1), _base(base, 1), nothing()]
    else:
        sources = [_address(address, 2 if base == "off" else 1), _base(base, 2), nothing()]
    if len(texts) != (3 if space == "buffer" else 2):
        raise UnmodelledError("operands")
    if data is not None and load:
        decoded.results, decoded.result[0] = 1, vector_registers(data, words)
    elif data is not None:
        sources.append(vector_registers(data, words))
    if to_lds:
        sources.append(nothing())
        sources.append(Operand(kind=Kind.SCALAR, words=1, select=6, index=124))
    _put(decoded, sources)


def _put(decoded: Decoded, sources: list[Operand]) -> None:
    decoded.sources = len(sources)
    for place, each in enumerate(sources):
        decoded.source[place] = each


def _local(match: re.Match[str], instruction: Instruction, decoded: Decoded, core: Core) -> None:
    """Reads and writes of LDS: one offset counts bytes, two count elements, or 64 of them."""
    _check(instruction, "offset", "offset0", "offset1")
    size, two, read = _SIZES[match[4]], match[2] == "2", match[1] == "read"
    unit = size * (64 if match[3] else 1) if two else 1
    names = ("offset0", "offset1") if two else ("offset",)
    most = 255 if two else 65535
    offsets = [within(instruction.modifiers.get(name, "0"), 0, most) * unit for name in names]
    decoded.handler = core.handlers["local"]
    decoded.numbers[:4] = [size, offsets[0], int(read), offsets[-1]]
    decoded.flags |= Flag.TWICE if two else 0
    decoded.flags |= Flag.D16 if match[5] and read else 0
    decoded.flags |= Flag.HIGH if match[6] else 0
    decoded.flags |= Flag.SIGNED if match[4].startswith("i") else 0
    words = max(1, size // 4)
    texts = list(instruction.operands)
    if read:
        decoded.results, decoded.result[0] = 1, vector_registers(texts[0], words * (2 if two else 1))
        _put(decoded, [vector_registers(texts[1], 1)])
    else:
        _put(decoded, [vector_registers(texts[0], 1), *(vector_registers(text, words) for text in texts[1:])])
    if len(texts) != (2 if read or not two else 3):
        raise UnmodelledError("operands")


def _transposed(bits: int, instruction: Instruction, decoded: Decoded, core: Core) -> None:
    _check(instruction, "offset")
    decoded.handler = core.handlers["local_transposed"]
    decoded.numbers[:2] = [bits, _offset(instruction)]
    result, address = instruction.operands
    decoded.results, decoded.result[0] = 1, vector_registers(result, 2)
    _put(decoded, [vector_registers(address, 1)])


def _permute(instruction: Instruction, decoded: Decoded, core: Core) -> None:
    _check(instruction, "offset")
    decoded.handler = core.handlers["permute"]
    decoded.numbers[:2] = [int(instruction.opcode == "ds_permute_b32"), _offset(instruction)]
    result, lanes, data = instruction.operands
    decoded.results, decoded.result[0] = 1, vector_registers(result, 1)
    _put(decoded, [vector_registers(lanes, 1), vector_registers(data, 1)])


def _swizzle(instruction: Instruction, decoded: Decoded, core: Core) -> None:
    _check(instruction, "offset")
    decoded.handler = core.handlers["swizzle"]
    decoded.lanes[:] = swizzled_lanes(instruction.modifiers["offset"])
    result, data = instruction.operands
    decoded.results, decoded.result[0] = 1, vector_registers(result, 1)
    _put(decoded, [vector_registers(data, 1)])


def _local_atomic(match: re.Match[str], instruction: Instruction, decoded: Decoded, core: Core) -> None:
    _check(instruction, "offset")
    operation = _OPERATIONS[_LOCAL_NAMES[match[1], match[3]]]
    returns, texts = match[2] is not None, list(instruction.operands)
    size = 8 if match[3].endswith("64") else 4
    decoded.handler = core.handlers["local_atomic"]
    decoded.numbers[:3] = [size, _offset(instruction), operation]
    if returns:
        decoded.flags |= Flag.RETURNS
        decoded.results, decoded.result[0] = 1, vector_registers(texts.pop(0), size // 4)
    if len(texts) != (3 if operation == _OPERATIONS["cmpswap"] else 2):
        raise UnmodelledError("operands")
    _put(decoded, [vector_registers(texts[0], 1), *(vector_registers(text, size // 4) for text in texts[1:])])


def _far_atomic(match: re.Match[str], instruction: Instruction, decoded: Decoded, core: Core) -> None:
    """Atomics through buffers and addresses: cmpswap takes two values, a result comes back with glc or sc0 alone."""
    space, operation, wide = match[1], match[2], match[3] is not None or match[2].endswith("f64")
    _check(instruction, "offset", *(("offen",) if space == "buffer" else ()))
    size, texts = 8 if wide else 4, list(instruction.operands)
    decoded.handler = core.handlers["buffer_atomic" if space == "buffer" else "far_atomic"]
    decoded.numbers[:3] = [size, _offset(instruction), _OPERATIONS[operation]]
    decoded.flags |= Flag.OFFSET_ENABLED if "offen" in instruction.modifiers else 0
    returns = bool(instruction.modifiers.keys() & {"glc", "sc0"})
    words = size // 4 * (2 if operation == "cmpswap" else 1)
    if space == "buffer":
        data, address, base, extra = texts
        sources = [_address(address, 1), scalar_registers(base, 4, masks=False), scalar_operand(extra, 1)]
        _put(decoded, [*sources, vector_registers(data, words)])
        result = data
    else:
        result = texts.pop(0) if returns else ""
        address, data, base = texts if space == "global" else (*texts, "off")
        wide_address = 2 if base == "off" else 1
        _put(decoded, [_address(address, wide_address), _base(base, 2), nothing(), vector_registers(data, words)])
    if returns:
        decoded.flags |= Flag.RETURNS
        returned = vector_registers(result)
        if returned.words not in (size // 4, words):
            raise UnmodelledError(f"result {result}")
        decoded.results = 1
        decoded.result[0] = Operand(kind=Kind.VECTOR, words=size // 4, select=6, index=returned.index)
