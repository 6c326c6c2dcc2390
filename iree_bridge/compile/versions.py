"""Versions that code depends on: the IREE packages, and what this project itself puts into the IR.

Read from the names of the installed metadata folders and from source bytes: importing ``importlib.metadata`` would cost
more than a whole build from a warm cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from graph_api.errors import FusilliError

__all__ = [
    "SUPPORTED",
    "VersionError",
    "check",
    "compiler_version",
    "emitter_version",
    "examiner_version",
    "iree_version",
    "runtime_version",
]

SUPPORTED: Final = "3.13."
"""The IREE release series that this version is made and tested for."""

_METADATA: Final = re.compile(r"(iree_base_(?:compiler|runtime))-([^-]+)\.dist-info", re.IGNORECASE)
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_HAZARDS: Final = "iree_bridge/compile/hazards.py"
_EXAMINING: Final = (_HAZARDS, "iree_bridge/targets/barriers.py")
"""What refuses code that was made, and what a compile does beside its flags: code is kept under their version, so that
a new rule looks at all of it again."""
_EMITTING: Final = ("fusilli_ground", "graph_api", _HAZARDS, "iree_bridge/emit", "iree_bridge/targets")
"""Whose sources take part in turning a graph into IR, and in deciding which of its forms is taken."""


class VersionError(FusilliError):
    """The installed IREE packages are missing, of another series, or do not belong together."""


def compiler_version() -> str | None:
    """The version of iree-base-compiler, None if it is not installed in this environment."""
    return _installed().get("iree_base_compiler")


def runtime_version() -> str | None:
    """The version of iree-base-runtime, None if it is not installed in this environment."""
    return _installed().get("iree_base_runtime")


def check() -> None:
    """Check that the installed IREE packages are of the supported series and of one version.

    Raises:
        VersionError: they are not; the message has both versions and the command that mends it.
    """
    found = {"iree-base-compiler": compiler_version(), "iree-base-runtime": runtime_version()}
    present = {name: version for name, version in found.items() if version is not None}
    wrong = [name for name, version in present.items() if not version.startswith(SUPPORTED)]
    if wrong or len(set(present.values())) > 1:
        seen = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
        pins = " ".join(f"'{name}=={SUPPORTED}*'" for name in found)
        raise VersionError(f"{seen}: both must have the same version {SUPPORTED}*; run: pip install {pins}")


def iree_version() -> str:
    """The IREE version that compiled code belongs to: that of the compiler, or of the runtime where no compiler is.

    Raises:
        VersionError: the packages are missing or do not fit.
    """
    check()
    version = compiler_version() or runtime_version()
    if version is None:
        raise VersionError(f"neither iree-base-compiler nor iree-base-runtime {SUPPORTED}* is installed")
    return version


@cache
def emitter_version() -> str:
    """Fingerprint of the sources that turn a graph into IR."""
    return _fingerprint(_EMITTING)


@cache
def examiner_version() -> str:
    """Fingerprint of the sources that refuse code, and say how it is compiled beside its flags."""
    return _fingerprint(_EXAMINING)


def _fingerprint(places: Sequence[str]) -> str:
    digest = hashlib.sha256()
    paths = [path for place in places for path in _sources(os.path.join(_ROOT, place))]
    for path in paths:
        # No pathlib, no buffering: this is a good part of a build from a warm cache.
        with open(path, "rb", buffering=0) as file:
            content = file.readall()
        digest.update(f"{path[len(_ROOT) :]}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _sources(place: str) -> list[str]:
    """The source files of a folder, in a fixed order; a file is its own."""
    if place.endswith(".py"):
        return [place]
    found: list[str] = []
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                found.append(entry.path)
            elif entry.name != "__pycache__" and entry.is_dir():
                found += _sources(entry.path)
    return sorted(found)


@cache
def _installed() -> dict[str, str]:
    """Versions of the two packages in the first folder of the path that has each; keys are lower case."""
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            match = _METADATA.fullmatch(name)
            if match is not None:
                found.setdefault(match[1].lower(), match[2])
    return found
