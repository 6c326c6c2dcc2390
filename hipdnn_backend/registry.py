"""Where programs that were written before the rooms import it from; see `hipdnn_backend.host.registry`."""

from __future__ import annotations

from hipdnn_backend.host.registry import Entry, Registry

__all__ = ["Entry", "Registry"]
