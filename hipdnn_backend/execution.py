"""Where programs that were written before the rooms import it from; see `hipdnn_backend.host.execution`."""

from __future__ import annotations

from hipdnn_backend.host.execution import Host, HostPlan

__all__ = ["Host", "HostPlan"]
