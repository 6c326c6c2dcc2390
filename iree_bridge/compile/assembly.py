"""Reading AMD assembly: registers, spills, memory and matrix instructions of each kernel that the compiler produced."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Dispatch", "is_matrix", "parse_assembly", "read_assembly", "read_dispatches"]

_MATRIX: Final = re.compile(r"v_(?:mfma|smfmac|wmma|swmmac)_")
_INSTRUCTION: Final = re.compile(r"^\s+([a-z]\w*)\s*([^\s;,]*)")
_SCRATCH: Final = re.compile(r"^\s+(?:scratch_(?:load|store)|buffer_(?:load|store)\w* .*\boff\b.*\bs\[0:3\])")
_LABEL: Final = re.compile(r"^'?\"?([\w$.]+)'?\"?:")
_FILE: Final = re.compile(r"(?m)^(?=\s*\.amdgcn_target )")
_FIELD: Final = re.compile(r"^(?:  - |    )(\.\w+):\s*(.*)$")


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """One kernel as the compiler made it.

    Attributes:
        name: its symbol.
        vgprs, agprs, sgprs: registers per work item (vector, accumulation) and per wave (scalar).
        vgpr_spills, sgpr_spills: registers that did not fit and live in memory.
        lds: bytes of local memory per workgroup.
        scratch: bytes of private memory per work item.
        scratch_instructions: loads and stores to private memory in the code.
        workgroup: largest number of work items in a workgroup.
        wavefront: work items in a wave.
        instructions: all in the code.
        matrix: matrix instructions in the code, by mnemonic.
        loop: all instructions of the main loop, by mnemonic: the innermost loop with the most matrix instructions, or
            the code from the first to the last of them where no loop holds any; empty without matrix instructions.
    """

    name: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds: int
    scratch: int
    scratch_instructions: int
    workgroup: int
    wavefront: int
    instructions: int = 0
    matrix: dict[str, int] = field(default_factory=dict)
    loop: dict[str, int] = field(default_factory=dict)

    @property
    def others_per_matrix(self) -> float | None:
        """Instructions of the main loop that are no matrix instructions, for each that is; None: there are none."""
        multiplied = sum(count for mnemonic, count in self.loop.items() if is_matrix(mnemonic))
        return (sum(self.loop.values()) - multiplied) / multiplied if multiplied else None


def is_matrix(mnemonic: str) -> bool:
    """Whether an instruction multiplies matrices."""
    return _MATRIX.match(mnemonic) is not None


def read_dispatches(folder: Path) -> list[Dispatch]:
    """The dispatches whose assembly (``*.rocmasm``) lies in ``folder``, in the order of their numbers."""
    found: list[Dispatch] = []
    for path in sorted(folder.rglob("*.rocmasm"), key=_dispatch_number):
        found.extend(parse_assembly(path.read_text(encoding="utf-8", errors="replace")))
    return found


def read_assembly(folder: Path) -> str:
    """The text of all assembly files in ``folder``, in the order of their dispatches."""
    paths = sorted(folder.rglob("*.rocmasm"), key=_dispatch_number)
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)


def parse_assembly(text: str) -> list[Dispatch]:
    """The kernels in AMD assembly, of one file or several joined, in the order of the metadata; none without any."""
    return [kernel for file in _FILE.split(text) for kernel in _parse_file(file)]


def _parse_file(text: str) -> list[Dispatch]:
    code, _, metadata = text.partition("\namdhsa.kernels:")
    bodies = _bodies(code)
    return [
        Dispatch(
            name=name,
            vgprs=_number(values, ".vgpr_count"),
            agprs=_number(values, ".agpr_count"),
            sgprs=_number(values, ".sgpr_count"),
            vgpr_spills=_number(values, ".vgpr_spill_count"),
            sgpr_spills=_number(values, ".sgpr_spill_count"),
            lds=_number(values, ".group_segment_fixed_size"),
            scratch=_number(values, ".private_segment_fixed_size"),
            scratch_instructions=sum(_SCRATCH.match(line) is not None for line in body.lines),
            workgroup=_number(values, ".max_flat_workgroup_size"),
            wavefront=_number(values, ".wavefront_size"),
            instructions=sum(map(bool, body.mnemonics)),
            matrix=dict(sorted(Counter(filter(is_matrix, body.mnemonics)).items())),
            loop=dict(sorted(Counter(filter(None, _main_loop(body))).items())),
        )
        for values in _kernels(metadata)
        if (name := values.get(".name", "").strip("'\""))
        for body in [bodies.get(name, _Body())]
    ]


@dataclass
class _Body:
    """The lines of a kernel, with the mnemonic of each ("" for what is no instruction) and where its labels are."""

    lines: list[str] = field(default_factory=list)
    mnemonics: list[str] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def _bodies(code: str) -> dict[str, _Body]:
    bodies: dict[str, _Body] = {}
    current = _Body()
    for line in code.splitlines():
        label = _LABEL.match(line)
        if label is not None and not label[1].startswith((".L", ".l")):
            current = bodies.setdefault(label[1], _Body())
            continue
        if label is not None:
            current.labels[label[1]] = len(current.lines)
        found = None if label is not None else _INSTRUCTION.match(line)
        current.lines.append(line)
        current.mnemonics.append("" if found is None else found[1])
    return bodies


def _main_loop(body: _Body) -> Sequence[str]:
    """The mnemonics of the main loop, "" among them: see `Dispatch`."""
    multiplied = [number for number, mnemonic in enumerate(body.mnemonics) if is_matrix(mnemonic)]
    if not multiplied:
        return ()
    loops = [span for span in _loops(body) if any(number in span for number in multiplied)]
    inner = [span for span in loops if not any(other != span and _is_in(other, span) for other in loops)]
    if inner:
        best = max(inner, key=lambda span: sum(number in span for number in multiplied))
        return body.mnemonics[best.start : best.stop]
    return body.mnemonics[multiplied[0] : multiplied[-1] + 1]


def _loops(body: _Body) -> list[range]:
    """From a label to a branch back to it; of several branches to a label the last one counts."""
    ends: dict[int, int] = {}
    for number, (line, mnemonic) in enumerate(zip(body.lines, body.mnemonics, strict=True)):
        if mnemonic.startswith(("s_branch", "s_cbranch")):
            found = _INSTRUCTION.match(line)
            start = body.labels.get(found[2], number) if found is not None else number
            if start < number:
                ends[start] = number
    return [range(start, end + 1) for start, end in ends.items()]


def _is_in(one: range, other: range) -> bool:
    return other.start <= one.start and one.stop <= other.stop


def _kernels(metadata: str) -> list[dict[str, str]]:
    kernels: list[dict[str, str]] = []
    for line in metadata.splitlines():
        if line and not line.startswith(" "):
            break
        match = _FIELD.match(line)
        if match is None:
            continue
        if line.startswith("  - "):
            kernels.append({})
        if kernels:
            kernels[-1][match[1]] = match[2].strip()
    return kernels


def _number(values: dict[str, str], name: str) -> int:
    text = values.get(name, "0")
    return int(text) if text.isdecimal() else 0


def _dispatch_number(path: Path) -> tuple[int, str]:
    match = re.search(r"_dispatch_(\d+)", path.name)
    return (int(match[1]) if match else 0, path.name)
