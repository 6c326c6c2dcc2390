"""The one import of the compiler's MLIR bindings, which have no types. Only worker processes load this module."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["PassManager", "ir"]

# With numpy the bindings offer more attribute builders, of which none is used here. Loading it would be a third of
# the time that a worker needs before it compiles.
_numpy = sys.modules.get("numpy")
sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
try:
    from iree.compiler import ir as _ir  # pyright: ignore[reportMissingTypeStubs]
    from iree.compiler import passmanager as _passmanager  # pyright: ignore[reportMissingTypeStubs]
finally:
    if _numpy is None:
        del sys.modules["numpy"]

ir: Any = _ir
_passes: Any = _passmanager
PassManager: Any = _passes.PassManager
