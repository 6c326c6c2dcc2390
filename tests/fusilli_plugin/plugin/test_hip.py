"""The plugin's HIP path on a stand-in runtime; see ``hip_scenarios``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fusilli_plugin.cli import cli
from tests.fusilli_plugin.plugin.hosting import GRAPHS, ROOT
from tests.support.standin_hip import standin
from tests.support.tiny_plugin import compile_tiny_plugin

pytestmark = pytest.mark.mlir

TWO_CHIPS = {"STANDIN_HIP_DEVICES": "2", "STANDIN_HIP_ARCH": "gfx942,gfx90a:sramecc+:xnack-"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return standin.build(tmp_path_factory.mktemp("hip"))


@pytest.mark.parametrize(
    ("scenario", "environment"),
    [
        ("streams", {}),
        ("prepared", {}),
        ("launches_in_c", {}),
        ("no_allocation", {}),
        ("workspace", {}),
        ("devices", TWO_CHIPS),
        ("unknown_chip", {"STANDIN_HIP_ARCH": "gfx000"}),
        ("failures", {}),
        ("bounded", {}),
        ("misaligned", {}),
        ("captured", {}),
        ("claims_load", {}),
        ("small", {"STANDIN_HIP_MEMORY": "64"}),
        ("host_scalars", {}),
        ("injected", {}),
        ("threads", {"STANDIN_HIP_DEVICES": "2"}),
        ("forked", {}),
        pytest.param("large", {"STANDIN_HIP_DEVICES": "2"}, marks=pytest.mark.slow),
        ("claims", {"FUSILLI_CLAIM": ""}),
        ("claims_alone", {"FUSILLI_CLAIM": ""}),
    ],
)
def test_on_a_stand_in(library: Path, built: tuple[Path, Path], scenario: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tests.fusilli_plugin.plugin.hip_scenarios", scenario, str(library), str(built[0])]
    variables = {
        "PATH": os.defpath,
        "FUSILLI_CACHE_DIR": os.environ["FUSILLI_CACHE_DIR"],
        "FUSILLI_DEVICE": "hip",
        "FUSILLI_CLAIM": "all",
        "MALLOC_PERTURB_": "165",
        **environment,
    }
    if scenario == "claims":
        variables["OTHER_PLUGIN"] = str(compile_tiny_plugin(library.with_name("libother.so"), "OTHER_ENGINE"))
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.endswith("fine\n")


@pytest.mark.parametrize("scenario", ["wrong_code", "right_code"])
def test_code_is_checked_on_the_device(library: Path, built: tuple[Path, Path], scenario: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    test_on_a_stand_in(library, built, scenario, {"FUSILLI_VERIFY": "first", "FUSILLI_CACHE_DIR": str(cache)})


def test_a_cache_that_was_warmed_without_a_gpu(
    library: Path, built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm, own = tmp_path / "warm", tmp_path / "own"
    for folder in (warm, own):
        folder.mkdir(mode=0o700)
    monkeypatch.setenv("FUSILLI_CACHE_DIR", str(warm))
    done = CliRunner().invoke(cli, ["warm", "--from", str(GRAPHS / "pw_add.bin"), "--target", "gfx942"])
    assert done.exit_code == 0, done.output
    settings = {"FUSILLI_COMPILE": "never", "FUSILLI_CACHE_READONLY": str(warm), "FUSILLI_CACHE_DIR": str(own)}
    test_on_a_stand_in(library, built, "warmed", settings)
