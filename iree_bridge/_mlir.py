"""The one import of the compiler's MLIR bindings. Only worker processes load this module."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.passmanager import PassManager

__all__ = ["PassManager", "ir"]
