"""The fastest right form of a graph: measured on the device, or without one ordered by figures of the code."""

from iree_bridge.tuning.measure import ensure, tune
from iree_bridge.tuning.ranking import ensure_ranked, rank

__all__ = ["ensure", "ensure_ranked", "rank", "tune"]
