"""The provider's life: sessions that come and go, threads, forks, exits, errors; each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fusilli_plugin.ort_ep import life

SLOW = ("flat_memory", "threads")
ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.ort, pytest.mark.iree_cpu]


@pytest.mark.a_few("errors_everywhere")
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("flat_memory", "threads") else ())
        for name in life.SCENARIOS
    ],
)
def test_scenario(scenario: str) -> None:
    variables = {
        "PATH": os.defpath,
        "FUSILLI_CACHE_DIR": os.environ["FUSILLI_CACHE_DIR"],
        "MALLOC_PERTURB_": "165",
        **({"FUSILLI_DEVICE": "cpu"} if scenario == "library_by_hand" else {}),
    }
    command = [sys.executable, "-m", "tests.fusilli_plugin.ort_ep.life", scenario]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    assert done.stdout.endswith("fine\n")
