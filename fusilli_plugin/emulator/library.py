"""The core, a C library: part of a wheel, built on demand in a source tree."""

from __future__ import annotations

import ctypes
import functools
import os
import stat
import threading
from pathlib import Path
from typing import Any, Final

from fusilli_ground.environment import is_privileged
from fusilli_plugin.edge.build import CORE_LIBRARY, VERSION_MARK, BuildError, compile_core, core_version
from fusilli_plugin.emulator.layout import Decoded, KernelLayout, MemoryLayout, Operand
from iree_bridge import Options

__all__ = ["Core", "core"]


class Core:
    """The library, bound; what it knows by name.

    Attributes:
        vectors, scalars: mnemonic → (number, signature) of vector and scalar arithmetic.
        handlers: name → number of what carries an instruction out.
        begin, go_on, end: a run of a kernel, which goes on as long as it is told to.

    Raises:
        BuildError: the file is no such library.
    """

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BuildError(f"the emulator's library cannot be loaded: {error}") from error
        self._check(library)
        self.vectors = self._table(library, "vector")
        self.scalars = self._table(library, "scalar")
        library.emulator_handler.restype = ctypes.c_char_p
        self.handlers = {library.emulator_handler(n).decode(): n for n in range(library.emulator_handlers())}
        self.begin: Any = library.emulator_begin
        self.begin.argtypes = [ctypes.POINTER(KernelLayout), ctypes.POINTER(MemoryLayout)]
        self.begin.restype = ctypes.c_void_p
        self.go_on: Any = library.emulator_go_on
        self.go_on.argtypes, self.go_on.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int
        self.end: Any = library.emulator_end
        self.end.argtypes, self.end.restype = [ctypes.c_void_p], None

    @staticmethod
    def _check(library: Any) -> None:
        ours = [ctypes.sizeof(each) for each in (Operand, Decoded, MemoryLayout, KernelLayout)]
        theirs = [library.emulator_sizes(n) for n in range(4)]
        if ours != theirs:
            raise BuildError(f"the emulator's library has structures of {theirs} bytes, this package of {ours}")

    @staticmethod
    def _table(library: Any, kind: str) -> dict[str, tuple[int, str]]:
        entry = getattr(library, f"emulator_{kind}")
        entry.argtypes, entry.restype = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)], ctypes.c_char_p
        signature = ctypes.c_char_p()
        found: dict[str, tuple[int, str]] = {}
        for number in range(getattr(library, f"emulator_{kind}s")()):
            name = entry(number, ctypes.byref(signature)).decode()
            found[name] = number, (signature.value or b"").decode()
        return found


def core() -> Core:
    """The core; built first in a source tree that has changed.

    A tree that cannot be written has its library in the user's cache folder. A privileged process starts no compiler.

    Raises:
        BuildError: it is not there and cannot be built.
    """
    with _LOCK:
        return _core()


_LOCK: Final = threading.Lock()


@functools.cache
def _core() -> Core:
    """The shipped core if it is current, else one built into the tree, or into the cache folder if that is ours."""
    version = core_version()
    kept = Options.from_env().cache_dir / "emulator" / f"libgfx_emulator-{version}.so"
    for path in (CORE_LIBRARY, kept):
        if (path is CORE_LIBRARY or _is_own(path)) and path.is_file() and _is_current(path, version):
            return Core(path)
    if is_privileged():
        reason = "a process with more rights than whoever started it starts no compiler"
        raise BuildError(f"{CORE_LIBRARY} is missing or old, and {reason}")
    if os.access(_nearest(CORE_LIBRARY.parent), os.W_OK):
        return Core(compile_core())
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = f"neither {CORE_LIBRARY.parent} nor {kept.parent} can be written"
        raise BuildError(f"the emulator's core cannot be kept: {reason} ({error})") from error
    made = compile_core(kept)
    if not _is_own(made):
        raise BuildError(
            f"{kept.parent} belongs to somebody else or can be written by others: nothing is loaded from it"
        )
    return Core(made)


def _is_current(path: Path, version: str) -> bool:
    """Whether a library was made of the sources beside it.

    Its bytes are searched for their hash, since a library that has been loaded once stays what it was.
    """
    try:
        return not version or f"{VERSION_MARK}{version}".encode() in path.read_bytes()
    except OSError:
        return False


def _is_own(path: Path) -> bool:
    """Whether a library and its folder are the user's alone, so that nobody else put it there."""
    try:
        facts = [path.stat(), path.parent.stat()]
    except OSError:
        return False
    shared = stat.S_IWGRP | stat.S_IWOTH
    return all(each.st_uid == os.getuid() and not each.st_mode & shared for each in facts)


def _nearest(folder: Path) -> Path:
    """The folder, or the one above it that is there."""
    return folder if folder.is_dir() else folder.parent
