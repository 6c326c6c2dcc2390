"""A worker process and what becomes of it: a crash, a hang or a full memory is a verdict, and the next case goes on."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from fusilli_ground.environment import environment
from fusilli_plugin.fuzz.cases import Case, save_case
from fusilli_plugin.fuzz.examine import CHECKS, Setting, Verdict
from graph_api import FusilliError

__all__ = ["Interrupted", "Worker"]

_LINES: Final = 12
_START: Final = 120.0
_KILLED: Final = "the kernel ends what takes too much memory in this way"


class Interrupted(Exception):  # noqa: N818 - no error: `Worker.stop` was called
    """The worker was stopped while it was asked."""


class _LostError(Exception):
    """The process ended, or did not answer in time."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Worker:
    """A process that examines cases, started when it is first asked, and again when it was lost.

    Args:
        setting: where cases are examined.
        limit: seconds for a case, its compiles included.
        cache: folder for compiled code, private.
    """

    def __init__(self, setting: Setting, limit: float, cache: Path) -> None:
        self._setting, self._limit, self._cache = setting, limit, cache
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="fusilli-fuzz-"))
        self._buffer = b""
        self._stopped = False

    def start(self) -> None:
        """Start the process now.

        Raises:
            FusilliError: what the setting names is not there.
            Interrupted: `stop` was called.
        """
        try:
            self._started()
        except _LostError as lost:
            if self._stopped:
                raise Interrupted from None
            raise FusilliError(f"a worker for {self._setting} does not start: {lost}") from None

    def examine(self, case: Case, checks: Sequence[str] = tuple(CHECKS)) -> Verdict:
        """What comes of a case.

        Raises:
            FusilliError: no worker can be started.
            Interrupted: `stop` was called.
        """
        save_case(self._folder, case)
        request = {"op": "examine", "folder": str(self._folder), "checks": list(checks)}
        try:
            return Verdict(**self._asked(request))
        except _LostError as lost:
            if self._stopped:
                raise Interrupted from None
            return Verdict("failed", "run", lost.kind, str(lost))

    def complete(self, folder: Path) -> str:
        """Add to a capsule what has to be computed.

        Returns:
            What is missing there, and why; "" if nothing is.

        Raises:
            FusilliError, Interrupted: as of `examine`.
        """
        try:
            answer = self._asked({"op": "complete", "folder": str(folder)})
        except _LostError as lost:
            if self._stopped:
                raise Interrupted from None
            return f"results.npz and module.mlir: {lost}"
        return str(answer.get("reason") or answer.get("text") or "")

    def stop(self) -> None:
        """End the process; from another thread, what it is asked then raises `Interrupted`."""
        self._stopped = True
        self._kill()

    def close(self) -> None:
        """End the process and remove its files."""
        self._kill()
        self._drop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the process

    def _asked(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._lost("") from None
        return self._line(process, self._limit)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None and not self._stopped:
            return self._process
        if self._stopped:
            raise _LostError("", "stopped")
        self._drop()
        command = [sys.executable, "-m", "fusilli_plugin.fuzz.worker"]
        variables = dict(environment()) | {"FUSILLI_CACHE_DIR": str(self._cache), "FUSILLI_COMPILE_WORKERS": "1"}
        if self._setting.device is not None:  # what our own plugin goes by, as an engine
            variables["FUSILLI_DEVICE"] = self._setting.device
        variables.setdefault("FUSILLI_COMPILE_TIMEOUT", str(max(1.0, self._limit / 2)))
        with (self._folder / "stderr.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=variables,
                start_new_session=True,  # an interrupt at the terminal is the campaign's
            )  # fmt: skip
        self._buffer = b""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(self._setting.to_json()).encode() + b"\n")
            self._process.stdin.flush()
        answer = self._line(self._process, _START)
        if not answer["ready"]:
            raise FusilliError(answer["reason"])
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        """The next answer."""
        assert process.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    self._kill()
                    raise self._lost(f"no answer within {seconds:g} s")
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    raise self._lost("")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _lost(self, hang: str) -> _LostError:
        """Why there is no answer."""
        process = self._process
        assert process is not None
        status = process.wait()
        said = (self._folder / "stderr.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        told = "\n".join(said[-_LINES:])
        if hang:
            return _LostError("hang", hang)
        if status == -signal.SIGKILL:
            return _LostError("killed", f"the worker was killed; {_KILLED}\n{told}")
        if status < 0:
            return _LostError(f"crash {signal.Signals(-status).name}", f"the worker died of it\n{told}")
        return _LostError(f"exit {status}", f"the worker ended with status {status}\n{told}")

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _drop(self) -> None:
        if self._process is None:
            return
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._process = None
