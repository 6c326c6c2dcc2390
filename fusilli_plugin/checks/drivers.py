"""Which devices the GPU drivers of this machine show. For a child process: a broken driver may end its process."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from graph_api import ExecutionError, NotSupportedError
from iree_bridge.device import Device, Kind

__all__ = ["devices"]

_LIBRARIES: dict[Kind, str] = {"hip": "libamdhip64.so", "cuda": "libcuda.so"}


def devices(kind: Kind) -> dict[str, Any]:
    """Devices of a kind in this machine.

    Returns:
        ``library``: path of the driver library that answered, None if it is not installed;
        ``devices``: one text per device, such as ``hip:0 (gfx942)``;
        ``reason``: why there are no (more) devices.
    """
    found: list[str] = []
    reason = ""
    for index in itertools.count():
        try:
            found.append(f"{kind}:{index} ({Device(kind, index).target})")
        except (ExecutionError, NotSupportedError) as error:
            reason = str(error)
            break
    return {"library": _mapped(_LIBRARIES[kind]), "devices": found, "reason": reason}


def _mapped(library: str) -> str | None:
    """Path of a library that is mapped into this process."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        path = line.partition("/")[2]
        if path.rpartition("/")[2].startswith(library):
            return f"/{path}"
    return None


if __name__ == "__main__":
    print(json.dumps({name: devices(name) for name in _LIBRARIES}))
    sys.stdout.flush()
