"""Recorded /proc/cpuinfo texts of other processors, and this process as if it ran on one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iree_bridge.targets import cpu, target

__all__ = ["RECORDED", "arch_of", "forget", "run_as_on"]

_FOLDER = Path(__file__).resolve().parents[1] / "data" / "cpuinfo"
RECORDED = {path.stem: path for path in sorted(_FOLDER.glob("*.txt"))}


def arch_of(recorded: Path) -> str:
    """``aarch64`` or ``x86_64``."""
    return "aarch64" if "CPU implementer" in recorded.read_text() else "x86_64"


def run_as_on(recorded: Path, patch: pytest.MonkeyPatch) -> None:
    """Have this process believe that its processor is the recorded one.

    Until ``patch`` is undone and `forget` called.
    """
    patch.setattr(cpu, "_CPUINFO", recorded)
    arch = arch_of(recorded)
    names = os.uname_result((*os.uname()[:4], arch))
    patch.setattr(os, "uname", lambda: names)
    forget()


def forget() -> None:
    """Have the processor looked at again."""
    for known in (cpu.host_extensions, cpu._host_flags, cpu.processor, target._parse):
        known.cache_clear()
