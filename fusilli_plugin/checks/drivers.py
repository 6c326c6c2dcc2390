"""Which devices the GPU drivers of this machine show. For a child process: a broken driver may end its process."""

from __future__ import annotations

import itertools
import json
from typing import Any

from fusilli_ground.mapped import mapped_library
from fusilli_ground.texts import say
from graph_api import ExecutionError, NotSupportedError
from iree_bridge.devices.device import Device, Kind

__all__ = ["devices"]

_LIBRARIES: dict[Kind, str] = {"hip": "libamdhip64.so", "cuda": "libcuda.so"}


def devices(kind: Kind) -> dict[str, Any]:
    """Devices of a kind in this machine.

    Returns:
        ``library``: path of the driver library that answered, None if it is not installed;
        ``devices``: one text per device, such as ``hip:0 (gfx942)``;
        ``reason``: why there are no (more) devices;
        ``missing``: functions that launches take and the library does not have.
    """
    found: list[str] = []
    reason = ""
    for index in itertools.count():
        try:
            found.append(f"{kind}:{index} ({Device(kind, index).target})")
        except (ExecutionError, NotSupportedError) as error:
            reason = str(error)
            break
    library = mapped_library(_LIBRARIES[kind])
    return {"library": library, "devices": found, "reason": reason, "missing": _missing(kind, library)}


def _missing(kind: Kind, library: str | None) -> list[str]:
    """By the list that launches are bound from."""
    if kind != "hip" or library is None:
        return []
    from iree_bridge.runtime.recorded.driver import missing_functions  # HIP only

    return list(missing_functions(library))


if __name__ == "__main__":
    say(json.dumps({name: devices(name) for name in _LIBRARIES}))
