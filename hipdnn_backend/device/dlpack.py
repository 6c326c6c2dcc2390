"""Arrays of other libraries, through DLPack, in the places of `device.memory`."""

from __future__ import annotations

from typing import Any, Final

from fusilli_ground import dlpack
from fusilli_ground.dlpack import Exported
from fusilli_ground.gpu_runtime import CUDA, HIP, Family

__all__ = ["place_of", "share"]

_FAMILIES: Final[dict[str, Family]] = {"cuda": CUDA, "hip": HIP}


def share(value: Any, stream: int) -> Exported:
    """The memory behind an object that speaks DLPack.

    Args:
        value: `fusilli_ground.dlpack.is_shareable`.
        stream: of a GPU, on which the memory will be used; the object's producer is waited for there.

    Raises:
        ValueError: the object refuses to share its memory, or has what is not known here.
    """
    # CUDA's default stream is 1 in DLPack's numbering, HIP's is 0.
    return dlpack.examine(value, lambda kind: stream or (0 if dlpack.GPU_KINDS.get(kind) == "hip" else 1))


def place_of(memory: Exported) -> str:
    """Where memory is: "" for host memory, else as `device.memory.Memory.name` has it, e.g. ``HIP device 0``."""
    if memory.kind in dlpack.HOST_KINDS:
        return ""
    family = _FAMILIES.get(dlpack.GPU_KINDS.get(memory.kind, ""))
    kind = f"DLPack device type {memory.kind}," if family is None else family.kind
    return f"{kind} device {memory.number}"
