"""Emission rules, one file per operation family; importing this package fills ``emitter.RULES``."""

from iree_bridge.emit import conv, matmul, pointwise

__all__ = ["conv", "matmul", "pointwise"]
