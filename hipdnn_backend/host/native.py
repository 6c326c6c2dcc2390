"""The real hipDNN, where it is installed, behind the same calls as the embedded host.

Example:
    with NativeHost(paths=[fusilli_plugin.plugin_dir()]) as host:
        plan = host.build(graph)
        plan.execute({1: x, 2: w, 3: y})

The backend loads the plugins, chooses the engine and keeps the plans; this drives it through its C API
(`hipdnn_backend.host.native_api`). Graphs go in the wire layout that the backend speaks.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_char_p, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hipdnn_backend.device.memory import Memory
from hipdnn_backend.engine import EngineId, Override, Plan, Support, engine_id, engine_name
from hipdnn_backend.errors import EngineError, WireError
from hipdnn_backend.host import selection
from hipdnn_backend.host.execution import GraphLike, Host, decoded
from hipdnn_backend.host.native_api import Api, Attribute, Descriptor, DescriptorType, NativeStatus, Type
from hipdnn_backend.host.registry import Entry, Problem, Registry, parse_engine_id
from hipdnn_backend.host.selection import Selection
from hipdnn_backend.plugins.abi import declare
from hipdnn_backend.plugins.search import LoadingMode, find_backend_library
from hipdnn_backend.wire import (
    EngineConfig,
    EngineDetails,
    KnobSetting,
    Layout,
    graph_in_layout,
)

if TYPE_CHECKING:
    from hipdnn_backend.host.execution import HostPlan

__all__ = ["NativeEngine", "NativeHost", "NativePlan"]

_LOG: Final = logging.getLogger(__name__)
_NEWER: Final = "hipdnnGetEngineCount_ext"
_MAX_ENGINES: Final = 4096
_MAX_TEXT: Final = 1 << 16


class NativeHost(Host):
    """hipDNN's backend as a host. One handle; calls from several threads take turns.

    Attributes:
        version: of the backend, "" for one of November 2025.
        layout: the wire layout that it speaks.
        plugins: paths of the plugins that it loaded.
    """

    def __init__(
        self,
        library: str | os.PathLike[str] | None = None,
        *,
        paths: Iterable[str | os.PathLike[str]] = (),
        mode: LoadingMode = LoadingMode.ADDITIVE,
        memory: Memory | None = None,
        layout: Layout | None = None,
    ) -> None:
        """Load the backend and its plugins.

        Args:
            library: default: `hipdnn_backend.plugins.search.find_backend_library`.
            paths: plugins and folders of them, for the backend. It takes them only while the process has no handle.
            mode: whether they join its default ones or replace them.
            memory: where the buffers of executions live; default: host memory.
            layout: default: the newest for a backend that lists its engines, otherwise November 2025's.

        Raises:
            EngineError: there is no backend, or it makes no handle.
        """
        found = library or find_backend_library()
        if found is None:
            raise EngineError(
                "hipDNN",
                "there is no libhipdnn_backend.so; install hipDNN, or set HIPDNN_BACKEND_LIBRARY to its path",
            )
        self._lock = threading.RLock()
        self._handle: int | None = None
        self._stream = 0
        self._api = Api(found)
        self.version = self._api.version
        self.layout = layout or (Layout.NEWEST if self._api.has(_NEWER) else Layout.NOVEMBER_2025)
        texts = [os.fsencode(path) for path in paths]
        if texts or mode is LoadingMode.ABSOLUTE:
            array = (c_char_p * max(len(texts), 1))(*texts)
            self._api.call("hipdnnSetEnginePluginPaths_ext", len(texts), array, int(mode))
        made = c_void_p()
        self._api.call("hipdnnCreate", byref(made))
        self._handle = made.value
        self.plugins = tuple(self._loaded_plugins())
        super().__init__(self._registry(), memory=memory)

    # ---- Host

    def select(self, graph: GraphLike, *, preferred: int | str | None = None) -> Selection:
        """What the backend's heuristics choose; it compiles that. A preferred engine goes first if it is applicable.

        The engines behind the first are not in the backend's order, which can be had only by compiling them all.

        Raises:
            WireError: the graph is damaged.
            EngineError: the backend failed.
        """
        record = decoded(graph)
        with self.session():  # one that is closed would look like one without engines
            pass
        wish = selection.wish_of(record) if preferred is None else parse_engine_id(preferred)
        ids, names = [engine.id for engine in self.candidates(graph)], self.registry.names
        if wish in ids:  # the heuristics, which compile, need not be asked
            return selection.with_wish(Selection(tuple(ids), "", ""), wish, names)
        first = self.heuristic_choice(self._encoded(graph)) if ids else None
        if first is None:
            return Selection((), "", "no engine runs the graph")
        order = (first, *(id_ for id_ in ids if id_ != first))
        chosen = Selection(order, "backend", "hipDNN's heuristics put it first")
        return selection.with_wish(chosen, wish, names)

    def close(self) -> None:
        """Destroy the handle. Plans stay usable for `close` only. A second call does nothing."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is not None:
                self._api.call("hipdnnDestroy", handle)

    def plan_blob(self, plan: HostPlan) -> bytes:
        """The backend makes the container itself."""
        return plan.plan.serialize()

    def _restored(self, engine: Any, plan_blob: bytes) -> Plan:
        return engine.restore(plan_blob)

    # ---- for engines and plans

    @contextmanager
    def session(self) -> Iterator[tuple[Api, int]]:
        """The functions and the handle, for one thread at a time.

        Raises:
            EngineError: the host is closed.
        """
        with self._lock:
            if self._handle is None:
                raise EngineError(self._api.path.name, "the host is closed")
            yield self._api, self._handle

    def use_stream(self, stream: int) -> None:
        """Send what follows to a HIP stream; call it inside `session`."""
        if stream != self._stream:
            self._api.call("hipdnnSetStream", self._handle, stream or None)
            self._stream = stream

    def graph_descriptor(self, data: bytes) -> Descriptor:
        """A finished operation graph; call it inside `session`.

        Raises:
            EngineError: the backend refuses the graph, or has no word for something in it.
        """
        where = "hipdnnBackendCreateAndDeserializeGraph_ext"
        try:
            encoded = graph_in_layout(data, self.layout)
        except WireError as error:
            raise EngineError(where, str(error), NativeStatus.NOT_SUPPORTED) from error
        made = c_void_p()
        self._api.call(where, byref(made), encoded, len(encoded))
        descriptor = Descriptor(self._api, pointer=made.value)
        handle = self._handle or 0
        return descriptor.set_pointers(Attribute.OPERATIONGRAPH_HANDLE, Type.HANDLE, [handle]).finalize()

    def heuristic_choice(self, data: bytes) -> EngineId | None:
        """The engine that the backend would use, None if none is applicable.

        Raises:
            EngineError: the backend failed.
        """
        with self.session() as (api, _), ExitStack() as stack:
            graph = stack.enter_context(self.graph_descriptor(data))
            heuristics = stack.enter_context(Descriptor(api, DescriptorType.ENGINEHEUR))
            heuristics.set_pointers(
                Attribute.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, [graph.pointer]
            ).set_mode().finalize()
            if not heuristics.count(Attribute.ENGINEHEUR_RESULTS, Type.BACKEND_DESCRIPTOR):
                return None
            config = stack.enter_context(Descriptor(api, DescriptorType.ENGINECFG))
            if not heuristics.fill(Attribute.ENGINEHEUR_RESULTS, [config]):
                return None
            engine = stack.enter_context(config.finalize().descriptor(Attribute.ENGINECFG_ENGINE))
            return EngineId(engine.integer(Attribute.ENGINE_GLOBAL_INDEX))

    # ---- what the backend has

    def _loaded_plugins(self) -> Iterator[Path]:
        name, count, length = "hipdnnGetLoadedEnginePluginPaths_ext", c_size_t(0), c_size_t(0)
        self._api.call(name, self._handle, byref(count), None, byref(length))
        if not count.value or count.value > _MAX_ENGINES or length.value > _MAX_TEXT:
            return
        buffers = [ctypes.create_string_buffer(length.value) for _ in range(count.value)]
        array = (c_char_p * count.value)(*(ctypes.addressof(buffer) for buffer in buffers))
        self._api.call(name, self._handle, byref(count), array, byref(length))
        for buffer in buffers[: count.value]:
            yield Path(os.fsdecode(buffer.value))

    def _registry(self) -> Registry:
        entries: list[Entry] = []
        problems: list[Problem] = []
        if self._api.has(_NEWER):
            entries += self._listed()
            return Registry(entries)
        for path in self.plugins:
            try:
                entries += [
                    Entry(NativeEngine(self, id_, name), str(path), version) for id_, name, version in _ids(path)
                ]
            except (OSError, EngineError) as error:
                problems.append(Problem(str(path), str(error)))
        return Registry(entries, problems)

    def _listed(self) -> Iterator[Entry]:
        count = c_size_t(0)
        self._api.call(_NEWER, self._handle, byref(count))
        for index in range(min(count.value, _MAX_ENGINES)):
            id_, sizes = c_int64(0), [c_size_t(0) for _ in range(4)]
            empty = [part for size in sizes for part in (None, byref(size))]
            self._api.call("hipdnnGetEngineInfo_ext", self._handle, index, byref(id_), *empty)
            texts = [ctypes.create_string_buffer(min(max(size.value, 1), _MAX_TEXT)) for size in sizes]
            full = [part for text, size in zip(texts, sizes, strict=True) for part in (text, byref(size))]
            self._api.call("hipdnnGetEngineInfo_ext", self._handle, index, byref(id_), *full)
            name, plugin, version, _ = (text.value.decode(errors="replace") for text in texts)
            yield Entry(NativeEngine(self, EngineId(id_.value), name or engine_name(id_.value)), plugin, version)


