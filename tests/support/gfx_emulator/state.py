"""Memory, and what is found wrong with its use."""

from __future__ import annotations

from fusilli_plugin.emulator import HazardError, Memory

__all__ = ["HazardError", "Memory"]
