"""Launching compiled code on a GPU without IREE's driver for it.

What a launch does is always the same for a graph of static shapes: the compiled host program binds buffers to kernels
whose arguments and grids it knows. So the program is run once, here, with a recorder in place of the device
(``recording``); afterwards a launch is the recorded list of calls of the HIP runtime (``launching``), made in the
caller's thread and on the caller's stream. IREE's driver hands each launch to a thread of its own and waits for it, and
pins 128 MiB of host memory for each stream; see ``docs/performance.md``. What cannot be recorded is left to it.
"""

from __future__ import annotations

from iree_bridge.runtime.recorded.recording import (
    ArgumentOffset,
    Copy,
    Fill,
    Kernel,
    Launch,
    Recording,
    UnrecordableError,
    record,
)

__all__ = ["ArgumentOffset", "Copy", "Fill", "Kernel", "Launch", "Recording", "UnrecordableError", "record"]
