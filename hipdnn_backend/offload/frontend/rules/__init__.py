"""The rewrite rules, a file per family; importing this package registers them, in the order of the files' names."""

from __future__ import annotations

import importlib
import pkgutil

__all__: list[str] = []

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")
