"""One arena for the memory that a program needs while it runs: who lives when, where each goes, and a check of that.

Pure data in, pure data out: nothing here knows what the memory is for.
"""

from __future__ import annotations

from hipdnn_backend.offload.memory.lifetimes import Lifetime, Need, lifetimes, live_bytes, lower_bound, naive_size
from hipdnn_backend.offload.memory.planner import Placement, plan
from hipdnn_backend.offload.memory.verify import PlacementError, verify

__all__ = [
    "Lifetime",
    "Need",
    "Placement",
    "PlacementError",
    "lifetimes",
    "live_bytes",
    "lower_bound",
    "naive_size",
    "plan",
    "verify",
]
