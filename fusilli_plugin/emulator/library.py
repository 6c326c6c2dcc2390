"""The core, a C library: part of a wheel, built on demand in a source tree."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from fusilli_plugin.build import BuildError, c_compiler
from fusilli_plugin.emulator.layout import Decoded, KernelLayout, MemoryLayout, Operand

__all__ = ["LIBRARY", "Core", "compile_core", "core"]

_SOURCES: Final = Path(__file__).resolve().parent / "core"
LIBRARY: Final = Path(__file__).resolve().parent / "lib" / "libgfx_emulator.so"
"""Where the library lies."""

# Results must not depend on the compiler: no contraction of products and sums, no assumption about NaN.
_FLAGS: Final = (
    "-std=gnu11", "-O2", "-ftree-vectorize", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra",
    "-fPIC", "-shared", "-fvisibility=default",
)  # fmt: skip
_TIMEOUT: Final = 300  # seconds


def compile_core(output: Path = LIBRARY) -> Path:
    """Compile the core, in one step, so that a process that loads it sees a whole file.

    Raises:
        BuildError: there is no C compiler, or it fails.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    command = [*c_compiler(), *_FLAGS, str(_SOURCES / "core.c"), "-o", str(temporary), "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        if done.returncode:
            raise BuildError(f"the emulator's core could not be compiled:\n{done.stderr}")
        os.replace(temporary, output)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the emulator's core could not be compiled: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return output


class Core:
    """The library, bound; what it knows by name.

    Attributes:
        vectors, scalars: mnemonic → (number, signature) of vector and scalar arithmetic.
        handlers: name → number of what carries an instruction out.
        run: ``emulator_run``.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._check(library)
        self.vectors = self._table(library, "vector")
        self.scalars = self._table(library, "scalar")
        library.emulator_handler.restype = ctypes.c_char_p
        self.handlers = {library.emulator_handler(n).decode(): n for n in range(library.emulator_handlers())}
        self.run: Any = library.emulator_run
        self.run.argtypes = [ctypes.POINTER(KernelLayout), ctypes.POINTER(MemoryLayout)]
        self.run.restype = ctypes.c_int

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


@functools.cache
def core() -> Core:
    """The core; built first in a source tree that has changed.

    Raises:
        BuildError: it is not there and cannot be built.
    """
    sources = [path for path in _SOURCES.iterdir() if path.is_file()] if _SOURCES.is_dir() else []
    newest = max((path.stat().st_mtime for path in sources), default=0.0)
    if not LIBRARY.is_file() or LIBRARY.stat().st_mtime < newest:
        compile_core()
    return Core(LIBRARY)
