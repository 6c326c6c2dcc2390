"""What a compile worker needs to start, and whether it is here. Light: applicability asks it of every graph."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fusilli_ground.environment import environment
from iree_bridge.compile.options import Options

__all__ = ["START_MEMORY", "NoInterpreterError", "failed", "find_python", "hold_all", "problem", "succeeded"]

# The folders that hold these are passed on: they may not be those that the worker's interpreter looks into by itself.
_WORKER_NEEDS: Final = ("iree/compiler/_mlir_libs", "numpy", "ml_dtypes")
_WORKER: Final = Path(__file__).resolve().parent / "worker.py"
# What Python and the bindings take; with less, a start fails in ways that do not always name memory.
START_MEMORY: Final = 110 << 20  # bytes
_FAILURE_COUNTS: Final = 30.0  # seconds
_FINE_FOR: Final = 10.0  # seconds until what a start needs is looked for again
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/usr/tmp")

_failures: Final[dict[object, tuple[str, float]]] = {}
_fine: Final[dict[object, float]] = {}


class NoInterpreterError(Exception):
    """There is no Python for a worker."""


def failed(options: Options, reason: str) -> None:
    """Remember that a worker did not start."""
    _failures[_key(options)] = (reason, time.monotonic())
    _fine.pop(_key(options), None)


def succeeded(options: Options) -> None:
    """Forget that a worker did not start."""
    _failures.pop(_key(options), None)


def problem(options: Options) -> str:
    """Why no worker could be started now, as far as that can be told without starting one; "" if nothing is known.

    A start that failed counts for half a minute.
    """
    key, now = _key(options), time.monotonic()
    text, when = _failures.get(key, ("", 0.0))
    if text and now - when < _FAILURE_COUNTS:
        return text
    if now < _fine.get(key, 0.0):
        return ""
    found = _look(options)
    if not found:
        _fine[key] = now + _FINE_FOR
    return found


def _look(options: Options) -> str:
    if options.memory < START_MEMORY:
        return f"the compile worker does not start within {options.memory} bytes (FUSILLI_COMPILE_MEMORY)"
    try:
        python, _ = find_python(options)
    except NoInterpreterError as error:
        return str(error)
    if not os.access(python, os.X_OK) or os.path.isdir(python):
        return f"{python} is no interpreter for the compile worker (FUSILLI_PYTHON)"
    folders = [*filter(None, map(environment().get, ("TMPDIR", "TEMP", "TMP"))), *_TEMPORARY]
    if not any(os.access(folder, os.W_OK | os.X_OK) for folder in folders):
        return f"no temporary folder for a compile worker: {', '.join(folders)} cannot be written; set TMPDIR"
    return ""


def _key(options: Options) -> object:
    return (options.python, options.memory, options.extra_flags)  # of which a worker may not know one


def find_python(options: Options) -> tuple[Path, tuple[str, ...]]:
    """The interpreter for workers, and folders to add to its path.

    An embedding host's ``sys.executable`` may be the host itself, or a Python without the compiler. The one beside the
    installed compiler is right; then the one beside this package; ``sys.executable`` comes last.

    Raises:
        NoInterpreterError: no interpreter was found.
    """
    if options.python is not None:
        return options.python, ()
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = [_folder_with(package) for package in _WORKER_NEEDS]
    sites = tuple(dict.fromkeys(folder for folder in found if folder))
    own = str(_WORKER.parents[2])
    for folder in dict.fromkeys(folder for folder in (found[0], own) if folder):
        prefix = _prefix(Path(folder))
        if prefix is None or not os.path.isdir(prefix / "lib" / name):
            continue
        for candidate in (prefix / "bin" / name, prefix / "bin" / "python3"):
            if os.access(candidate, os.X_OK):
                return candidate, sites
    if sys.executable and Path(sys.executable).name.startswith("python"):
        return Path(sys.executable), sites
    raise NoInterpreterError("no Python interpreter was found for the compile worker; set FUSILLI_PYTHON")


def _folder_with(package: str) -> str | None:
    """The first folder of ``sys.path`` that holds ``package``, a path relative to it."""
    held = (folder for folder in sys.path if folder and os.path.isdir(os.path.join(folder, package)))
    return next((os.path.abspath(folder) for folder in held), None)


def hold_all(sites: Sequence[str]) -> bool:
    """Whether the folders have all that a worker imports."""
    return all(any(os.path.isdir(os.path.join(site, package)) for site in sites) for package in _WORKER_NEEDS)


def _prefix(site: Path) -> Path | None:
    """The installation that ``<prefix>/lib/python3*/site-packages`` belongs to; None for any other folder."""
    installed = site.name in ("site-packages", "dist-packages") and site.parent.name.startswith("python3")
    return site.parents[2] if installed and len(site.parents) > 2 else None