class NativeEngine:
    """An engine inside the backend; satisfies `hipdnn_backend.engine.Engine`."""

    def __init__(self, host: NativeHost, id_: EngineId, name: str) -> None:
        self._host = host
        self._id = id_
        self._name = name

    @property
    def id(self) -> EngineId:
        """Signed 64-bit id."""
        return self._id

    @property
    def name(self) -> str:
        """As the backend or the plugin says it."""
        return self._name

    def __repr__(self) -> str:
        return f"NativeEngine({self._name})"

    def support(self, graph: bytes) -> Support:
        """Whether the backend makes an engine descriptor for the graph; it does not say why not."""
        try:
            with self._engine(graph):
                return Support.yes()
        except EngineError as error:
            rule = "wire" if isinstance(error.__cause__, WireError) else "backend"
            return Support.no(str(error), rule=rule)

    def details(self, graph: bytes) -> EngineDetails:
        """Behaviour notes. Knobs are not read: the backend hands them out one by one, and only newer ones do.

        Raises:
            EngineError: the engine does not run the graph.
        """
        with self._engine(graph) as engine:
            try:
                notes = engine.numbers(Attribute.ENGINE_BEHAVIOR_NOTE, Type.BEHAVIOR_NOTE)
            except EngineError as error:
                if error.status != NativeStatus.NOT_SUPPORTED:  # what a backend of November 2025 says
                    raise
                notes = []
        return EngineDetails(engine_id=self._id, behavior_notes=tuple(notes), name=self._name)

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        """Upper bound in bytes.

        Raises:
            EngineError: the backend failed.
        """
        with self._config(graph, config) as (_, descriptor):
            return descriptor.integer(Attribute.ENGINECFG_WORKSPACE_SIZE)

    def build(self, graph: bytes, config: EngineConfig) -> NativePlan:
        """Compile.

        Raises:
            EngineError: the engine does not run the graph, or the backend or the plugin failed.
        """
        with self._config(graph, config) as (api, descriptor):
            plan = Descriptor(api, DescriptorType.EXECUTION_PLAN)
            plan.set_pointers(
                Attribute.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, [descriptor.pointer]
            ).finalize()
            return NativePlan(self._host, plan)

    def restore(self, payload: bytes) -> NativePlan:
        """A plan from what `NativePlan.serialize` gave.

        Raises:
            EngineError: the backend cannot restore plans, or not this one.
        """
        with self._host.session() as (api, handle):
            made = c_void_p()
            name = "hipdnnBackendCreateAndDeserializeExecutionPlan_ext"
            api.call(name, handle, byref(made), payload, len(payload))
            return NativePlan(self._host, Descriptor(api, pointer=made.value))

    @contextmanager
    def _engine(self, graph: bytes) -> Iterator[Descriptor]:
        with self._host.session() as (api, _), ExitStack() as stack:
            descriptor = stack.enter_context(self._host.graph_descriptor(graph))
            engine = stack.enter_context(Descriptor(api, DescriptorType.ENGINE))
            engine.set_pointers(Attribute.ENGINE_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, [descriptor.pointer])
            yield engine.set_integers(Attribute.ENGINE_GLOBAL_INDEX, [self._id]).finalize()

    @contextmanager
    def _config(self, graph: bytes, config: EngineConfig) -> Iterator[tuple[Api, Descriptor]]:
        with self._engine(graph) as engine, self._host.session() as (api, _), ExitStack() as stack:
            descriptor = stack.enter_context(Descriptor(api, DescriptorType.ENGINECFG))
            descriptor.set_pointers(Attribute.ENGINECFG_ENGINE, Type.BACKEND_DESCRIPTOR, [engine.pointer])
            if config.knobs:
                choices = [stack.enter_context(_choice(api, knob)) for knob in config.knobs]
                pointers = [choice.pointer for choice in choices]
                descriptor.set_pointers(Attribute.ENGINECFG_KNOB_CHOICES, Type.BACKEND_DESCRIPTOR, pointers)
            descriptor.finalize()
            yield api, descriptor


