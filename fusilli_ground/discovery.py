"""Folders whose files register what they hold: a new file needs no list."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

__all__ = ["import_files"]


def import_files(package: str, path: Iterable[str]) -> None:
    """Import every module of a package, those of its sub-packages included, in the order of their names.

    Args:
        package: its ``__name__``.
        path: its ``__path__``.
    """
    for found in pkgutil.walk_packages(path, f"{package}."):
        importlib.import_module(found.name)
