"""The launcher, a C library: part of a wheel, built with the packages in a source tree."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
from pathlib import Path
from typing import Any, Final

from iree_bridge.targets.cpu import host_arch

__all__ = ["PATH", "launcher"]

_LOG: Final = logging.getLogger(__name__)
PATH: Final = Path(__file__).resolve().parent / "lib" / "libfusilli_launcher.so"
"""Where the library lies."""
_SOURCE: Final = Path(__file__).resolve().with_name("launcher.c")
_U32, _U64, _SIZE, _POINTER = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "launcher_load": (_POINTER, [_POINTER, _SIZE, ctypes.c_char_p, _SIZE]),
    "launcher_unload": (None, [_POINTER]),
    "launcher_exports": (_U32, [_POINTER]),
    "launcher_export": (ctypes.c_char_p, [_POINTER, _U32, ctypes.POINTER(_U64)]),
    "launcher_list": (_POINTER, [_U32, _U32, _U32, _U64]),
    "launcher_free": (None, [_POINTER]),
    "launcher_add_kernel": (None, [_POINTER, _POINTER, _U32, _POINTER, _POINTER, _POINTER]),
    "launcher_add_fill": (None, [_POINTER, _POINTER, _SIZE, _U32, _U32]),
    "launcher_add_copy": (None, [_POINTER, _POINTER, _SIZE]),
    "launcher_job_size": (_SIZE, [_POINTER]),
    "launcher_prepare": (None, [_POINTER, _POINTER, _POINTER]),
    "launcher_run": (ctypes.c_int, [_POINTER, _U32]),
    "launcher_times": (None, [_POINTER, _POINTER]),
}


@functools.cache
def launcher() -> Any:
    """The library with its functions bound; None where there is none: then IREE's driver launches."""
    if host_arch() not in ("x86_64", "aarch64"):
        return None
    try:
        library = ctypes.CDLL(str(PATH))
        library.launcher_version.restype = ctypes.c_char_p
        problem = "" if library.launcher_version().decode() == _version() else f"{PATH} is of another version"
    except (OSError, AttributeError) as error:
        problem = str(error)
    if problem:
        _LOG.warning(
            "CPU code is launched by IREE's driver, which takes longer: %s; reinstall the packages, or in a "
            "source tree run python -m fusilli_plugin.edge.build", problem
        )  # fmt: skip
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _version() -> str:
    """What the source beside this file hashes to, as the library says of itself."""
    return hashlib.sha256(_SOURCE.read_bytes()).hexdigest()
