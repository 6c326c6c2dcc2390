"""The wheel, installed into an empty environment on a machine without a C compiler, runs the README's example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from sysconfig import get_path

import pytest
from packaging.tags import sys_tags

ROOT = Path(__file__).parent.parent

# Each is there for a command of `fusilli`, or README.md names it. What developers alone run is in tests/support.
CHECKS = {
    "__init__", "demo", "drivers", "environment", "fusion", "fusion_cases", "graph_dump", "model_block",
    "model_check", "onnx_backend", "picture", "plugins", "selftest", "selftest_cases",
    "selftest_report", "device_tests", "roofline",
}  # fmt: skip


def readme_example() -> str:
    """The code between the example markers of the README."""
    text = (ROOT / "README.md").read_text()
    match = re.search(r"<!-- example:begin -->\n```python\n(.*?)```\n<!-- example:end -->", text, re.DOTALL)
    assert match, "README.md has no marked example"
    return match[1]


def _run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run([*map(str, command)], env=environment or None, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build_wheel(folder: Path, umask: int = 0o022) -> Path:
    """The wheel of this source, built as `make wheel` does, in a folder of its own."""
    source = folder / "source"
    # A copy: building in place would leave its products in the tree that other tests read.
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
    _run("sh", "-c", f'umask {umask:o}; exec "$@"', "sh", sys.executable, *command, **environment)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_its_name_says_which_systems_it_fits(wheel: Path) -> None:
    """A version of glibc, since the libraries need nothing else; this system is among those that have it."""
    *_, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none")
    assert re.fullmatch(r"manylinux_2_\d+_x86_64", platform), platform
    assert f"{python}-{abi}-{platform}" in set(map(str, sys_tags()))
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        assert f"Tag: {python}-{abi}-{platform}\n" in archive.read(about).decode()


def test_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name.split("/")[0]}
    assert tops == {"fusilli_ground", "graph_api", "iree_bridge", "hipdnn_backend", "fusilli_plugin"}
    for package in sorted(tops):
        assert f"{package}/py.typed" in names
    assert {name for name in names if name.startswith("fusilli_plugin/checks/")} == {
        "fusilli_plugin/checks/selftest.jsonl",
        *(f"fusilli_plugin/checks/{name}.py" for name in CHECKS),
    }
    assert any(name.endswith("LICENSE") for name in names)
    # both libraries, and the sources by which the second is known to be current
    libraries = ("fusilli_plugin/lib/libfusilli_plugin.so", "fusilli_plugin/emulator/lib/libgfx_emulator.so")
    assert {*libraries, "iree_bridge/runtime/host/lib/libfusilli_launcher.so"} <= set(names)
    assert {"fusilli_plugin/emulator/core/core.c", "fusilli_plugin/report/templates/page.html"} <= set(names)


def test_pytest_finds_its_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entry_points,) = [name for name in archive.namelist() if name.endswith("dist-info/entry_points.txt")]
        text = archive.read(entry_points).decode()
    assert "[pytest11]\nfusilli = fusilli_plugin.testing.pytest_plugin\n" in text


def _requirements_of_here(place: Path) -> None:
    """What this interpreter has beside us: paths in a .pth file, for then no .pth there leads to the source."""
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(
        "".join(f"{path}\n" for path in (get_path("purelib"), get_path("platlib")))
    )


@pytest.mark.iree_cpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fetched", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_runs_the_example_in_an_empty_environment(wheel: Path, tmp_path: Path, fetched: bool) -> None:
    """With what the wheel says that it requires, or, within seconds, with what is installed here."""
    place = tmp_path / "venv"
    venv.create(place, with_pip=fetched)
    if fetched:
        _run(place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    else:
        pip = (sys.executable, "-m", "pip", "--python", place / "bin/python", "--disable-pip-version-check")
        _run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
        _requirements_of_here(place)
    example = tmp_path / "example.py"
    example.write_text(readme_example())
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    environment = {"PATH": str(place / "bin"), "HOME": str(tmp_path), "FUSILLI_CACHE_DIR": str(cache)}
    where = "import fusilli_plugin, graph_api; print(fusilli_plugin.__file__, graph_api.__file__)"
    assert _run(place / "bin/python", "-I", "-c", where, **environment).count(str(place)) == 2
    said = _run(place / "bin/python", "-I", example, **environment)
    assert said.startswith("served\n")
    assert "'act::out_0' ok" in said
    assert "cc" not in os.listdir(place / "bin")
    assert "gfx942" in _run(place / "bin/fusilli", "compile", "--help", **environment)


@pytest.mark.slow
@pytest.mark.iree_cpu
@pytest.mark.timeout(1800)
def test_smoke_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """What users meet first, with the wheel and what it brings, and nothing of the source."""
    place, cache = tmp_path / "venv", tmp_path / "cache"
    venv.create(place, with_pip=True)
    _run(place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    cache.mkdir(mode=0o700)
    environment = {
        "PATH": f"{place / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), "FUSILLI_CACHE_DIR": str(cache),
        "FUSILLI_DEVICE": "cpu", "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    fusilli, report = place / "bin/fusilli", tmp_path / "report.json"
    assert "200 right of 200 graphs" in _run(fusilli, "selftest", "-o", report, **environment)
    assert "the self-test was passed" in _run(fusilli, "doctor", "--report", report, **environment)
    graph = tmp_path / "graph.json"
    make = "from fusilli_plugin.checks.selftest import quick; import sys; sys.stdout.write(quick().to_json())"
    graph.write_text(_run(place / "bin/python", "-I", "-c", make, **environment))
    saved = tmp_path / "graph.fusilli"
    _run(fusilli, "compile", graph, "--target", "gfx942,cpu", "-o", saved, **environment)
    for each in (graph, saved):
        assert "yes" in _run(fusilli, "run", each, "--check", **environment)
    plugin = Path(_run(fusilli, "plugin-dir", **environment).strip()) / "libfusilli_plugin.so"
    names = "load,claims,save,execute,threads,fork,leaks-plans,null"
    said = _run(
        fusilli, "conformance", plugin, "--device", "standin", "--check", names, "--cycles", "40", **environment
    )
    assert "passed" in said
    _run(fusilli, "check", "--suite", "fusion", "--filter", "conv", "--device", "cpu", **environment)
    _run(fusilli, "cache", "ls", **environment)
