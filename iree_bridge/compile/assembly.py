"""Reading AMD assembly: registers, spills, memory and matrix instructions of each kernel that the compiler produced."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Dispatch", "parse_assembly", "read_assembly", "read_dispatches"]

_MATRIX: Final = re.compile(r"^\s+(v_(?:mfma|smfmac|wmma|swmmac)_\w+)")
_SCRATCH: Final = re.compile(r"^\s+(?:scratch_(?:load|store)|buffer_(?:load|store)\w* .*\boff\b.*\bs\[0:3\])")
_LABEL: Final = re.compile(r"^'?\"?([\w$.]+)'?\"?:")
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
        matrix: matrix instructions in the code, by mnemonic.
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
    matrix: dict[str, int] = field(default_factory=dict)


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
    """The kernels in one AMD assembly file, in the order of its metadata; none if it has no metadata."""
    code, _, metadata = text.partition("\namdhsa.kernels:")
    matrix, scratch = _instructions(code)
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
            scratch_instructions=scratch[name],
            workgroup=_number(values, ".max_flat_workgroup_size"),
            wavefront=_number(values, ".wavefront_size"),
            matrix=dict(sorted(matrix.get(name, Counter()).items())),
        )
        for values in _kernels(metadata)
        if (name := values.get(".name", "").strip("'\""))
    ]


def _instructions(code: str) -> tuple[dict[str, Counter[str]], Counter[str]]:
    matrix: dict[str, Counter[str]] = {}
    scratch: Counter[str] = Counter()
    current = ""
    for line in code.splitlines():
        label = _LABEL.match(line)
        if label is not None and not label[1].startswith((".L", ".l")):
            current = label[1]
        elif (found := _MATRIX.match(line)) is not None:
            matrix.setdefault(current, Counter())[found[1]] += 1
        elif _SCRATCH.match(line):
            scratch[current] += 1
    return matrix, scratch


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
