"""``fusilli engines``: the engines that a host on this machine finds, and what it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fusilli_plugin.cli.base import command, echo, json_option, print_json, print_table
from hipdnn_backend.host.registry import Entry, Registry
from hipdnn_backend.plugins.search import find_backend_library

__all__ = ["engine_facts", "engines", "plugins_option"]

plugins_option = click.option(
    "--plugin",
    "plugins",
    metavar="PATH",
    multiple=True,
    type=click.Path(exists=True, path_type=Path, resolve_path=True),
    help="An engine plugin (.so) or a folder of them, beside hipDNN's own; repeatable. Plugins are run to be asked.",
)


@command("engines")
@plugins_option
@json_option
def engines(plugins: tuple[Path, ...], as_json: bool) -> None:
    r"""List the engines that can be found here.

    Looked at are engines of installed Python packages (entry points), the plugins in HIPDNN_PLUGIN_DIR or beside
    hipDNN's library, and what --plugin names. Of two engines with one id the first is used, as in hipDNN.

    \b
    Examples:
      fusilli engines
      fusilli engines --plugin /opt/rocm/lib/hipdnn_plugins/engines --json
    """
    backend = find_backend_library()
    registry = Registry.find(paths=plugins, backend=backend)
    try:
        if as_json:
            problems = [{"source": problem.source, "reason": problem.reason} for problem in registry.problems]
            found = [engine_facts(entry) for entry in registry.entries]
            print_json({"engines": found, "problems": problems, "backend": None if backend is None else str(backend)})
            return
        columns = ("engine", "id", "API", "version", "from")
        print_table(columns, [_cells(entry) for entry in registry.entries])
        for problem in registry.problems:
            echo(f"left out: {problem}")
        echo(f"hipDNN: {backend}" if backend else "hipDNN: no libhipdnn_backend.so was found")
    finally:
        registry.close()


def engine_facts(entry: Entry) -> dict[str, Any]:
    """What is known of an engine without a graph, as JSON; the id in decimal, as hipDNN's own tools take it."""
    api = None if entry.api_version is None else ".".join(map(str, entry.api_version))
    name, id_ = entry.engine.name, entry.engine.id
    return {"name": name, "id": id_, "origin": entry.origin, "version": entry.version, "api_version": api}


def _cells(entry: Entry) -> tuple[object, ...]:
    facts = engine_facts(entry)
    id_ = f"0x{entry.engine.id % 2**64:016X}"
    return (facts["name"], id_, facts["api_version"] or "Python", facts["version"] or "-", facts["origin"])
