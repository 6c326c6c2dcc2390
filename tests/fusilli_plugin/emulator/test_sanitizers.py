"""The emulator's core under sanitizers: the other tests of this folder, in a Python that has their runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusilli_plugin.edge.build import compile_core
from tests.fusilli_plugin.plugin.hosting import ROOT, assert_unfound, sanitizing_compiler, watched_environment

_RUN = """
import pathlib, sys
import pytest
from fusilli_plugin.edge import build
build.CORE_LIBRARY = pathlib.Path(sys.argv[1])
code = pytest.main(["-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", *sys.argv[2:]])
assert sys.argv[1] in pathlib.Path("/proc/self/maps").read_text(), "the core was not used"
sys.exit(code)
"""
NAMES = ("floats", "integers", "matrix", "memory")


@pytest.mark.slow
def test_the_core_under_sanitizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", " ".join(sanitizing_compiler(tmp_path)))
    core = compile_core(tmp_path / "libgfx_emulator.so")
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in NAMES]
    environment = {"PATH": os.defpath, "HOME": str(tmp_path), **watched_environment()}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(core), *files], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip
    assert_unfound(done)
    assert " passed" in done.stdout
