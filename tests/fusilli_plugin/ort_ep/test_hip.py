"""The provider's HIP path on a stand-in runtime; see ``hip_life``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fusilli_plugin.ort_ep import hip_life
from tests.support.standin_hip import standin

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.ort, pytest.mark.mlir]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("hip"))


@pytest.mark.a_few("streams_and_copies")
@pytest.mark.parametrize("scenario", list(hip_life.SCENARIOS))
def test_on_a_stand_in(library: Path, scenario: str) -> None:
    variables = {
        "PATH": os.defpath,
        "FUSILLI_CACHE_DIR": os.environ["FUSILLI_CACHE_DIR"],
        "FUSILLI_CLAIM": "all",
        "MALLOC_PERTURB_": "165",
        **({"STANDIN_HIP_DEVICES": "2"} if scenario == "devices" else {}),
    }
    command = [sys.executable, "-m", "tests.fusilli_plugin.ort_ep.hip_life", scenario, str(library)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.endswith("fine\n")
