"""The engines that a session's nodes are offered to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from fusilli_ground.errors import OptionError
from fusilli_plugin.engine.engine import FusilliEngine
from hipdnn_backend.engine import Engine, is_fallback
from hipdnn_backend.offload import engines_for as find
from iree_bridge import Device, Options
from iree_bridge.compile.options import TuneMode

__all__ = ["engines_for"]

_lock: Final = threading.Lock()
_engines: dict[tuple[Device, TuneMode | None], tuple[Engine, ...]] = {}


def engines_for(device: Device, names: Sequence[str] = (), tune: TuneMode | None = None) -> tuple[Engine, ...]:
    """The engines for a device, ours first, of those names if some are given.

    They are looked up once per device, so that sessions share code; ``tune`` is ours, None: as the environment says.

    Raises:
        OptionError: there is no engine of a name.
    """
    with _lock:
        if (device, tune) not in _engines:
            options = Options.from_env() if tune is None else Options.from_env(tune=tune)
            found = find(str(device), (FusilliEngine(device, options=options),))
            # what no other engine takes, ONNX Runtime has anyway
            _engines[device, tune] = tuple(engine for engine in found if not is_fallback(engine))
        found = _engines[device, tune]
    known = {engine.name: engine for engine in found}
    missing = [name for name in names if name not in known]
    if missing:
        raise OptionError(f"there is no engine {', '.join(missing)} for {device}; there are: {', '.join(known)}")
    return tuple(known[name] for name in names) if names else found
