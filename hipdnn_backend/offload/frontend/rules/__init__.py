"""The rewrite rules, a file per family; importing this package registers them, in the order of the files' names."""

from __future__ import annotations

from fusilli_ground.discovery import import_files

__all__: list[str] = []

import_files(__name__, __path__)
