"""The engines of this process: objects that the caller made, entry points, and hipDNN engine plugins.

Example:
    registry = Registry.find()
    for entry in registry.entries:
        print(entry.engine.name, entry.origin)
    for problem in registry.problems:
        print("left out:", problem)

An installed package offers an engine by an entry point in the group ``hipdnn_backend.engines``: a callable without
arguments that returns an `hipdnn_backend.engine.Engine`. It is imported by `Registry.find`, not before.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fusilli_ground.spelling import did_you_mean
from hipdnn_backend.engine import KNOWN_ENGINES, Engine, EngineId, engine_id, is_fallback
from hipdnn_backend.errors import EngineError, NoEngineError
from hipdnn_backend.plugins.library import PluginLibrary
from hipdnn_backend.plugins.search import LoadingMode, Problem, find_plugin_files

__all__ = ["ENTRY_POINTS", "Entry", "LoadingMode", "Problem", "Registry", "parse_engine_id"]

_LOG: Final = logging.getLogger(__name__)
ENTRY_POINTS: Final = "hipdnn_backend.engines"
"""Group of the entry points that make engines."""
_IN_PROCESS: Final = "given by the program"
_METHODS: Final = ("support", "details", "workspace_size", "build", "restore")
_NUMBER: Final = re.compile(r"[+-]?(0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class Entry:
    """An engine and where it comes from.

    Attributes:
        engine: what runs graphs.
        origin: path of the plugin, name of the entry point and its distribution, or that the program gave it.
        version: of the plugin or distribution, "" if it has none.
        api_version: of the engine API that a plugin implements, None for engines in Python.
    """

    engine: Engine
    origin: str
    version: str = ""
    api_version: tuple[int, int, int] | None = None


class Registry:
    """Engines in the order in which hipDNN would ask them: given ones, entry points by name, plugins by path.

    Fallback engines come last. Of two engines with one id the first stays, as in hipDNN.

    Attributes:
        entries: engines with their origins.
        problems: what was found and left out, each with its reason.
    """

    def __init__(self, entries: Iterable[Entry], problems: Iterable[Problem] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        kept: dict[int, Entry] = {}
        for entry in entries:
            first = kept.setdefault(entry.engine.id, entry)
            if first is entry:
                continue
            reason = f"engine {entry.engine.name} is left out: {first.origin} has the id {entry.engine.id} already"
            if first.origin == _IN_PROCESS:  # the program replaced it on purpose
                _LOG.info("%s: %s", entry.origin, reason)
            else:
                self.problems += (Problem(entry.origin, reason),)
        self.entries: tuple[Entry, ...] = tuple(sorted(kept.values(), key=lambda entry: is_fallback(entry.engine)))
        self._libraries: list[PluginLibrary] = []

    @classmethod
    def find(
        cls,
        engines: Iterable[Engine] = (),
        *,
        paths: Iterable[str | os.PathLike[str]] = (),
        mode: LoadingMode = LoadingMode.ADDITIVE,
        entry_points: bool = True,
        environ: Mapping[str, str] | None = None,
        backend: Path | None = None,
    ) -> Registry:
        """Look everywhere. Nothing that is broken raises; it is among the `problems`.

        Plugins are native code: loading one runs it in this process.

        Args:
            engines: objects that go before everything else.
            paths: folders and files with plugins, by the rules of `hipdnn_backend.plugins.search`.
            mode: whether they join the default folder and ``HIPDNN_PLUGIN_DIR``, or replace them.
            entry_points: whether to ask installed packages.
            environ: default: that of the process.
            backend: hipDNN's library, beside which the default folder is; default: the one that is found.
        """
        problems: list[Problem] = []
        entries = [Entry(_checked(engine), _IN_PROCESS) for engine in engines]
        if entry_points:
            entries += _from_entry_points(problems)
        libraries = _load_libraries(paths, mode, environ, backend, problems)
        entries += [
            Entry(engine, str(library.path), library.version, library.api_version)
            for library in libraries
            for engine in library.engines
        ]
        registry = cls(entries, problems)
        registry._libraries = libraries
        return registry

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engines in order."""
        return tuple(entry.engine for entry in self.entries)

    @property
    def names(self) -> dict[int, str]:
        """Id → name."""
        return {engine.id: engine.name for engine in self.engines}

    def engine(self, which: int | str) -> Engine:
        """The engine of an id or a name.

        Raises:
            NoEngineError: there is none; the message has those that there are and the problems.
        """
        wanted = parse_engine_id(which)
        for engine in self.engines:
            if engine.id == wanted:
                return engine
        known = ", ".join(engine.name for engine in self.engines) or "none"
        near = did_you_mean(which, self.names.values())
        left_out = "".join(f"; left out: {problem}" for problem in self.problems)
        raise NoEngineError("registry", f"there is no engine {which}{near}; there are: {known}{left_out}")

    def close(self) -> None:
        """Close the plugins that `find` loaded; their engines are not usable afterwards."""
        for library in self._libraries:
            library.close()


def parse_engine_id(which: int | str) -> EngineId:
    """The id that hipDNN makes of an id or a string: a known name, a number (decimal or ``0x…``), or a hash.

    Raises:
        ValueError: a number that does not fit into 64 bits.
    """
    if isinstance(which, str):
        text = which.strip()
        if text in KNOWN_ENGINES.values() or not _NUMBER.fullmatch(text):
            return engine_id(text)
        which = int(text, 0) if "x" in text.lower() else int(text)
    if not -(2**63) <= which < 2**64:
        raise ValueError(f"{which} is no engine id: those have 64 bits")
    return EngineId(which - 2**64 if which >= 2**63 else which)


def _from_entry_points(problems: list[Problem]) -> list[Entry]:
    found: list[Entry] = []
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        origin = f"entry point {point.name} = {point.value}"
        try:
            engine = _checked(point.load()())
        except (Exception, SystemExit) as error:  # any code of anybody's
            _LOG.debug("%s", origin, exc_info=True)
            problems.append(Problem(origin, f"{type(error).__name__}: {error}"))
            continue
        version = point.dist.version if point.dist else ""
        found.append(Entry(engine, origin, version))
    return found


def _checked(engine: Any) -> Engine:
    """The object, if it looks like an engine.

    Raises:
        TypeError: it does not.
    """
    missing = [name for name in _METHODS if not callable(getattr(engine, name, None))]
    id_, name = getattr(engine, "id", None), getattr(engine, "name", None)
    if missing or not isinstance(id_, int) or not isinstance(name, str):
        lacks = ", ".join(missing) or "an int id and a str name"
        raise TypeError(f"{engine!r:.80} is no engine: it lacks {lacks}")
    if id_ != parse_engine_id(name):
        raise TypeError(f"engine {name} has the id {id_}; the id of that name is {parse_engine_id(name)}")
    return engine


def _load_libraries(
    paths: Iterable[str | os.PathLike[str]],
    mode: LoadingMode,
    environ: Mapping[str, str] | None,
    backend: Path | None,
    problems: list[Problem],
) -> list[PluginLibrary]:
    search = find_plugin_files(paths, mode=mode, environ=environ, backend=backend)
    problems += search.problems
    libraries: list[PluginLibrary] = []
    for file in search.files:
        try:
            libraries.append(PluginLibrary(file))
        except EngineError as error:
            problems.append(Problem(str(file), str(error).removeprefix(f"{file}: ")))
    return libraries
