"""A graph that is claimed can be built: what would make every build fail is found before, and the graph is declined.

Each row of the table in docs/design.md that says how a claimed graph could fail has its test here.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import import_graph
from graph_api import CompileError, ExecutionError, FusilliError
from hipdnn_backend.errors import EngineError
from hipdnn_backend.wire import EngineConfig, decode_graph
from iree_bridge import Options
from iree_bridge import build as build_graph
from iree_bridge.compile import compiler, starting
from iree_bridge.compile.options import CompileMode
from iree_bridge.targets.cpu import host_arch, host_extensions
from tests.fusilli_plugin.plugin.hosting import GRAPHS, Session

pytestmark = pytest.mark.iree_cpu
RELU = (GRAPHS / "pw_relu.bin").read_bytes()


def engine(cache: Path, **options: object) -> FusilliEngine:
    return FusilliEngine("cpu", options=replace(Options.from_env(), cache_dir=cache, **options))  # type: ignore[arg-type]


def build(made: FusilliEngine) -> None:
    made.build(RELU, EngineConfig(engine_id=made.id)).close()


def writable_by_others(root: Path) -> None:
    root.mkdir(mode=0o700)
    root.chmod(0o777)


def foreign(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)


def writable_inside(root: Path) -> None:
    (root / "v1").mkdir(mode=0o700, parents=True)
    root.chmod(0o700)
    (root / "v1" / "graphs").mkdir()
    (root / "v1" / "graphs").chmod(0o770)


@pytest.mark.parametrize("spoil", [writable_by_others, foreign, writable_inside])
def test_a_cache_that_must_not_be_trusted_declines(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(tmp_path / "cache")
    answer = engine(tmp_path / "cache").support(RELU)
    assert (answer.ok, answer.rule) == (False, "cache")
    assert "chmod 700" in answer.reason
    shared = engine(tmp_path / "own", cache_readonly=(tmp_path / "cache",)).support(RELU)
    assert (shared.ok, shared.rule) == (False, "cache")


def a_file(root: Path) -> None:
    root.write_text("in its place")


def below_a_file(root: Path) -> None:
    root.parent.joinpath("file").write_text("")
    root.symlink_to(root.parent / "file" / "below")


def not_to_be_made(root: Path) -> None:
    root.symlink_to("/proc/self/none/cache")


def of_a_file_inside(root: Path) -> None:
    root.mkdir(mode=0o700)
    (root / "v1").write_text("")


@pytest.mark.a_few("a_file")
@pytest.mark.parametrize("spoil", [a_file, below_a_file, not_to_be_made, of_a_file_inside])
def test_a_cache_that_cannot_be_written_is_done_without_and_told_once(
    tmp_path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    spoil(tmp_path / "cache")
    made = engine(tmp_path / "cache", cache_size=1 << 20)
    assert made.support(RELU), made.support(RELU)
    build(made)
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING and "is not kept" in each.message]
    assert len(warnings) == 1
    assert "FUSILLI_CACHE_DIR" in warnings[0].message


def test_a_full_disk_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("iree_bridge.compile.cache.os.replace", full)
    made = engine(tmp_path / "cache", cache_size=2 << 20)
    assert made.support(RELU)
    build(made)
    assert "No space left on device" in caplog.text


def test_a_folder_of_entries_that_others_may_write_costs_its_entries_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = engine(tmp_path / "cache")
    build(made)
    for level in ("graphs", "code"):
        for folder in (tmp_path / "cache" / "v1" / level).iterdir():
            folder.chmod(0o777)
    again = engine(tmp_path / "cache", cache_size=3 << 20)
    assert again.support(RELU)
    build(again)
    assert "others may write to it" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"python": Path("/nonexistent/python")}, "FUSILLI_PYTHON"),
        ({"python": Path("/")}, "FUSILLI_PYTHON"),
        ({"memory": 1 << 20}, "FUSILLI_COMPILE_MEMORY"),
    ],
)
def test_a_worker_that_cannot_start(tmp_path: Path, options: dict[str, object], said: str) -> None:
    answer = engine(tmp_path / "cache", **options).support(RELU)
    assert (answer.ok, answer.rule) == (False, "worker")
    assert said in answer.reason
    build(engine(tmp_path / "cache"))
    assert engine(tmp_path / "cache", **options).support(RELU)  # it is in the cache now


def test_no_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "_TEMPORARY", (str(tmp_path / "none"),))
    monkeypatch.setattr(starting, "_fine", {})
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nor here"))
    answer = engine(tmp_path / "cache").support(RELU)
    assert (answer.ok, answer.rule) == (False, "worker")
    assert "set TMPDIR" in answer.reason


def test_a_start_that_failed_counts_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no library >&2\nexit 3\n")
    python.chmod(0o755)
    made = engine(tmp_path / "cache", python=python)
    assert made.support(RELU)  # nobody can know it yet
    with pytest.raises(EngineError, match="the compile worker did not start"):
        build(made)
    answer = made.support(RELU)
    assert (answer.ok, answer.rule) == (False, "worker")
    monkeypatch.setattr(starting, "_FAILURE_COUNTS", 0.0)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert made.support(RELU)
    build(made)


def test_what_the_compiler_refused_is_declined_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(ir: object, job: object, *_: object, **__: object) -> None:
        raise CompileError("graph 'x' could not be compiled: no", None, "refused")

    made = engine(tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_request_compile", refuse)
        with pytest.raises(EngineError, match="could not be compiled"):
            build(made)
    assert made.support(RELU).rule == "compiler"
    answer = engine(tmp_path / "cache").support(RELU)  # as another process has it
    assert (answer.ok, answer.rule) == (False, "compiler")
    assert "remembered; remove" in answer.reason


@pytest.mark.parametrize("kind", ["timeout", "memory", "crash", ""])
def test_what_failed_once_is_declined_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CompileError("the compiler failed", None, kind)

    made = engine(tmp_path / "cache")
    monkeypatch.setattr(compiler, "_request_compile", fail)
    assert made.support(RELU)
    with pytest.raises(EngineError, match="the compiler failed"):
        build(made)
    answer = made.support(RELU)
    assert (answer.ok, answer.rule) == (False, "compiler")
    assert answer.reason == "it failed to compile in this process: the compiler failed"


@pytest.mark.parametrize("kind", ["start", "killed"])
def test_what_somebody_ended_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    made = engine(tmp_path / "cache")
    with monkeypatch.context() as patch:

        def fail(*_: object, **__: object) -> None:
            raise CompileError("the compile worker was killed", None, kind)

        patch.setattr(compiler, "_request_compile", fail)
        with pytest.raises(EngineError, match="the compile worker was killed"):
            build(made)
    assert made.support(RELU)
    build(made)


HERE = (0, None)
"""Where executions on the CPU go."""


@pytest.mark.parametrize("kind", ["refused", "timeout", "memory", "crash", ""])
def test_a_host_is_told_of_what_does_not_compile_when_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    compiles: list[object] = []

    def fail(*_: object, **__: object) -> None:
        compiles.append(kind)
        raise CompileError("the compiler failed\nreproducer: here", None, kind)

    monkeypatch.setattr(compiler, "_request_compile", fail)
    made = engine(tmp_path / "cache")
    answer = made.claims(RELU, HERE)
    assert (answer.ok, answer.rule) == (False, "compiler")
    assert "the compiler failed\nreproducer: here" in answer.reason
    tried = len(compiles)
    assert made.claims(RELU, HERE).rule == "compiler"  # hipDNN asks twice
    assert len(compiles) == tried


def test_a_host_is_told_late_if_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_request_compile", lambda *_, **__: pytest.fail("compiled"))
    assert engine(tmp_path / "cache", compile=CompileMode.LATE).claims(RELU, HERE)
    assert engine(tmp_path / "cache", compile=CompileMode.NEVER).claims(RELU, HERE).rule == "not-compiled"


def test_what_was_compiled_for_a_claim_serves_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(tmp_path / "cache")
    assert made.claims(RELU, HERE)
    monkeypatch.setattr("fusilli_plugin.engine.built.load_code", lambda *_: pytest.fail("loaded again"))
    monkeypatch.setattr("fusilli_plugin.engine.engine.compile_code", lambda *_, **__: pytest.fail("compiled again"))
    plan = made.build(RELU, EngineConfig(engine_id=made.id))
    plan.prepare(HERE)
    made.settle(RELU, HERE)
    plan.close()
    assert not made._claimed._kept


def test_what_the_device_does_not_load_is_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ExecutionError("the device does not load it")

    made = engine(tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr("fusilli_plugin.engine.built.load_code", refuse)
        answer = made.claims(RELU, HERE)
    assert (answer.ok, answer.rule, answer.reason) == (False, "device", "the device does not load it")
    assert made.claims(RELU, HERE)  # it may have been busy


def test_what_the_device_cannot_hold_is_declined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = import_graph(decode_graph(RELU))
    tensors = sum(tensor.nbytes for tensor in (*graph.arguments().outputs, *graph.arguments().inputs))
    made = engine(tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr("iree_bridge.devices.device.Device.memory", tensors - 1)
        answer = made.claims(RELU, HERE)
        assert (answer.ok, answer.rule) == (False, "memory")
        assert f"{tensors} bytes and the workspace 0, more than the {tensors - 1} of cpu" in answer.reason
        patch.setattr("iree_bridge.devices.device.Device.memory", tensors)
        assert made.claims(RELU, HERE)


def test_code_for_another_processor_is_declined_and_not_executed(tmp_path: Path) -> None:
    """XOP was in one family of processors; code that uses it would end the process."""
    if "xop" in host_extensions() or host_arch() != "x86_64":
        pytest.skip("this processor has XOP, or is another architecture")
    flags = ("--iree-llvmcpu-target-cpu-features=+xop",)
    answer = engine(tmp_path / "cache", extra_flags=flags).claims(RELU, HERE)
    assert (answer.ok, answer.rule) == (False, "device")
    assert "processor extensions that this machine lacks (xop); the compiler flags --iree-llvm" in answer.reason
    with pytest.raises(ExecutionError, match=r"lacks \(xop\)"):
        build_graph(import_graph(decode_graph(RELU)), "cpu", options=Options(cache_dir=tmp_path, extra_flags=flags))


def test_a_c_host_sees_a_decline(session: Session, case: Callable[[str], Any], tmp_path: Path) -> None:
    session.cache = tmp_path / "cache"
    said = session.run("declined", case("pw_relu").folder, FUSILLI_EXTRA_COMPILER_FLAGS="--no-such-flag")
    assert "a graph is declined: the compiler has no flag --no-such-flag" in said


def test_never_compiling_and_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine(tmp_path / "cache", compile=CompileMode.NEVER).support(RELU).rule == "not-compiled"
    monkeypatch.setattr("iree_bridge.compile.versions.compiler_version", lambda: None)
    assert engine(tmp_path / "cache").support(RELU).rule == "installation"


def test_engine_errors_are_errors_of_this_project_too(tmp_path: Path) -> None:
    """Neither ``except EngineError`` nor ``except FusilliError`` misses one, and no private class is raised."""
    made = engine(tmp_path / "cache")
    for call in (lambda: made.restore(b"none"), lambda: made.details(b""), lambda: made.for_target("gfx000")):
        with pytest.raises(FusilliError) as caught:
            call()
        assert isinstance(caught.value, EngineError)
        assert not type(caught.value).__name__.startswith("_")
    with pytest.raises(FusilliError, match=r"\[plan\]$") as caught:
        made.restore(b"none")
    assert str(caught.value).count("[plan]") == 1
