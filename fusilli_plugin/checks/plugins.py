"""The engine plugins that hipDNN would load here, and which engines they have.

``python -m fusilli_plugin.checks.plugins FILE`` answers for one plugin, in a process of its own: loading the library of
somebody else runs its code, which may end the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusilli_ground.texts import say
from hipdnn_backend.errors import EngineError
from hipdnn_backend.plugins.library import PluginLibrary
from hipdnn_backend.plugins.search import find_plugin_files

__all__ = ["Plugin", "installed_plugins"]

_SECONDS = 30


@dataclass(frozen=True)
class Plugin:
    """A plugin of this machine's hipDNN.

    Attributes:
        path: its file, links followed.
        name, version: what it says of itself; "" if it cannot be loaded.
        engines: name by id.
        problem: why hipDNN leaves it out; "" if it does not.
    """

    path: Path
    name: str = ""
    version: str = ""
    engines: tuple[tuple[int, str], ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        engines = ", ".join(name for _, name in self.engines)
        return f"{self.path} ({self.name} {self.version}: {engines})" if self.name else str(self.path)


def installed_plugins() -> tuple[list[Plugin], list[str]]:
    """The plugins in the order of loading, and what is wrong with the paths that they were looked for in."""
    found = find_plugin_files()
    return [_ask(path) for path in found.files], [str(problem) for problem in found.problems]


def _ask(path: Path) -> Plugin:
    command = [sys.executable, "-m", "fusilli_plugin.checks.plugins", str(path)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (subprocess.SubprocessError, OSError) as error:
        return Plugin(path, problem=f"it does not answer: {error}")
    try:
        answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return Plugin(path, problem=f"loading it ends the process (status {child.returncode})")
    engines = tuple((int(id_), str(name)) for id_, name in answer.get("engines", []))
    return Plugin(path, answer.get("name", ""), answer.get("version", ""), engines, answer.get("problem", ""))


def _describe(path: str) -> dict[str, Any]:
    try:
        library = PluginLibrary(path)
    except EngineError as error:
        return {"problem": str(error)}
    engines = [(engine.id, engine.name) for engine in library.engines]
    return {"name": library.name, "version": library.version, "engines": engines}


if __name__ == "__main__":
    say(json.dumps(_describe(sys.argv[1])))
