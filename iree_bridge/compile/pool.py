"""Compile workers seen from the caller's process: started, bounded in number and time, replaced when they die."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from fusilli_ground.environment import environment
from iree_bridge.compile import messages, starting
from iree_bridge.compile.messages import Header
from iree_bridge.compile.options import Options
from iree_bridge.compile.starting import START_MEMORY, NoInterpreterError, find_python, hold_all

__all__ = ["Reply", "WorkerError", "WorkerPool", "pool", "shutdown"]

_LOG = logging.getLogger(__name__)
_WORKER: Final = Path(__file__).resolve().parent / "worker.py"
_STDERR_NAME: Final = "stderr.txt"
_START_TIMEOUT: Final = 60.0  # seconds
_PATIENCE: Final = 2 * _START_TIMEOUT  # seconds over that of a request, in which another worker has to become free
_END_TIMEOUT: Final = 1.0  # of a process that has closed its end
_STOP_TIMEOUT: Final = 5.0  # seconds
_STDERR_LIMIT: Final = 256 << 10  # bytes
_OUT_OF_MEMORY: Final = (
    "out of memory",
    "bad_alloc",
    "Cannot allocate memory",
    "MemoryError",
    "Allocation failed",
    "pthread_create failed",
    "failed to map segment",
)
_UNKNOWN_FLAG: Final = re.compile(r"Unknown command line argument '([^']*)'")


@dataclass(frozen=True)
class Reply:
    """A worker's answer. ``stderr`` is what the compiler printed beside its diagnostics."""

    header: Header
    payload: bytes
    stderr: str


