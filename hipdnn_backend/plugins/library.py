"""Engine plugins in shared libraries, used the way hipDNN's backend uses them.

Example:
    library = PluginLibrary("hipdnn_plugins/engines/libmiopen_plugin.so")
    for engine in library.engines:
        print(engine.name, engine.support(graph))
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from hipdnn_backend.engine import EngineId, Override, Support, engine_id, engine_name
from hipdnn_backend.errors import EngineError, WireError
from hipdnn_backend.plugins.abi import CALLBACK, ConstData, DeviceBuffer, PluginType, Severity, Status, declare
from hipdnn_backend.wire import (
    EngineConfig,
    EngineDetails,
    Layout,
    decode_engine_details,
    decode_graph,
    encode_engine_config,
    graph_in_layout,
)

__all__ = ["PluginEngine", "PluginLibrary", "PluginPlan"]

_LEVELS = {
    Severity.INFO: logging.INFO,
    Severity.WARN: logging.WARNING,
    Severity.ERROR: logging.ERROR,
    Severity.FATAL: logging.CRITICAL,
}
_MAX_ENGINES = 4096
_PREFIX = re.compile(r"^(\[[^]]*\]\s*)+")  # time, thread, level and component of a line of hipDNN's
_MOST_HEARD = 3  # messages that are told of why a graph is declined
# plugins keep the pointer for good, so the callbacks must never be collected
_callbacks: list[Any] = []


class PluginLibrary:
    """A loaded engine plugin.

    Attributes:
        path: of the shared library.
        name: what the plugin calls itself.
        version: of the plugin, informational.
        api_version: of the engine API that it implements.
        layout: the wire layout of graphs that it reads: that of November 2025 if it tells no API version.
        engines: those that the host would offer, in ascending order of their ids.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Load a plugin and ask it who it is. Its handle is made when first needed.

        Raises:
            EngineError: it cannot be loaded, is no engine plugin, or breaks a rule for which hipDNN refuses it.
        """
        self.path = Path(path)
        self._lock = threading.RLock()
        self._handle: int | None = None
        self._stream = 0
        self._closed = False
        self._plans: weakref.WeakSet[PluginPlan] = weakref.WeakSet()
        # contexts of plans that were collected; destroying them right there could come between another call and the
        # reading of its error text
        self._orphans: deque[int] = deque()
        self._last_graph: tuple[bytes, bytes] = (b"", b"")
        self._last_answer: tuple[bytes, frozenset[int], tuple[str, ...]] = (b"", frozenset(), ())
        self._heard: deque[str] = deque(maxlen=_MOST_HEARD)
        self._functions = self._open()
        kind = c_int(0)
        self._call("hipdnnPluginGetType", byref(kind))
        if kind.value != PluginType.ENGINE:
            raise EngineError(
                str(self.path), f"the plugin's type is {kind.value}, not {PluginType.ENGINE.value} (engine)"
            )
        self.name = self._string("hipdnnPluginGetName")
        self.version = self._string("hipdnnPluginGetVersion")
        self._connect_log()
        self.api_version = self._api_version()
        self.layout = Layout.NEWEST if self.has("hipdnnPluginGetApiVersion") else Layout.NOVEMBER_2025
        self._ids = self._engine_ids()
        self.engines = tuple(engine for id_ in sorted(self._ids) if (engine := self._engine(id_)))

    def close(self) -> None:
        """Destroy the plans and the handle; the library stays mapped. A second call does nothing."""
        with self._lock:
            for plan in list(self._plans):
                plan.close()
            self._closed = True
            if self._handle is not None:
                self._destroy_orphans(self._handle)
                handle, self._handle = self._handle, None
                self._call("hipdnnEnginePluginDestroy", handle)

    def has(self, name: str) -> bool:
        """Whether the plugin exports an optional function."""
        return name in self._functions

    def in_its_layout(self, graph: bytes) -> bytes:
        """A graph in the wire layout that the plugin reads.

        Raises:
            WireError: the bytes are damaged, or that layout has no word for something.
        """
        given, made = self._last_graph
        if given != graph:
            made = graph_in_layout(graph, self.layout)
            self._last_graph = (graph, made)
        return made

    def applicable(self, graph: bytes) -> tuple[frozenset[int], tuple[str, ...]]:
        """Ids of the plugin's engines that can run a graph, which is in the plugin's layout, and what it logged then.

        The interface has no place for why a graph is declined; a log, at the level that is set, often has it.

        Raises:
            EngineError: the call failed or named engines that the plugin does not have.
        """
        answered, found, heard = self._last_answer
        if answered == graph:
            return found, heard
        where = "hipdnnEnginePluginGetApplicableEngineIds"
        ids, count = (c_int64 * len(self._ids))(), c_uint32(0)
        with self.handle() as handle:
            self._heard.clear()
            self._call(where, handle, byref(const_data(graph)), ids, len(ids), byref(count))
            heard = tuple(self._heard)
        if count.value > len(ids):
            raise EngineError(self.where(where), f"{count.value} engines, but the plugin has {len(ids)}")
        found = frozenset(ids[: count.value])
        if len(found) != count.value or not found <= set(self._ids):
            raise EngineError(self.where(where), f"ids {ids[: count.value]}, but the plugin has {self._ids}")
        self._last_answer = (graph, found, heard)
        return found, heard

    @contextmanager
    def handle(self) -> Iterator[int]:
        """The plugin's handle, made if there is none, for one thread at a time."""
        with self._lock:
            if self._closed:
                raise EngineError(str(self.path), "the plugin is closed")
            if self._handle is None:
                where, made = "hipdnnEnginePluginCreate", c_void_p()
                self._call(where, byref(made))
                if not made.value:
                    raise EngineError(self.where(where), "success without a handle")
                self._handle, self._stream = made.value, 0
            self._destroy_orphans(self._handle)
            yield self._handle

    def use_stream(self, handle: int, stream: int) -> None:
        """Send what follows to a HIP stream; call it inside `handle`."""
        if stream != self._stream:
            self._call("hipdnnEnginePluginSetStream", handle, stream or None)
            self._stream = stream

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the plugin.

        Raises:
            EngineError: it is not there, or it failed; with the plugin's own text.
        """
        if name not in self._functions:
            raise EngineError(self.where(name), "the plugin has no such function")
        self._call(name, *arguments)

    def adopt(self, plan: PluginPlan, context: int) -> weakref.finalize[..., Any]:
        """Destroy a plan's context when the plan is collected, and close the plan when the library is."""
        self._plans.add(plan)
        finalizer = weakref.finalize(plan, self._orphans.append, context)
        finalizer.atexit = False
        return finalizer

    def where(self, function: str) -> str:
        """Name of the library's file and of a function, for messages."""
        return f"{self.path.name}: {function}"

    def _destroy_orphans(self, handle: int) -> None:
        while self._orphans:
            self._call("hipdnnEnginePluginDestroyExecutionContext", handle, self._orphans.popleft())

    def _open(self) -> dict[str, Any]:
        try:
            functions, missing = declare(ctypes.CDLL(str(self.path), mode=os.RTLD_NOW | os.RTLD_LOCAL))
        except OSError as error:
            raise EngineError(str(self.path), f"cannot be loaded: {error}") from None
        if missing:
            raise EngineError(str(self.path), f"is no engine plugin: it lacks {', '.join(missing)}")
        return functions

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._functions[name](*arguments)
        if status != Status.SUCCESS:
            # the text is the thread's: nothing may come between the call and this
            text = c_char_p()
            self._functions["hipdnnPluginGetLastErrorString"](byref(text))
            name_of_status = Status(status).name if status in list(Status) else f"status {status}"
            reason = f"{name_of_status}: {(text.value or b'').decode(errors='replace') or 'the plugin gave no reason'}"
            raise EngineError(self.where(name), reason, status)

    def _string(self, name: str) -> str:
        text = c_char_p()
        self._call(name, byref(text))
        if text.value is None:
            raise EngineError(self.where(name), "success without a string")
        return text.value.decode(errors="replace")

    def _connect_log(self) -> None:
        """Lead the plugin's messages to ``logging``; both functions are optional and their failures are ignored."""
        logger, heard = logging.getLogger(f"{__name__}.{self.path.stem}"), self._heard

        def receive(severity: int, message: bytes | None) -> None:
            level = _LEVELS.get(Severity(severity)) if severity in list(Severity) else logging.ERROR
            if level is not None:
                text = (message or b"").decode(errors="replace")
                heard.append(_PREFIX.sub("", text))
                logger.log(level, "%s", text)

        callback = CALLBACK(receive)
        _callbacks.append(callback)
        if self.has("hipdnnPluginSetLoggingCallback"):
            self._functions["hipdnnPluginSetLoggingCallback"](callback)
        if self.has("hipdnnPluginSetLogLevel"):
            enabled = [severity for severity, level in _LEVELS.items() if logger.isEnabledFor(level)]
            self._functions["hipdnnPluginSetLogLevel"](min(enabled, default=Severity.OFF))

    def _api_version(self) -> tuple[int, int, int]:
        if not self.has("hipdnnPluginGetApiVersion"):
            return (1, 0, 0)
        text = self._string("hipdnnPluginGetApiVersion")
        parts = text.split(".")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
            raise EngineError(self.where("hipdnnPluginGetApiVersion"), f"{text!r} is no version MAJOR.MINOR.PATCH")
        major, minor, patch = (int(part) for part in parts)
        # hosts take major 0 for an early 1
        if major > 1:
            raise EngineError(self.where("hipdnnPluginGetApiVersion"), f"version {text}; this host knows major 1")
        return (major, minor, patch)

    def _engine_ids(self) -> list[int]:
        where = "hipdnnEnginePluginGetAllEngineIds"
        count = c_uint32(0)
        self._call(where, None, 0, byref(count))
        expected = count.value
        if not 0 < expected <= _MAX_ENGINES:
            raise EngineError(self.where(where), f"the plugin has {expected} engines")
        ids = (c_int64 * expected)()
        self._call(where, ids, expected, byref(count))
        if count.value != expected or len(set(ids)) != expected:
            raise EngineError(self.where(where), f"first {expected} engines, then {count.value}: {list(ids)}")
        return list(ids)

    def _engine(self, id_: int) -> PluginEngine | None:
        """The engine, None if the plugin's name for it is not the one whose hash is the id."""
        name = engine_name(id_)
        if self.has("hipdnnEnginePluginGetEngineName"):
            try:
                name = self._engine_name(id_)
            except EngineError as error:
                if error.status != Status.NOT_APPLICABLE:
                    logging.getLogger(__name__).warning("engine %s is left out: %s", name, error)
                    return None
        return PluginEngine(self, EngineId(id_), name)

    def _engine_name(self, id_: int) -> str:
        where, text = "hipdnnEnginePluginGetEngineName", c_char_p()
        self._call(where, id_, byref(text))
        name = (text.value or b"").decode(errors="replace")
        if engine_id(name) != id_:
            raise EngineError(self.where(where), f"'{name}' hashes to {engine_id(name)}, but the id is {id_}")
        return name


