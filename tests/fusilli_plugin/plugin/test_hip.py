"""The plugin's HIP path on a stand-in runtime; see ``hip_scenarios``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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


@pytest.mark.a_few(
    "streams-*",
    "unknown_chip-*",
    "misaligned-*",
    "workspace-*",
    "captured-*",
    "failures-*",
    "threads-*",
    "launches_in_c-*",
)
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
        ("device_tests", {"STANDIN_HIP_DEVICES": "2"}),
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
        "FUSILLI_VERIFY": "never",  # most kernels are not played
        "MALLOC_PERTURB_": "165",
        **environment,
    }
    if scenario == "claims":
        variables["OTHER_PLUGIN"] = str(compile_tiny_plugin(library.with_name("libother.so"), "OTHER_ENGINE"))
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.endswith("fine\n")


@pytest.mark.a_few("-wrong_code", "-right_code")
@pytest.mark.parametrize("scenario", ["wrong_code", "right_code"])
@pytest.mark.parametrize("verify", ["first", "auto", ""])
def test_code_is_checked_on_the_device(
    library: Path, built: tuple[Path, Path], scenario: str, verify: str, tmp_path: Path
) -> None:
    """By default as well, until the self-test has passed; what was checked once is not checked by another process."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    settings = {"FUSILLI_VERIFY": verify, "FUSILLI_CACHE_DIR": str(cache), "FUSILLI_CLAIM": ""}
    test_on_a_stand_in(library, built, scenario, settings)
    if scenario == "right_code":
        test_on_a_stand_in(library, built, "checked_before", settings)
    else:
        (capsule,) = (cache / "failures").iterdir()
        assert {"graph.json", "inputs.npz", "results.npz", "diagnostics.txt"} <= {
            path.name for path in capsule.iterdir()
        }


