"""What makes releases: workflows that call what is there, versions that fit, a wheel that follows from its source."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fusilli_plugin import __version__
from tests.support import versions
from tests.support.release import notes, version

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WRITES = {"release.yml": {"id-token", "attestations", "contents"}}
"""What jobs of a workflow may be allowed to write."""


def steps(workflow: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in yaml.safe_load(workflow.read_text())["jobs"].items():
        yield from ((name, step) for step in job["steps"])


def words_of(workflow: Path) -> Iterator[list[str]]:
    """The commands that a workflow runs."""
    for _, step in steps(workflow):
        yield from (shlex.split(line) for line in step.get("run", "").splitlines())


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_what_is_there(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in words_of(workflow):
        if words[0] == "make":
            assert words[1] in targets, words
        elif words[1:2] == ["-m"]:
            assert importlib.util.find_spec(words[2]), words
        elif words[0].endswith("fusilli"):
            from fusilli_plugin.cli import cli

            assert words[1] in cli.list_commands(None), words  # type: ignore[arg-type]
        else:
            assert words[0] in ("gh", ".ci/run"), words


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_do_little(workflow: Path) -> None:
    document = yaml.safe_load(workflow.read_text())
    assert document["permissions"] == {"contents": "read"}
    for name, job in document["jobs"].items():
        given = job.get("permissions", {})
        assert {key for key, value in given.items() if value == "write"} <= WRITES.get(workflow.name, set()), name
        assert job["timeout-minutes"] <= 360, name
    for name, step in steps(workflow):
        # what comes with an event is text of anybody's, and becomes a command where it stands in one
        assert "${{" not in step.get("run", ""), name
        assert not step.get("uses", "").endswith(("@main", "@master")), name


def test_a_release_is_tested_whole() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert set(jobs["release"]["needs"]) == {"lint", "test", "docs", "wheel"}
    pythons = {f"Programming Language :: Python :: {each}" for each in jobs["test"]["strategy"]["matrix"]["python"]}
    named = {each for each in PROJECT["classifiers"] if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", each)}
    assert pythons == named
    uses = [step.get("uses", "").partition("@")[0] for _, step in steps(ROOT / ".github/workflows/release.yml")]
    assert {"actions/attest-build-provenance", "actions/attest-sbom"} <= set(uses)
    commands = [" ".join(words) for words in words_of(ROOT / ".github/workflows/release.yml")]
    for target in ("reproducible", "sbom", "audit", "docs", "lint"):
        assert f"make {target}" in commands


def test_parsers_are_fuzzed_each_night_from_another_seed() -> None:
    document = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    assert document[True]["schedule"], "yaml reads the key 'on' as True"
    (words,) = [words for words in words_of(ROOT / ".github/workflows/nightly.yml") if "fuzz-parsers" in words]
    assert "--seed $GITHUB_RUN_NUMBER" in words[-1]


def test_the_version_is_one() -> None:
    assert version() == __version__
    changelog = "# Changelog\n\n## [Unreleased]\n\n* new\n\n## [1.2.3]\n\n### Added\n\n* this\n\n## [1.2.2]\n\n* that\n"
    assert notes("v1.2.3", changelog, "1.2.3") == "### Added\n\n* this\n"
    with pytest.raises(ValueError, match="the tag is v1.2.4, the package has version 1.2.3"):
        notes("v1.2.4", changelog, "1.2.3")
    with pytest.raises(ValueError, match=r"nothing under \[1.3.0\]"):
        notes("v1.3.0", changelog, "1.3.0")
    assert (ROOT / "CHANGELOG.md").read_text().count(f"## [{__version__}]") == 1


def test_what_users_are_told_of_types() -> None:
    assert "Typing :: Typed" in PROJECT["classifiers"]
    for package in ("fusilli_ground", "graph_api", "iree_bridge", "hipdnn_backend", "fusilli_plugin"):
        assert (ROOT / package / "py.typed").is_file()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_builds_of_one_source_are_one_file(tmp_path: Path) -> None:
    """In folders of other names, with another mask of modes, at other times."""
    from tests.test_wheel import build_wheel

    wheels = [build_wheel(tmp_path / name, umask=umask) for name, umask in (("a", 0o022), ("longer name", 0o077))]
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def test_make_wheel_is_dated_by_the_last_commit() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "wheel", f"PY={ROOT / 'Makefile'}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.search(r"^SOURCE_DATE_EPOCH=\d{9,10} ", done.stdout, re.MULTILINE), done.stdout


def asked(name: str) -> SpecifierSet:
    """What versions of a distribution pyproject.toml allows."""
    extras = PROJECT["optional-dependencies"]
    found = [Requirement(each) for each in (*PROJECT["dependencies"], *extras["onnx"], *extras["ort"])]
    return next((each.specifier for each in found if each.name == name), SpecifierSet())


def test_no_version_that_may_be_installed_failed() -> None:
    for name, found in json.loads(versions.FILE.read_text()).items():
        if all(asked(each).contains(version) for each, version in found["versions"].items()):
            assert not found["failed"], name
            assert not found.get("selftest", {}).get("off"), name


def test_the_oldest_onnx_runtime_that_may_be_installed_is_tried() -> None:
    oldest = versions.COMBINATIONS["onnxruntime-oldest"].pins["onnxruntime"]
    assert asked("onnxruntime") == SpecifierSet(f">={oldest}")


def test_the_table_of_versions_is_of_what_ran() -> None:
    document = json.loads(versions.FILE.read_text())
    assert set(document) <= set(versions.COMBINATIONS)
    for name, found in document.items():
        pins = versions.COMBINATIONS[name].pins
        assert all(found["versions"].get(each, version) == version for each, version in pins.items() if version)
        assert found["sample"] == list(versions.COMBINATIONS[name].sample)
        assert all((ROOT / each).is_file() for each in found["sample"])
        assert found["passed"] > 10
    text = versions.section(document)
    assert all(f"(`{name}`)" in text for name in document)
    failed = versions.section({"x": {**next(iter(document.values())), "failed": ["test_a::test_b"]}})
    assert "* `x`: `test_a::test_b`" in failed
    assert "Not run yet: `pinned`." in versions.not_run(
        {name: {} for name in versions.COMBINATIONS if name != "pinned"}
    )
