"""The C API of hipDNN's backend library in ctypes: numbers, functions, descriptors.

Numbers and signatures are those of the public headers; functions and attributes that came after November 2025 are
optional. Errors carry the backend's own status and text. The GIL is released during each call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Self

from hipdnn_backend.errors import EngineError
from hipdnn_backend.wire import KnobValue

__all__ = ["Api", "Attribute", "Descriptor", "DescriptorType", "NativeStatus", "Type"]

_MESSAGE: Final = 2048
_FALLBACK: Final = 0  # HIPDNN_HEUR_MODE_FALLBACK, the only mode


class NativeStatus(IntEnum):
    """hipdnnStatus_t."""

    SUCCESS = 0
    NOT_INITIALIZED = 1
    BAD_PARAM = 2
    BAD_PARAM_NULL_POINTER = 3
    BAD_PARAM_NOT_FINALIZED = 4
    BAD_PARAM_OUT_OF_BOUND = 5
    BAD_PARAM_SIZE_INSUFFICIENT = 6
    BAD_PARAM_STREAM_MISMATCH = 7
    NOT_SUPPORTED = 8
    INTERNAL_ERROR = 9
    ALLOC_FAILED = 10
    INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 11
    INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 12
    EXECUTION_FAILED = 13
    PLUGIN_ERROR = 14


class DescriptorType(IntEnum):
    """Of hipdnnBackendDescriptorType_t what is used here."""

    ENGINE = 1
    ENGINECFG = 2
    ENGINEHEUR = 3
    EXECUTION_PLAN = 4
    KNOB_CHOICE = 6
    OPERATIONGRAPH = 10
    VARIANT_PACK = 11


class Attribute(IntEnum):
    """Of hipdnnBackendAttributeName_t what is used here; the overrides are newer than November 2025."""

    ENGINEHEUR_MODE = 100
    ENGINEHEUR_OPERATION_GRAPH = 101
    ENGINEHEUR_RESULTS = 102
    ENGINECFG_ENGINE = 200
    ENGINECFG_KNOB_CHOICES = 202
    ENGINECFG_WORKSPACE_SIZE = 203
    EXECUTION_PLAN_ENGINE_CONFIG = 301
    EXECUTION_PLAN_WORKSPACE_SIZE = 302
    EXECUTION_PLAN_ENGINE_GLOBAL_INDEX = 309
    KNOB_CHOICE_KNOB_TYPE = 500
    KNOB_CHOICE_KNOB_VALUE = 501
    OPERATIONGRAPH_HANDLE = 600
    VARIANT_PACK_UNIQUE_IDS = 700
    VARIANT_PACK_DATA_POINTERS = 701
    VARIANT_PACK_WORKSPACE = 703
    VARIANT_PACK_OVERRIDE_UNIQUE_IDS = 704
    VARIANT_PACK_OVERRIDE_SHAPES = 705
    VARIANT_PACK_OVERRIDE_STRIDES = 706
    VARIANT_PACK_OVERRIDE_LENGTHS = 707
    ENGINE_OPERATION_GRAPH = 1000
    ENGINE_GLOBAL_INDEX = 1001
    ENGINE_BEHAVIOR_NOTE = 1005


class Type(IntEnum):
    """Of hipdnnBackendAttributeType_t what is used here."""

    HANDLE = 0
    INT64 = 3
    DOUBLE = 5
    VOID_PTR = 6
    HEUR_MODE = 7
    BACKEND_DESCRIPTOR = 13
    BEHAVIOR_NOTE = 16
    CHAR = 19


_OUT, _BYTES, _STRINGS = POINTER(c_void_p), c_char_p, POINTER(c_char_p)
_HANDLE = _DESCRIPTOR = c_void_p
_SIZE = POINTER(c_size_t)

_REQUIRED: Final[dict[str, tuple[Any, ...]]] = {
    "hipdnnCreate": (_OUT,),
    "hipdnnDestroy": (_HANDLE,),
    "hipdnnSetStream": (_HANDLE, c_void_p),
    "hipdnnBackendCreateDescriptor": (c_int, _OUT),
    "hipdnnBackendDestroyDescriptor": (_DESCRIPTOR,),
    "hipdnnBackendFinalize": (_DESCRIPTOR,),
    "hipdnnBackendSetAttribute": (_DESCRIPTOR, c_int, c_int, c_int64, c_void_p),
    "hipdnnBackendGetAttribute": (_DESCRIPTOR, c_int, c_int, c_int64, POINTER(c_int64), c_void_p),
    "hipdnnBackendExecute": (_HANDLE, _DESCRIPTOR, _DESCRIPTOR),
    "hipdnnGetLastErrorString": (c_char_p, c_size_t),
    "hipdnnBackendCreateAndDeserializeGraph_ext": (_OUT, _BYTES, c_size_t),
    "hipdnnSetEnginePluginPaths_ext": (c_size_t, _STRINGS, c_int),
    "hipdnnGetLoadedEnginePluginPaths_ext": (_HANDLE, _SIZE, _STRINGS, _SIZE),
}
_OPTIONAL: Final[dict[str, tuple[Any, ...]]] = {
    "hipdnnGetEngineCount_ext": (_HANDLE, _SIZE),
    "hipdnnGetEngineInfo_ext": (
        _HANDLE, c_size_t, POINTER(c_int64), c_char_p, _SIZE, c_char_p, _SIZE, c_char_p, _SIZE, c_char_p, _SIZE,
    ),
    "hipdnnVersionString_ext": (),
    "hipdnnBackendGetSerializedExecutionPlan_ext": (_DESCRIPTOR, c_size_t, _SIZE, c_void_p),
    "hipdnnBackendCreateAndDeserializeExecutionPlan_ext": (_HANDLE, _OUT, _BYTES, c_size_t),
}  # fmt: skip


class Api:
    """The functions of a loaded backend library.

    Attributes:
        path: what was loaded.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Load a library; it stays mapped.

        Raises:
            EngineError: it cannot be loaded, or is no backend of hipDNN.
        """
        self.path = Path(path)
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise EngineError(str(path), f"cannot be loaded: {error}") from None
        self._functions: dict[str, Any] = {}
        for name, arguments in (_REQUIRED | _OPTIONAL).items():
            function = getattr(library, name, None)
            if function is not None:
                function.argtypes, function.restype = arguments, c_int
                self._functions[name] = function
        missing = [name for name in _REQUIRED if name not in self._functions]
        if missing:
            raise EngineError(str(path), f"is no backend of hipDNN: it lacks {', '.join(missing)}")
        self._functions["hipdnnGetLastErrorString"].restype = None
        if self.has("hipdnnVersionString_ext"):
            self._functions["hipdnnVersionString_ext"].restype = c_char_p

    def has(self, name: str) -> bool:
        """Whether the library has an optional function."""
        return name in self._functions

    @property
    def version(self) -> str:
        """What the library says, "" for one of November 2025, which does not."""
        return (self._functions["hipdnnVersionString_ext"]() or b"").decode() if self.has(_VERSION) else ""

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            EngineError: the library does not have it, or it failed; with the backend's status and text.
        """
        where = f"{self.path.name}: {name}"
        if name not in self._functions:
            raise EngineError(where, "this backend has no such function; it needs a newer hipDNN")
        status = self._functions[name](*arguments)
        if status == NativeStatus.SUCCESS:
            return
        text = ctypes.create_string_buffer(_MESSAGE)
        self._functions["hipdnnGetLastErrorString"](text, _MESSAGE)  # the text is the thread's
        known = NativeStatus(status).name if status in list(NativeStatus) else f"status {status}"
        raise EngineError(where, f"{known}: {text.value.decode(errors='replace') or 'no text'}", status)


