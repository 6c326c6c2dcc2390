"""The environment, where it may be trusted."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["environment", "is_privileged"]

_AUXV_PAIR: Final = struct.calcsize("@NN")
_AT_SECURE: Final = 23  # <elf.h>: set by the kernel when a program gained privileges by being started


def environment() -> Mapping[str, str]:
    """The variables of the process; none where it has more rights than whoever started it.

    There they would let that user name code to load, a folder of plugins or caches for example. It is one rule for all
    variables, since for each of them a way to do harm may be found later.
    """
    return {} if is_privileged() else os.environ


def is_privileged() -> bool:
    """Whether this process runs with more rights than whoever started it: setuid, setgid, file capabilities."""
    if (os.getuid(), os.getgid()) != (os.geteuid(), os.getegid()):
        return True
    try:
        auxv = Path("/proc/self/auxv").read_bytes()
    except OSError:
        # The kernel hides this file from a process that gained rights (it is not "dumpable").
        return Path("/proc/self").exists()
    pairs = struct.iter_unpack("@NN", auxv[: len(auxv) // _AUXV_PAIR * _AUXV_PAIR])
    return any(key == _AT_SECURE and value for key, value in pairs)
