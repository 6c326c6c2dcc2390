"""Where the plugin lies, how it finds Python, and putting it where hipDNN looks.

An installed plugin derives its Python from its own path. Editable installs, source trees and copies cannot: a file
``libfusilli_plugin.conf`` beside the library tells them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fusilli_plugin.build import LIBRARY, BuildError, compile_shim, is_current
from graph_api import FusilliError

__all__ = [
    "InstallError",
    "Place",
    "default_engine_folder",
    "link_plugin",
    "merged_folder",
    "plugin_dir",
    "write_sidecar",
]

_PACKAGE: Final = Path(__file__).resolve().parent
_ENGINES: Final = Path("hipdnn_plugins", "engines")
_ROCM: Final = Path("/opt/rocm/lib")


class InstallError(FusilliError):
    """The plugin could not be put in place; the message has the command that would do it."""


@dataclass(frozen=True)
class Place:
    """What a plugin has to know to start Python.

    Attributes:
        root: folder of the packages.
        python: interpreter of the environment that has their dependencies.
        libpython: its shared library, path or soname.
        version: e.g. ``3.11``.
    """

    root: Path
    python: Path
    libpython: str
    version: str

    @classmethod
    def of_this_interpreter(cls) -> Place:
        """This interpreter and the packages that are imported here."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return cls(_PACKAGE.parent, Path(sys.executable or ""), _libpython(), version)


def plugin_dir() -> Path:
    """The folder to give to hipDNN: ``hipdnn_frontend.set_engine_plugin_paths([...])`` or ``HIPDNN_PLUGIN_DIR``.

    In a source tree the library is built when it is missing or old.

    Raises:
        InstallError: it cannot be built, or the folder cannot be written where that is needed.
    """
    try:
        if not is_current(LIBRARY):
            compile_shim(LIBRARY)
    except BuildError as error:
        raise InstallError(f"the plugin cannot be built: {error}") from error
    if not is_derivable(LIBRARY):
        write_sidecar(LIBRARY, Place.of_this_interpreter())
    return LIBRARY.parent


def is_derivable(library: Path) -> bool:
    """Whether the shim finds Python from the path of its library alone, as in an installed wheel."""
    *_, name, site, package, folder, _ = library.resolve().parts
    if (package, folder) != ("fusilli_plugin", "lib") or not site.endswith("-packages"):
        return False
    prefix = library.resolve().parents[5]
    return name == f"python{_short_version()}" and any(
        (prefix / "bin" / python).exists() for python in (name, "python3")
    )


def write_sidecar(library: Path, place: Place) -> Path:
    """Tell a library where its Python is.

    Raises:
        InstallError: the file cannot be written.
    """
    lines = [
        "# Read by the library beside this file; written by fusilli-plugin.",
        f"root = {place.root}",
        f"python = {place.python}",
        f"libpython = {place.libpython}",
        f"version = {place.version}",
    ]
    if any("\n" in line or "\r" in line for line in lines):
        raise InstallError(f"a path with a line break cannot be told to the plugin: {place}")
    path = library.with_suffix(".conf")
    text = "".join(f"{line}\n" for line in lines)
    try:
        if path.is_file() and path.read_text(errors="surrogateescape") == text:
            return path
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with open(handle, "w", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise InstallError(
            f"{path} cannot be written ({error.strerror}); the plugin needs it to find Python"
        ) from error
    return path


def link_plugin(into: Path) -> Path:
    """Put a link to the plugin into a folder of hipDNN's; returns the link.

    Raises:
        InstallError: the folder cannot be written; the message has the command.
    """
    target = plugin_dir() / LIBRARY.name
    link = into / LIBRARY.name
    command = f"sudo mkdir -p '{into}' && sudo ln -sfn '{target}' '{link}'"
    try:
        into.mkdir(parents=True, exist_ok=True)
        if link.is_symlink() or link.exists():
            if link.resolve() == target.resolve():
                return link
            link.unlink()
        link.symlink_to(target)
    except OSError as error:
        raise InstallError(f"{into} cannot be written ({error.strerror}); run: {command}") from error
    return link


def merged_folder(others: Sequence[Path], into: Path) -> Path:
    """A folder with links to our plugin and to those of other folders: ``HIPDNN_PLUGIN_DIR`` takes one folder only.

    Raises:
        InstallError: a folder cannot be read or written.
    """
    try:
        into.mkdir(parents=True, exist_ok=True)
        for old in into.glob("*.so"):
            if old.is_symlink():
                old.unlink()
        for folder in others:
            for library in sorted(folder.iterdir()):
                if library.suffix == ".so" and library.is_file():
                    (into / library.name).symlink_to(library.resolve())
        link_plugin(into)
    except OSError as error:
        raise InstallError(f"the plugins cannot be linked into {into}: {error}") from error
    return into


def default_engine_folder() -> Path:
    """Where the hipDNN of this machine looks for plugins: beside its library."""
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    rocm = os.environ.get("ROCM_PATH")
    folders += [Path(rocm, "lib")] if rocm else []
    for folder in (*folders, _ROCM):
        library = folder / "libhipdnn_backend.so"
        if library.exists():
            return library.resolve().parent / _ENGINES
    return _ROCM / _ENGINES


def _libpython() -> str:
    """Path of the interpreter's shared library, its soname if the file is not where the interpreter was built for."""
    name = str(sysconfig.get_config_var("INSTSONAME") or "")
    if ".so" not in name:
        name = f"libpython{_short_version()}.so.1.0"
    for folder in (sysconfig.get_config_var("LIBDIR"), os.path.join(sys.base_prefix, "lib")):
        path = Path(str(folder), name)
        if folder and path.exists():
            return str(path)
    return name


def _short_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
