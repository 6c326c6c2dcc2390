"""Writes ``graph_api/ops/__init__.py``: what the files of operations bring, in a form that type checkers read.

``python -m tests.support.family_lists`` after an operation was added. A walk at import time would need no list, but
``graph.rmsnorm`` would then be unknown to type checkers and editors.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import graph_api.ops
from graph_api.builder import GraphBuilder
from graph_api.node import Attributes

__all__ = ["COMMAND", "LIST", "text"]

COMMAND = "python -m tests.support.family_lists"
LIST = Path(graph_api.ops.__file__)

_HEAD = f'''"""The operations: a file per family. `{COMMAND}` writes this one: do not edit it."""

from __future__ import annotations

'''


def text() -> str:
    """What the file has to hold, formatted as everything here is."""
    found = {found.__name__: found for found in _classes()}
    imports = [f"from {found.__module__} import {name}" for name, found in found.items()]
    builders = sorted(name for name, found in found.items() if issubclass(found, GraphBuilder))
    exported = sorted(found.keys() - set(builders))
    lines = [*imports, f"__all__ = {exported}", f"class AllBuilders({', '.join(builders)},):"]
    return _ruff(_HEAD + "\n".join(lines) + '\n    """The builder methods of all families."""\n')


def _classes() -> Iterator[type]:
    """Builders, attributes and the enums that attributes are made of, where they are defined."""
    for file in pkgutil.iter_modules(graph_api.ops.__path__):
        module = importlib.import_module(f"{graph_api.ops.__name__}.{file.name}")
        for name in module.__all__:
            found = getattr(module, name)
            is_public = isinstance(found, type) and issubclass(found, (Attributes, Enum, GraphBuilder))
            if is_public and found.__module__ == module.__name__:
                yield found


def _ruff(source: str) -> str:
    for command in (("check", "--select", "I,RUF022", "--fix"), ("format",)):
        arguments = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(LIST), "-"]
        source = subprocess.run(arguments, input=source, check=True, capture_output=True, text=True).stdout
    return source


if __name__ == "__main__":
    LIST.write_text(text(), encoding="utf-8")
