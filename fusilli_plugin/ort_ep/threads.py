"""How many threads a session of ONNX Runtime may use for one operation, which decides how many a compiled group has.

`SessionOptions.intra_op_num_threads` can be set through ONNX Runtime's interface, but not read. So the place where
`SetIntraOpNumThreads` writes is found on options that are made for that, and read in those of the session.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.abi import Api
from graph_api import FusilliError
from iree_bridge import Device
from iree_bridge.devices.device import set_task_threads

__all__ = ["asked_threads", "with_threads"]

_LOG: Final = logging.getLogger(__name__)
_MARKS: Final = (0x2B7E1516, 0x3C4FCF09)  # numbers that nothing else in the options has
_SEARCHED: Final = 128  # 4-byte words; the options are longer
_MOST: Final = 1 << 12  # threads; what is larger was not the number
_lock = threading.Lock()
_places: dict[int, int | None] = {}
_told: set[int] = set()


def asked_threads(api: Api, options: Any) -> int:
    """The number that a session asks for; 0 for ONNX Runtime's own choice, or if it cannot be told.

    Args:
        api: of the ONNX Runtime.
        options: the session's OrtSessionOptions.
    """
    with _lock:
        key = id(api)
        if key not in _places:
            _places[key] = _find_place(api)
        place = _places[key]
    if place is None:
        return 0
    words: Any = ffi.cast("int32_t *", options)
    return words[place] if 0 < words[place] <= _MOST else 0


def _find_place(api: Api) -> int | None:
    """Number of the word that `SetIntraOpNumThreads` writes; None if that is not one."""
    made = api.get("CreateSessionOptions", "void *")
    try:
        words: Any = ffi.cast("int32_t *", made)
        found = set(range(_SEARCHED))
        for mark in _MARKS:
            api.call("SetIntraOpNumThreads", made, mark)
            found = {number for number in found if words[number] == mark}
    finally:
        api.plain("ReleaseSessionOptions", made)
    if len(found) != 1:
        _LOG.info("this ONNX Runtime does not show intra_op_num_threads: sessions run on all cores")
        return None
    return found.pop()


def with_threads(device: Device, threads: int) -> Device:
    """The device as a session uses it: one thread is the caller's own; there is one pool for all others."""
    if device.is_gpu or not threads:
        return device
    if threads == 1:
        return Device.parse("cpu-sync")
    try:
        set_task_threads(threads)
    except FusilliError as error:
        if threads not in _told:
            _told.add(threads)
            _LOG.warning("a session asks for intra_op_num_threads=%d, which it does not get: %s", threads, error)
    return device
