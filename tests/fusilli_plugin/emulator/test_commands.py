"""``fusilli selftest --emulate`` and ``fusilli check --emulate``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fusilli_plugin.checks import selftest
from fusilli_plugin.cli.main import cli
from fusilli_plugin.emulator import Assembled, outcome
from fusilli_plugin.engine import quarantine
from iree_bridge import Device, Options

pytestmark = [pytest.mark.mlir]

FIRST = "conv+bias+ReLU FLOAT"


@pytest.fixture(autouse=True)
def one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "SMALL", {FIRST: selftest.SMALL[FIRST]})


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments])


def test_selftest() -> None:
    done = _run("selftest", "--emulate", "gfx942", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["device"], document["ok"], document["failed"]) == ("gfx942 (emulated)", True, {})
    assert document["seen"][FIRST].startswith("right")
    assert f"gfx942 (emulated): 1 of 1: {FIRST}: right" in done.stderr
    assert not quarantine.has_passed_selftest(Device.parse("cpu"), Options.from_env())


def _with_fault(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Every graph's code gets a fault."""
    real = outcome.assemble

    def assemble(*arguments: Any) -> Assembled:
        made = real(*arguments)
        changed = made.assembly.replace(old, new)
        assert changed != made.assembly
        return Assembled(made.vmfb, changed, made.flags, made.dispatches)

    monkeypatch.setattr(outcome, "assemble", assemble)


def test_what_has_no_model_fails_the_selftest_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_fault(monkeypatch, "\ts_endpgm\n", "\ts_frobnicate s1\n\ts_endpgm\n")
    done = _run("selftest", "--emulate", "gfx942")
    assert done.exit_code == 1
    assert f"{FIRST}: unmodelled: opcode s_frobnicate in: s_frobnicate s1" in done.stderr
    assert "gfx942 (emulated): 0 of 1 graphs are right" in done.stdout


def test_check() -> None:
    arguments = ("check", "--suite", "fusion", "--emulate", "gfx942", "--filter", "matmul_bias_gelu/row/f16", "--json")
    done = _run(*arguments)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    (case,) = document["cases"]
    assert (document["device"], case["status"]) == ("gfx942 (emulated)", "right")
    assert case["dispatches"]["gfx942"] == 1
    assert 0 < case["fused"] <= 1


def test_a_hazard_fails_the_check_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_fault(monkeypatch, "\ts_waitcnt lgkmcnt(0)\n", "")
    done = _run("check", "--emulate", "gfx942", "--filter", "matmul_bias_gelu/row/f16")
    assert done.exit_code == 1
    assert "failed: hazard: a register is used before what was loaded has come; instruction" in done.stdout
    assert "1 failed" in done.stdout


def test_extra_compiler_flags_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSILLI_EXTRA_COMPILER_FLAGS", "--iree-no-such-flag")
    done = _run("selftest", "--emulate", "gfx942")
    assert done.exit_code == 1
    assert "iree-no-such-flag" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("selftest", "--emulate", "gfx1100"), "'gfx1100' cannot be emulated; gfx90a, gfx942, gfx950 can"),
        (("selftest", "--emulate", "gfx942", "--device", "cpu"), "--emulate and --device exclude each other"),
        (("selftest", "--emulate", "gfx942", "--release"), "--release needs a device"),
        (("check", "--emulate", "cpu"), "'cpu' cannot be emulated"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], message: str) -> None:
    done = _run(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr


def test_without_its_core_the_command_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise outcome.BuildError("a C compiler is needed")

    monkeypatch.setattr(outcome, "core", missing)
    done = _run("selftest", "--emulate", "gfx942")
    assert done.exit_code != 0
    assert "a C compiler is needed" in f"{done.stderr}{done.exception}"