class PluginEngine:
    """An engine of a plugin; satisfies `hipdnn_backend.engine.Engine`."""

    def __init__(self, library: PluginLibrary, id_: EngineId, name: str) -> None:
        self.library = library
        self._id = id_
        self._name = name

    @property
    def id(self) -> EngineId:
        """Signed 64-bit id."""
        return self._id

    @property
    def name(self) -> str:
        """The name whose hash is the id, or the id in hexadecimal if it is not known."""
        return self._name

    def __repr__(self) -> str:
        return f"PluginEngine({self._name}, {self.library.path})"

    def support(self, graph: bytes) -> Support:
        """Whether the plugin lists the engine for the graph; a plugin that fails declines."""
        try:
            needed = decode_graph(graph).min_required_engine_api_version
            if needed is not None and (needed.major, needed.minor, needed.patch) > self.library.api_version:
                have = ".".join(map(str, self.library.api_version))
                return Support.no(f"the graph needs engine API {needed}, the plugin has {have}", rule="api-version")
            found, heard = self.library.applicable(self.library.in_its_layout(graph))
            if self._id in found:
                return Support.yes()
        except WireError as error:
            return Support.no(str(error), rule="wire")
        except EngineError as error:
            return Support.no(str(error), rule="plugin")
        logged = f"; it logged: {' / '.join(heard)}" if heard else ""
        return Support.no(f"{self.library.name} does not list the engine for this graph{logged}", rule="plugin")

    def details(self, graph: bytes) -> EngineDetails:
        """Knobs and behaviour notes.

        Raises:
            EngineError: the call failed, or its bytes are no EngineDetails.
        """
        graph = self._told(graph)
        where, out = "hipdnnEnginePluginGetEngineDetails", ConstData()
        with self.library.handle() as handle:
            self.library.call(where, handle, self._id, byref(const_data(graph)), byref(out))
            data = self.taken(where, out, "hipdnnEnginePluginDestroyEngineDetails", handle)
        try:
            return decode_engine_details(data)
        except WireError as error:
            raise EngineError(self.library.where(where), f"damaged EngineDetails: {error}") from None

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        """Upper bound in bytes.

        Raises:
            EngineError: the call failed.
        """
        graph = self._told(graph)
        size, encoded = c_size_t(0), encode_engine_config(config)
        with self.library.handle() as handle:
            name = "hipdnnEnginePluginGetWorkspaceSize"
            self.library.call(name, handle, byref(const_data(encoded)), byref(const_data(graph)), byref(size))
        return size.value

    def build(self, graph: bytes, config: EngineConfig) -> PluginPlan:
        """Compile.

        Raises:
            EngineError: the call failed.
        """
        graph = self._told(graph)
        name, context, encoded = "hipdnnEnginePluginCreateExecutionContext", c_void_p(), encode_engine_config(config)
        with self.library.handle() as handle:
            arguments = byref(const_data(encoded)), byref(const_data(graph))
            self.library.call(name, handle, *arguments, byref(context))
            return PluginPlan(self, context.value, name)

    def restore(self, payload: bytes) -> PluginPlan:
        """A plan from what `PluginPlan.serialize` gave.

        Raises:
            EngineError: the plugin cannot restore plans, or not this one.
        """
        name, context = "hipdnnEnginePluginCreateExecutionContextFromSerialized", c_void_p()
        with self.library.handle() as handle:
            self.library.call(name, handle, byref(const_data(payload)), byref(context))
            return PluginPlan(self, context.value, name)

    def _told(self, graph: bytes) -> bytes:
        """A graph as the plugin reads it.

        Raises:
            EngineError: it cannot be told to this plugin.
        """
        try:
            return self.library.in_its_layout(graph)
        except WireError as error:
            raise EngineError(self._name, str(error)) from error

    def taken(self, where: str, out: ConstData, destroy: str, handle: int) -> bytes:
        """A copy of bytes that the plugin owns, which go back to it."""
        try:
            if not out.ptr or not out.size:
                raise EngineError(self.library.where(where), "success without bytes")
            return ctypes.string_at(out.ptr, out.size)
        finally:
            self.library.call(destroy, handle, byref(out))


