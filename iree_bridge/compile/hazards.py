"""Faults of generated code for GPUs, which its assembly shows, or how its loops are shared out.

Barriers that not all waves reach, AMD: the compiler lays a loop of loads out over the waves; where their number does
not divide it, some waves run it once more than others, and where the loop holds a barrier, one of them waits alone and
the others read too early. A barrier with no access to local memory behind it does no harm.

Kernels without an end, AMD: the compiler took all of them for unreachable.

Sums that are not added up, all GPUs: the innermost loop of a sum over several is shared out over subgroups of threads,
and over the threads of each. Where there is less of it than a subgroup has threads (of 3 elements 3 subgroups get one
each), the compiler leaves out the step that adds up what the subgroups have: a third is summed.

Kernels with more tensors than IREE's drivers for GPUs take, CUDA's and HIP's: nothing is wrong with the code, but they
load none of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["crowded_kernels", "endless_kernels", "lost_sums", "split_barriers"]

_LABEL: Final = re.compile(r"^'?\"?([\w$.]+)'?\"?:")
_DECLARED: Final = re.compile(r"^\s*\.amdhsa_kernel (\S+)", re.MULTILINE)
_INSTRUCTION: Final = re.compile(r"^\s+([a-z]\w*)\s*([^;]*)")
_REGISTERS: Final = re.compile(r"\b([sva])\[(\d+):(\d+)\]|\b([sva]\d+)\b|\b(scc|vcc)(?:_lo|_hi)?\b")
_LOADS: Final = ("buffer_load", "global_load", "flat_load", "scratch_load", "ds_")
_TWO_RESULTS: Final = ("v_div_scale", "v_mad_u64", "v_mad_i64")
_AT_FIRST: Final = {"v0", "v1", "v2"}
"""Where a kernel finds the number of the work item."""
_KEEPS_SCC: Final = re.compile(r"s_(mov|cmov|mul|load|nop|getpc|bitset|sext|pack|cselect|brev)")
_KERNEL: Final = re.compile(r"func\.func @(\S+?)\(")
_WIDTH: Final = re.compile(r"subgroup_size = (\d+)")
_ITERATORS: Final = re.compile(r"iterator_types = \[([^\]]*)\]")
_LANES: Final = re.compile(r"lane_basis = \[\[([\d, ]+)\]")
_SUBGROUPS: Final = re.compile(r"subgroup_basis = \[\[([\d, ]+)\]")
_EXPORT: Final = re.compile(r"hal\.executable\.export (?:public )?@(\S+)")
_MOST_BINDINGS: Final = 16
_ENDS: Final = ("s_endpgm", "s_setpc", "s_trap")


@dataclass
class _Block:
    """Instructions without a branch among them; ``next`` are the blocks behind, by number."""

    next: list[int] = field(default_factory=list)
    has_barrier: bool = False
    uses_local: bool = False
    """Whether it accesses local memory; in a block with a barrier, behind it."""
    splits: bool = False
    """Whether the waves of a workgroup may leave it on different ways."""


def split_barriers(text: str) -> list[str]:
    """The names of the kernels, in AMD assembly, with a barrier that depends on a branch on the number of the wave."""
    return [
        name
        for name, lines in _kernels(text)
        if any(line.strip().startswith("s_barrier") for line in lines) and _splits(_blocks(lines))
    ]


def lost_sums(text: str) -> list[str]:
    """The names of the kernels, as configured MLIR, that leave out what other subgroups than the first have summed."""
    found: list[str] = []
    kernel, width = "", 0
    for line in text.splitlines():
        if named := _KERNEL.search(line):
            wide = _WIDTH.search(line)
            kernel, width = named[1].strip('"'), int(wide[1]) if wide else 0
        iterators, lanes, subgroups = (each.search(line) for each in (_ITERATORS, _LANES, _SUBGROUPS))
        if iterators and lanes and subgroups and kernel not in found:
            shares = zip(iterators[1].split(","), _numbers(subgroups[1]), strict=False)
            is_shared = any("reduction" in kind and share > 1 for kind, share in shares)
            if is_shared and math.prod(_numbers(lanes[1])) < width:
                found.append(kernel)
    return found


def crowded_kernels(text: str) -> list[str]:
    """The names of the kernels, as configured MLIR, that have more tensors than a driver of IREE's takes."""
    exports = ((_EXPORT.search(line), line.count("#hal.pipeline.binding<")) for line in text.splitlines())
    return [named[1].strip('"') for named, count in exports if named and count > _MOST_BINDINGS]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def endless_kernels(text: str) -> list[str]:
    """The names of the kernels, in AMD assembly, that do not end: the compiler took all of it for unreachable."""
    kernels = set(_DECLARED.findall(text))
    return [
        name
        for name, lines in _kernels(text)
        if name in kernels and not any(line.strip().startswith("s_endpgm") for line in lines)
    ]