class NativePlan:
    """A plan inside the backend; satisfies `hipdnn_backend.engine.Plan`."""

    def __init__(self, host: NativeHost, descriptor: Descriptor) -> None:
        self._host = host
        self._descriptor = descriptor
        self._workspace_size = descriptor.integer(Attribute.EXECUTION_PLAN_WORKSPACE_SIZE)

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
            EngineError: the plan or the host is closed, or the backend or the plugin failed.
        """
        with self._host.session() as (api, handle), Descriptor(api, DescriptorType.VARIANT_PACK) as variant:
            variant.set_integers(Attribute.VARIANT_PACK_UNIQUE_IDS, list(pack))
            variant.set_pointers(Attribute.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, list(pack.values()))
            variant.set_pointers(Attribute.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, [workspace])
            if overrides:
                _set_overrides(variant, overrides)
            variant.finalize()
            self._host.use_stream(stream)
            api.call("hipdnnBackendExecute", handle, self._descriptor.pointer, variant.pointer)

    def serialize(self) -> bytes:
        """The plan in the backend's container.

        Raises:
            EngineError: the backend or the engine cannot.
        """
        name, size = "hipdnnBackendGetSerializedExecutionPlan_ext", c_size_t(0)
        with self._host.session() as (api, _):
            api.call(name, self._descriptor.pointer, 0, byref(size), None)
            buffer = ctypes.create_string_buffer(size.value)
            api.call(name, self._descriptor.pointer, size.value, byref(size), buffer)
        return buffer.raw[: size.value]

    def close(self) -> None:
        """Destroy the plan. A second call does nothing."""
        self._descriptor.close()


def _choice(api: Api, knob: KnobSetting) -> Descriptor:
    return Descriptor(api, DescriptorType.KNOB_CHOICE).set_knob(knob.knob_id, knob.value).finalize()


def _set_overrides(variant: Descriptor, overrides: Mapping[int, Override]) -> None:
    values = list(overrides.values())
    variant.set_integers(Attribute.VARIANT_PACK_OVERRIDE_UNIQUE_IDS, list(overrides))
    variant.set_integers(Attribute.VARIANT_PACK_OVERRIDE_LENGTHS, [len(value.dims) for value in values])
    variant.set_integers(Attribute.VARIANT_PACK_OVERRIDE_SHAPES, [dim for value in values for dim in value.dims])
    variant.set_integers(Attribute.VARIANT_PACK_OVERRIDE_STRIDES, [item for value in values for item in value.strides])


def _ids(path: Path) -> Iterator[tuple[EngineId, str, str]]:
    """Ids, names and version of the engines in a plugin that the backend has loaded: it does not list them itself.

    Only functions without side effects are called; the plugin stays the backend's.

    Raises:
        OSError: it cannot be loaded again.
        EngineError: it does not answer.
    """
    functions, missing = declare(ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL))
    if missing:
        raise EngineError(path.name, f"it lacks {', '.join(missing)}")
    count, version = c_uint32(0), c_char_p()
    if functions["hipdnnEnginePluginGetAllEngineIds"](None, 0, byref(count)) or count.value > _MAX_ENGINES:
        raise EngineError(path.name, "it does not tell its engines")
    ids = (c_int64 * count.value)()
    if functions["hipdnnEnginePluginGetAllEngineIds"](ids, count.value, byref(count)):
        raise EngineError(path.name, "it does not tell its engines")
    functions["hipdnnPluginGetVersion"](byref(version))
    for id_ in sorted(ids):
        name = c_char_p()
        ask = functions.get("hipdnnEnginePluginGetEngineName")
        told = (name.value or b"").decode(errors="replace") if ask and not ask(id_, byref(name)) else ""
        shown = told if told and engine_id(told) == id_ else engine_name(id_)
        yield EngineId(id_), shown, (version.value or b"").decode(errors="replace")
