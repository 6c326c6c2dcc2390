from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from graph_api import ExecutionError

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
    ):
        assert found[what]["status"] == "ok", found[what]
    assert {"hip devices", "cuda devices"} <= set(found)
    assert str(cold_cache) in found["cache"]["detail"]
    assert "mode 0700" in found["cache"]["detail"]


@pytest.fixture
def no_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusilli_plugin.checks.selftest.run", lambda device: f"right on {device}")


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
    monkeypatch.setattr("iree_bridge.versions.runtime_version", lambda: "3.12.0")
    result = fusilli("doctor", "--json")
    assert result.exit_code == 1
    assert "iree-base-runtime 3.12.0" in report(result)["IREE pair"]["detail"]
