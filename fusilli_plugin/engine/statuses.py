"""Exceptions as a host of the plugin sees them: a status and a text."""

from __future__ import annotations

from typing import Final

from fusilli_ground.texts import host_text
from fusilli_plugin.errors import BadParamError, QuarantinedError
from graph_api import CompileError, ExecutionError, GraphError, NotSupportedError
from hipdnn_backend.errors import EngineError, WireError
from hipdnn_backend.plugins.abi import Status

__all__ = ["STATUS_OF", "error_text", "status_of"]

STATUS_OF: Final[dict[type[BaseException], Status]] = {
    BadParamError: Status.BAD_PARAM,
    WireError: Status.INVALID_VALUE,
    GraphError: Status.INVALID_VALUE,
    NotSupportedError: Status.INVALID_VALUE,
    QuarantinedError: Status.INVALID_VALUE,
    CompileError: Status.INTERNAL_ERROR,
    ExecutionError: Status.INTERNAL_ERROR,
    MemoryError: Status.ALLOC_FAILED,
}
"""The status of each exception; of the first base class that is listed. Everything else is an internal error."""

# As drivers and IREE put it.
_NO_MEMORY: Final = ("RESOURCE_EXHAUSTED", "hipErrorOutOfMemory", "CUDA_ERROR_OUT_OF_MEMORY")
_MAX_TEXT: Final = 2047


def status_of(error: BaseException) -> Status:
    """The status that tells a host of an exception."""
    if isinstance(error, EngineError) and error.status in list(Status):
        return Status(error.status) or Status.INTERNAL_ERROR
    if isinstance(error, ExecutionError) and any(sign in str(error) for sign in _NO_MEMORY):
        return Status.ALLOC_FAILED
    listed = (STATUS_OF[base] for base in type(error).__mro__ if base in STATUS_OF)
    return next(listed, Status.INTERNAL_ERROR)


def error_text(error: BaseException) -> bytes:
    """The text of an exception for a host: UTF-8, never empty, at most 2047 bytes, no NUL in it."""
    known = isinstance(error, EngineError) or any(base in STATUS_OF for base in type(error).__mro__)
    text = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
    data = host_text(text).encode(errors="replace")
    return data if len(data) <= _MAX_TEXT else data[:_MAX_TEXT].decode(errors="ignore").encode()