class WorkerError(Exception):
    """A request got no answer; the worker is gone and the next request gets another.

    Attributes:
        kind: ``start`` (no worker could be started), ``crash``, ``memory``, ``timeout``, or ``killed``: somebody else
            did, which says nothing about the request.
        stderr: what the worker printed.
    """

    def __init__(
        self, kind: Literal["start", "crash", "memory", "timeout", "killed"], message: str, stderr: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.stderr = stderr


class _LostBeforeStartError(Exception):
    """The worker was gone before it saw the request: idle time-out, or killed while idle."""


class _Worker:
    """One worker process. Used by one thread at a time."""

    def __init__(self, options: Options, global_flags: tuple[str, ...]) -> None:
        self.global_flags = global_flags
        self.memory = options.memory
        try:
            self.scratch = Path(tempfile.mkdtemp(prefix="fusilli-worker-"))
        except OSError as error:
            raise WorkerError("start", f"no temporary folder for a compile worker ({error}); set TMPDIR") from error
        try:
            self._start(options)
        except BaseException as error:
            shutil.rmtree(self.scratch, ignore_errors=True)
            if isinstance(error, OSError):
                raise WorkerError("start", f"the compile worker could not be started: {error}") from error
            raise

    def _start(self, options: Options) -> None:
        try:
            python, sites = find_python(options)
        except NoInterpreterError as error:
            raise WorkerError("start", str(error)) from None
        ours, theirs = (socket.socket(fileno=_above_standard(end.detach())) for end in socket.socketpair())
        self._sock = ours
        read, write = (_above_standard(end) for end in os.pipe())
        lifeline, self._lifeline = io.FileIO(read, "r"), io.FileIO(write, "w")
        hello = {
            "op": "hello",
            "scratch": str(self.scratch),
            "memory": options.memory,
            "idle": options.idle,
            "global_flags": list(self.global_flags),
            "lifeline": lifeline.fileno(),
        }
        # With all that it needs in these folders, a worker starts sooner without a look at the interpreter's own.
        isolation = ("-I", "-S") if hold_all(sites) else ("-I",)
        with theirs, lifeline, open(self.scratch / _STDERR_NAME, "ab") as stderr:
            # No preexec_fn (unsafe with threads) and no parent-death signal (it fires when the starting thread ends).
            try:
                self.process = subprocess.Popen(
                    [str(python), *isolation, str(_WORKER), str(theirs.fileno()), str(os.getpid()), *sites],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    cwd="/",
                    env=_environment(self.scratch),
                    pass_fds=(theirs.fileno(), lifeline.fileno()),
                    start_new_session=True,
                )
            except OSError as error:
                self._close()
                raise WorkerError("start", f"the compile worker could not be started ({python}): {error}") from error
        deadline = time.monotonic() + _START_TIMEOUT
        try:
            messages.send(ours, hello, deadline=deadline)
            answer, _ = messages.receive(ours, deadline=deadline)
        except (TimeoutError, messages.PeerGoneError) as error:
            by_others = self.is_killed()
            text = self.kill()
            if by_others:
                raise _LostBeforeStartError("it was killed while it started") from None
            unknown = _UNKNOWN_FLAG.search(text)
            if unknown is not None:
                raise WorkerError("start", f"the compiler has no flag {unknown[1]}", text) from None
            if self.memory < START_MEMORY or any(sign in text for sign in _OUT_OF_MEMORY):
                message = f"the compile worker did not start within {_size(self.memory)}"
                raise WorkerError("memory", message, text) from None
            message = f"the compile worker did not start ({python}): {_last_line(text) or error}"
            raise WorkerError("start", message, text) from None
        _LOG.debug(
            "compile worker %d: compiler %s, global flags %s",
            self.process.pid,
            answer["compiler"],
            hello["global_flags"],
        )

    def call(self, header: Header, payload: bytes, deadline: float) -> Reply:
        """One request and its reply. After any exception the worker must not be used again."""
        try:
            messages.send(self._sock, header, payload, deadline=deadline)
            messages.receive(self._sock, deadline=deadline)
        except messages.PeerGoneError as error:
            raise _LostBeforeStartError(str(error)) from None
        answer, data = messages.receive(self._sock, deadline=deadline)
        return Reply(answer, data, self._stderr())

    def is_killed(self) -> bool:
        """Whether somebody else ended the process; to be asked before `kill`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_TIMEOUT)
        return self.process.returncode == -signal.SIGKILL

    def _stderr(self) -> str:
        try:
            with open(self.scratch / _STDERR_NAME, "rb") as file:
                return file.read(_STDERR_LIMIT).decode("utf-8", "replace")
        except OSError:
            return ""

    def describe_end(self) -> str:
        """How the process ended, as far as that can be known: a host that reaps all children hides it."""
        code = self.process.returncode
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}" if code else "ended"

    def kill(self) -> str:
        """End the process with its linker, remove its folder; returns what it had printed."""
        self._close()
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_TIMEOUT)
        text = self._stderr()
        shutil.rmtree(self.scratch, ignore_errors=True)
        return text

    def alive(self) -> bool:
        """False once the process has ended."""
        return self.process.poll() is None

    def forget(self) -> None:
        """Drop a worker that belongs to the process this one was forked from."""
        self._close()
        self.process.returncode = 0  # not our child: nothing to wait for

    def _close(self) -> None:
        self._sock.close()
        self._lifeline.close()


class WorkerPool:
    """Workers, started when a request needs one. Thread safe; usable after a fork, which starts with no workers."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._clear()

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._count = 0

    def request(
        self,
        header: Header,
        payload: bytes = b"",
        *,
        timeout: float,
        global_flags: Sequence[str] = (),
        any_flags: bool = False,
    ) -> Reply:
        """Have a worker answer one request.

        Args:
            header: what is asked; see ``iree_bridge.compile.worker``.
            payload: its data.
            timeout: seconds the worker may take, its start not counted; it is killed then.
            global_flags: compiler flags that are global to a process; a worker serves one set of them.
            any_flags: an idle worker with other flags serves as well; one that is started has these.

        Raises:
            WorkerError: the worker died or took too long.
        """
        self._check_fork()
        text = ""
        wanted, patience = tuple(global_flags), max(timeout, self._options.timeout) + _PATIENCE
        for _ in range(2):
            try:
                with self._worker(wanted, patience, any_flags=any_flags) as worker:
                    try:
                        return worker.call(header, payload, time.monotonic() + timeout)
                    except TimeoutError:
                        text = worker.kill()
                        raise WorkerError("timeout", f"it took more than {timeout:g} s and was stopped", text) from None
                    except messages.PeerGoneError:
                        raise self._crash(worker) from None
            except _LostBeforeStartError as lost:
                text = str(lost)
        raise WorkerError("killed", f"the compile worker was lost twice before it began: {_last_line(text)}", text)

    def _crash(self, worker: _Worker) -> WorkerError:
        by_others = worker.is_killed()
        text = worker.kill()
        if any(sign in text for sign in _OUT_OF_MEMORY):
            return WorkerError("memory", f"the compiler needed more than {_size(worker.memory)} and was stopped", text)
        return WorkerError("killed" if by_others else "crash", f"the compiler crashed ({worker.describe_end()})", text)

    @contextlib.contextmanager
    def _worker(self, global_flags: tuple[str, ...], patience: float, *, any_flags: bool) -> Iterator[_Worker]:
        worker = self._acquire(global_flags, patience, any_flags)
        clean = False
        try:
            yield worker
            clean = worker.alive()
        finally:
            if not clean:
                worker.kill()
            with self._changed:
                if clean:
                    self._idle.append(worker)
                else:
                    self._count -= 1
                self._changed.notify_all()

    def _acquire(self, global_flags: tuple[str, ...], patience: float, any_flags: bool) -> _Worker:
        while True:
            with self._changed:
                fitting = [worker for worker in self._idle if worker.global_flags == global_flags]
                fitting = fitting or (self._idle[-1:] if any_flags else [])
                if fitting:
                    self._idle.remove(fitting[-1])
                    candidate, stale = fitting[-1], None
                elif self._count < self._options.workers:
                    self._count += 1
                    candidate, stale = None, None
                elif self._idle:
                    candidate, stale = None, self._idle.pop(0)
                elif self._changed.wait(patience):
                    continue
                else:  # each worker answers or is killed before that
                    raise WorkerError("timeout", f"no compile worker became free in {patience:g} s")
            if candidate is not None:
                if candidate.alive():
                    return candidate
                candidate.kill()
            if stale is not None:
                stale.kill()
            return self._start(global_flags)

    def _start(self, global_flags: tuple[str, ...]) -> _Worker:
        """Start a worker in a place that ``_count`` already counts."""
        try:
            if not _registered:
                _registered.append(atexit.register(shutdown))
            worker = _Worker(self._options, global_flags)
            starting.succeeded(self._options)
            return worker
        except BaseException as error:
            if isinstance(error, WorkerError):
                starting.failed(self._options, str(error))
            with self._changed:
                self._count -= 1
                self._changed.notify_all()
            raise

    def pids(self) -> tuple[int, ...]:
        """Process ids of the idle workers."""
        self._check_fork()
        with self._changed:
            return tuple(worker.process.pid for worker in self._idle if worker.alive())

    def shutdown(self) -> None:
        """End the idle workers; those at work end when their request does. The pool stays usable."""
        self._check_fork()
        with self._changed:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
            self._changed.notify_all()
        for worker in idle:
            worker.kill()

    def _check_fork(self) -> None:
        # Checked by pid and not by a fork hook: a C host forks without Python knowing.
        if self._pid != os.getpid():
            idle = self._idle
            self._clear()  # before anything else: the old lock may be held by a thread that exists no more
            for worker in idle:
                worker.forget()


_registered: list[object] = []
_pools: dict[tuple[object, ...], WorkerPool] = {}


def pool(options: Options) -> WorkerPool:
    """The pool of this process for these limits."""
    key = (options.workers, options.memory, options.idle, options.python)
    return _pools.setdefault(key, WorkerPool(options))


def shutdown() -> None:
    """End every idle worker of this process."""
    for each in tuple(_pools.values()):
        each.shutdown()


def _above_standard(descriptor: int) -> int:
    """The same file with a descriptor over 2: a host may have closed its standard files, the worker needs them."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def _environment(scratch: Path) -> dict[str, str]:
    # Little is passed on: the compiler's linker needs a place for its files, some interpreters their library path.
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": str(scratch)}
    library_path = environment().get("LD_LIBRARY_PATH")
    return variables | ({"LD_LIBRARY_PATH": library_path} if library_path else {})


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >> 20 else f"{count} bytes"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
