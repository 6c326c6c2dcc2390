"""numpy, loaded at its first use: reading and emitting graphs needs none of it, and compile workers start sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)  # the next use finds it here
            return value

    np = _Numpy()
