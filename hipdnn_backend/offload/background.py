"""One thread that compiles what runs were in no need to wait for, newest wishes first.

Most of a compile happens in worker processes; what is left is Python and MLIR, of which one thread is enough. At the
end of a Python process a compile that is under way is waited for: MLIR does not survive the interpreter.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor as _  # noqa: F401  registers its own end, which comes after ours
from typing import Final

__all__ = ["Background", "background"]

_LOG: Final = logging.getLogger(__name__)
_MOST: Final = 32  # wishes that are kept
# Shapes that are new come in bursts, whose runs a compile would slow down: it begins when that many seconds brought no
# wish, and that many after the first one at the latest.
_QUIET: Final = 0.3
_PATIENCE: Final = 1.5


class Background:
    """See the module."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._jobs: OrderedDict[Hashable, Callable[[], None]] = OrderedDict()
        self._running: Hashable | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._last = 0.0  # when something was wished for

    def wants(self, key: Hashable, job: Callable[[], None]) -> bool:
        """Run a job some time; whether it will be: not if the process ends, or newer wishes push it out.

        Args:
            key: of the job; what is waiting or running already is not wished for twice.
            job: raises nothing.
        """
        self._check_fork()
        with self._changed:
            if self._closed:
                return False
            if key != self._running:
                self._jobs[key] = job
                self._jobs.move_to_end(key)
                self._last = time.monotonic()
                while len(self._jobs) > _MOST:
                    self._jobs.popitem(last=False)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="fusilli-compile", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def holds(self, key: Hashable) -> bool:
        """Whether a job is waiting or running."""
        self._check_fork()
        with self._changed:
            return key in self._jobs or key == self._running

    def forget(self, owned: Callable[[Hashable], bool]) -> None:
        """Drop the jobs whose keys fit; one that is running runs on."""
        self._check_fork()
        with self._changed:
            for key in [key for key in self._jobs if owned(key)]:
                del self._jobs[key]
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do; whether that came in time."""
        self._check_fork()
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and self._running is None, timeout)

    def close(self) -> None:
        """Take no job any more, and wait for the one that is running."""
        self._check_fork()
        with self._changed:
            self._closed = True
            self._jobs.clear()
            if self._running is not None:
                _LOG.info("waiting for a compile that is under way")
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._running is None)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                end = time.monotonic() + _PATIENCE
                while not self._closed and (left := min(self._last + _QUIET, end) - time.monotonic()) > 0:
                    self._changed.wait(left)
                if self._closed:
                    return
                if not self._jobs:  # they were dropped meanwhile
                    self._changed.notify_all()
                    continue
                self._running, job = self._jobs.popitem()
            try:
                job()
            except (
                Exception
            ):  # a job tells what goes wrong itself: this is a fault of ours, and the next one is not to blame
                _LOG.exception("a compile in the background failed")
            finally:
                with self._changed:
                    self._running = None
                    self._changed.notify_all()

    def _check_fork(self) -> None:
        """A forked child has neither the thread nor, if somebody held it, the lock."""
        if self._pid != os.getpid():
            self.__init__()


background: Final = Background()
"""The one of this process."""

# Before the pools of the standard library close, which the compile that is under way uses; Python has no public way.
getattr(threading, "_register_atexit", atexit.register)(background.close)
