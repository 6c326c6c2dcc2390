"""Where the plugin lies, how it finds Python, and putting it where hipDNN looks.

An installed plugin derives its Python from its own path. Editable installs, source trees and copies cannot: a file
``libfusilli_plugin.conf`` beside the library tells them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shlex
import stat
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fusilli_ground.environment import environment, is_privileged
from fusilli_ground.files import write_whole
from fusilli_plugin.edge.build import LIBRARY, BuildError, compile_shim, is_current
from graph_api import FusilliError
from hipdnn_backend.plugins.search import ENGINES, backend_candidates, find_backend_library

__all__ = [
    "InstallError",
    "Installation",
    "engine_folder",
    "is_ours",
    "link_plugin",
    "merged_folder",
    "plugin_dir",
    "write_sidecar",
]

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_LOG: Final = logging.getLogger(__name__)
# What the shim starts in Python; no other library names it.
_MARK: Final = b"fusilli_plugin/_boot.py"
_MAX_LIBRARY: Final = 16 << 20


class InstallError(FusilliError):
    """The plugin could not be put in place; the message says why, and what would do it."""


@dataclass(frozen=True)
class Installation:
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
    def of_this_interpreter(cls) -> Installation:
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
            if is_privileged():
                raise BuildError("a process with more rights than whoever started it starts no compiler")
            compile_shim(LIBRARY)
    except BuildError as error:
        raise InstallError(f"the plugin cannot be built: {error}") from error
    if not is_derivable(LIBRARY):
        write_sidecar(LIBRARY, Installation.of_this_interpreter())
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


def write_sidecar(library: Path, place: Installation) -> Path:
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
        write_whole(path, text.encode(errors="surrogateescape"), mode=0o644)
    except OSError as error:
        raise InstallError(
            f"{path} cannot be written ({error.strerror}); the plugin needs it to find Python"
        ) from error
    return path


def link_plugin(into: Path) -> Path:
    """Put a link to the plugin into a folder of hipDNN's; returns the link.

    A link of that name and a copy of this plugin are replaced, in one step; another file stays.

    Raises:
        InstallError: something else has the plugin's name there, or the folder cannot be written; the message then has
            the command.
    """
    target = plugin_dir() / LIBRARY.name
    link = into / LIBRARY.name
    _refuse_foreign(link)
    folder, source, name = (shlex.quote(str(path)) for path in (into, target, link))
    try:
        into.mkdir(parents=True, exist_ok=True)
        _place_link(link, target)
    except OSError as error:
        raise InstallError(
            f"{into} cannot be written ({error.strerror}); run: sudo mkdir -p {folder} && sudo ln -sfn {source} {name}"
        ) from error
    return link


def _refuse_foreign(link: Path) -> None:
    if not link.is_symlink() and link.exists() and not is_ours(link):
        raise InstallError(
            f"{link} is not this plugin, so it stays; move it away, or name another folder with --into DIR"
        )


def is_ours(library: Path) -> bool:
    """Whether a file is a build of this plugin, of any version."""
    if not library.is_file():
        return False
    try:
        with library.open("rb") as file:
            return file.read(4) == b"\x7fELF" and _MARK in file.read(_MAX_LIBRARY)
    except OSError:
        return False


def _place_link(link: Path, target: Path) -> None:
    """Make ``link`` lead to ``target`` in one step; what was there is replaced.

    Raises:
        OSError: the folder cannot be written.
    """
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    temporary = link.with_name(f".{link.name}.{secrets.token_hex(8)}")
    temporary.symlink_to(target)
    try:
        os.replace(temporary, link)
    except OSError:
        temporary.unlink()
        raise


def merged_folder(others: Sequence[Path], root: Path) -> Path:
    """A folder with links to our plugin and to those of other folders: ``HIPDNN_PLUGIN_DIR`` takes one folder only.

    Each set of plugins has a folder of its own below ``root``, named after what it links, so that one that was handed
    out stays as it is. Any number of processes may ask at the same time.

    Raises:
        InstallError: a folder cannot be read, written or trusted, or two folders have different plugins of one name.
    """
    links = {LIBRARY.name: plugin_dir() / LIBRARY.name} | _plugins_of(others)
    listed = "".join(f"{name}\0{target}\0" for name, target in sorted(links.items()))
    folder = root / hashlib.sha256(os.fsencode(listed)).hexdigest()[:16]
    try:
        root.parent.parent.mkdir(parents=True, exist_ok=True)
        for private in (root.parent, root, folder):
            private.mkdir(mode=0o700, exist_ok=True)
            _require_private(private)
        # Links that are right already are not touched, so this also mends a folder that lost some.
        for name, target in links.items():
            _place_link(folder / name, target)
    except OSError as error:
        raise InstallError(f"the plugins cannot be linked into {folder}: {error}") from error
    return folder


def _plugins_of(folders: Sequence[Path]) -> dict[str, Path]:
    """Name and file of each plugin in the folders; one of our name is left out, ours takes its place."""
    found: dict[str, Path] = {}
    for folder in folders:
        try:
            libraries = [path for path in sorted(folder.iterdir()) if path.suffix == ".so" and path.is_file()]
        except OSError as error:
            raise InstallError(f"{folder} cannot be read: {error.strerror}") from error
        for library in libraries:
            target = library.resolve()
            if library.name == LIBRARY.name:
                if not is_ours(target):
                    _LOG.warning("%s is left out: it is another plugin with this one's name", library)
            elif found.setdefault(library.name, target) != target:
                raise InstallError(
                    f"{found[library.name]} and {target} have one name, and a folder holds one of them; leave one out"
                )
    return found


def _require_private(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InstallError(
            f"{folder} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}: hipDNN would load "
            "what others put there; make it yours alone (chown, chmod 700), or name another folder in FUSILLI_CACHE_DIR"
        )


def engine_folder() -> Path:
    """Where the hipDNN of this machine looks for plugins: beside its library.

    Raises:
        InstallError: there is no hipDNN; the message says where it was looked for.
    """
    backend = find_backend_library()
    if backend is not None and backend.is_file():
        return backend.resolve().parent / ENGINES
    named = [f"{backend} (HIPDNN_BACKEND_LIBRARY)"] if backend is not None else []
    looked = named or list(dict.fromkeys(str(path) for path in backend_candidates(environment())))
    raise InstallError(
        f"no hipDNN was found on this machine; looked for {', '.join(looked)}. Name the folder of its engine plugins "
        "with --into DIR, or its library in HIPDNN_BACKEND_LIBRARY"
    )


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
