"""Builds the shim, the shared library that hipDNN and ONNX Runtime load: for wheels and, on demand, for source trees.

Needs nothing but a C compiler. ``python -m fusilli_plugin.build`` builds the library into this package;
with ``--link`` it also makes ``fusilli_plugin/_link.py`` anew, which a change of ``shim/link.h`` or ``shim/ort_link.h``
calls for.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["LIBRARY", "BuildError", "c_compiler", "compile_shim", "link_module", "link_text"]

_PACKAGE: Final = Path(__file__).resolve().parent
_SHIM: Final = _PACKAGE / "shim"
SOURCES: Final = ("place.c", "python.c", "hipdnn.c", "launches.c", "ort.c")
HEADERS: Final = ("shim.h", "link.h", "ort_link.h")
LIBRARY: Final = _PACKAGE / "lib" / "libfusilli_plugin.so"
"""Where the library lies: alone in its folder, because hipDNN loads every library of a folder that it is given."""

_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
# What a distribution's compiler may set by itself, to another level.
_HARDENING: Final = ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-fstack-protector-strong")
# Unloading the library would leave Python with callbacks into nothing, so it stays mapped; see the shim.
_LINK_FLAGS: Final = ("-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--as-needed", "-ldl")
_TIMEOUT: Final = 300  # seconds


class BuildError(Exception):
    """The shim could not be built."""


def compile_shim(output: Path = LIBRARY) -> Path:
    """Compile the shim to ``output``, in one step, so that a process that loads it sees a whole file.

    Raises:
        BuildError: there is no C compiler, or it fails.
    """
    compiler = c_compiler()
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    command = [
        *compiler, *_FLAGS, *_HARDENING, f'-DFUSILLI_VERSION="{_version()}"', *(str(_SHIM / name) for name in SOURCES),
        "-o", str(temporary), *_LINK_FLAGS,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        if done.returncode:
            raise BuildError(f"the shim could not be compiled: {shlex.join(command)}\n{done.stderr}")
        os.replace(temporary, output)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the shim could not be compiled: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return output


def is_current(library: Path = LIBRARY) -> bool:
    """Whether the library is there and not older than the sources that lie beside it."""
    if not library.is_file():
        return False
    made = library.stat().st_mtime
    sources = [_SHIM / name for name in (*SOURCES, *HEADERS)]
    return all(source.stat().st_mtime <= made for source in sources if source.is_file())


def link_text() -> str:
    """The declarations of ``shim/link.h`` and ``shim/ort_link.h``, in the form that cffi reads."""
    text = "".join((_SHIM / name).read_text(encoding="utf-8") for name in ("link.h", "ort_link.h"))
    return re.sub(r"//[^\n]*", "", text)


def link_module() -> str:
    """The source of ``fusilli_plugin/_link.py``: the declarations compiled, so that no parser runs in the host."""
    import tempfile

    import cffi

    ffi = cffi.FFI()
    ffi.set_source("fusilli_plugin._link", None)
    ffi.cdef(link_text())
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "_link.py")
        ffi.emit_python_code(str(made))
        body = made.read_text(encoding="utf-8").removeprefix("# auto-generated file\n")
    return (
        '"""Made of shim/link.h by ``python -m fusilli_plugin.build --link``; not to be edited."""\n'
        f"\n# ruff: noqa\n# fmt: off\n# pyright: basic\n{body}"
    )


def c_compiler() -> list[str]:
    """The command of a C compiler.

    Raises:
        BuildError: there is none.
    """
    named = shlex.split(os.environ.get("CC", ""))
    for words in (named, ["cc"], ["gcc"], ["clang"]):
        if words and shutil.which(words[0]):
            return words
    raise BuildError("the shim needs a C compiler (cc, gcc or clang, or name one with CC); e.g. apt-get install gcc")


def _version() -> str:
    text = (_PACKAGE / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"\\]+)"', text, re.MULTILINE)
    if match is None:
        raise BuildError("fusilli_plugin/__init__.py states no __version__")
    return match[1]


def main(arguments: list[str]) -> None:
    """Entry point of ``python -m fusilli_plugin.build``."""
    if "--link" in arguments:
        (_PACKAGE / "_link.py").write_text(link_module(), encoding="utf-8")
    print(compile_shim())


if __name__ == "__main__":
    main(sys.argv[1:])
