"""Fills the function table of the shim's ONNX Runtime half; the counterpart of ``fusilli_plugin.attach``.

No exception goes past the functions here: they become an OrtStatus, whose code is FAIL for what went wrong inside and
INVALID_ARGUMENT for what a user can mend.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fusilli_ground.errors import OptionError
from fusilli_ground.texts import host_text
from fusilli_plugin.edge.handles import HandleTable
from fusilli_plugin.edge.link import ffi
from fusilli_plugin.engine.statuses import error_text
from fusilli_plugin.ort_ep import devices, log, memory
from fusilli_plugin.ort_ep.abi import Api, ErrorCode, OrtError, pointers, string
from fusilli_plugin.ort_ep.errors import NewShapeError
from fusilli_plugin.ort_ep.nodes import Call, CompiledNode
from fusilli_plugin.ort_ep.provider import Provider
from fusilli_plugin.ort_ep.threads import asked_threads
from graph_api import FusilliError, GraphError, NotSupportedError
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload.errors import OffloadError

__all__ = ["Bridge", "attach"]

_LOG: Final = logging.getLogger(__name__)
# The end of a registration's name that lets a provider add devices which ONNX Runtime did not find itself.
_VIRTUAL: Final = ".virtual"
_INVALID: Final = (OptionError, GraphError, NotSupportedError, NewShapeError)
_ESCAPED: Final = 1  # in place of a status, as shim/ort.c has them
_INTERRUPTED: Final = 2
_OURS: Final = (FusilliError, OffloadError, EngineError)

_lock = threading.Lock()
_attached: list[Any] = []  # what C refers to for ever


def attach(table: int) -> None:
    """Fill the table at an address; a second call does nothing."""
    link: Any = ffi.cast("fusilli_ort_link *", table)
    with _lock:
        if link.attached:
            return
        bridge = Bridge(link)
        _attached.extend([link, bridge, *bridge.fill()])
        link.attached = 1


class _StatusError(Exception):
    """ONNX Runtime could not make the outputs of a group; its status tells why."""

    def __init__(self, status: int) -> None:
        super().__init__("the outputs could not be made")
        self.status = status


def _numbers(raw: bytes) -> tuple[int, ...]:
    """Addresses as C has them."""
    return struct.unpack(f"{len(raw) // 8}Q", raw)


class Bridge:
    """The functions of the table; see ``shim/ort_link.h`` for their arguments."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._apis: dict[int, Api] = {}
        self._may_add: dict[int, bool] = {}
        self._providers: HandleTable[Provider] = HandleTable()
        self._nodes: HandleTable[CompiledNode] = HandleTable()
        self._compiled = self._nodes.objects
        self._launches: dict[int, tuple[Callable[[], None], Callable[[BaseException], int]]] = {}
        self._memory = memory.SessionMemory()

    def fill(self) -> list[Any]:
        """Put a callback for each function into the table; the callbacks, to be kept."""
        # functions with a status: where they find the runtime that makes one
        with_runtime = (
            "create_factory", "supported_devices", "create_ep", "compatibility", "create_allocator", "copy",
            "create_stream", "flush_stream", "create_event", "record_event", "wait_event",
        )  # fmt: skip
        with_provider = ("capability", "compile", "dynamic_options")
        quiet = (
            "release_factory", "release_ep", "release_node", "release_allocator", "deallocate", "release_stream",
            "release_event",
        )  # fmt: skip
        functions: dict[str, Callable[..., Any]] = {"compute": self._executor(), "launch": self._launcher()}
        functions |= {name: self._guarded(getattr(self, name), self._of_runtime) for name in with_runtime}
        functions |= {name: self._guarded(getattr(self, name), self._of_provider) for name in with_provider}
        answers = (*quiet, "compatibility_text", "stream_aware", "allocate", "can_copy")
        functions |= {name: _logged(getattr(self, name), None if name in quiet else 0) for name in answers}
        make: Any = ffi.callback
        callbacks: list[Any] = []
        for name, field in ffi.typeof("fusilli_ort_link").fields:
            if name in functions:
                # what escapes from a function is Ctrl-C, mostly: it may come before its first line
                escapes = {} if name in answers else {"onerror": _escaped}
                callback = make(field.type, functions[name], **escapes)
                setattr(self._link, name, callback)
                callbacks.append(callback)
        return callbacks

    def _guarded(self, function: Callable[..., None], runtime_of: Callable[[int], int]) -> Callable[..., int]:
        def call(first: int, *rest: Any) -> int:
            try:
                function(first, *rest)
            except BaseException as error:
                return self._failed(runtime_of(first), error)
            return 0

        return call

    def _of_runtime(self, runtime: int) -> int:
        return runtime

    def _of_provider(self, number: int) -> int:
        return self._providers.get(number).runtime

    def _failed(self, runtime: int, error: BaseException) -> int:
        """The address of a status that tells of an error."""
        if isinstance(error, KeyboardInterrupt):
            return _escaped(type(error))
        code = ErrorCode.INVALID_ARGUMENT if isinstance(error, _INVALID) else ErrorCode.FAIL
        _LOG.debug("%s", error, exc_info=error)
        is_ours = isinstance(error, _OURS) and str(error)
        text = host_text(str(error)).encode(errors="replace") if is_ours else error_text(error)
        return self._link.fail(runtime, int(code), text)

    def _api(self, runtime: int) -> Api:
        api = self._apis.get(runtime)
        if api is None:
            api = self._apis[runtime] = Api(self._link.api(runtime))
        return api

    # ---- factory

    def create_factory(self, runtime: int, name: Any, logger: int) -> None:
        """A library was registered."""
        devices.check()
        self._may_add[runtime] = string(name).endswith(_VIRTUAL)
        log.connect(self._api(runtime), runtime, logger)

    def release_factory(self, runtime: int) -> None:
        """It was unregistered."""
        log.disconnect(runtime)

    def supported_devices(self, runtime: int, found: int, count: int, out: int, limit: int, number: Any) -> None:
        """Which of ONNX Runtime's devices the provider takes."""
        api = self._api(runtime)
        factory = self._link.factory(runtime)
        taken = devices.offer(api, factory, pointers(found, count), limit, may_add=self._may_add[runtime])
        slots: Any = ffi.cast("void **", out)
        for index, device in enumerate(taken):
            slots[index] = device
        number[0] = len(taken)

    def create_ep(
        self, runtime: int, found: int, metadata: int, count: int, options: int, logger: int, out: Any
    ) -> None:
        """A session is made."""
        api = self._api(runtime)
        chosen = devices.chosen([api.pairs(pairs) for pairs in pointers(metadata, count)])
        handle = api.get("GetSessionOptionsConfigEntries", "void *", ffi.cast("void *", options))
        try:
            entries = api.pairs(handle)
        finally:
            api.plain("ReleaseKeyValuePairs", handle)
        threads = asked_threads(api, ffi.cast("void *", options))
        out[0] = self._providers.add(Provider(api, runtime, chosen, entries, threads))

    def release_ep(self, number: int) -> None:
        """A session is gone."""
        self._providers.remove(number).close()

    def compatibility(self, runtime: int, text: Any, answer: Any) -> None:
        """Whether a model with compiled code can be used on this machine."""
        answer[0] = int(devices.compatibility(string(text)))

    def compatibility_text(self, number: int) -> int:
        """What `compatibility` will be asked about a model that this session makes."""
        text = self._providers.get(number).compatibility_text()
        return int(ffi.cast("uintptr_t", text))

    # ---- nodes

    def capability(self, number: int, graph: int, support: int) -> None:
        """Claim nodes."""
        self._providers.get(number).capability(ffi.cast("void *", graph), ffi.cast("void *", support))

    def compile(self, number: int, graphs: int, nodes: int, count: int, infos: int, context_nodes: int) -> None:
        """Compile the groups that ONNX Runtime gave us."""
        provider = self._providers.get(number)
        compiled = provider.compile(pointers(graphs, count), pointers(nodes, count))
        try:
            holders = provider.context_nodes(compiled) if provider.context.enabled else []
        except BaseException:
            for node in compiled:
                node.close()
            raise
        numbers = [self._make_node(provider.runtime, node) for node in compiled]
        for table, made in ((infos, numbers), (context_nodes, holders)):
            slots: Any = ffi.cast("void **", table)
            for index, pointer in enumerate(made):
                slots[index] = ffi.cast("void *", pointer)

    def _make_node(self, runtime: int, node: CompiledNode) -> int:
        number = self._nodes.add(node)
        launches = (0, 0)
        if node.launch is not None:
            pair = self._launches[number] = node.launch, partial(self._node_failed, number)
            launches = id(pair[0]), id(pair[1])
        shapes = node.known_shapes
        numbers: Any = ffi.new("int64_t[]", shapes) if shapes else ffi.NULL
        made = self._link.make_node(
            runtime, number, node.on_stream, len(node.inputs), len(node.outputs), numbers, len(shapes),
            node.stage, *launches,
        )  # fmt: skip
        if not made:
            self._launches.pop(number, None)
            self._nodes.remove(number)
            raise OrtError(f"node '{node.name}' could not be made: out of memory, or it has too many tensors")
        return made

    def release_node(self, number: int) -> None:
        """A compiled group is gone."""
        self._launches.pop(number, None)
        self._nodes.remove(number).close()

    def dynamic_options(self, number: int, keys: int, values: int, count: int) -> None:
        """Options of a session that exists."""
        names = [string(ffi.cast("char *", pointer)) for pointer in pointers(keys, count)]
        texts = [string(ffi.cast("char *", pointer)) for pointer in pointers(values, count)]
        self._providers.get(number).set_options(dict(zip(names, texts, strict=True)))

    def _executor(self) -> Callable[..., int]:
        """The function that runs a compiled group on tensors of ONNX Runtime's.

        This and the next one are taken for each group of each run, so they do their own error handling.
        """
        nodes, unpack, make_outputs, failed = self._compiled, ffi.unpack, self._link.make_outputs, self._node_failed
        elsewhere = self._elsewhere

        def inputs_of(node: CompiledNode, addresses: Any) -> tuple[int, ...]:
            raw: Any = unpack(addresses, node.nbytes)
            return _numbers(raw)

        def compute(number: int, call: int, addresses: Any, stream: int, dims: Any, length: int) -> int:
            """One run of a group; nothing that is raised may cross into C."""
            try:
                node = nodes[number]
                shapes = ffi.buffer(dims, 8 * length)[:] if length else b""
                if node.bound and not node.holds(shapes, inputs_of(node, addresses), stream):
                    return elsewhere(node, shapes, call, addresses, stream, length > 0, bound=False)
                plan = node.plan_for(shapes) if length else node.plan
                if plan is None:
                    return elsewhere(node, shapes, call, addresses, stream, length > 0)
                if length:
                    status = make_outputs(call, plan.output_shapes)
                    if status:
                        return status
                raw: Any = unpack(addresses, node.nbytes)
                try:
                    plan.run(raw, stream)
                except Exception as error:
                    if not node.gives_way(shapes, error):
                        raise
                    return elsewhere(node, shapes, call, addresses, stream, False)
            except BaseException as error:
                return failed(number, error)
            return 0

        return compute

    def _elsewhere(
        self, node: CompiledNode, shapes: bytes, call: int, addresses: Any, stream: int, makes: bool, bound: bool = True
    ) -> int:
        """Run a group in ONNX Runtime's kernels.

        ``makes``: its outputs are not there yet; ``bound``: inputs have the values that there is code for.
        """
        made: list[int] = []

        def raw() -> bytes:
            data: Any = ffi.unpack(addresses, node.nbytes)
            return data

        def outputs(dims: Any) -> bytes:
            if makes and not made:
                status = self._link.make_outputs(call, dims)
                if status:
                    raise _StatusError(status)
                made.append(1)
            return raw()

        tensors = Call(_numbers(raw())[: len(node.inputs)], lambda dims: _numbers(outputs(dims)), outputs)
        try:
            (node.run_elsewhere if bound else node.run_unbound)(shapes, tensors, stream)
        except _StatusError as error:
            return error.status
        return 0

    def _launcher(self) -> Callable[[int], int]:
        """The function that runs a compiled group on its stage in a thread that is in Python for the first time."""
        launches, failed = self._launches, self._node_failed

        def launch(number: int) -> int:
            try:
                launches[number][0]()
            except BaseException as error:
                return failed(number, error)
            return 0

        return launch

    def _node_failed(self, number: int, error: BaseException) -> int:
        node = self._compiled.get(number)
        if node is None or isinstance(error, KeyboardInterrupt):
            return _escaped(type(error), error)  # without a node there is no runtime to make a status
        return self._failed(node.runtime, node.failure(error))

    # ---- device memory

    def stream_aware(self, runtime: int) -> int:
        """Whether there are GPUs."""
        return int(bool(devices.gpus()))

    def create_allocator(self, runtime: int, info: int, out: Any) -> None:
        """Memory of a device; 0 for memory that is not ours."""
        api = self._api(runtime)
        device = api.plain("MemoryInfo_GetMemoryDevice", ffi.cast("void *", info))
        out[0] = self._memory.allocator(memory.place_of(api, device))

    def release_allocator(self, number: int) -> None:
        """Give an allocator's memory back."""
        self._memory.release_allocator(number)

    def allocate(self, number: int, size: int, stream: int) -> int:
        """Memory, for work on a stream if one is given."""
        return self._memory.allocate(number, size, self._stream_handle(stream))

    def deallocate(self, number: int, address: int) -> None:
        """Give memory back."""
        self._memory.deallocate(number, address)

    def can_copy(self, runtime: int, source: int, target: int) -> int:
        """Whether a copy between two devices is ours to do."""
        api = self._api(runtime)
        return int(memory.can_copy(api, ffi.cast("void *", source), ffi.cast("void *", target)))

    def copy(self, runtime: int, sources: int, targets: int, streams: int, count: int) -> None:
        """Copy tensors between host and device."""
        api = self._api(runtime)
        handles = pointers(streams, count) if streams else [ffi.NULL] * count
        for source, target, stream in zip(pointers(sources, count), pointers(targets, count), handles, strict=True):
            memory.copy(api, source, target, self._stream_handle(int(ffi.cast("uintptr_t", stream))))

    def create_stream(self, runtime: int, device: int, out: Any, handle: Any) -> None:
        """A stream of a device."""
        place = memory.place_of(self._api(runtime), ffi.cast("void *", device))
        out[0], handle[0] = self._memory.create_stream(place)

    def flush_stream(self, runtime: int, stream: int) -> None:
        """Wait until a stream has done its work."""
        self._memory.synchronize(stream)

    def release_stream(self, stream: int) -> None:
        """Destroy a stream."""
        self._memory.release_stream(stream)

    def create_event(self, runtime: int, stream: int, out: Any) -> None:
        """An event of a stream."""
        out[0] = self._memory.create_event(stream)

    def record_event(self, runtime: int, event: int) -> None:
        """Mark where its stream is."""
        self._memory.record_event(event)

    def wait_event(self, runtime: int, event: int, stream: int) -> None:
        """Let a stream, or the host, wait until an event's stream has come to its mark."""
        self._memory.wait_event(event, self._stream_handle(stream))

    def release_event(self, event: int) -> None:
        """Destroy an event."""
        self._memory.release_event(event)

    def _stream_handle(self, stream: int) -> int | None:
        """HIP's stream behind an OrtSyncStream, None for none."""
        if not stream:
            return None
        api = next(iter(self._apis.values()))
        return int(ffi.cast("uintptr_t", api.plain("SyncStream_GetHandle", ffi.cast("void *", stream))))


def _escaped(kind: type[BaseException], error: BaseException | None = None, trace: Any = None) -> int:
    """What C gets in place of a status, for an error that nobody has handled; cffi calls it too."""
    if issubclass(kind, KeyboardInterrupt):
        return _INTERRUPTED
    _LOG.critical("an error escaped to C", exc_info=error)
    return _ESCAPED


def _logged(function: Callable[..., Any], otherwise: Any) -> Callable[..., Any]:
    """For functions that cannot report an error: it goes to the log."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:
            _LOG.error("%s: %s", function.__name__, error)
            return otherwise

    return call
