from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from graph_api import ExecutionError
from tests.fusilli_plugin.plugin.hosting import GRAPHS, ROOT, build_plugin
from tests.support.standin_hip.standin import build
from tests.support.tiny_plugin import compile_tiny_plugin

Fusilli = Callable[..., Result]


def report(result: Result) -> dict[str, dict[str, str]]:
    return {finding["what"]: finding for finding in json.loads(result.stdout)["findings"]}


@pytest.mark.iree_cpu
def test_a_healthy_cpu_machine(fusilli: Fusilli, monkeypatch: pytest.MonkeyPatch, cold_cache: Path) -> None:
    monkeypatch.setenv("FUSILLI_DEVICE", "cpu")
    result = fusilli("doctor", "--json")
    assert result.exit_code == 0
    found = report(result)
    assert json.loads(result.stdout)["ok"] is True
    for what in (
        "python",
        "numpy",
        "iree-base-compiler",
        "IREE pair",
        "hip-python",
        "cpu",
        "cache",
        "self-test on cpu",
        "saved code on cpu",
    ):
        assert found[what]["status"] == "ok", found[what]
    assert {"hip devices", "cuda devices"} <= set(found)
    assert str(cold_cache) in found["cache"]["detail"]
    assert "mode 0700" in found["cache"]["detail"]


@pytest.fixture
def no_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.checks.selftest.run", lambda device: f"right on {device}")
    monkeypatch.setattr("fusilli_plugin.checks.selftest.run_saved", lambda device: f"loaded on {device}")


