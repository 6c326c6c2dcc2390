"""The only import of IREE's runtime, and the one VM instance of the process.

The instance is made before anything else: objects that are pushed into a list while no instance exists are never freed.
"""

from __future__ import annotations

import re
from typing import Final

from iree.runtime import (
    BufferUsage,
    HalBuffer,
    HalBufferView,
    HalCommandBuffer,
    HalDevice,
    HalDriver,
    HalElementType,
    HalFence,
    HalSemaphore,
    MemoryType,
    VmContext,
    VmFunction,
    VmInstance,
    VmModule,
    VmVariantList,
    create_hal_module,
    get_driver,
)
from iree.runtime._binding import disable_leak_checker
from iree.runtime.flags import parse_flags

__all__ = [
    "INSTANCE",
    "BufferUsage",
    "HalBuffer",
    "HalBufferView",
    "HalCommandBuffer",
    "HalDevice",
    "HalDriver",
    "HalElementType",
    "HalFence",
    "HalSemaphore",
    "MemoryType",
    "VmContext",
    "VmFunction",
    "VmInstance",
    "VmModule",
    "VmVariantList",
    "create_hal_module",
    "get_driver",
    "parse_flags",
    "reason",
]

# A program may hold executables until its interpreter ends; a report about that on its standard error helps nobody.
disable_leak_checker()

INSTANCE: Final = VmInstance()


_SOURCE: Final = re.compile(r"(?:Error invoking function: |querying semaphore: )?c/runtime/\S+?:\d+: ")


def reason(error: BaseException) -> str:
    """The text of an IREE error on one line, without paths of its source files and its call stack."""
    text = _SOURCE.sub("", " ".join(str(error).split()))
    parts = [part.strip() for part in text.split(";")]
    kept = [part for part in parts if part and not part.startswith(("while ", "["))]
    return "; ".join(kept)[:600] or type(error).__name__
