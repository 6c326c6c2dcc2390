"""A sample of the tests with other versions of what we stand on: ``python -m tests.support.versions [NAME ...]``.

Each combination has an environment of its own below ``build/versions`` with a copy of the source, in which the series
of IREE that is asked for is the supported one. What came of it goes to ``docs/versions.json``, and from there into a
table of ``docs/support.md``: a combination stands there only if it has run.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["COMBINATIONS", "FILE", "Combination", "not_run", "samples", "section"]

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "docs" / "versions.json"
_SHOWN: Final = ("iree-base-compiler", "onnxruntime", "onnx", "torch-mlir", "numpy")
_SECONDS: Final = 3600
_BY_HAND: Final = (
    "By hand, in part: with Python 3.13.5 (Debian 13, NumPy 2.5, without PyTorch) 8,590 of the tests of `make test` "
    "passed; 12 tests and 14 files of them did not, for want of PyTorch or of what has been mended since. With Python "
    "3.12 and PyTorch 2.11 14,608 of all tests passed, and 555 did not, nearly all for want of a package."
)
_SERIES: Final = re.compile(r'^SUPPORTED: Final = "[^"]+"', re.MULTILINE)


@dataclass(frozen=True)
class Combination:
    """Versions, and which tests run with them.

    Attributes:
        pins: distributions by their exact versions; an empty one is the newest.
        sample: arguments of pytest.
        selftest: whether `fusilli selftest --device cpu` runs as well.
    """

    about: str
    pins: Mapping[str, str]
    sample: tuple[str, ...]
    selftest: bool = False


_CODE: Final = (
    "tests/fusilli_plugin/checks/test_selftest.py",
    "tests/iree_bridge/test_runtime.py",
    "tests/iree_bridge/test_artifact.py",
    "tests/fusilli_plugin/plugin/test_engine.py",
)
_SESSIONS: Final = (
    "tests/fusilli_plugin/ort_ep/test_session.py",
    "tests/fusilli_plugin/ort_ep/test_operators.py",
    "tests/fusilli_plugin/ort_ep/test_context.py",
    "tests/fusilli_plugin/ort_ep/test_options.py",
)
COMBINATIONS: Final[dict[str, Combination]] = {
    "iree-previous": Combination(
        "the IREE release before the pinned one",
        {"iree-base-compiler": "3.12.0", "iree-base-runtime": "3.12.0"},
        _CODE,
        selftest=True,
    ),
    "onnxruntime-oldest": Combination("the oldest ONNX Runtime", {"onnxruntime": "1.24.4"}, _SESSIONS),
    "onnxruntime-between": Combination("an ONNX Runtime between", {"onnxruntime": "1.27.0"}, _SESSIONS),
    "onnxruntime-newest": Combination("the newest ONNX Runtime", {"onnxruntime": ""}, _SESSIONS),
    "pinned": Combination("what pyproject.toml asks for", {}, _CODE, selftest=True),
}


def run(name: str) -> dict[str, Any]:
    """Run a combination; what came of it."""
    combination, folder = COMBINATIONS[name], ROOT / "build" / "versions" / name
    python = _environment(folder, combination.pins)
    source = _source(folder / "source", combination.pins)
    report = folder / "report.xml"
    command = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    command += combination.sample
    subprocess.run(command, cwd=source, timeout=_SECONDS, check=False)
    found: dict[str, Any] = {
        "about": combination.about,
        "python": _said(python, "-c", "import platform; print(platform.python_version())"),
        "versions": {each: _version(python, each) for each in _SHOWN},
        "sample": list(combination.sample),
        **_counts(report),
    }
    if combination.selftest:
        found["selftest"] = _selftest(python, source, folder)
    return found


def _environment(folder: Path, pins: Mapping[str, str]) -> Path:
    """An environment with the project's requirements, then the pinned versions."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        extras = f"{ROOT}[onnx,ort,testing]"
        tools = ["pytest-timeout", "pytest-xdist", "filecheck", "pyyaml", "pillow"]
        _pip(python, "install", "--quiet", "--editable", extras, *tools)
    for name, version in pins.items():
        # not resolved: a version that pyproject.toml excludes is what is tried
        _pip(python, "install", "--quiet", "--no-deps", "--upgrade", f"{name}=={version}" if version else name)
    return python


