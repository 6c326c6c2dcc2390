"""Work that several threads ask for at the same time is done once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Flights"]

_T = TypeVar("_T")


class Flights:
    """Work that threads share: the first that asks for a key does it, the others get its result or its error."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._running: dict[object, Future[Any]] = {}

    def share(self, key: object, work: Callable[[], _T]) -> _T:
        """The result of ``work``, done once at a time per ``key``."""
        from concurrent.futures import Future  # what is in the cache needs none

        if self._pid != os.getpid():
            self._clear()  # the threads that did the work do not exist in a forked child
        while True:
            with self._lock:
                future = self._running.get(key)
                if future is None:
                    future = self._running[key] = Future()
                    break
            error = future.exception()
            if error is None:
                return future.result()
            if isinstance(error, Exception):
                raise error
            # That thread was interrupted: its interrupt is not ours.
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
            raise
        else:
            future.set_result(result)
            return result
        finally:
            with self._lock:
                self._running.pop(key, None)
