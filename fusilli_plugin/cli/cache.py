"""``fusilli cache``: what compiled code is kept, and removing it."""

from __future__ import annotations

import time
from typing import Any

from fusilli_plugin.cli.base import debug_option, echo, group, json_option, print_json, print_table
from iree_bridge import Options
from iree_bridge.compile.cache import Cache

__all__ = ["cache"]


def _open() -> Cache:
    options = Options.from_env()
    return Cache(options.cache_dir, readonly=options.cache_readonly, limit=options.cache_size)


@group("cache")
def cache() -> None:
    r"""List, count or remove compiled code.

    It is kept in FUSILLI_CACHE_DIR.

    \b
    Examples:
      fusilli cache stats
      fusilli cache ls --json
      fusilli cache clear
    """


@cache.command("ls")
@debug_option
@json_option
def ls(as_json: bool) -> None:
    """List the compiled graphs.

    The one that was not used for longest comes first.
    """
    entries = [_entry(*entry) for entry in _open().entries()]
    if as_json:
        print_json(entries)
        return
    for entry in entries:
        entry["key"] = entry["key"][:16]
        entry["last_used"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["last_used"]))
    print_table(
        ("key", "graph", "target", "dispatches", "bytes", "last used"), [tuple(entry.values()) for entry in entries]
    )


def _entry(key: str, size: int, last_used: float, facts: Any) -> dict[str, Any]:
    known = {name: facts.get(name, "") for name in ("name", "target", "dispatches")}
    return {"key": key, **known, "bytes": size, "last_used": last_used}


@cache.command("stats")
@debug_option
@json_option
def stats(as_json: bool) -> None:
    """Show the number and the size of the entries."""
    opened = _open()
    found = opened.stats()
    if as_json:
        print_json({"path": str(opened.root), **found._asdict()})
        return
    rows = [
        ("graphs (graph -> code)", found.graphs, found.graph_bytes),
        ("compiled code", found.codes, found.code_bytes),
        ("refused by the compiler", found.refusals, found.refusal_bytes),
    ]
    print_table(("in " + str(opened.root), "entries", "bytes"), rows)
    echo(f"{found.failures} reproducers of failed compiles; limit {found.limit} bytes (FUSILLI_CACHE_SIZE)")


@cache.command("clear")
@debug_option
@json_option
def clear(as_json: bool) -> None:
    """Remove all entries.

    Reproducers of failed compiles and read-only caches stay.
    """
    opened = _open()
    count = opened.clear()
    if as_json:
        print_json({"path": str(opened.root), "removed": count})
    else:
        echo(f"{count} entries removed from {opened.root}")
