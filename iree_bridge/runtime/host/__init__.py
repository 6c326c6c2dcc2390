"""Launching compiled CPU code without IREE's driver: recorded commands, run by a library in C (``launcher.c``).

IREE hands each kernel to threads that it wakes for it, which costs more than most kernels take, and flushes numbers
below 2**-126 to zero. What cannot be recorded is left to it; see ``docs/performance.md``.
"""

from __future__ import annotations
