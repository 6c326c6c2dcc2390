"""ONNX Runtime's C functions, by slot.

ONNX Runtime hands out tables of function pointers that only ever grow, so a slot and a signature are all that is needed
of its headers. All of these are there from version 24 (1.24) on.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

from fusilli_plugin.edge.link import ffi

__all__ = ["NAME", "VENDOR_ID", "Api", "AttributeType", "ErrorCode", "HardwareType", "OrtError", "address", "pointers"]

NAME: Final = "HipDNNExecutionProvider"
VENDOR_ID: Final = 0x1002
"""AMD's number in PCI."""


class ErrorCode(IntEnum):
    """OrtErrorCode, as far as used."""

    FAIL = 1
    INVALID_ARGUMENT = 2
    NOT_IMPLEMENTED = 9
    EP_FAIL = 11


class HardwareType(IntEnum):
    """OrtHardwareDeviceType."""

    CPU = 0
    GPU = 1
    NPU = 2


class AttributeType(IntEnum):
    """OrtOpAttrType."""

    UNDEFINED = 0
    INT = 1
    INTS = 2
    FLOAT = 3
    FLOATS = 4
    STRING = 5
    STRINGS = 6
    GRAPH = 7
    TENSOR = 8


# name -> slot and arguments; all of them return a status
_STATUS: Final[dict[str, tuple[int, str]]] = {
    "CreateEnv": (3, "int, char *, void **"),
    "CreateSessionFromArray": (8, "void *, void *, size_t, void *, void **"),
    "Run": (9, "void *, void *, char **, void **, size_t, char **, size_t, void **"),
    "CreateSessionOptions": (10, "void **"),
    "SetSessionLogSeverityLevel": (22, "void *, int"),
    "SetIntraOpNumThreads": (24, "void *, int"),
    "CreateTensorWithDataAsOrtValue": (49, "void *, void *, size_t, int64_t *, size_t, int, void **"),
    "GetTensorMutableData": (51, "void *, void **"),
    "CastTypeInfoToTensorInfo": (55, "void *, void **"),
    "GetTensorElementType": (60, "void *, int *"),
    "GetDimensionsCount": (61, "void *, size_t *"),
    "GetDimensions": (62, "void *, int64_t *, size_t"),
    "GetSymbolicDimensions": (63, "void *, char **, size_t"),
    "GetTensorTypeAndShape": (65, "void *, void **"),
    "CreateCpuMemoryInfo": (69, "int, int, void **"),
    "AddSessionConfigEntry": (130, "void *, char *, char *"),
    "CreateOpAttr": (211, "char *, void *, int, int, void **"),
    "Logger_LogMessage": (247, "void *, int, char *, char *, int, char *"),
    "Logger_GetLoggingSeverityLevel": (248, "void *, int *"),
    "ReadOpAttr": (272, "void *, int, void *, size_t, size_t *"),
    "GetValueInfoName": (289, "void *, char **"),
    "GetValueInfoTypeInfo": (290, "void *, void **"),
    "GetTensorSizeInBytes": (318, "void *, size_t *"),
    "CreateMemoryInfo_V2": (320, "char *, int, uint32_t, int32_t, int, size_t, int, void **"),
    "ValueInfo_GetInitializerValue": (326, "void *, void **"),
    "ValueInfo_IsGraphOutput": (330, "void *, _Bool *"),
    "ValueInfo_IsConstantInitializer": (331, "void *, _Bool *"),
    "Graph_GetName": (333, "void *, char **"),
    "Graph_GetModelPath": (334, "void *, char **"),
    "Graph_GetOnnxIRVersion": (335, "void *, int64_t *"),
    "Graph_GetNumOperatorSets": (336, "void *, size_t *"),
    "Graph_GetOperatorSets": (337, "void *, char **, int64_t *, size_t"),
    "Graph_GetNumInputs": (338, "void *, size_t *"),
    "Graph_GetInputs": (339, "void *, void **, size_t"),
    "Graph_GetNumOutputs": (340, "void *, size_t *"),
    "Graph_GetOutputs": (341, "void *, void **, size_t"),
    "Graph_GetNumNodes": (344, "void *, size_t *"),
    "Graph_GetNodes": (345, "void *, void **, size_t"),
    "Graph_GetParentNode": (346, "void *, void **"),
    "Node_GetName": (349, "void *, char **"),
    "Node_GetOperatorType": (350, "void *, char **"),
    "Node_GetDomain": (351, "void *, char **"),
    "Node_GetSinceVersion": (352, "void *, int *"),
    "Node_GetNumInputs": (353, "void *, size_t *"),
    "Node_GetInputs": (354, "void *, void **, size_t"),
    "Node_GetNumOutputs": (355, "void *, size_t *"),
    "Node_GetOutputs": (356, "void *, void **, size_t"),
    "Node_GetNumImplicitInputs": (357, "void *, size_t *"),
    "Node_GetImplicitInputs": (358, "void *, void **, size_t"),
    "Node_GetNumAttributes": (359, "void *, size_t *"),
    "Node_GetAttributes": (360, "void *, void **, size_t"),
    "OpAttr_GetTensorAttributeAsOrtValue": (362, "void *, void **"),
    "OpAttr_GetType": (363, "void *, int *"),
    "OpAttr_GetName": (364, "void *, char **"),
    "Node_GetNumSubgraphs": (365, "void *, size_t *"),
    "Node_GetSubgraphs": (366, "void *, void **, size_t, char **"),
    "Node_GetEpName": (368, "void *, char **"),
    "GetTensorData": (378, "void *, void **"),
    "GetSessionOptionsConfigEntries": (379, "void *, void **"),
}
# functions that return something else: slot, whole type
_PLAIN: Final[dict[str, tuple[int, str]]] = {
    "GetErrorMessage": (2, "char *(*)(void *)"),
    "ReleaseEnv": (92, "void (*)(void *)"),
    "ReleaseStatus": (93, "void (*)(void *)"),
    "ReleaseMemoryInfo": (94, "void (*)(void *)"),
    "ReleaseSession": (95, "void (*)(void *)"),
    "ReleaseValue": (96, "void (*)(void *)"),
    "ReleaseTensorTypeAndShapeInfo": (99, "void (*)(void *)"),
    "ReleaseSessionOptions": (100, "void (*)(void *)"),
    "ReleaseOpAttr": (212, "void (*)(void *)"),
    "GetModelEditorApi": (291, "void *(*)(void)"),
    "CreateKeyValuePairs": (295, "void (*)(void **)"),
    "AddKeyValuePair": (296, "void (*)(void *, char *, char *)"),
    "GetKeyValuePairs": (298, "void (*)(void *, char ***, char ***, size_t *)"),
    "ReleaseKeyValuePairs": (300, "void (*)(void *)"),
    "HardwareDevice_Type": (307, "int (*)(void *)"),
    "HardwareDevice_VendorId": (308, "uint32_t (*)(void *)"),
    "HardwareDevice_DeviceId": (310, "uint32_t (*)(void *)"),
    "HardwareDevice_Metadata": (311, "void *(*)(void *)"),
    "GetEpApi": (317, "void *(*)(void)"),
    "SyncStream_GetHandle": (384, "void *(*)(void *)"),
    "TensorTypeAndShape_HasShape": (390, "_Bool (*)(void *)"),
}
_EP_STATUS: Final[dict[str, tuple[int, str]]] = {
    "CreateEpDevice": (0, "void *, void *, void *, void *, void **"),
    "EpGraphSupportInfo_AddNodesToFuse": (2, "void *, void **, size_t, void *"),
    "EpDevice_AddAllocatorInfo": (5, "void *, void *"),
    "CreateHardwareDevice": (16, "int, uint32_t, uint32_t, char *, void *, void **"),
}
_EP_PLAIN: Final[dict[str, tuple[int, str]]] = {
    "MemoryInfo_GetMemoryDevice": (6, "void *(*)(void *)"),
    "Value_GetMemoryDevice": (7, "void *(*)(void *)"),
    "MemoryDevice_GetDeviceType": (9, "int (*)(void *)"),
    "MemoryDevice_GetVendorId": (11, "uint32_t (*)(void *)"),
    "MemoryDevice_GetDeviceId": (12, "uint32_t (*)(void *)"),
    "ReleaseHardwareDevice": (17, "void (*)(void *)"),
}
_EDITOR_STATUS: Final[dict[str, tuple[int, str]]] = {
    "CreateNode": (6, "char *, char *, char *, char **, size_t, char **, size_t, void **, size_t, void **"),
}
_FUNCTIONS: Final[dict[str, tuple[str, int, str]]] = {
    name: (kind, slot, signature if plain else f"void *(*)({signature})")
    for kind, plain, table in (
        ("", False, _STATUS),
        ("", True, _PLAIN),
        ("ep", False, _EP_STATUS),
        ("ep", True, _EP_PLAIN),
        ("editor", False, _EDITOR_STATUS),
    )
    for name, (slot, signature) in table.items()
}


