"""The packages' log records, for a host that is ONNX Runtime: they go to its default logger."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from fusilli_ground.texts import host_text
from fusilli_plugin.edge.link import ffi
from fusilli_plugin.ort_ep.abi import Api, OrtError, c_text

__all__ = ["connect", "disconnect"]

_PACKAGES: Final = ("fusilli_plugin", "graph_api", "hipdnn_backend", "iree_bridge")
# OrtLoggingLevel: verbose 0, info 1, warning 2, error 3, fatal 4
_LEVELS: Final = ((logging.INFO, 0), (logging.WARNING, 1), (logging.ERROR, 2), (logging.CRITICAL, 3))
_FATAL: Final = 4


class _OrtLog(logging.Handler):
    """Leads records to an OrtLogger, if its level lets them pass."""

    def __init__(self, api: Api, logger: int) -> None:
        super().__init__()
        self._api = api
        self._logger: Any = ffi.cast("void *", logger)
        self._thread = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._thread, "busy", False):
            return
        self._thread.busy = True
        try:
            level = next((ort for limit, ort in _LEVELS if record.levelno < limit), _FATAL)
            text = host_text(f"{record.name}: {record.getMessage()}")
            place, function = c_text(record.pathname), c_text(record.funcName or "?")
            self._api.call("Logger_LogMessage", self._logger, level, c_text(text), place, record.lineno, function)
        except OrtError:
            self.handleError(record)
        finally:
            self._thread.busy = False


_handlers: dict[int, _OrtLog] = {}
_lock = threading.Lock()


def connect(api: Api, runtime: int, logger: int) -> None:
    """Lead the packages' records to a logger of ONNX Runtime until `disconnect`."""
    disconnect(runtime)
    if not logger:
        return
    handler = _OrtLog(api, logger)
    with _lock:
        _handlers[runtime] = handler
        for package in _PACKAGES:
            logging.getLogger(package).addHandler(handler)


def disconnect(runtime: int) -> None:
    """Forget the logger: it does not outlive the registration for sure."""
    with _lock:
        handler = _handlers.pop(runtime, None)
        for package in _PACKAGES if handler else ():
            assert handler is not None
            logging.getLogger(package).removeHandler(handler)