@pytest.mark.usefixtures("no_self_test")
def test_a_device_that_was_asked_for_must_be_there(fusilli: Fusilli, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = {"hip": {"library": None, "devices": [], "reason": "no HIP"}, "cuda": {"library": None, "devices": []}}
    drivers["cuda"]["reason"] = "no CUDA driver"
    monkeypatch.setattr("fusilli_plugin.checks.environment._ask_drivers", lambda: drivers)
    monkeypatch.setenv("FUSILLI_DEVICE", "cuda")
    result = fusilli("doctor", "--json")
    assert result.exit_code == 1
    assert report(result)["cuda devices"]["status"] == "broken"
    assert report(result)["cuda devices"]["detail"] == "no CUDA driver"
    assert report(result)["hip devices"]["status"] == "absent"


@pytest.mark.usefixtures("no_self_test")
def test_the_default_device_is_tried_where_it_is(fusilli: Fusilli, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = {
        "hip": {"library": "libamdhip64.so.7", "devices": ["hip:0 (gfx942)"], "reason": ""},
        "cuda": {"library": None, "devices": [], "reason": ""},
    }
    monkeypatch.setattr("fusilli_plugin.checks.environment._ask_drivers", lambda: drivers)
    found = report(fusilli("doctor", "--json"))
    assert found["hip devices"]["detail"] == "hip:0 (gfx942) through libamdhip64.so.7"
    assert found["self-test on hip"]["detail"] == "right on hip"


@pytest.mark.a_few("without0")
@pytest.mark.usefixtures("no_self_test")
@pytest.mark.parametrize("without", [(), ("hipModuleLaunchKernel", "hipMemsetD16Async")])
def test_a_hip_runtime_without_functions_of_launches(
    fusilli: Fusilli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: tuple[str, ...]
) -> None:
    """The list is the one that launches are bound from; the engine declines there what doctor calls broken."""
    build(tmp_path, without=without)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    line = report(fusilli("doctor", "--json"))["hip devices"]
    assert line["status"] == ("broken" if without else "ok"), line
    assert all(name in line["detail"] for name in without)
    code = (
        "import sys, pathlib; from fusilli_plugin.engine.engine import FusilliEngine\n"
        "from dataclasses import replace; from iree_bridge import Options\n"
        "engine = FusilliEngine('hip', options=replace(Options.from_env(), claim='all'))\n"
        "print(engine.support(pathlib.Path(sys.argv[1]).read_bytes()))"
    )
    command = [sys.executable, "-c", code, str(GRAPHS / "pw_relu.bin")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=True).stdout
    assert said.startswith("served") is not bool(without), said
    assert all(name in said for name in without)


@pytest.fixture
def engines_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is hipDNN's only one."""
    folder = tmp_path / "engines"
    folder.mkdir()
    monkeypatch.setenv("HIPDNN_PLUGIN_DIR", str(folder))
    return folder


def plugin_lines(result: Result) -> list[dict[str, str]]:
    return [
        line for line in json.loads(result.stdout)["findings"] if line["what"].startswith(("hipDNN plugin", "engine "))
    ]


@pytest.mark.usefixtures("no_self_test")
def test_plugins_of_others_are_listed(fusilli: Fusilli, engines_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.checks.environment._ask_drivers", dict)
    compile_tiny_plugin(engines_folder / "libother.so", "TINY_ENGINE")
    (engines_folder / "libbroken.so").write_text("no library")
    broken, other = plugin_lines(fusilli("doctor", "--json"))
    assert (broken["status"], other["status"]) == ("absent", "ok")
    assert "libbroken.so" in broken["detail"]
    assert "TINY_ENGINE" in other["detail"]


@pytest.mark.thorough
@pytest.mark.usefixtures("no_self_test")
def test_a_second_plugin_with_our_engine_is_reported(
    fusilli: Fusilli, engines_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hipDNN loads in the order of paths and refuses the second plugin with an engine id, all of it."""
    monkeypatch.setattr("fusilli_plugin.checks.environment._ask_drivers", dict)
    ours = build_plugin(engines_folder)
    (line,) = plugin_lines(fusilli("doctor", "--json"))
    assert line["status"] == "ok"
    assert str(ours) in line["detail"]
    other = compile_tiny_plugin(engines_folder / "libafusilli.so", "FUSILLI_ENGINE")
    result = fusilli("doctor", "--json")
    assert result.exit_code == 1
    first, second = plugin_lines(result)
    assert first["what"] == second["what"] == "engine FUSILLI_ENGINE twice"
    assert f"{other} (tiny 0.1: FUSILLI_ENGINE) is loaded first" in first["detail"]
    assert str(other) in second["detail"]
    assert str(ours) in second["detail"]
    assert "FUSILLI_ENGINE_NAME" in second["advice"]
    monkeypatch.setenv("FUSILLI_ENGINE_NAME", "ACME_FUSILLI")
    assert [line["status"] for line in plugin_lines(fusilli("doctor", "--json"))] == ["ok", "ok"]
    monkeypatch.delenv("FUSILLI_ENGINE_NAME")
    ours.unlink()
    (line,) = plugin_lines(fusilli("doctor", "--json"))
    assert (line["what"], line["status"]) == ("engine FUSILLI_ENGINE of another plugin", "broken")


@pytest.mark.usefixtures("no_self_test")
def test_a_plugin_folder_that_is_not_there(fusilli: Fusilli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.checks.environment._ask_drivers", dict)
    monkeypatch.setenv("HIPDNN_PLUGIN_DIR", "/nonexistent/folder.so")
    (line,) = plugin_lines(fusilli("doctor", "--json"))
    assert line["status"] == "broken"
    assert "/nonexistent/folder.so" in line["detail"]


def test_what_is_broken_is_reported_with_advice(
    fusilli: Fusilli, monkeypatch: pytest.MonkeyPatch, cold_cache: Path
) -> None:
    def fail(device: str) -> str:
        raise ExecutionError(f"device {device} computes wrong results")

    monkeypatch.setattr("fusilli_plugin.checks.selftest.run", fail)
    monkeypatch.setenv("FUSILLI_CACHE_READONLY", str(cold_cache / "nowhere"))
    cold_cache.chmod(0o777)
    result = fusilli("doctor")
    assert result.exit_code == 1
    assert "others may write to it" in result.stdout
    assert "device cpu computes wrong results" in result.stdout
    assert "change FUSILLI_CACHE_READONLY" in result.stdout
    assert "to mend" in result.stdout.splitlines()[-1]


def test_versions_that_do_not_fit_are_broken(fusilli: Fusilli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.checks.selftest.run", lambda device: device)
    monkeypatch.setattr("iree_bridge.compile.versions.runtime_version", lambda: "3.12.0")
    result = fusilli("doctor", "--json")
    assert result.exit_code == 1
    assert "iree-base-runtime 3.12.0" in report(result)["IREE pair"]["detail"]
