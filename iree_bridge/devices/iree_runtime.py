"""The only import of IREE's runtime, and the one VM instance of the process.

The instance is made before anything else: objects that are pushed into a list while no instance exists are never freed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from iree.runtime import _binding as _native
else:
    # The library alone: the Python package around it takes as long to import as half of our own packages, and nothing
    # of it is used here.
    from iree._runtime.libs import _runtime as _native

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

BufferUsage = _native.BufferUsage
HalBuffer = _native.HalBuffer
HalBufferView = _native.HalBufferView
HalCommandBuffer = _native.HalCommandBuffer
HalDevice = _native.HalDevice
HalDriver = _native.HalDriver
HalElementType = _native.HalElementType
HalFence = _native.HalFence
HalSemaphore = _native.HalSemaphore
MemoryType = _native.MemoryType
VmContext = _native.VmContext
VmFunction = _native.VmFunction
VmInstance = _native.VmInstance
VmModule = _native.VmModule
VmVariantList = _native.VmVariantList
create_hal_module = _native.create_hal_module
get_driver = _native.get_cached_hal_driver
parse_flags = _native.parse_flags

# A program may hold executables until its interpreter ends; a report about that on its standard error helps nobody.
_native.disable_leak_checker()

INSTANCE: Final = VmInstance()


_SOURCE: Final = re.compile(r"(?:Error invoking function: |querying semaphore: )?c/runtime/\S+?:\d+: ")


def reason(error: BaseException) -> str:
    """The text of an IREE error on one line, without paths of its source files and its call stack."""
    text = _SOURCE.sub("", " ".join(str(error).split()))
    parts = [part.strip() for part in text.split(";")]
    kept = [part for part in parts if part and not part.startswith(("while ", "["))]
    return "; ".join(kept)[:600] or type(error).__name__