_VERSION: Final = "hipdnnVersionString_ext"


class Descriptor:
    """A backend descriptor, destroyed by `close`, at the end of a ``with`` block or when it is collected."""

    def __init__(self, api: Api, kind: DescriptorType | None = None, *, pointer: int | None = None) -> None:
        """Make one of a kind, or take over one that the backend made.

        Raises:
            EngineError: the backend does not make one.
        """
        self._api = api
        self._pointer: int | None = None
        if kind is not None:
            made = c_void_p()
            api.call("hipdnnBackendCreateDescriptor", int(kind), byref(made))
            pointer = made.value
        if not pointer:
            raise EngineError(f"{api.path.name}: {kind.name if kind else 'descriptor'}", "success without a descriptor")
        self._pointer = pointer

    @property
    def pointer(self) -> int:
        """For calls.

        Raises:
            EngineError: it is closed.
        """
        if self._pointer is None:
            raise EngineError(self._api.path.name, "the descriptor is closed")
        return self._pointer

    def set(self, name: Attribute, kind: Type, values: ctypes.Array[Any] | bytes) -> Descriptor:
        """Set an attribute to the elements of an array, or to the bytes of a text."""
        raw = ctypes.create_string_buffer(values, len(values)) if isinstance(values, bytes) else values
        self._api.call("hipdnnBackendSetAttribute", self.pointer, int(name), int(kind), len(values), raw)
        return self

    def set_integers(self, name: Attribute, values: Sequence[int]) -> Descriptor:
        """Set an attribute of 64-bit integers."""
        return self.set(name, Type.INT64, (c_int64 * len(values))(*values))

    def set_pointers(self, name: Attribute, kind: Type, values: Sequence[int]) -> Descriptor:
        """Set an attribute of addresses, handles or descriptors."""
        return self.set(name, kind, (c_void_p * len(values))(*(value or None for value in values)))

    def set_mode(self) -> Descriptor:
        """Set the one heuristic mode that backends know."""
        return self.set(Attribute.ENGINEHEUR_MODE, Type.HEUR_MODE, (c_int * 1)(_FALLBACK))

    def set_knob(self, name: str, value: KnobValue) -> Descriptor:
        """Set a knob choice."""
        self.set(Attribute.KNOB_CHOICE_KNOB_TYPE, Type.CHAR, name.encode())
        if isinstance(value, str):
            return self.set(Attribute.KNOB_CHOICE_KNOB_VALUE, Type.CHAR, value.encode())
        if isinstance(value, float):
            return self.set(Attribute.KNOB_CHOICE_KNOB_VALUE, Type.DOUBLE, (c_double * 1)(value))
        return self.set_integers(Attribute.KNOB_CHOICE_KNOB_VALUE, [value])

    def integer(self, name: Attribute) -> int:
        """An attribute that is one 64-bit integer."""
        value, count = c_int64(0), c_int64(0)
        self._api.call(_GET, self.pointer, int(name), int(Type.INT64), 1, byref(count), byref(value))
        return value.value

    def count(self, name: Attribute, kind: Type) -> int:
        """How many elements an attribute has."""
        count = c_int64(0)
        self._api.call(_GET, self.pointer, int(name), int(kind), 0, byref(count), None)
        return count.value

    def numbers(self, name: Attribute, kind: Type) -> list[int]:
        """An attribute of 32-bit numbers, an enum's."""
        values, count = (c_int * max(self.count(name, kind), 1))(), c_int64(0)
        self._api.call(_GET, self.pointer, int(name), int(kind), len(values), byref(count), values)
        return list(values[: count.value])

    def descriptor(self, name: Attribute) -> Descriptor:
        """An attribute that is a descriptor; the caller closes it."""
        found, count = c_void_p(), c_int64(0)
        self._api.call(_GET, self.pointer, int(name), int(Type.BACKEND_DESCRIPTOR), 1, byref(count), byref(found))
        return Descriptor(self._api, pointer=found.value)

    def fill(self, name: Attribute, targets: Sequence[Descriptor]) -> int:
        """Let the backend fill descriptors that the caller made; returns how many it filled."""
        pointers, count = (c_void_p * len(targets))(*(target.pointer for target in targets)), c_int64(0)
        kind = int(Type.BACKEND_DESCRIPTOR)
        self._api.call(_GET, self.pointer, int(name), kind, len(targets), byref(count), pointers)
        return count.value

    def finalize(self) -> Descriptor:
        """Finish it; backends check and compile here."""
        self._api.call("hipdnnBackendFinalize", self.pointer)
        return self

    def close(self) -> None:
        """Destroy it. A second call does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._api.call("hipdnnBackendDestroyDescriptor", pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # nobody is there to be told
            return


_GET: Final = "hipdnnBackendGetAttribute"