def _kernels(text: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in [*text.splitlines(), "end:"]:
        label = _LABEL.match(line)
        if label is None or label[1].startswith((".L", ".l")):
            lines.append(line)
            continue
        if name:
            yield name, lines
        name, lines = label[1], []


def _blocks(lines: Sequence[str]) -> list[_Block]:
    """The blocks of a kernel.

    Which registers differ between waves is followed in the order of the text, twice, so that a loop's later parts are
    known in its earlier ones.
    """
    own = set(_AT_FIRST)  # registers that differ between the waves of a workgroup
    instructions = [_instruction(line) for line in lines]
    for opcode, operands in filter(None, instructions):
        own = _different(own, opcode, operands)
    own |= _AT_FIRST
    blocks, starts, targets = [_Block()], dict[str, int](), list[tuple[int, str]]()
    falls = True

    def begin() -> None:
        if falls:
            blocks[-1].next.append(len(blocks))
        blocks.append(_Block())

    for line, instruction in zip(lines, instructions, strict=True):
        label = _LABEL.match(line)
        if label is not None:
            begin()
            falls = True
            starts[label[1]] = len(blocks) - 1
        elif instruction is not None:
            opcode, operands = instruction
            block = blocks[-1]
            if opcode == "s_barrier":
                block.has_barrier, block.uses_local = True, False
            block.uses_local |= opcode.startswith("ds_")
            if opcode.startswith(("s_branch", "s_cbranch")):
                targets.append((len(blocks) - 1, operands[0]))
                block.splits = "exec" in opcode or any(name in opcode and name in own for name in ("scc", "vcc"))
                falls = opcode != "s_branch"
                begin()
                falls = True
            elif opcode.startswith(_ENDS):
                falls = False
                begin()
                falls = True
            else:
                own = _different(own, opcode, operands)
    for block, target in targets:
        if target in starts:
            blocks[block].next.append(starts[target])
    return blocks


def _instruction(line: str) -> tuple[str, list[str]] | None:
    """Opcode and operands."""
    match = _INSTRUCTION.match(line)
    return None if match is None else (match[1], [part.strip() for part in match[2].split(",")])


def _different(own: set[str], opcode: str, operands: Sequence[str]) -> set[str]:
    """``own``, the registers that differ between waves, after an instruction."""
    if opcode.startswith(("v_readfirstlane", *_LOADS)):
        return own | _registers(operands[:1])
    if opcode.startswith("v_"):
        two = "_co_" in opcode or opcode.startswith(_TWO_RESULTS)
        made = _registers(operands[: 1 + two])
        read = _registers(operands if "mac" in opcode else operands[1 + two :])
    elif opcode.startswith("s_") and not opcode.startswith(("s_barrier", "s_waitcnt")):
        compares = opcode.startswith(("s_cmp", "s_bitcmp"))
        read = _registers(operands if compares else operands[1:])
        made = set[str]() if compares else _registers(operands[:1])
        made |= set() if _KEEPS_SCC.match(opcode) else {"scc"}
    else:
        return own
    return own | made if read & own else own - made


def _registers(operands: Sequence[str]) -> set[str]:
    names: set[str] = set()
    for kind, first, last, single, special in _REGISTERS.findall(",".join(operands)):
        names |= {f"{kind}{i}" for i in range(int(first), int(last) + 1)} if kind else {single or special}
    return names


def _splits(blocks: Sequence[_Block]) -> bool:
    """Whether a barrier's block depends on a block that splits waves: is behind it, but not on all ways from it."""
    always = _on_all_ways(blocks)
    depends = {
        number: {
            other
            for other, block in enumerate(blocks)
            if len(block.next) > 1
            and not (always[other] >> number & 1 and other != number)
            and any(always[following] >> number & 1 for following in block.next)
        }
        for number in range(len(blocks))
    }
    for number, block in enumerate(blocks):
        if not block.has_barrier or not _uses_local_behind(blocks, number):
            continue
        seen, todo = set[int](), [number]
        while todo:
            for other in depends[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        if any(blocks[other].splits for other in seen):
            return True
    return False


def _uses_local_behind(blocks: Sequence[_Block], start: int) -> bool:
    seen, todo = {start}, [start]
    while todo:
        block = blocks[todo.pop()]
        if block.uses_local:
            return True
        todo += [following for following in block.next if following not in seen]
        seen.update(block.next)
    return False


def _on_all_ways(blocks: Sequence[_Block]) -> list[int]:
    """For each block, as bits, the blocks that are on all ways from it to the end, itself among them."""
    everything = (1 << len(blocks)) - 1
    always = [everything if block.next else 1 << number for number, block in enumerate(blocks)]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(len(blocks))):
            if not blocks[number].next:
                continue
            common = everything
            for following in blocks[number].next:
                common &= always[following]
            common |= 1 << number
            if common != always[number]:
                always[number], changed = common, True
    return always
