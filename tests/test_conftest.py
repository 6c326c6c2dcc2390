from __future__ import annotations

import os
import stat
from pathlib import Path


def test_no_setting_of_the_caller_reaches_a_test() -> None:
    assert [name for name in os.environ if name.startswith("FUSILLI_")] == ["FUSILLI_CACHE_DIR"]


def test_the_cache_of_the_run_is_private(tmp_path: Path) -> None:
    cache = Path(os.environ["FUSILLI_CACHE_DIR"])
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert cache.parents[0] in tmp_path.parents


def test_a_cold_cache_is_empty_and_private(cold_cache: Path) -> None:
    assert os.environ["FUSILLI_CACHE_DIR"] == str(cold_cache)
    assert stat.S_IMODE(cold_cache.stat().st_mode) == 0o700
    assert not list(cold_cache.iterdir())
