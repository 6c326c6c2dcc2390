from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from iree_bridge.compile import messages, pool, starting
from iree_bridge.compile.options import Options
from iree_bridge.compile.pool import Reply, WorkerError, WorkerPool
from iree_bridge.targets.target import Target

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.iree_cpu

ADD = b"""
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
# torch-mlir makes a null type of an 8-bit integer NCHW convolution, and the compiler a segmentation fault.
CRASH = b"""
!x = !torch.vtensor<[1,4,8,8],si8>
!w = !torch.vtensor<[4,4,3,3],si8>
func.func @main(%x: !x, %w: !w) -> !x {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %0 = torch.constant.int 0
  %1 = torch.constant.int 1
  %ones = torch.prim.ListConstruct %1, %1 : (!torch.int, !torch.int) -> !torch.list<int>
  %zeros = torch.prim.ListConstruct %0, %0 : (!torch.int, !torch.int) -> !torch.list<int>
  %y = torch.aten.convolution %x, %w, %none, %ones, %ones, %ones, %false, %zeros, %1
    : !x, !w, !torch.none, !torch.list<int>, !torch.list<int>, !torch.list<int>, !torch.bool, !torch.list<int>,
      !torch.int -> !x
  return %y : !x
}
"""
# A compile that stops early: enough to have a worker at work.
LOWER = {"op": "compile", "flags": ["--iree-hal-target-backends=llvm-cpu"], "phase": "flow"}
COMPILE = {"op": "compile", "flags": list(Target.parse("cpu").flags())}


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[WorkerPool]:
    made = WorkerPool(Options(cache_dir=tmp_path, workers=2, idle=60))
    yield made
    made.shutdown()


def ask(workers: WorkerPool, *, timeout: float = 60, global_flags: tuple[str, ...] = ()) -> Reply:
    reply = workers.request(LOWER, ADD, timeout=timeout, global_flags=global_flags)
    assert reply.header["ok"]
    assert b"util.func public" in reply.payload
    return reply


def only_worker(workers: WorkerPool) -> int:
    (pid,) = workers.pids()
    return pid


def environment(pid: int) -> list[str]:
    return [item for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if item]


def scratch_of(pid: int) -> Path:
    return Path(next(item[7:] for item in environment(pid) if item.startswith("TMPDIR=")))


def gone(pid: int, within: float = 10) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def run_host(code: str) -> str:
    """What a host process prints that has a pool ``workers`` and can ``ask`` it."""
    out = subprocess.run(
        [sys.executable, "-c", _PRELUDE + code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()


_PRELUDE = f"""
import os, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from pathlib import Path
from typing import NoReturn
from iree_bridge.compile.options import Options
from iree_bridge.compile.pool import WorkerPool
workers = WorkerPool(Options(cache_dir=Path("/nonexistent"), workers=1))
LOWER, COMPILE = {LOWER!r}, {COMPILE!r}
def ask(header=LOWER):
    return workers.request(header, {ADD!r}, timeout=60).header["ok"]