@pytest.mark.thorough
def test_what_was_checked_counts_for_one_card_and_driver(
    library: Path, built: tuple[Path, Path], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    settings = {"FUSILLI_VERIFY": "", "FUSILLI_CACHE_DIR": str(cache), "FUSILLI_CLAIM": ""}
    others = ({"STANDIN_HIP_CARD": "17"}, {"STANDIN_HIP_VERSION": "70100000"}, {"STANDIN_HIP_DEVICES": "2"})
    test_on_a_stand_in(library, built, "right_code", settings)
    for other in others[:2]:
        test_on_a_stand_in(library, built, "right_code", settings | other)  # it is checked there, too
    assert len(list((cache / "verified").iterdir())) == 3
    test_on_a_stand_in(library, built, "checked_one_card", settings | others[2])


@pytest.mark.a_few("unaffordable")
@pytest.mark.parametrize("scenario", ["unaffordable", "proven"])
def test_what_is_not_checked(library: Path, built: tuple[Path, Path], scenario: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    settings = {"FUSILLI_VERIFY": "", "FUSILLI_CACHE_DIR": str(cache), "FUSILLI_CLAIM": ""}
    test_on_a_stand_in(library, built, scenario, settings)


def _hostile(folder: Path) -> Path:
    """Modules that must not be found: they would end whoever imports them."""
    folder.mkdir()
    for name in ("numpy", "ml_dtypes", "iree", "encodings", "sitecustomize", "usercustomize", "fusilli_ground"):
        (folder / f"{name}.py").write_text("import os\nos._exit(99)\n")
    return folder


def _conditions(folder: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Condition by name, and what has to come of it: ``served``, ``declined`` with a text, or either."""
    cache, hostile = folder / "cache", str(_hostile(folder / "hostile"))
    for name, mode in (("shared", 0o777), ("group", 0o770), ("own", 0o700)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    (folder / "file").write_text("in its place")

    def at(path: Path | str) -> dict[str, Any]:
        return {"variables": {"FUSILLI_CACHE_DIR": str(path)}}

    found: dict[str, tuple[dict[str, Any], str]] = {
        "world-writable cache": (at(folder / "shared"), "declined chmod 700"),
        "group-writable cache": (at(folder / "group"), "declined chmod 700"),
        "a file in the place of the cache": (at(folder / "file"), "served"),
        "a cache below a file": (at(folder / "file" / "below"), "served"),
        "a cache that cannot be made": (at("/proc/self/none/cache"), "served"),
        "read-only home": (
            {"variables": {"FUSILLI_CACHE_DIR": None, "XDG_CACHE_HOME": None, "HOME": "/proc/self/none"}}, "served",
        ),
        "no home": ({"variables": {"FUSILLI_CACHE_DIR": None, "XDG_CACHE_HOME": None, "HOME": None}}, "either"),
        "no space for code": ({**at(cache), "file_size": 4096}, "either"),
        "no space at all": ({**at(cache), "file_size": 0}, "either"),
        "no interpreter": ({"variables": {"FUSILLI_CACHE_DIR": str(cache), "FUSILLI_PYTHON": "/none"}}, "declined"),
        "no compiler": ({"variables": {"FUSILLI_CACHE_DIR": str(cache), "FUSILLI_PYTHON": "/bin/false"}}, "declined"),
        "no folder for files": ({"variables": {"FUSILLI_CACHE_DIR": str(cache), "TMPDIR": "/proc/none"}}, "served"),
        "cache spoilt behind the claim": ({**at(folder / "own"), "spoil": str(folder / "own")}, "served"),
        "nonsense in a variable": ({"variables": {"FUSILLI_VERIFY": "perhaps"}}, "declined FUSILLI_VERIFY"),
        "no PATH": ({"variables": {"FUSILLI_CACHE_DIR": str(cache), "PATH": None}}, "served"),
    }  # fmt: skip
    for name, value in {
        "PYTHONPATH": hostile, "PYTHONHOME": hostile, "PYTHONSTARTUP": f"{hostile}/numpy.py", "PYTHONWARNINGS": "error",
        "PYTHONOPTIMIZE": "2", "PYTHONINSPECT": "1", "PYTHONUSERBASE": hostile, "PYTHONPLATLIBDIR": "none",
        "PYTHONEXECUTABLE": "/none", "PYTHONIOENCODING": "utf-16", "PYTHONUTF8": "0", "PYTHONBREAKPOINT": "none",
        "PYTHONDEVMODE": "1", "PYTHONHASHSEED": "7", "PYTHONMALLOC": "debug", "PYTHONINTMAXSTRDIGITS": "640",
        "PYTHONSAFEPATH": "1", "PYTHONVERBOSE": "1", "PYTHONPYCACHEPREFIX": "/proc/none",
    }.items():  # fmt: skip
        found[name] = ({"variables": {"FUSILLI_CACHE_DIR": str(folder / f"of {name}"), name: value}}, "served")
    if os.geteuid() == 0:
        (folder / "foreign").mkdir(mode=0o700)
        os.chown(folder / "foreign", 65534, 65534)
        found["foreign cache"] = (at(folder / "foreign"), "declined")
    return found


_FEW_CONDITIONS = ("world-writable cache", "no home", "no space at all", "nonsense in a variable", "PYTHONPATH")


@pytest.mark.parametrize("names", [_FEW_CONDITIONS, pytest.param((), marks=pytest.mark.thorough)], ids=["few", "all"])
def test_no_environment_makes_a_claimed_graph_fail(
    library: Path, built: tuple[Path, Path], tmp_path: Path, names: Sequence[str]
) -> None:
    """On the stand-in, as on the first day of a card: nothing has passed there, so all code is checked, too."""
    conditions = _conditions(tmp_path)
    conditions = {name: conditions[name] for name in names or conditions}

    def outcome(name: str) -> str:
        command = [sys.executable, "-m", "tests.fusilli_plugin.plugin.hip_scenarios", "claimed_is_served"]
        variables = {"PATH": os.defpath, "HOME": str(tmp_path), "FUSILLI_DEVICE": "hip", "FUSILLI_CACHE_DIR": "/none"}
        variables["SWEEP"] = json.dumps(conditions[name][0])
        done = subprocess.run(
            [*command, str(library), str(built[0])], cwd=ROOT, env=variables, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else f"failed: {done.stdout[-500:]}{done.stderr[-2000:]}"

    with ThreadPoolExecutor(2) as pool:
        outcomes = dict(zip(conditions, pool.map(outcome, conditions), strict=True))
    off = {}
    for name, (_, expected) in conditions.items():
        kind, _, text = expected.partition(" ")
        kinds = ("served", "declined") if kind == "either" else (kind,)
        if not outcomes[name].startswith(kinds) or text not in outcomes[name]:
            off[name] = outcomes[name]
    assert not off


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
