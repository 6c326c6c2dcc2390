"""hipDNN's engine plugin API in ctypes, and shared libraries behind it as engines.

Each function is listed with its argument types; `PluginLibrary` follows the order of calls and the checks of the real
host. ctypes releases the GIL during each call. A library stays mapped until the process ends: plugins with threads or a
runtime of their own do not survive being unmapped.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from enum import IntEnum
from typing import Any

__all__ = [
    "CALLBACK",
    "OPTIONAL",
    "REQUIRED",
    "ConstData",
    "DeviceBuffer",
    "PluginType",
    "Severity",
    "Status",
    "declare",
]


class Status(IntEnum):
    """hipdnnPluginStatus_t. The last two are newer than November 2025."""

    SUCCESS = 0
    BAD_PARAM = 1
    INVALID_VALUE = 2
    INTERNAL_ERROR = 3
    ALLOC_FAILED = 4
    NOT_APPLICABLE = 5
    NOT_INITIALIZED = 6


class PluginType(IntEnum):
    """hipdnnPluginType_t."""

    UNSPECIFIED = 0
    ENGINE = 1
    HEURISTIC = 2


class Severity(IntEnum):
    """hipdnnSeverity_t."""

    INFO = 0
    WARN = 1
    ERROR = 2
    FATAL = 3
    OFF = 4


class ConstData(ctypes.Structure):
    """hipdnnPluginConstData_t: bytes that belong to whoever handed them out."""

    _fields_ = (("ptr", c_void_p), ("size", c_size_t))


class DeviceBuffer(ctypes.Structure):
    """hipdnnPluginDeviceBuffer_t: an entry of the variant pack."""

    _fields_ = (("uid", c_int64), ("ptr", c_void_p))


CALLBACK = ctypes.CFUNCTYPE(None, c_int, c_char_p)
"""hipdnnCallback_t: severity and message; may be called from any thread."""

_DATA = POINTER(ConstData)
_STRING = POINTER(c_char_p)
_OUT_ID, _OUT_COUNT, _OUT_SIZE, _OUT_POINTER = POINTER(c_int64), POINTER(c_uint32), POINTER(c_size_t), POINTER(c_void_p)
_HANDLE = _CONTEXT = c_void_p

REQUIRED: dict[str, tuple[Any, ...]] = {
    "hipdnnPluginGetName": (_STRING,),
    "hipdnnPluginGetVersion": (_STRING,),
    "hipdnnPluginGetType": (POINTER(c_int),),
    "hipdnnPluginGetLastErrorString": (_STRING,),
    "hipdnnEnginePluginGetAllEngineIds": (_OUT_ID, c_uint32, _OUT_COUNT),
    "hipdnnEnginePluginCreate": (_OUT_POINTER,),
    "hipdnnEnginePluginDestroy": (_HANDLE,),
    "hipdnnEnginePluginSetStream": (_HANDLE, c_void_p),
    "hipdnnEnginePluginGetApplicableEngineIds": (_HANDLE, _DATA, _OUT_ID, c_uint32, _OUT_COUNT),
    "hipdnnEnginePluginGetEngineDetails": (_HANDLE, c_int64, _DATA, _DATA),
    "hipdnnEnginePluginDestroyEngineDetails": (_HANDLE, _DATA),
    "hipdnnEnginePluginGetWorkspaceSize": (_HANDLE, _DATA, _DATA, _OUT_SIZE),
    "hipdnnEnginePluginCreateExecutionContext": (_HANDLE, _DATA, _DATA, _OUT_POINTER),
    "hipdnnEnginePluginDestroyExecutionContext": (_HANDLE, _CONTEXT),
    "hipdnnEnginePluginGetWorkspaceSizeFromExecutionContext": (_HANDLE, _CONTEXT, _OUT_SIZE),
    "hipdnnEnginePluginExecuteOpGraph": (_HANDLE, _CONTEXT, c_void_p, POINTER(DeviceBuffer), c_uint32),
}
"""Functions without which the host refuses a library → argument types."""

OPTIONAL: dict[str, tuple[Any, ...]] = {
    "hipdnnPluginSetLoggingCallback": (CALLBACK,),
    "hipdnnPluginSetLogLevel": (c_int,),
    "hipdnnPluginGetApiVersion": (_STRING,),
    "hipdnnEnginePluginGetEngineName": (c_int64, _STRING),
    "hipdnnEnginePluginExecuteOpGraphWithOverrides": (
        _HANDLE,
        _CONTEXT,
        c_void_p,
        POINTER(DeviceBuffer),
        c_uint32,
        c_uint32,
        POINTER(c_int64),
        POINTER(c_uint32),
        POINTER(POINTER(c_int64)),
        POINTER(POINTER(c_int64)),
    ),
    "hipdnnEnginePluginSerializeExecutionContext": (_HANDLE, _CONTEXT, _DATA),
    # of summer 2026, in the place of the one above
    "hipdnnEnginePluginSerializeExecutionContextWithEngineId": (_HANDLE, c_int64, _CONTEXT, _DATA),
    "hipdnnEnginePluginDestroySerializedExecutionContext": (_HANDLE, _DATA),
    "hipdnnEnginePluginCreateExecutionContextFromSerialized": (_HANDLE, _DATA, _OUT_POINTER),
}
"""Functions that the host copes without → argument types."""


def declare(library: ctypes.CDLL) -> tuple[dict[str, Any], list[str]]:
    """The functions of a library with their types set, and the names of required ones that it lacks."""
    found: dict[str, Any] = {}
    for name, arguments in (REQUIRED | OPTIONAL).items():
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes = arguments
            function.restype = None if name == "hipdnnPluginGetLastErrorString" else c_int
            found[name] = function
    return found, [name for name in REQUIRED if name not in found]
