"""Emission rules, one file per operation family; importing this package fills ``emitter.RULES``."""

from iree_bridge.emit import _conv_gradients, conv, custom_op, matmul, norm, pointwise, reduction, resample, sdpa

__all__ = ["_conv_gradients", "conv", "custom_op", "matmul", "norm", "pointwise", "reduction", "resample", "sdpa"]
