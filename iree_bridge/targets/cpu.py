"""The processor of this machine: which instruction-set extensions it reports, and whether code may run here."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from iree_bridge.targets import extensions

__all__ = ["host_arch", "host_extensions", "missing_features", "processor", "usable_cpus"]

_CPUINFO: Final = Path("/proc/cpuinfo")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Processors that this process may run on, and no more than the time that its container gets is worth."""
    allowed = len(os.sched_getaffinity(0))
    quota = _quota(_CGROUPS)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


@cache
def _quota(groups: Path) -> float | None:
    """Seconds of processor time for each second, of the control group that a container sees as its root; None: any."""
    try:
        if (whole := groups / "cpu.max").is_file():  # version 2
            share, period = whole.read_text("ascii").split()
        else:
            share, period = (
                (groups / "cpu" / f"cpu.cfs_{name}_us").read_text("ascii").strip() for name in ("quota", "period")
            )
        return float(share) / float(period) if float(share) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max": no limit
        return None


def host_arch() -> str:
    """``x86_64``, ``aarch64``, ..."""
    return os.uname().machine


@cache
def host_extensions() -> tuple[str, ...]:
    """The extensions of this machine that code may use, sorted.

    In LLVM's spelling for x86-64 and Arm; elsewhere all that the kernel lists, as it spells them.
    """
    known = extensions.told(_host_flags(), host_arch())
    return tuple(sorted(_host_flags())) if known is None else known


@cache
def processor() -> str:
    """What this machine calls its processor, and how many of them a process may use."""
    values = {key.strip(): value.strip() for key, _, value in
              (line.partition(":") for line in _first_processor().split("\n\n")[0].splitlines())}  # fmt: skip
    name = values.get("model name") or values.get("CPU part") or host_arch()
    return f"{name} x{usable_cpus()}"


def missing_features(required: Iterable[str]) -> tuple[str, ...]:
    """Those of ``required`` that code can depend on and this machine does not report.

    Names are LLVM's or the kernel's, a leading ``+`` allowed. What ordinary code cannot use is not looked for: lists of
    earlier versions hold all that LLVM attributes to a processor.
    """
    return tuple(sorted(set(extensions.needed(required, host_arch())) - set(host_extensions()) - _host_flags()))


@cache
def _host_flags() -> frozenset[str]:
    return cpuinfo_flags(_first_processor())


def cpuinfo_flags(text: str) -> frozenset[str]:
    """The flags of the first processor in a text of /proc/cpuinfo."""
    lines = [line.partition(":") for line in text.split("\n\n")[0].splitlines()]
    values = {key.strip(): value for key, _, value in lines}
    return frozenset((values.get("flags") or values.get("Features") or "").split())


def _first_processor() -> str:
    """What the kernel says of the first processor; "" if it says nothing."""
    try:
        fd = os.open(_CPUINFO, os.O_RDONLY)
    except OSError:
        return ""
    try:
        # One block holds it; reading the file to its end takes milliseconds on large machines.
        return os.read(fd, 16384).decode("ascii", "replace")
    finally:
        os.close(fd)