class OrtError(RuntimeError):
    """A function of ONNX Runtime returned an error."""


class Api:
    """The functions of one ONNX Runtime in this process. Objects of it are cffi ``void *``.

    Args:
        table: address of its OrtApi.
    """

    def __init__(self, table: int) -> None:
        self._functions: dict[str, Any] = {}
        self._table: Any = ffi.cast("void **", table)
        self._ep_table: Any = ffi.cast("void **", self.plain("GetEpApi"))

    def _find(self, name: str) -> Any:
        """A function, when it is first asked for."""
        found = _FUNCTIONS.get(name)
        if found is None:
            raise KeyError(f"{name} is not among the functions of ONNX Runtime that are known here")
        kind, slot, signature = found
        table = self._ep_table if kind == "ep" else self._editor_table() if kind == "editor" else self._table
        function = self._functions[name] = ffi.cast(signature, table[slot])
        return function

    def _editor_table(self) -> Any:
        table = self.plain("GetModelEditorApi")
        if table == ffi.NULL:
            raise OrtError("this ONNX Runtime was built without its model editor")
        return ffi.cast("void **", table)

    def plain(self, name: str, *arguments: Any) -> Any:
        """Call a function that cannot fail."""
        return (self._functions.get(name) or self._find(name))(*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            OrtError: it failed; the text is ONNX Runtime's.
        """
        status = (self._functions.get(name) or self._find(name))(*arguments)
        if status != ffi.NULL:
            text = string(self.plain("GetErrorMessage", status))
            self.plain("ReleaseStatus", status)
            raise OrtError(f"{name}: {text}")

    def get(self, name: str, kind: str, *arguments: Any) -> Any:
        """Call a function whose last argument is where its result goes, a ``kind``; the result."""
        out: Any = ffi.new(f"{kind}[1]")
        self.call(name, *arguments, out)
        return out[0]

    def text(self, name: str, value: Any) -> str:
        """A string of an object; "" for none."""
        return string(self.get(name, "char *", value))

    def objects(self, count: str, get: str, owner: Any) -> list[Any]:
        """The objects that an object has, e.g. the nodes of a graph."""
        number = self.get(count, "size_t", owner)
        out: Any = ffi.new("void *[]", max(number, 1))
        if number:
            self.call(get, owner, out, number)
        return list(out[0:number])

    def dims(self, value: Any) -> tuple[int, ...]:
        """The extents of an OrtValue that is a tensor."""
        info = self.get("GetTensorTypeAndShape", "void *", value)
        try:
            rank = self.get("GetDimensionsCount", "size_t", info)
            out: Any = ffi.new("int64_t[]", max(rank, 1))
            self.call("GetDimensions", info, out, rank)
        finally:
            self.plain("ReleaseTensorTypeAndShapeInfo", info)
        return tuple(out[0:rank])

    def pairs(self, pairs: Any) -> dict[str, str]:
        """The entries of an OrtKeyValuePairs; of none if it is NULL."""
        if pairs == ffi.NULL:
            return {}
        keys: Any = ffi.new("char **[1]")
        values: Any = ffi.new("char **[1]")
        count: Any = ffi.new("size_t[1]")
        self.plain("GetKeyValuePairs", pairs, keys, values, count)
        return {string(keys[0][i]): string(values[0][i]) for i in range(count[0])}

    def new_pairs(self, entries: dict[str, str]) -> Any:
        """An OrtKeyValuePairs, which the caller releases."""
        out: Any = ffi.new("void *[1]")
        self.plain("CreateKeyValuePairs", out)
        for key, value in entries.items():
            self.plain("AddKeyValuePair", out[0], c_text(key), c_text(value))
        return out[0]


def string(pointer: Any) -> str:
    """The text at a ``char *``; "" for NULL."""
    if pointer == ffi.NULL:
        return ""
    data: Any = ffi.string(pointer)
    return data.decode(errors="replace")


def c_text(text: str) -> Any:
    """A NUL-terminated copy, as long as the result is kept."""
    return ffi.new("char[]", text.replace("\0", " ").encode())


def address(pointer: Any) -> int:
    """The number of a pointer."""
    return int(ffi.cast("uintptr_t", pointer))


def pointers(table: int, count: int) -> Sequence[Any]:
    """The ``count`` pointers of an array at an address."""
    array: Any = ffi.cast("void **", table)
    return [array[index] for index in range(count)]
