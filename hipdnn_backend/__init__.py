"""hipDNN's side of the border: its wire format, its engine plugin ABI and a host for engines.

Knows engines by protocol only; imports nothing of the other packages. Importing this package loads nothing: a plugin in
a C program needs a small part of it.

Example:
    from hipdnn_backend import Host, Registry

    with Host(Registry.find()) as host:
        plan = host.build(graph)
        plan.execute({1: x, 2: w, 3: y})
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hipdnn_backend.device.memory import Buffer, CudaMemory, HipMemory, HostMemory, Memory
    from hipdnn_backend.engine import Engine, EngineId, Override, Plan, Support, engine_id
    from hipdnn_backend.errors import BackendError, DeviceError, EngineError, NoEngineError, PackError, WireError
    from hipdnn_backend.host.execution import Host, HostPlan
    from hipdnn_backend.host.native import NativeHost
    from hipdnn_backend.host.ranking import Rank, Ranking, Verdict
    from hipdnn_backend.host.registry import Entry, LoadingMode, Problem, Registry
    from hipdnn_backend.host.selection import Policies, Selection

__all__ = [
    "BackendError",
    "Buffer",
    "CudaMemory",
    "DeviceError",
    "Engine",
    "EngineError",
    "EngineId",
    "Entry",
    "HipMemory",
    "Host",
    "HostMemory",
    "HostPlan",
    "LoadingMode",
    "Memory",
    "NativeHost",
    "NoEngineError",
    "Override",
    "PackError",
    "Plan",
    "Policies",
    "Problem",
    "Rank",
    "Ranking",
    "Registry",
    "Selection",
    "Support",
    "Verdict",
    "WireError",
    "engine_id",
]

_MODULES = {
    "device.memory": ("Buffer", "CudaMemory", "HipMemory", "HostMemory", "Memory"),
    "engine": ("Engine", "EngineId", "Override", "Plan", "Support", "engine_id"),
    "errors": ("BackendError", "DeviceError", "EngineError", "NoEngineError", "PackError", "WireError"),
    "host.execution": ("Host", "HostPlan"),
    "host.native": ("NativeHost",),
    "host.ranking": ("Rank", "Ranking", "Verdict"),
    "host.registry": ("Entry", "LoadingMode", "Problem", "Registry"),
    "host.selection": ("Policies", "Selection"),
}
_LATE = {name: f"hipdnn_backend.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Loads what is asked for."""
    if name not in _LATE:
        raise AttributeError(f"module 'hipdnn_backend' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)
