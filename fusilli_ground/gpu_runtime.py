"""HIP's runtime, and CUDA's under names of its own, through ctypes: the one place that does.

A process must have one of them: a second HIP runtime would see no devices. So the library that is mapped comes first.
What launches call thousands of times is taken without argument types (`GpuRuntime.raw`), everything else with them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any, Final, NamedTuple

from fusilli_ground.mapped import mapped_files

__all__ = ["CUDA", "HIP", "PROTOTYPES", "Family", "GpuRuntime", "kernel_module"]


class Family(NamedTuple):
    """A runtime.

    Attributes:
        kind: for messages.
        prefix: of the functions' names.
        libraries: names of its library; the first begins every one's.
    """

    kind: str
    prefix: str
    libraries: tuple[str, ...]


HIP: Final = Family("HIP", "hip", ("libamdhip64.so",))
CUDA: Final = Family("CUDA", "cuda", ("libcudart.so", "libcudart.so.13", "libcudart.so.12"))
"""CUDA's runtime has HIP's functions and constants under names of its own. Importing torch maps it."""

PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "hipDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "hipDeviceGetUuid": (c_void_p, c_int),
    "hipDeviceSynchronize": (),
    "hipEventCreateWithFlags": (POINTER(c_void_p), c_uint),
    "hipEventDestroy": (c_void_p,),
    "hipEventRecord": (c_void_p, c_void_p),
    "hipEventSynchronize": (c_void_p,),
    "hipFree": (c_void_p,),
    "hipGetDevice": (POINTER(c_int),),
    "hipGetDeviceCount": (POINTER(c_int),),
    "hipGetLastError": (),
    "hipGraphDestroy": (c_void_p,),
    "hipGraphExecDestroy": (c_void_p,),
    "hipGraphInstantiate": (POINTER(c_void_p), c_void_p, c_void_p, c_void_p, c_size_t),
    "hipGraphLaunch": (c_void_p, c_void_p),
    "hipMalloc": (POINTER(c_void_p), c_size_t),
    "hipMemcpy": (c_void_p, c_void_p, c_size_t, c_int),
    "hipMemcpy2DAsync": (c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_size_t, c_int, c_void_p),
    "hipMemcpyAsync": (c_void_p, c_void_p, c_size_t, c_int, c_void_p),
    "hipRuntimeGetVersion": (POINTER(c_int),),
    "hipSetDevice": (c_int,),
    "hipStreamBeginCapture": (c_void_p, c_int),
    "hipStreamCreateWithFlags": (POINTER(c_void_p), c_uint),
    "hipStreamDestroy": (c_void_p,),
    "hipStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "hipStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "hipStreamSynchronize": (c_void_p,),
    "hipStreamWaitEvent": (c_void_p, c_void_p, c_uint),
}
"""Argument types by HIP's names; all return an error number."""


class GpuRuntime:
    """The library, and its functions by HIP's names.

    Attributes:
        family: whose it is.
        path: where it is, or the name that the loader found it under.
    """

    def __init__(self, family: Family, path: str | None = None) -> None:
        """Load it.

        Args:
            family: `HIP` or `CUDA`.
            path: default: the one that is mapped, otherwise what the loader finds.

        Raises:
            OSError: there is none.
        """
        self.family = family
        self._library = _first((path,) if path else (*mapped_files(family.libraries[0]), *family.libraries))
        self.path = self._library._name

    def name_of(self, name: str) -> str:
        """What the family calls HIP's ``name``."""
        return self.family.prefix + name.removeprefix("hip")

    def missing(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of ``names`` that the library does not have."""
        return tuple(self.name_of(name) for name in names if not hasattr(self._library, self.name_of(name)))

    def typed(self, name: str) -> Any:
        """A function of `PROTOTYPES`.

        Raises:
            AttributeError: the library does not have it.
        """
        function = self.raw(name)
        function.argtypes, function.restype = PROTOTYPES[name], c_int
        return function

    def raw(self, name: str) -> Any:
        """A function that takes ctypes objects, or small integers, and returns an error number.

        Raises:
            AttributeError: the library does not have it.
        """
        return self._library[self.name_of(name)]  # not the attribute, whose types all would share

    def error_name(self, error: int) -> str:
        """The runtime's name of an error number."""
        return self._text("hipGetErrorName", error) or f"error {error}"

    def error_text(self, error: int) -> str:
        """What the runtime says of an error number."""
        return self._text("hipGetErrorString", error) or "no text"

    def _text(self, name: str, error: int) -> str:
        function = self.raw(name)
        function.argtypes, function.restype = (c_int,), c_char_p
        text = function(error)
        return text.decode(errors="replace") if text else ""


def _first(paths: tuple[str, ...]) -> ctypes.CDLL:
    for path in paths[:-1]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return ctypes.CDLL(paths[-1])


def kernel_module(name: str) -> str:
    """The version of a kernel module, or what tells builds of it apart; "" if it is not loaded."""
    folder = Path("/sys/module", name)
    for file in ("version", "srcversion"):
        try:
            return f"{name} {(folder / file).read_text(encoding='ascii', errors='replace').strip()}"
        except OSError:
            continue
    return f"{name} of Linux {os.uname().release}" if folder.exists() else ""