def _source(folder: Path, pins: Mapping[str, str]) -> Path:
    """A copy of the source, for which another series of IREE is the supported one."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    if "iree-base-compiler" in pins:
        series = pins["iree-base-compiler"].rpartition(".")[0] + "."
        path = folder / "iree_bridge" / "compile" / "versions.py"
        changed, count = _SERIES.subn(f'SUPPORTED: Final = "{series}"', path.read_text())
        assert count == 1, "versions.py states no series"
        path.write_text(changed)
    subprocess.run(
        [sys.executable, "-m", "fusilli_plugin.edge.build"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    return folder


def _selftest(python: Path, source: Path, folder: Path) -> dict[str, Any]:
    report, cache = folder / "selftest.json", folder / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    environment = {"PATH": "/usr/bin:/bin", "FUSILLI_CACHE_DIR": str(cache), "HOME": str(folder)}
    command = [python, "-m", "fusilli_plugin", "selftest", "--device", "cpu", "-o", report]
    subprocess.run(command, cwd=source, env=environment, timeout=_SECONDS, check=False, stderr=subprocess.DEVNULL)
    document = json.loads(report.read_text())
    off = [case["name"] for case in document["cases"] if case["outcome"] != "right"]
    return {"graphs": len(document["cases"]), "right": len(document["cases"]) - len(off), "off": off}


def _counts(report: Path) -> dict[str, Any]:
    """Of a JUnit file, and which tests failed."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    outcomes = {"failed": ("failure", "error"), "skipped": ("skipped",)}
    found = {
        name: [case for case in cases if any(case.find(t) is not None for t in tags)] for name, tags in outcomes.items()
    }
    names = [f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}" for case in found["failed"]]
    failed, skipped = len(names), len(found["skipped"])
    return {"passed": len(cases) - failed - skipped, "skipped": skipped, "failed": names}


def _pip(python: Path, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--no-input", *words], check=True)


def _version(python: Path, name: str) -> str:
    return _said(python, "-c", f"import importlib.metadata as m; print(m.version({name!r}))")


def _said(python: Path, *words: str) -> str:
    return subprocess.run([python, *words], capture_output=True, text=True, check=True).stdout.strip()


def section(document: Mapping[str, Any]) -> str:
    """The section of ``docs/support.md``."""
    lines = [
        "| what | IREE | ONNX Runtime | Python | tests | failed | self-test |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    notes: list[str] = []
    for name, found in document.items():
        failed, tested = found["failed"], found.get("selftest")
        shown = f"{tested['right']} of {tested['graphs']} right" if tested else ""
        cells = (
            f"{found['about']} (`{name}`)", found["versions"]["iree-base-compiler"], found["versions"]["onnxruntime"],
            found["python"], f"{found['passed']} passed", str(len(failed)) if failed else "none", shown,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
        off = [*failed, *(f"graph '{each}' of the self-test" for each in (tested or {}).get("off", ()))]
        notes += [f"* `{name}`: {', '.join(f'`{each}`' if '::' in each else each for each in off)}"] if off else []
    return "\n".join([*lines, *(["", "Failed:", "", *notes] if notes else [])])


def samples(document: Mapping[str, Any]) -> str:
    """The files of the samples that ran."""
    found = dict.fromkeys(Path(each).stem for entry in document.values() for each in entry["sample"])
    return ", ".join(f"`{each}`" for each in found)


def not_run(document: Mapping[str, Any]) -> str:
    """What has not run yet."""
    missing = [f"`{name}`" for name in COMBINATIONS if name not in document]
    return f"Not run yet: {', '.join(missing)}." if missing else _BY_HAND


def main(arguments: Sequence[str] | None = None) -> None:
    """Run combinations, by default all, and write the file."""
    parser = argparse.ArgumentParser(prog="versions", description="Run a sample of the tests with other versions.")
    parser.add_argument("names", nargs="*", choices=[*COMBINATIONS, []], metavar="NAME", help=", ".join(COMBINATIONS))
    names = parser.parse_args(arguments).names or list(COMBINATIONS)
    document = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names:
        document[name] = run(name)
        ordered = {each: document[each] for each in COMBINATIONS if each in document}
        FILE.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    main()
