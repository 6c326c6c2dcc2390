"""Where kernels run."""

from __future__ import annotations

from fusilli_plugin.emulator import Machine

__all__ = ["Machine"]
