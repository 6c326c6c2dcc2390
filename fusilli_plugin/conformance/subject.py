"""A plugin through its C interface, as hipDNN calls it, with nothing smoothed over."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any, Final

from fusilli_plugin.conformance.areas import guarded_bytes
from fusilli_plugin.conformance.findings import BrokenRule, NotTried
from hipdnn_backend.plugins.abi import REQUIRED, ConstData, DeviceBuffer, Status, declare
from hipdnn_backend.wire import EngineConfig, Layout, encode_engine_config

__all__ = ["RESTORE", "SERIALIZE", "SERIALIZE_NEWEST", "Subject", "const_data", "four_argument_restore"]

_ENGINE: Final = "hipdnnEnginePlugin"
SERIALIZE: Final = "SerializeExecutionContext"
SERIALIZE_NEWEST: Final = "SerializeExecutionContextWithEngineId"
RESTORE: Final = "CreateExecutionContextFromSerialized"
_MAX_TEXT: Final = 2048
_CANARY: Final = 0x5EA15EA15EA15EA1


class Subject:
    """The plugin that is checked. Functions of engines are named without what their names have in common.

    Attributes:
        path: of its file.
        functions: those that it exports.
        ids: of its engines.
        layout: the wire layout that hosts of its time have.
    """

    def __init__(self, path: str | os.PathLike[str], mode: int = os.RTLD_NOW | os.RTLD_LOCAL) -> None:
        """Load it, and ask for its engines.

        Raises:
            BrokenRule: hipDNN would refuse it.
        """
        self.path = Path(path)
        try:
            self.library = ctypes.CDLL(os.fspath(path), mode=mode)
        except OSError as error:
            raise BrokenRule(f"cannot be loaded: {error}") from None
        self.functions, missing = declare(self.library)
        if missing:
            raise BrokenRule(f"lacks {', '.join(missing)}, {len(missing)} of the {len(REQUIRED)} functions of a plugin")
        self.ids = self._all_ids()
        self.layout = Layout.NEWEST if self.has("hipdnnPluginGetApiVersion") else Layout.NOVEMBER_2025

    # ---- calls

    def has(self, name: str) -> bool:
        """Whether it exports a function."""
        return self._full(name) in self.functions

    def needs(self, *names: str) -> None:
        """End the check where an optional function is not there.

        Raises:
            NotTried: one is missing.
        """
        missing = [name for name in names if not self.has(name)]
        if missing:
            raise NotTried(f"it has no {self._full(missing[0])}")

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function; what it returns."""
        return self.functions[self._full(name)](*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that has to succeed.

        Raises:
            BrokenRule: it does not.
        """
        status = self.status(name, *arguments)
        if status != Status.SUCCESS:
            raise BrokenRule(f"{self._full(name)}: {status_text(status)}: {self.error()}")

    def refuses(self, what: str, name: str, *arguments: Any) -> None:
        """Call a function that has to fail, and to say why.

        Raises:
            BrokenRule: it succeeds, or says nothing.
        """
        if self.status(name, *arguments) == Status.SUCCESS:
            raise BrokenRule(f"{self._full(name)} takes {what}")
        if not self.error():
            raise BrokenRule(f"{self._full(name)} refuses {what} and leaves no text for hipdnnPluginGetLastErrorString")

    def error(self) -> str:
        """The last error of this thread.

        Raises:
            BrokenRule: the pointer is NULL, on which hipDNN's process ends, or the text is too long or no UTF-8.
        """
        text = c_char_p()
        self.functions["hipdnnPluginGetLastErrorString"](byref(text))
        if text.value is None:
            raise BrokenRule("hipdnnPluginGetLastErrorString gives NULL, of which hipDNN makes a string")
        if len(text.value) >= _MAX_TEXT:
            raise BrokenRule(
                f"an error's text has {len(text.value)} bytes; with its end at most {_MAX_TEXT} are allowed"
            )
        try:
            return text.value.decode()
        except UnicodeDecodeError as error:
            raise BrokenRule(f"an error's text is no UTF-8: {error}") from None

    def string(self, name: str, *arguments: Any) -> str:
        """A string that a function hands out.

        Raises:
            BrokenRule: it fails, or hands out NULL.
        """
        text = c_char_p()
        self.call(name, *arguments, byref(text))
        if text.value is None:
            raise BrokenRule(f"{name}: success without a string")
        return text.value.decode(errors="replace")

    # ---- what a host does

    def handle(self, stream: int | None = None) -> int:
        """A new handle, on a stream if one is given."""
        made = c_void_p()
        self.call("Create", byref(made))
        if not made.value:
            raise BrokenRule("hipdnnEnginePluginCreate: success without a handle")
        if stream is not None:
            self.call("SetStream", made.value, stream or None)
        return made.value

    def applicable(self, handle: int, graph: ConstData) -> tuple[int, list[int]]:
        """The status, and the ids of engines that take a graph.

        Raises:
            BrokenRule: more ids than there is room for were written, or they are none of its own.
        """
        room = len(self.ids)
        ids, count = (c_int64 * (room + 1))(*[_CANARY] * (room + 1)), c_uint32(0)
        status = self.status("GetApplicableEngineIds", handle, byref(graph), ids, room, byref(count))
        if ids[room] != _CANARY:
            raise BrokenRule(f"GetApplicableEngineIds writes behind the {room} ids that it was given room for")
        if status != Status.SUCCESS:
            return status, []
        found = list(ids[: min(count.value, room)])
        if count.value > room or len(set(found)) != len(found) or not set(found) <= set(self.ids):
            raise BrokenRule(f"GetApplicableEngineIds: {count.value} ids {found}; its engines are {self.ids}")
        return status, found

    def claims(self, handle: int, data: bytes) -> list[int]:
        """The ids of engines that take a graph, which is none where it fails: hipDNN then goes without all engines.

        Raises:
            BrokenRule: it fails.
        """
        status, found = self.applicable(handle, const_data(data))
        if status != Status.SUCCESS:
            text = "GetApplicableEngineIds fails, which takes the graph from other plugins too; declining is success"
            raise BrokenRule(f"{text} with no ids: {status_text(status)}: {self.error()}")
        return found

    def details(self, handle: int, engine: int, data: bytes) -> bytes:
        """A copy of an engine's details; they are given back."""
        out = ConstData(0xDEAD, 0xDEAD)  # hosts pass what is on their stack
        self.call("GetEngineDetails", handle, engine, byref(const_data(data)), byref(out))
        return self._taken(out, "GetEngineDetails", "DestroyEngineDetails", handle)

    def estimate(self, handle: int, engine: int, data: bytes) -> int:
        """The workspace that a plan would need."""
        size = c_size_t(0)
        config = encode_engine_config(EngineConfig(engine_id=engine))
        self.call("GetWorkspaceSize", handle, byref(const_data(config)), byref(const_data(data)), byref(size))
        return size.value

    def build(self, handle: int, engine: int, data: bytes) -> int:
        """A plan's context. The bytes of graph and config are gone when it returns."""
        made, config = c_void_p(), guarded_bytes(encode_engine_config(EngineConfig(engine_id=engine)))
        graph = guarded_bytes(data)
        arguments = (ConstData(config.address, config.size), ConstData(graph.address, graph.size))
        self.call("CreateExecutionContext", handle, *map(byref, arguments), byref(made))
        for area in (config, graph):
            area.forbid()
        if not made.value:
            raise BrokenRule("CreateExecutionContext: success without a context")
        return made.value

    def size(self, handle: int, context: int) -> int:
        """The workspace that a plan needs."""
        size = c_size_t(0)
        self.call("GetWorkspaceSizeFromExecutionContext", handle, context, byref(size))
        if size.value > 1 << 48:
            raise BrokenRule(f"a plan's workspace has {size.value} bytes")
        return size.value

    def execute(self, handle: int, context: int, pack: Iterable[tuple[int, int]], workspace: int) -> int:
        """The status of an execution."""
        pairs = [(uid, address or None) for uid, address in pack]
        buffers = (DeviceBuffer * len(pairs))(*pairs)
        return self.status("ExecuteOpGraph", handle, context, workspace or None, buffers, len(pairs))

    def serialize(self, handle: int, engine: int, context: int, name: str) -> bytes:
        """A plan as bytes, by one of the two functions for it."""
        out = ConstData(0xDEAD, 0xDEAD)
        arguments = (engine, context) if name == SERIALIZE_NEWEST else (context,)
        self.call(name, handle, *arguments, byref(out))
        return self._taken(out, name, "DestroySerializedExecutionContext", handle)

    def destroy_context(self, handle: int, context: int) -> None:
        """Give a plan back."""
        self.call("DestroyExecutionContext", handle, context)

    def _taken(self, out: ConstData, name: str, destroy: str, handle: int) -> bytes:
        if not out.ptr or not out.size or out.ptr == 0xDEAD:
            raise BrokenRule(f"{name}: success without bytes")
        data = ctypes.string_at(out.ptr, out.size)
        self.call(destroy, handle, byref(out))
        if out.ptr or out.size:
            raise BrokenRule(f"{destroy} leaves pointer {out.ptr} and size {out.size} behind; both have to be 0")
        return data

    def _all_ids(self) -> list[int]:
        name, count, again = "GetAllEngineIds", c_uint32(0), c_uint32(0)
        self.call(name, None, 0, byref(count))
        if not 0 < count.value <= 4096:
            raise BrokenRule(f"{name}: {count.value} engines")
        ids = (c_int64 * (count.value + 1))(*[_CANARY] * (count.value + 1))
        self.call(name, ids, count.value, byref(again))
        found = list(ids[: count.value])
        if again.value != count.value or len(set(found)) != len(found):
            raise BrokenRule(f"{name}: {again.value} engines {found}, it spoke of {count.value}")
        if ids[count.value] != _CANARY:
            raise BrokenRule(f"{name} writes behind the {count.value} ids that it was given room for")
        return found

    @staticmethod
    def _full(name: str) -> str:
        return name if name.startswith("hipdnn") else _ENGINE + name


def const_data(data: bytes) -> ConstData:
    """Bytes as an argument; they must stay referenced during the call."""
    return ConstData(ctypes.cast(c_char_p(data), c_void_p), len(data))


def status_text(status: int) -> str:
    """A status by its name."""
    return Status(status).name if status in list(Status) else f"status {status}"


def four_argument_restore(subject: Subject) -> Any:
    """The published form of `RESTORE` that takes the engine's config as well."""
    function = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)
    return function(ctypes.cast(subject.functions[_ENGINE + RESTORE], c_void_p).value or 0)
