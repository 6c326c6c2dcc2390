"""Reading a kernel from the assembly text that the compiler writes."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Instruction", "Kernel", "UnmodelledError", "parse"]


class UnmodelledError(Exception):
    """The text uses something that the emulator has no model of."""


@dataclass(frozen=True)
class Instruction:
    """One line: ``v_add_f32_e64 v1, -v2, |s3| clamp`` has three operands and the modifier ``clamp``."""

    opcode: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]
    text: str


@dataclass
class Kernel:
    """One kernel of a file.

    Attributes:
        name: its symbol.
        code: its instructions in order.
        labels: label → index of the instruction that follows it.
        directives: ``.amdhsa_`` directives, without that prefix.
        arguments: (offset, size, kind) of the kernel's arguments in bytes.
        workgroup: its sizes.
        constants: label → bytes of the constants that lie beside the code.
    """

    name: str
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    directives: dict[str, int] = field(default_factory=dict)
    arguments: list[tuple[int, int, str]] = field(default_factory=list)
    workgroup: tuple[int, int, int] = (0, 0, 0)
    constants: dict[str, bytes] = field(default_factory=dict)


_COMMA: Final = re.compile(r",\s*(?![^\[(]*[\])])")
_LABEL: Final = re.compile(r"^([.\w$]+):")
_WIDTHS: Final = {"byte": 1, "short": 2, "long": 4, "quad": 8}
_DATA: Final = re.compile(r"\.(byte|short|long|quad|zero)\s+(.*)")
# What a kernel must say of itself, and the most that a chip has; of private memory a wave has 8 MiB.
_DIRECTIVES: Final = {
    "kernarg_size": 1 << 16,
    "group_segment_fixed_size": 160 << 10,
    "private_segment_fixed_size": (8 << 20) // 64,
    "user_sgpr_count": 16,
}
# What else decides how a kernel starts and computes: the values that have a model.
_SETTINGS: Final[dict[str, Collection[int]]] = {
    **dict.fromkeys((f"system_sgpr_workgroup_id_{axis}" for axis in "xyz"), (0, 1)),
    "system_sgpr_workgroup_info": (0, 1),
    "system_vgpr_workitem_id": (0, 1, 2),
    "user_sgpr_kernarg_preload_length": range(17),
    "user_sgpr_kernarg_preload_offset": range(1 << 14),
    "float_round_mode_32": (0,),
    "float_round_mode_16_64": (0,),
    "float_denorm_mode_32": (0, 3),
    "float_denorm_mode_16_64": (3,),
    "dx10_clamp": (1,),
    "ieee_mode": (1,),
    "fp16_overflow": (0,),
    "tg_split": (0,),
    "uses_dynamic_stack": (0,),
}
_LONGEST: Final = 1000  # characters of an instruction
_NO_MODIFIERS: Final = {"s_waitcnt", "s_setreg_imm32_b32"}


def parse(text: str) -> dict[str, Kernel]:
    """The kernels of the files that make up the text, by name.

    Raises:
        UnmodelledError: the text is not understood.
    """
    kernels: dict[str, Kernel] = {}
    for part in text.split(".end_amdgpu_metadata")[:-1]:
        try:
            found = _file(part)
        except (KeyError, ValueError, IndexError) as error:
            raise UnmodelledError(f"assembly that is not understood: {error!r}") from error
        if twice := kernels.keys() & found.keys():
            raise UnmodelledError(f"kernels {sorted(twice)} are there twice")
        kernels.update(found)
    for kernel in kernels.values():
        _check(kernel)
    return kernels


def _check(kernel: Kernel) -> None:
    for name, most in _DIRECTIVES.items():
        if not 0 <= kernel.directives.get(name, -1) <= most:
            raise UnmodelledError(f"kernel {kernel.name}: .amdhsa_{name} {kernel.directives.get(name)}")
    for name, values in _SETTINGS.items():
        if name in kernel.directives and kernel.directives[name] not in values:
            raise UnmodelledError(f"kernel {kernel.name}: .amdhsa_{name} {kernel.directives[name]}")
    if not all(1 <= size <= 1024 for size in kernel.workgroup):
        raise UnmodelledError(f"kernel {kernel.name}: a workgroup of {kernel.workgroup} items")
    size = kernel.directives["kernarg_size"]
    if not all(0 <= offset <= offset + width <= size and width > 0 for offset, width, _ in kernel.arguments):
        raise UnmodelledError(f"kernel {kernel.name}: arguments {kernel.arguments} in {size} bytes")


def _file(text: str) -> dict[str, Kernel]:
    code, metadata = text.split(".amdgpu_metadata", 1)
    kernels: dict[str, Kernel] = {}
    # A kernel's code comes before the directive that says that its label is one.
    names = set(re.findall(r"\.amdhsa_kernel (\S+)", code))
    current: Kernel | None = None
    for raw in code.splitlines():
        line = raw.split(";", 1)[0].strip()
        while label := _LABEL.match(line):
            line = line[label.end() :].strip()
            if label[1] in names:
                current = kernels.setdefault(label[1], Kernel(label[1]))
            elif current and current.labels.setdefault(label[1], len(current.code)) != len(current.code):
                raise UnmodelledError(f"label {label[1]} is there twice")
        if match := re.match(r"\.amdhsa_kernel (\S+)", line):
            current = kernels[match[1]]
        elif (match := re.match(r"\.amdhsa_(\w+)\s+(.*)", line)) and current:
            current.directives[match[1]] = int(match[2], 0)
        elif line and not line.startswith("."):
            if current is None:
                raise UnmodelledError(f"before all kernels: {line[:_LONGEST]}")
            current.code.append(_instruction(line))
    _read_metadata(metadata, kernels)
    constants = _constants(code)
    for kernel in kernels.values():
        kernel.constants = {name: data for name, data in constants.items() if _refers(kernel, name)}
    return kernels


def _refers(kernel: Kernel, name: str) -> bool:
    return any(f"{name}@" in operand for each in kernel.code for operand in each.operands)


def _constants(text: str) -> dict[str, bytes]:
    """The objects of sections for constants: label → bytes."""
    found: dict[str, bytearray] = {}
    current: bytearray | None = None
    constant = False
    for raw in text.splitlines():
        line = raw.split(";", 1)[0].strip()
        if line.startswith(".section"):
            constant, current = ".rodata" in line, None
        elif line.startswith((".text", ".data", ".bss")):
            constant, current = False, None
        elif constant and (label := _LABEL.match(line)):
            current = found.setdefault(label[1], bytearray())
        elif current is not None and (data := _DATA.fullmatch(line)):
            current += _datum(data[1], data[2])
    return {name: bytes(data) for name, data in found.items()}


def _datum(kind: str, text: str) -> bytes:
    if kind == "zero":
        return bytes(int(text.split(",")[0], 0))
    size = _WIDTHS[kind]
    return b"".join((int(part, 0) & (1 << 8 * size) - 1).to_bytes(size, "little") for part in text.split(","))


def _instruction(line: str) -> Instruction:
    if len(line) > _LONGEST:
        raise UnmodelledError(f"an instruction of {len(line)} characters: {line[:_LONGEST]}")
    opcode, _, rest = line.partition(" ")
    if opcode in _NO_MODIFIERS:
        return Instruction(opcode, tuple(part.strip() for part in _COMMA.split(rest)), {}, line)
    operands: list[str] = []
    modifiers: dict[str, str] = {}
    for part in _COMMA.split(rest) if rest else ():
        operand, *others = part.split()
        operands.append(operand)
        for other in others:
            name, _, value = other.partition(":")
            modifiers[name] = value
    return Instruction(opcode, tuple(operands), modifiers, line)


def _read_metadata(text: str, kernels: dict[str, Kernel]) -> None:
    for part in re.split(r"\n  - (?=\.agpr_count)", text)[1:]:
        name = re.search(r"\n    \.name: +'?([^'\s]+)'?\n", part)
        sizes = re.search(r"\.reqd_workgroup_size:\n\s+- (\d+)\n\s+- (\d+)\n\s+- (\d+)", part)
        if not name or not sizes:
            raise UnmodelledError(f"metadata without a name or a workgroup size:\n{part}")
        kernel = kernels[name[1]]
        kernel.workgroup = (int(sizes[1]), int(sizes[2]), int(sizes[3]))
        listed = re.search(r"\n    \.args:\n(.*?)\n    \.group_segment", part, re.DOTALL)
        for entry in re.split(r"\n      - ", "\n" + listed[1])[1:] if listed else ():
            fields = dict(re.findall(r"\.(\w+): +(\S+)", entry))
            kernel.arguments.append((int(fields["offset"]), int(fields["size"]), fields["value_kind"]))
