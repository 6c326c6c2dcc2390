"""One plugin and one host program for all tests of a run; the compile cache is that of the run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fusilli_plugin.plugin.hosting import (
    GRAPHS,
    Case,
    Session,
    build_host,
    build_plugin,
    make_case,
    python_library,
)

MakeCase = Callable[[str], Case]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Plugin and host program."""
    folder = tmp_path_factory.mktemp("plugin")
    return build_plugin(folder / "lib"), build_host(folder)


@pytest.fixture
def session(built: tuple[Path, Path]) -> Session:
    """Runs hosts with the cache of the test run."""
    python_library()
    return Session(*built, Path(os.environ["FUSILLI_CACHE_DIR"]))


@pytest.fixture
def case(tmp_path: Path) -> MakeCase:
    """Makes the folder of a graph that a real backend serialized, by its name."""
    return lambda name: make_case(tmp_path / name, (GRAPHS / f"{name}.bin").read_bytes())
