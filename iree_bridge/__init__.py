"""Operation graphs become Torch-MLIR, IREE compiles them, the executables run on HIP, CUDA and CPU devices.

Importing this package loads neither MLIR nor IREE.
"""

from typing import TYPE_CHECKING, Any

from graph_api import Support
from iree_bridge.compile.options import Options
from iree_bridge.support import support
from iree_bridge.targets.target import Target

if TYPE_CHECKING:
    from iree_bridge.api import build, compile_graph
    from iree_bridge.artifact.artifact import Artifact, ArtifactError
    from iree_bridge.devices.device import Device
    from iree_bridge.runtime import BoundCall, Executable

__all__ = [
    "Artifact",
    "ArtifactError",
    "BoundCall",
    "Device",
    "Executable",
    "Options",
    "Support",
    "Target",
    "build",
    "compile_graph",
    "support",
]

_LATE = {
    "Artifact": "iree_bridge.artifact.artifact",
    "ArtifactError": "iree_bridge.artifact.artifact",
    "BoundCall": "iree_bridge.runtime",
    "Device": "iree_bridge.devices.device",
    "Executable": "iree_bridge.runtime",
    "build": "iree_bridge.api",
    "compile_graph": "iree_bridge.api",
}


def __getattr__(name: str) -> Any:
    """Loads what some processes can do without when it is first asked for."""
    if name not in _LATE:
        raise AttributeError(f"module 'iree_bridge' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)
