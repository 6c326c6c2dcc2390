"""Builds what is written in C, for wheels and, on demand, for source trees: shim, launcher, the emulator's core.

The shim is the shared library that hipDNN and ONNX Runtime load, the launcher runs compiled CPU code. Needs nothing but
a C compiler. ``python -m fusilli_plugin.edge.build`` builds the libraries into the packages; with ``--link`` it also
makes ``fusilli_plugin/edge/link.py`` anew, which a change of ``shim/link.h`` or ``shim/ort_link.h`` calls for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = [
    "CORE_LIBRARY",
    "LAUNCHER",
    "LIBRARY",
    "BuildError",
    "c_compiler",
    "compile_core",
    "compile_launcher",
    "compile_shim",
    "compile_standin",
    "core_version",
    "link_module",
    "link_text",
]

_PACKAGE: Final = Path(__file__).resolve().parents[1]
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

_LAUNCHER_SOURCE: Final = _PACKAGE.parent / "iree_bridge" / "runtime" / "host" / "launcher.c"
LAUNCHER: Final = _LAUNCHER_SOURCE.parent / "lib" / "libfusilli_launcher.so"
"""Where the launcher lies; ``iree_bridge/runtime/host/library.py`` loads it from there."""

_CORE: Final = _PACKAGE / "emulator" / "core"
CORE_LIBRARY: Final = _PACKAGE / "emulator" / "lib" / "libgfx_emulator.so"
"""Where the emulator's core lies."""
VERSION_MARK: Final = "sources:"
"""What stands in that library before the hash of its sources."""

_STANDIN: Final = _PACKAGE / "conformance" / "hip" / "standin_hip.c"

# Results must not depend on the compiler: no contraction of products and sums, no assumption about NaN.
_CORE_FLAGS: Final = (
    "-std=gnu11", "-O2", "-ftree-vectorize", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra", "-fPIC",
    "-shared", "-fvisibility=default",
)  # fmt: skip
_CORE_LINK_FLAGS: Final = ("-Wl,-z,now", "-Wl,-z,relro")


class BuildError(Exception):
    """A library could not be built. No FusilliError: setup.py loads this file by its path, without our packages."""


def compile_shim(output: Path = LIBRARY) -> Path:
    """Compile the shim to ``output``, in one step, so that a process that loads it sees a whole file.

    Raises:
        BuildError: there is no C compiler, or it fails.
    """
    compiler = c_compiler()
    sources = (str(_SHIM / name) for name in SOURCES)
    command = [*compiler, *_FLAGS, *_HARDENING, f'-DFUSILLI_VERSION="{_version()}"', *sources]
    return _compile("the shim", command, _LINK_FLAGS, output)


def compile_launcher(output: Path = LAUNCHER) -> Path:
    """Compile the launcher to ``output``, in one step.

    Raises:
        BuildError: there is no C compiler, or it fails.
    """
    version = hashlib.sha256(_LAUNCHER_SOURCE.read_bytes()).hexdigest()
    command = [*c_compiler(), *_FLAGS, *_HARDENING, f'-DLAUNCHER_VERSION="{version}"', str(_LAUNCHER_SOURCE)]
    return _compile("the launcher of CPU code", command, _LINK_FLAGS, output)


def compile_core(output: Path = CORE_LIBRARY) -> Path:
    """Compile the emulator's core to ``output``, in one step.

    Raises:
        BuildError: there is no C compiler, it fails, or the folder cannot be written.
    """
    command = [
        *c_compiler(),
        *_CORE_FLAGS,
        *_HARDENING,
        f'-DEMULATOR_VERSION="{VERSION_MARK}{core_version()}"',
        str(_CORE / "core.c"),
    ]
    return _compile("the emulator's core", command, (*_CORE_LINK_FLAGS, "-lm"), output)


def compile_standin(output: Path) -> Path:
    """Compile the stand-in for HIP's runtime to ``output``, in one step.

    Raises:
        BuildError: there is no C compiler, or it fails.
    """
    return _compile("the stand-in for HIP", [*c_compiler(), *_FLAGS, str(_STANDIN)], (), output)


def core_version() -> str:
    """What the core's sources hash to, which a library made of them says as well; empty if they are not there."""
    names = sorted(path for path in _CORE.glob("*") if path.suffix in (".c", ".h", ".def"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in names)).hexdigest()[:16] if names else ""


def _compile(what: str, command: list[str], libraries: tuple[str, ...], output: Path) -> Path:
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    command = [*command, "-o", str(temporary), *libraries]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        if done.returncode:
            raise BuildError(f"{what} could not be compiled: {shlex.join(command)}\n{done.stderr}")
        os.replace(temporary, output)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{what} could not be compiled: {error}") from error
    finally:
        with contextlib.suppress(OSError):
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
    """The source of ``fusilli_plugin/edge/link.py``: the declarations compiled, so that no parser runs in the host."""
    import tempfile

    import cffi

    ffi = cffi.FFI()
    ffi.set_source("fusilli_plugin.edge.link", None)
    ffi.cdef(link_text())
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "link.py")
        ffi.emit_python_code(str(made))
        body = made.read_text(encoding="utf-8").removeprefix("# auto-generated file\n")
    return (
        '"""Made of shim/link.h by ``python -m fusilli_plugin.edge.build --link``; not to be edited."""\n'
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
    raise BuildError("a C compiler is needed (cc, gcc or clang, or name one with CC); e.g. apt-get install gcc")


def _version() -> str:
    text = (_PACKAGE / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"\\]+)"', text, re.MULTILINE)
    if match is None:
        raise BuildError("fusilli_plugin/__init__.py states no __version__")
    return match[1]


def main(arguments: list[str]) -> None:
    """Entry point of ``python -m fusilli_plugin.edge.build``."""
    if "--link" in arguments:
        (_PACKAGE / "edge" / "link.py").write_text(link_module(), encoding="utf-8")
    sys.stdout.write(f"{compile_shim()}\n{compile_launcher()}\n{compile_core()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
