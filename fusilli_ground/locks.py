"""Locks that a forked child finds open.

A C program may fork while other threads of it are inside this library. Its child has none of these threads, so a lock
that one of them held would stay locked there for ever.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final

__all__ = ["fork_safe_lock"]

_locks: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def fork_safe_lock() -> threading.Lock:
    """A lock that is open in a forked child whoever held it before.

    What it guards must be usable wherever a thread may have stopped: caches, whose worst is an entry made twice.
    """
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def _open_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the standard library does with its own


os.register_at_fork(after_in_child=_open_all)
