"""The fastest right form of a graph, found by measuring on the device."""

from iree_bridge.tuning.measure import ensure, tune

__all__ = ["ensure", "tune"]
