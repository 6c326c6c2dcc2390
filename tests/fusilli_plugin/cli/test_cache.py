from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from iree_bridge.compile.cache import Cache, Code

Fusilli = Callable[..., Result]
KEY = "ab" * 32


def fill(folder: Path) -> None:
    facts = {"name": "conv", "target": "gfx942", "dispatches": 1}
    assert Cache(folder).store(KEY, Code(b"code", facts), graph_key="cd" * 32)


def test_ls_lists_what_is_kept(fusilli: Fusilli, cold_cache: Path) -> None:
    fill(cold_cache)
    (entry,) = json.loads(fusilli("cache", "ls", "--json").stdout)
    assert (entry["key"], entry["name"], entry["target"], entry["dispatches"]) == (KEY, "conv", "gfx942", 1)
    assert entry["bytes"] > 4
    line = fusilli("cache", "ls").stdout.strip().splitlines()[-1].split()
    assert line[:4] == [KEY[:16], "conv", "gfx942", "1"]


def test_stats_and_clear(fusilli: Fusilli, cold_cache: Path) -> None:
    fill(cold_cache)
    stats = json.loads(fusilli("cache", "stats", "--json").stdout)
    assert (stats["path"], stats["graphs"], stats["codes"]) == (str(cold_cache), 1, 1)
    assert str(cold_cache) in fusilli("cache", "stats").stdout
    assert json.loads(fusilli("cache", "clear", "--json").stdout)["removed"] == 2
    assert fusilli("cache", "clear").stdout == f"0 entries removed from {cold_cache}\n"
    assert json.loads(fusilli("cache", "ls", "--json").stdout) == []


def test_an_empty_cache_is_no_error(fusilli: Fusilli, cold_cache: Path) -> None:
    cold_cache.rmdir()
    assert fusilli("cache", "ls").exit_code == 0
    assert fusilli("cache", "stats").exit_code == 0
    assert not cold_cache.exists()


def test_a_cache_that_others_can_write_is_refused(fusilli: Fusilli, cold_cache: Path) -> None:
    fill(cold_cache)
    cold_cache.chmod(0o777)
    result = fusilli("cache", "ls")
    assert result.exit_code == 2
    assert "others may write to it" in result.stderr
