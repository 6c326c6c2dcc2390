"""Running compiled graphs: load them on a device, check the caller's buffers, launch.

``Executable`` is all that the rest of the package uses. Inside, ``arguments`` checks buffers against tensors, ``lanes``
holds what one launch at a time needs (workspace, scratch memory, prepared argument lists), ``program`` is loaded code.
"""

from iree_bridge.runtime.executable import BoundCall, Executable

__all__ = ["BoundCall", "Executable"]