class PluginPlan:
    """A compiled graph of a plugin; satisfies `hipdnn_backend.engine.Plan`."""

    def __init__(self, engine: PluginEngine, context: int | None, origin: str) -> None:
        """Take over an execution context; call it inside the library's `PluginLibrary.handle`.

        Raises:
            EngineError: there is no context, or its workspace size cannot be had.
        """
        self._engine = engine
        self._library = library = engine.library
        if not context:
            raise EngineError(library.where(origin), "success without an execution context")
        self._context: int | None = context
        self._finalizer = library.adopt(self, context)
        size = c_size_t(0)
        with library.handle() as handle:
            library.call("hipdnnEnginePluginGetWorkspaceSizeFromExecutionContext", handle, context, byref(size))
        self._workspace_size = size.value

    @property
    def workspace_size(self) -> int:
        """Bytes of device memory that `execute` needs."""
        return self._workspace_size

    def execute(
        self,
        pack: Mapping[int, int],
        *,
        workspace: int = 0,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        """Enqueue one execution, see `hipdnn_backend.engine.Plan.execute`.

        Raises:
            EngineError: the plan is closed, the call failed, or overrides are given to a plugin that knows none.
        """
        buffers = (DeviceBuffer * len(pack))(*((uid, address or None) for uid, address in pack.items()))
        with self._library.handle() as handle:
            arguments = (self._open_context(), workspace or None, buffers, len(pack))
            self._library.use_stream(handle, stream)
            if overrides:
                name = "hipdnnEnginePluginExecuteOpGraphWithOverrides"
                self._library.call(name, handle, *arguments, *_override_arguments(overrides))
            else:
                self._library.call("hipdnnEnginePluginExecuteOpGraph", handle, *arguments)

    def serialize(self) -> bytes:
        """The plan as bytes.

        Raises:
            EngineError: the plan is closed or the plugin cannot serialize it.
        """
        out, destroy = ConstData(), "hipdnnEnginePluginDestroySerializedExecutionContext"
        newest = "hipdnnEnginePluginSerializeExecutionContextWithEngineId"
        with_id = self._library.has(newest)
        name = newest if with_id else "hipdnnEnginePluginSerializeExecutionContext"
        for needed in (name, destroy, "hipdnnEnginePluginCreateExecutionContextFromSerialized"):
            if not self._library.has(needed):
                raise EngineError(self._library.where(needed), "the plugin lacks this, so it serializes no plans")
        with self._library.handle() as handle:
            context = self._open_context()
            arguments = (self._engine.id, context) if with_id else (context,)
            self._library.call(name, handle, *arguments, byref(out))
            return self._engine.taken(name, out, destroy, handle)

    def close(self) -> None:
        """Destroy the execution context. A second call does nothing."""
        if self._finalizer.detach():
            with self._library.handle() as handle:
                context, self._context = self._context, None
                self._library.call("hipdnnEnginePluginDestroyExecutionContext", handle, context)

    def _open_context(self) -> int:
        if self._context is None:
            raise EngineError(str(self._library.path), "the plan is closed")
        return self._context


def const_data(data: bytes) -> ConstData:
    """The bytes as an argument; they must stay referenced during the call."""
    return ConstData(ctypes.cast(c_char_p(data), c_void_p), len(data))


def _override_arguments(overrides: Mapping[int, Override]) -> tuple[Any, ...]:
    """Count, uids, ranks, dims and strides of overrides as C arrays."""
    count = len(overrides)
    for uid, override in overrides.items():
        if len(override.dims) != len(override.strides):
            raise ValueError(f"override of tensor {uid}: {len(override.strides)} strides for {len(override.dims)} dims")
    dims = [(c_int64 * len(override.dims))(*override.dims) for override in overrides.values()]
    strides = [(c_int64 * len(override.strides))(*override.strides) for override in overrides.values()]
    pointer = ctypes.POINTER(c_int64)
    return (
        count,
        (c_int64 * count)(*overrides),
        (c_uint32 * count)(*(len(array) for array in dims)),
        (pointer * count)(*(ctypes.cast(array, pointer) for array in dims)),
        (pointer * count)(*(ctypes.cast(array, pointer) for array in strides)),
    )
