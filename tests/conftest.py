"""What every test can rely on: no settings of the caller's, and a compile cache of the test run's own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_PREFIX = "FUSILLI_"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--cpuinfo tests/data/cpuinfo/zen2.txt``: as on that processor; code runs if this machine has all that it has.

    ``--support-json docs/support.json``: what ``make test-full`` writes; ``--device hip``: where cases run.

    ``--update-golden``: write what is measured into ``tests/data/golden_gfx.json`` instead of comparing with it.
    """
    parser.addoption("--cpuinfo", type=Path, metavar="F", help="run as on the processor of a recorded /proc/cpuinfo")
    parser.addoption("--device", default="cpu", metavar="D", help="where the case tables run: cpu, hip, cuda:0")
    parser.addoption(
        "--support-json", type=Path, metavar="F", help="merge what the case tests see into F and the README's table"
    )
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/data/golden_gfx.json (a slow test does)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Forget the caller's settings before any test module is imported."""
    for name in [name for name in os.environ if name.startswith(_PREFIX)]:
        del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As shells start what runs in the background; tests of interrupts would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    recorded = config.getoption("--cpuinfo")
    if recorded is not None:
        from tests.support.processors import run_as_on

        run_as_on(recorded.resolve(), pytest.MonkeyPatch())
    path = config.getoption("--support-json")
    if path is not None and not hasattr(config, "workerinput"):  # with xdist, the controller sees all reports
        from tests.support.outcomes import OutcomeRecorder

        config.pluginmanager.register(OutcomeRecorder(path, config.rootpath / "README.md"))


@pytest.hookimpl(tryfirst=True)  # before ``-m`` is looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a test's ``a_few`` leaves out is ``thorough``."""
    from tests.support.thorough import mark_the_others

    named = any("[" in argument for argument in config.args)
    mark_the_others(items, all_are_here=not named and not config.getoption("lf", default=False))


@pytest.fixture(scope="session", autouse=True)
def _run_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One private cache per test run, shared by the xdist workers so that a graph is compiled once."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    cache = root / "fusilli-cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    os.environ["FUSILLI_CACHE_DIR"] = str(cache)
    yield
    os.environ.pop("FUSILLI_CACHE_DIR", None)


@pytest.fixture(autouse=True)
def _no_failure_of_another_test() -> Iterator[None]:
    """A worker that did not start counts for half a minute; here only in the test that made it fail."""
    yield
    if "iree_bridge.compile.starting" in sys.modules:
        from iree_bridge.compile import starting

        starting._failures.clear()


@pytest.fixture
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, mode 0700, for this test alone."""
    cache = tmp_path / "cold-cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("FUSILLI_CACHE_DIR", str(cache))
    return cache
