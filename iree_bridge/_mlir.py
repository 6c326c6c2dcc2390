"""The one import of the compiler's MLIR bindings, which have no types. Only worker processes load this module."""

from __future__ import annotations

from typing import Any

from iree.compiler import ir as _ir
from iree.compiler import passmanager as _passmanager

__all__ = ["PassManager", "ir"]

ir: Any = _ir
_passes: Any = _passmanager
PassManager: Any = _passes.PassManager
