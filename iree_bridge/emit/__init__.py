"""Emission rules, one file per operation family; importing this package fills ``emitter.RULES``."""

from iree_bridge.emit import _conv_gradients, conv, matmul, pointwise, sdpa

__all__ = ["_conv_gradients", "conv", "matmul", "pointwise", "sdpa"]