"""


def test_one_worker_serves_many_requests(workers: WorkerPool) -> None:
    assert workers.pids() == ()
    ask(workers)
    first = only_worker(workers)
    ask(workers)
    assert only_worker(workers) == first


def test_the_worker_is_cut_off_from_its_parent(workers: WorkerPool) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    inherited = f"pipe:[{os.fstat(write).st_ino}]"
    try:
        ask(workers)
    finally:
        os.close(read)
        os.close(write)
    pid = only_worker(workers)
    proc = Path(f"/proc/{pid}")
    pipes = {entry: os.readlink(entry) for entry in (proc / "fd").iterdir() if os.readlink(entry).startswith("pipe:")}
    assert inherited not in pipes.values()
    (lifeline,) = pipes  # whose other end it does not have: it would keep itself alive
    assert not lifeline.lstat().st_mode & 0o200
    assert {item.partition("=")[0] for item in environment(pid)} <= {"PATH", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH"}
    assert os.getsid(pid) == pid
    assert os.readlink(proc / "cwd") == "/"
    limits = (proc / "limits").read_text()
    (data,) = [line for line in limits.splitlines() if line.startswith("Max data size")]
    assert data.split()[3] == str(8 << 30)
    assert {"-I", "-S"} <= set((proc / "cmdline").read_text().split("\0"))


def test_its_folder_is_private_and_goes_with_it(workers: WorkerPool) -> None:
    ask(workers)
    scratch = scratch_of(only_worker(workers))
    assert scratch.stat().st_mode & 0o777 == 0o700
    workers.shutdown()
    assert not scratch.exists()


def test_a_crash_is_an_error_and_the_next_request_works(workers: WorkerPool) -> None:
    with pytest.raises(WorkerError, match=r"crashed \(killed by SIGSEGV\)") as caught:
        workers.request(COMPILE, CRASH, timeout=60)
    assert caught.value.kind == "crash"
    ask(workers)


def test_a_timeout_kills_the_worker_and_the_next_request_works(workers: WorkerPool) -> None:
    ask(workers)
    pid = only_worker(workers)
    with pytest.raises(WorkerError, match=r"more than 0\.05 s") as caught:
        workers.request(COMPILE, ADD, timeout=0.05)
    assert caught.value.kind == "timeout"
    assert gone(pid, 2)
    ask(workers)


def test_a_memory_limit_ends_the_compile(tmp_path: Path) -> None:
    # Enough to start (about 110 MiB), too little to compile.
    small = WorkerPool(Options(cache_dir=tmp_path, workers=1, memory=120 << 20))
    try:
        with pytest.raises(WorkerError, match="MiB") as caught:
            small.request(COMPILE, ADD, timeout=60)
        assert caught.value.kind == "memory"
    finally:
        small.shutdown()


def test_a_worker_that_cannot_start_within_its_memory_says_so(tmp_path: Path) -> None:
    tiny = WorkerPool(Options(cache_dir=tmp_path, workers=1, memory=16 << 20))
    for _ in range(2):
        with pytest.raises(WorkerError, match="did not start within 16 MiB") as caught:
            tiny.request(LOWER, ADD, timeout=60)
        assert caught.value.kind == "memory"


def test_a_worker_killed_while_it_starts_is_replaced(workers: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not remembered as one that cannot be started, which would keep others from trying for half a minute."""
    original, killed, to_kill = subprocess.Popen, [], 1

    def popen(*given: object, **more: object) -> object:
        process = original(*given, **more)  # type: ignore[call-overload]
        if len(killed) < to_kill:
            killed.append(process.pid)
            process.kill()
        return process

    monkeypatch.setattr(subprocess, "Popen", popen)
    ask(workers)
    assert only_worker(workers) not in killed
    assert not starting.problem(Options(workers=2, idle=60))
    workers.shutdown()
    killed.clear()
    to_kill = 2
    with pytest.raises(WorkerError, match="the compile worker was lost twice before it began: it was killed while it"):
        ask(workers)
    assert len(killed) == 2
    ask(workers)


def test_a_worker_killed_while_idle_is_replaced(workers: WorkerPool) -> None:
    ask(workers)
    pid = only_worker(workers)
    os.kill(pid, signal.SIGKILL)
    ask(workers)
    assert only_worker(workers) != pid


def test_a_worker_killed_at_work_is_an_error_and_the_next_request_works(workers: WorkerPool) -> None:
    ask(workers)
    pid = only_worker(workers)
    # A compile takes over half a second; it has begun once the statistics folder of the request is there.
    scratch = scratch_of(pid)

    def kill() -> None:
        while not (scratch / "dump").exists():
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)

    shutil.rmtree(scratch / "dump")
    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerError, match="killed by SIGKILL") as caught:
        workers.request(COMPILE, ADD, timeout=60)
    assert caught.value.kind == "killed"
    killer.join()
    ask(workers)


def test_an_idle_worker_ends_by_itself(tmp_path: Path) -> None:
    short = WorkerPool(Options(cache_dir=tmp_path, workers=1, idle=0.3))
    try:
        ask(short)
        (pid,) = short.pids()
        assert gone(pid)
        ask(short)
    finally:
        short.shutdown()


@pytest.mark.thorough
def test_the_number_of_workers_is_bounded(tmp_path: Path) -> None:
    one = WorkerPool(Options(cache_dir=tmp_path, workers=1))
    seen: set[int] = set()

    def work() -> None:
        ask(one)
        seen.update(one.pids())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
    one.shutdown()
    assert one.pids() == ()
    assert all(gone(pid) for pid in seen)
    ask(one)
    one.shutdown()


def test_each_set_of_global_flags_has_its_worker_within_the_bound(tmp_path: Path) -> None:
    one = WorkerPool(Options(cache_dir=tmp_path, workers=1))
    try:
        ask(one)
        (first,) = one.pids()
        ask(one, global_flags=("--iree-global-opt-propagate-transposes=false",))
        (second,) = one.pids()
        assert first != second
        assert gone(first, 2)
    finally:
        one.shutdown()


def test_a_request_for_which_flags_do_not_matter_takes_the_worker_that_is_there(tmp_path: Path) -> None:
    two = WorkerPool(Options(cache_dir=tmp_path, workers=2))
    flags = ("--iree-global-opt-propagate-transposes=false",)
    try:
        two.request(LOWER, ADD, timeout=60, global_flags=flags, any_flags=True)
        first = two.pids()
        ask(two, global_flags=flags)  # it was started with these
        assert two.pids() == first
        two.request(LOWER, ADD, timeout=60, any_flags=True)
        assert two.pids() == first
    finally:
        two.shutdown()


