"""Where hipDNN looks for engine plugins, and where its own library is.

Rules: a folder is scanned, not recursively, for regular files that end in ``.so``; a file may be named without ``lib``
and ``.so``; links are followed first, so ``libx.so -> libx.so.1.2`` is no plugin; relative paths start at the folder of
``libhipdnn_backend.so``; ``HIPDNN_PLUGIN_DIR`` is one folder or file and replaces the default; what remains is loaded
in the order of its paths. Sources: hipDNN's environment page, and what its backend of November 2025 was seen doing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from fusilli_ground.environment import environment, is_privileged
from fusilli_ground.mapped import mapped_files

__all__ = [
    "BACKEND_LIBRARY",
    "ENGINES",
    "LoadingMode",
    "PluginFiles",
    "Problem",
    "backend_candidates",
    "find_backend_library",
    "find_plugin_files",
]

BACKEND_LIBRARY: Final = "libhipdnn_backend.so"
ENGINES: Final = Path("hipdnn_plugins", "engines")
_SYSTEM_FOLDERS: Final = ("/opt/rocm/lib", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")


class LoadingMode(IntEnum):
    """hipdnnPluginLoadingMode_ext_t: whether given paths join the default ones or replace them."""

    ADDITIVE = 0
    ABSOLUTE = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that was looked at and left out.

    Attributes:
        source: path of a library, or name of an entry point.
        reason: why, in one sentence.
    """

    source: str
    reason: str

    def __str__(self) -> str:
        return f"{self.source}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PluginFiles:
    """What a search found.

    Attributes:
        files: canonical paths in the order of loading.
        problems: paths that lead nowhere.
    """

    files: tuple[Path, ...]
    problems: tuple[Problem, ...]


def find_backend_library(environ: Mapping[str, str] | None = None) -> Path | None:
    """hipDNN's backend on this machine, None if there is none.

    ``HIPDNN_BACKEND_LIBRARY`` names the file; then come the folder in hipDNN's own ``HIPDNN_BACKEND_LIBRARY_PATH``, a
    library that is mapped already, ``LD_LIBRARY_PATH``, ``ROCM_PATH`` and the system's folders.

    Args:
        environ: default: that of the process, see `environment`.
    """
    environ = environment() if environ is None else environ
    named = environ.get("HIPDNN_BACKEND_LIBRARY")
    if named:
        return Path(named)  # the user's word: that it is missing shows when it is loaded
    return next((path for path in backend_candidates(environ) if os.path.isfile(path)), None)


def backend_candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where hipDNN's library may be if ``HIPDNN_BACKEND_LIBRARY`` does not name it, best first."""
    folder = environ.get("HIPDNN_BACKEND_LIBRARY_PATH", "")
    if os.path.isabs(folder):
        yield Path(folder, BACKEND_LIBRARY)
    yield from map(Path, mapped_files(BACKEND_LIBRARY))
    folders = [*environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)]
    folders += [os.path.join(root, "lib") for name in ("ROCM_PATH", "HIP_PATH") if (root := environ.get(name))]
    for name in (*folders, *_SYSTEM_FOLDERS):
        if os.path.isabs(name):  # the current directory decides nothing
            yield Path(name, BACKEND_LIBRARY)


def find_plugin_files(
    paths: Iterable[str | os.PathLike[str]] = (),
    *,
    mode: LoadingMode = LoadingMode.ADDITIVE,
    environ: Mapping[str, str] | None = None,
    backend: Path | None = None,
) -> PluginFiles:
    """The engine plugins that hipDNN would load.

    Args:
        paths: folders and files beside, or instead of, the default ones.
        mode: which of the two.
        environ: default: that of the process, see `environment`.
        backend: hipDNN's library, at whose folder relative paths start; default: `find_backend_library`.
    """
    environ = environment() if environ is None else environ
    backend = backend or find_backend_library(environ)
    root = None if backend is None else backend.resolve().parent
    problems: list[Problem] = []
    if environ is not os.environ and "HIPDNN_PLUGIN_DIR" in os.environ and is_privileged():
        problems.append(Problem("HIPDNN_PLUGIN_DIR", "it is ignored in a process with another user's rights"))
    wanted = [Path(path) for path in paths]
    if mode is LoadingMode.ADDITIVE:
        wanted += _default(environ, root)
    found: set[Path] = set()
    for path in wanted:
        try:
            files = _expand(path, root)
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links
            problems.append(Problem(str(path), getattr(error, "strerror", None) or str(error)))
            continue
        for file in files:
            if file.suffix == ".so":
                found.add(file)
            else:
                reason = f"a plugin's file has to end in .so once links are followed; this is {file.name}"
                problems.append(Problem(str(path), reason))
    return PluginFiles(tuple(sorted(found)), tuple(problems))


def _default(environ: Mapping[str, str], root: Path | None) -> list[Path]:
    """What ``HIPDNN_PLUGIN_DIR`` says, otherwise the folder beside the backend if there is one."""
    named = environ.get("HIPDNN_PLUGIN_DIR", "")
    if named:
        return [Path(named)]
    return [root / ENGINES] if root is not None and os.path.isdir(root / ENGINES) else []


def _expand(path: Path, root: Path | None) -> list[Path]:
    """The files behind a path, links followed.

    Raises:
        ValueError: there is none; the message says why.
    """
    if not path.is_absolute():
        if root is None:
            raise ValueError(
                "relative paths start at the folder of hipDNN's library, and no hipDNN was found; give an absolute path"
            )
        path = root / path
    path = path.resolve()
    if os.path.isdir(path):
        return [file.resolve() for file in path.iterdir() if file.suffix == ".so" and file.is_file()]
    if not path.suffix:
        path = path.with_name(f"lib{path.name}.so")
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    return [path.resolve()]
