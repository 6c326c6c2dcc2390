"""Barriers: what keeps the compiler from joining two kernels, or from seeing through a value.

A barrier that is left in the module is taken for something that the host looks at: the code then waits for the device
in the middle of an execution, and allocates memory of its own in each. So the compiler is halted where kernels are cut,
the barriers are dropped, and it goes on.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BARRIER", "CUT", "DROP", "DROP_OPTION", "is_behind_cut"]

BARRIER: Final = "util.optimization_barrier"
"""The operation."""
CUT: Final = "flow"
"""The last phase that joins kernels."""
DROP: Final = "iree-util-drop-compiler-hints"
DROP_OPTION: Final = "keep-assume-int=true"
"""The pass that drops them, but no ranges of integers, which are of use later."""

_FIRST_PHASES: Final = ("start", "input", "abi", "preprocessing", "global-optimization", "dispatch-creation", CUT)


def is_behind_cut(text: str, phase: str | None) -> bool:
    """Whether a compile of ``text`` that ends with a phase, or with code, has barriers to drop on its way."""
    return BARRIER in text and phase not in _FIRST_PHASES