def test_a_global_flag_that_the_compiler_lacks(workers: WorkerPool) -> None:
    with pytest.raises(WorkerError, match="the compiler has no flag --iree-nonsense"):
        ask(workers, global_flags=("--iree-nonsense",))
    ask(workers)


@pytest.mark.parametrize("missing", ["folder", "descriptors"])
def test_a_worker_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    if missing == "folder":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    else:
        monkeypatch.setattr("socket.socketpair", refuse)
    with pytest.raises(WorkerError, match="set TMPDIR" if missing == "folder" else "Too many open files") as caught:
        WorkerPool(Options(cache_dir=tmp_path)).request(LOWER, ADD, timeout=60)
    assert caught.value.kind == "start"


def test_a_worker_whose_parent_ends_during_its_start_leaves_no_folder(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    lifeline, held = os.pipe()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    worker = subprocess.Popen(
        [
            sys.executable,
            "-I",
            str(ROOT / "iree_bridge" / "compile" / "worker.py"),
            str(theirs.fileno()),
            str(os.getpid()),
        ],
        pass_fds=(theirs.fileno(), lifeline),
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    theirs.close()
    os.close(lifeline)
    hello = {"op": "hello", "scratch": str(scratch), "memory": 8 << 30, "idle": 60, "global_flags": []}
    messages.send(ours, hello | {"lifeline": lifeline})
    ours.close()
    os.close(held)
    worker.wait(60)
    assert not scratch.exists()


@pytest.mark.a_few("os.kill(os.getpid(), 9)")
@pytest.mark.parametrize("end", ["return", "os._exit(0)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_workers_end_with_their_parent(end: str) -> None:
    code = f"def main():\n    ask(); print(*workers.pids(), flush=True); {end}\nmain()"
    with subprocess.Popen(
        [sys.executable, "-c", _PRELUDE + code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as host:
        pid = int(host.communicate(timeout=60)[0])
    assert gone(pid, 5)


@pytest.mark.thorough
@pytest.mark.parametrize("before", ["none", "a compile"])
def test_a_worker_in_a_native_call_that_keeps_the_gil_ends_with_its_parent(tmp_path: Path, before: str) -> None:
    """Also after a compile with a linker, for which LLVM puts handlers of its own in place."""
    busy, hook, python = (tmp_path / name for name in ("busy", "hook.py", "python"))
    hook.write_text(
        f"import ctypes, os, pathlib, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from iree_bridge.compile import worker\n"
        "def hang(*_):\n"
        f"    pathlib.Path({str(busy)!r}).write_text(str(os.getpid()))\n"
        "    mutex = ctypes.create_string_buffer(64)\n"
        "    for _ in range(2): ctypes.PyDLL(None).pthread_mutex_lock(mutex)\n"  # no signal ends this wait
        "original, worker._Server._compile = worker._Server._compile, lambda self, header, text: (\n"
        "    original(self, header, text) if text else hang())\n"
        "worker.main(sys.argv[3:])\n"
    )
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {hook} "$@"\n')
    python.chmod(0o755)
    code = (
        f"workers = WorkerPool(Options(python=Path({str(python)!r}), workers=1))\n"
        f"{'ask(COMPILE)' if before == 'a compile' else ''}\n"
        "workers.request({'op': 'compile', 'flags': []}, timeout=60)"
    )
    with subprocess.Popen([sys.executable, "-c", _PRELUDE + code], cwd=ROOT) as host:
        end = time.monotonic() + 60
        while not (busy.exists() and busy.read_text()):
            assert host.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        pid = int(busy.read_text())
        assert not gone(pid, 1.5)
        scratch = scratch_of(pid)
        host.kill()
    ended = gone(pid, 5)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(scratch)
    assert ended


def test_a_worker_ends_although_a_sibling_keeps_its_connection() -> None:
    code = (
        "ask(); (pid,) = workers.pids()\n"
        "if not os.fork():\n    os.close(1); os.close(2); time.sleep(20); os._exit(0)\n"
        "print(pid, flush=True); os._exit(0)"
    )
    pid = int(run_host(code))
    assert gone(pid, 5)


def test_a_forked_child_has_workers_of_its_own() -> None:
    code = (
        "ask(); (pid,) = workers.pids()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    ok = workers.pids() == () and ask() and workers.pids() != (pid,)\n"
        "    workers.shutdown(); os._exit(0 if ok else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ask(), workers.pids() == (pid,))"
    )
    assert run_host(code) == "0 True True"


@pytest.mark.a_few("signal.signal(signal.SIGINT, signal.SIG_IGN)")
@pytest.mark.parametrize(
    "setting",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    ],
)
def test_a_host_with_odd_signal_settings_can_compile(setting: str) -> None:
    # The CPU compile starts a linker and waits for it.
    assert run_host(f"{setting}\nprint(ask(COMPILE))") == "True"


def test_a_host_that_does_not_ignore_sigpipe_survives_a_lost_worker() -> None:
    code = (
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "ask(); os.kill(workers.pids()[0], 9); time.sleep(0.2); print(ask())"
    )
    assert run_host(code) == "True"


def test_a_host_without_standard_files_and_with_a_hostile_environment() -> None:
    code = (
        "os.environ.update(PYTHONHOME='/nonexistent', PYTHONPATH='/nonexistent', LD_PRELOAD='/nonexistent.so')\n"
        "os.closerange(0, 3); os._exit(0 if ask(COMPILE) else 1)"
    )
    assert run_host(code) == ""


def test_the_interpreter_is_the_one_beside_the_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: WorkerPool
) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/some-host-application")
    python, sites = starting.find_python(Options(cache_dir=tmp_path))
    assert python.name.startswith("python")
    assert Path(sites[0], "iree", "compiler").is_dir()
    ask(workers)


def test_without_an_interpreter_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/some-host-application")
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(starting, "_WORKER", Path("/nonexistent/iree_bridge/compile/worker.py"))
    monkeypatch.setattr(starting, "_failures", {})  # else later tests of this process have no worker for half a minute
    with pytest.raises(starting.NoInterpreterError, match="FUSILLI_PYTHON"):
        starting.find_python(Options(cache_dir=tmp_path))
    with pytest.raises(WorkerError, match="FUSILLI_PYTHON"):
        WorkerPool(Options(cache_dir=tmp_path)).request({"op": "compile", "flags": []}, timeout=5)
    assert "FUSILLI_PYTHON" in starting.problem(Options(cache_dir=tmp_path, memory=1 << 32))


@pytest.mark.parametrize("python", ["/nonexistent/python3", "/bin/false", "/bin/true"])
def test_an_interpreter_that_is_none(tmp_path: Path, python: str) -> None:
    bad = WorkerPool(Options(cache_dir=tmp_path, python=Path(python)))
    for _ in range(2):
        with pytest.raises(WorkerError, match=python) as caught:
            bad.request(LOWER, ADD, timeout=60)
        assert caught.value.kind == "start"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"xx",
        struct.pack("<IQ", 2**32 - 1, 0),
        struct.pack("<IQ", 4, 0) + b"{]x}",
        struct.pack("<IQ", 2, 0) + b"[]",
    ],
    ids=["nothing", "short", "huge", "no json", "no object"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(data)
        with pytest.raises(messages.PeerGoneError):
            messages.receive(ours, deadline=time.monotonic() + 5)


def test_a_message_arrives_whole() -> None:
    ours, theirs = socket.socketpair()
    payload = bytes(3_000_000)
    with ours, theirs:
        sender = threading.Thread(target=messages.send, args=(theirs, {"a": ["ü"]}, payload))
        sender.start()
        assert messages.receive(ours) == ({"a": ["ü"]}, payload)
        sender.join()
        with pytest.raises(TimeoutError):
            messages.receive(ours, deadline=time.monotonic() + 0.01)


def test_packages_outside_an_installation_do_not_choose_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``pip install --target``: the folder's parents are no prefix, even if they hold a bin/python3."""
    target = tmp_path / "site"
    for package in ("iree/compiler/_mlir_libs", "numpy"):
        (target / package).mkdir(parents=True)
    for name in ("bin", f"lib/python{sys.version_info.major}.{sys.version_info.minor}"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(sys.executable, tmp_path / "bin" / "python3")
    monkeypatch.setattr(sys, "path", [str(target), *sys.path])
    python, sites = starting.find_python(Options(cache_dir=tmp_path))
    assert python == Path(sys.executable)
    assert sites[0] == str(target)
    assert any(Path(folder, "ml_dtypes").is_dir() for folder in sites)


def test_waiting_for_a_worker_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the only worker answers or is killed in time; if that never happens, the wait is an error."""
    monkeypatch.setattr(pool, "_PATIENCE", 0.2)
    workers = WorkerPool(Options(cache_dir=tmp_path, workers=1, timeout=0.1))
    workers._count = 1  # held by a thread that does not come back
    with pytest.raises(WorkerError, match=r"no compile worker became free in 0\.3 s") as caught:
        workers.request({"op": "nothing"}, timeout=0.1)
    assert caught.value.kind == "timeout"


def test_what_one_caller_s_flags_break_is_no_problem_of_others() -> None:
    bad, good = (Options(extra_flags=flags) for flags in (("--no-such-flag",), ()))
    starting.failed(bad, "the compiler has no flag --no-such-flag")
    try:
        assert starting.problem(bad) == "the compiler has no flag --no-such-flag"
        assert not starting.problem(good)
    finally:
        starting.succeeded(bad)
