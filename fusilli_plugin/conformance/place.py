"""Where a plugin works while it is checked: a GPU, or the stand-in for HIP, whose device memory is host memory."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fusilli_plugin.conformance.areas import Area, DeviceArea, HostArea
from fusilli_plugin.edge.build import BuildError, compile_standin
from graph_api import FusilliError
from hipdnn_backend.device.memory import CudaMemory, HipMemory
from iree_bridge import Device

__all__ = ["STANDIN", "Place", "PlaceName", "merged_variables", "standin_folder"]

STANDIN: Final = "standin"
_SONAMES: Final = ("libamdhip64.so", "libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7")


@dataclass(frozen=True)
class PlaceName:
    """``standin``, or a GPU.

    Attributes:
        device: None for the stand-in.
    """

    device: Device | None = None

    @classmethod
    def parse(cls, text: str) -> PlaceName:
        """From what a user gives.

        Raises:
            FusilliError: it names no device, or the CPU.
        """
        if text == STANDIN:
            return cls()
        device = Device.parse(text)
        if not device.is_gpu:
            raise FusilliError(
                f"{text}: engine plugins take HIP's devices; {STANDIN} is a HIP library over host memory"
            )
        return cls(device)

    @classmethod
    def found(cls) -> PlaceName:
        """The first HIP device, or the stand-in where there is none."""
        try:
            HipMemory(0)
        except FusilliError:
            return cls()
        return cls(Device.parse("hip"))

    def __str__(self) -> str:
        return STANDIN if self.device is None else str(self.device)

    def variables(self, folder: Path | None) -> dict[str, str]:
        """What a process that checks a plugin has in its environment; our own engine is told to compute on the host."""
        if self.device is None:
            return {"FUSILLI_DEVICE": "cpu", "LD_LIBRARY_PATH": str(folder)}
        return {"FUSILLI_DEVICE": str(self.device)}


def standin_folder(folder: Path) -> Path:
    """A folder with the stand-in under the names by which plugins look for HIP.

    Raises:
        FusilliError: it cannot be compiled.
    """
    try:
        library = compile_standin(folder / _SONAMES[0])
    except BuildError as error:
        raise FusilliError(f"there is no HIP device, and {error}") from error
    for name in _SONAMES[1:]:
        (folder / name).symlink_to(library.name)
    return folder


class Place:
    """Memory and streams in a process that checks a plugin."""

    def __init__(self, name: PlaceName) -> None:
        """Load the runtime, before the plugin does.

        Raises:
            DeviceError: it cannot be used.
        """
        self.name = name
        device = name.device
        if device is None:
            self._standin: Any = ctypes.CDLL(_SONAMES[0], mode=ctypes.RTLD_GLOBAL)
            self._standin.standin_launch_count.restype = ctypes.c_uint64
            self._standin.standin_live_bytes.restype = ctypes.c_int64
            self.memory = HipMemory(0)
        else:
            self._standin = None
            self.memory = (CudaMemory if device.kind == "cuda" else HipMemory)(device.index)
            self.memory.runtime.typed("hipSetDevice")(device.index)

    @property
    def is_standin(self) -> bool:
        """Whether no kernel runs."""
        return self._standin is not None

    @property
    def launches(self) -> int:
        """Kernels that the stand-in was given so far; 0 on devices."""
        return self._standin.standin_launch_count() if self.is_standin else 0

    @property
    def live_bytes(self) -> int:
        """Bytes allocated on the stand-in and not freed; 0 on devices."""
        return self._standin.standin_live_bytes() if self.is_standin else 0

    def forget(self) -> None:
        """Drop the stand-in's records, which take memory."""
        if self.is_standin:
            self._standin.standin_reset()

    def area(self, size: int, *, odd: bool = False) -> Area:
        """A buffer that is watched, aligned to 256 bytes, or with ``odd`` to 16 and no more."""
        if self.is_standin:
            return HostArea(size, 256, offset=16 if odd else 0)
        return DeviceArea(self.memory, size, 16 if odd else 0)


def merged_variables(base: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """Variables for a child: what is set stays, but folders of libraries come first."""
    made = {**more, **base}
    if "LD_LIBRARY_PATH" in more:
        folders = [more["LD_LIBRARY_PATH"], base.get("LD_LIBRARY_PATH", "")]
        made["LD_LIBRARY_PATH"] = os.pathsep.join(folder for folder in folders if folder)
    return made
