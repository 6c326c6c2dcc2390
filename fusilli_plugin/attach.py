"""Fills the shim's function table: each entry takes plain integers and ends in the engine.

The functions return a status and leave the text of an error with the shim, which keeps it per thread. They are the last
place that an exception reaches; none crosses into C.
"""

from __future__ import annotations

import gc
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from fusilli_ground.locks import fork_safe_lock
from fusilli_ground.texts import host_text
from fusilli_plugin import __version__
from fusilli_plugin.edge.handles import Buffers, HandleTable
from fusilli_plugin.edge.link import ffi
from fusilli_plugin.engine import claim
from fusilli_plugin.engine.built import Place
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import Reading
from fusilli_plugin.engine.plan import FusilliPlan
from fusilli_plugin.engine.statuses import error_text, status_of
from fusilli_plugin.errors import BadParamError
from hipdnn_backend.engine import Override, engine_id
from hipdnn_backend.plugins.abi import Severity, Status
from hipdnn_backend.wire import decode_engine_config, encode_engine_details
from iree_bridge import Device, Options

__all__ = ["ABI", "Plugin", "attach"]

ABI: Final = 7
"""Number of the shim's struct, FUSILLI_ABI in shim/shim.h."""
_INTERRUPTED: Final = 0x100  # FUSILLI_INTERRUPTED there

_LOG: Final = logging.getLogger(__name__)
# not hipdnn_backend: it may be the host, whose log callback ends in its own logger
_PACKAGES: Final = ("fusilli_plugin", "graph_api", "iree_bridge")
_LEVELS: Final = {
    Severity.INFO: logging.INFO,
    Severity.WARN: logging.WARNING,
    Severity.ERROR: logging.ERROR,
    Severity.FATAL: logging.CRITICAL,
    Severity.OFF: logging.CRITICAL + 1,
}
_CPU: Final[Place] = (0, None)
_PAIR: Final = 16  # bytes of a uid and an address
_MAX_GRAPH: Final = 8 << 20  # bytes; what the wire reader takes at most
_MAX_RANK: Final = 64
_MAX_KINDS: Final = 64  # of reasons that are told at the level of warnings
_PARTICULARS: Final = re.compile(r"'[^']*'|\b[0-9a-f]{16,}\b|\d+")

_lock = fork_safe_lock()
_attached: list[Any] = []  # links and callbacks, which C refers to for ever


def attach(address: int) -> None:
    """Fill the function table of the shim at ``address``; a second call does nothing.

    Raises:
        RuntimeError: the shim is of another version than this package.
        FusilliError: an environment variable means nothing.
    """
    link: Any = ffi.cast("fusilli_link *", address)
    with _lock:
        if link.attached:
            return
        version = _text(link.version)
        if link.abi != ABI or version != __version__:
            raise RuntimeError(
                f"the library is of version {version} (ABI {link.abi}), the package of {__version__} (ABI {ABI}); "
                "run `fusilli install-plugin` again"
            )
        options = Options.from_env()
        name = _text(link.engine_name)
        if engine_id(name) != link.engine_id:
            raise RuntimeError(f"the library gives engine {name} the id {link.engine_id}")
        plugin = Plugin(link, replace(options, engine_name=name))
        _attached.extend([link, plugin, _connect_log(link), *_fill(link, plugin)])
        _detach_at_exit(link)
        if link.owns_interpreter:
            gc.freeze()  # what was imported stays for ever: no collection has to look at it
        link.attached = 1


def _fill(link: Any, plugin: Plugin) -> list[Any]:
    """Callbacks for all functions of the table, by name."""
    callbacks: list[Any] = []
    guarded = {
        name: getattr(plugin, name)
        for name in (
            "claims", "details", "free_bytes", "workspace_size", "create_context", "destroy_context",
            "context_workspace_size", "execute", "execute_overridden", "serialize", "restore", "destroy_handle",
            "attach_ort",
        )
    }  # fmt: skip
    functions = {name: plugin.guard(function) for name, function in guarded.items()}
    functions |= {"set_log_severity": _set_log_severity}
    make: Any = ffi.callback
    types = {name: field.type for name, field in ffi.typeof("fusilli_link").fields}
    for name, function in functions.items():
        # what a callback returns if even its error handling fails
        error = {} if name == "set_log_severity" else {"error": int(Status.INTERNAL_ERROR)}
        callback = make(types[name], function, **error)
        setattr(link, name, callback)
        callbacks.append(callback)
    failed = plugin.failed
    link.failed = id(failed)
    return [*callbacks, failed]


def _detach_at_exit(link: Any) -> None:
    """A host may destroy plans after its interpreter is gone: the shim must not call into it then."""
    import atexit

    atexit.register(link.detach)


class _HostLog(logging.Handler):
    """Leads records to the host's log callback."""

    def __init__(self, link: Any) -> None:
        super().__init__()
        self._link = link
        self._thread = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self._thread, "busy", False):
            return  # the host's callback logs through our own packages
        self._thread.busy = True
        severity = next((s for s, level in _LEVELS.items() if record.levelno <= level), Severity.FATAL)
        try:
            text = host_text(f"{record.name}: {record.getMessage()}")
            self._link.log(int(severity), text.encode(errors="replace"))
        except Exception:
            self.handleError(record)
        finally:
            self._thread.busy = False


_handlers: list[_HostLog] = []


def _connect_log(link: Any) -> _HostLog:
    handler = _HostLog(link)
    _handlers.append(handler)
    for package in _PACKAGES:
        logging.getLogger(package).addHandler(handler)
    _set_log_severity(link.log_severity)
    return handler


def _set_log_severity(severity: int) -> None:
    """Let the packages' loggers pass what the host wants to see; what the application set stays if it shows more."""
    level = _LEVELS.get(Severity(severity), logging.INFO)
    for handler in _handlers:
        handler.setLevel(level)
    for package in _PACKAGES:
        logger = logging.getLogger(package)
        if level <= logging.CRITICAL and logger.getEffectiveLevel() > level:
            logger.setLevel(level)


class _Context(NamedTuple):
    """What an execution context pointer stands for."""

    engine: FusilliEngine
    plan: FusilliPlan


class Plugin:
    """The engine behind the C functions: one `FusilliEngine` per HIP device, plans by handle.

    The methods are the functions of the shim's table; see ``shim/link.h`` for their arguments.
    """

    def __init__(self, link: Any, options: Options) -> None:
        self._link = link
        self._options = options
        self._device = Device.parse(options.device)
        self._lock = fork_safe_lock()
        self._engines: dict[int, FusilliEngine] = {}
        self._contexts: HandleTable[_Context] = HandleTable()
        self._plans = self._contexts.objects
        self._buffers = Buffers()
        self._places: dict[int, set[Place]] = {}
        self._is_gpu = self._device.is_gpu
        self._declined: set[str] = set()
        # What means nothing is told now, as other settings are, and not by each graph.
        claim.parse(options.claim)
        Reading.of(options)

    def guard(self, function: Callable[..., None]) -> Callable[..., int]:
        """``function`` as C wants it: a status instead of an exception."""

        def call(*arguments: Any) -> int:
            try:
                function(*arguments)
            except BaseException as error:
                return self.failed(error)
            return 0

        return call

    def failed(self, error: BaseException) -> int:
        """Leave the text of an error with the shim; the status to return."""
        status = status_of(error)
        self._link.set_error(error_text(error))
        if isinstance(error, KeyboardInterrupt):
            return int(status) | _INTERRUPTED  # it was meant for the host program, which gets it back from the shim
        if status == Status.INTERNAL_ERROR:
            _LOG.error("%s", error, exc_info=error if _LOG.isEnabledFor(logging.DEBUG) else None)
        else:
            _LOG.warning("%s", error)
        return int(status)

    # ---- the table

    def claims(self, serial: int, device: int, stream: int, graph: int, size: int, yes: Any) -> None:
        """Sets ``yes`` if the graph is claimed; the reason of a decline goes to the log. May compile."""
        place = self._place(serial, device, stream) if self._is_gpu else _CPU
        answer = self._engine(device).claims(_bytes(graph, size, _MAX_GRAPH), place)
        if answer:
            yes[0] = 1
        else:
            node = f"node '{answer.node}': " if answer.node else ""
            self._say_declined(f"{node}{answer.reason} [{answer.rule}]")

    def details(self, device: int, graph: int, size: int, data: Any, data_size: Any) -> None:
        """Hands out an EngineDetails."""
        details = self._engine(device).details(_bytes(graph, size, _MAX_GRAPH))
        data[0], data_size[0] = self._buffers.keep(encode_engine_details(details))

    def free_bytes(self, data: int) -> None:
        """Takes back what `details` or `serialize` handed out."""
        self._buffers.free(data)

    def workspace_size(self, device: int, config: int, config_size: int, graph: int, size: int, out: Any) -> None:
        """Compiles."""
        settings = decode_engine_config(_bytes(config, config_size, _MAX_GRAPH))
        out[0] = self._engine(device).workspace_size(_bytes(graph, size, _MAX_GRAPH), settings)

    def create_context(
        self, serial: int, device: int, stream: int, config: int, config_size: int, graph: int, size: int, out: Any
    ) -> None:
        """Compiles, or finds what `claims` or `workspace_size` compiled, and loads the code on the handle's device."""
        engine = self._engine(device)
        settings = decode_engine_config(_bytes(config, config_size, _MAX_GRAPH))
        data = _bytes(graph, size, _MAX_GRAPH)
        out[0] = self._add(engine, engine.build(data, settings), serial, stream)
        engine.settle(data, self._place(serial, device, stream) if self._is_gpu else _CPU)

    def destroy_context(self, context: int) -> None:
        """Frees a plan."""
        self._contexts.remove(context).plan.close()

    def context_workspace_size(self, context: int, out: Any) -> None:
        """Bytes."""
        out[0] = self._contexts.get(context).plan.workspace_size

    def execute(
        self, serial: int, device: int, stream: int, context: int, workspace: int, buffers: Any, count: int
    ) -> None:
        """Enqueues a plan. What comes again with the same arguments, the shim launches without this function."""
        place = self._place(serial, device, stream) if self._is_gpu else _CPU
        plan = self._contexts.get(context).plan
        raw = ffi.buffer(buffers, count * _PAIR)[:]
        launch = plan.launch(raw, workspace, place)
        if launch is None or (device < 0 and self._device.kind == "hip"):
            return  # without a device of its own, a handle follows the current one
        self._link.remember(serial, device, stream, context, workspace, buffers, count, id(launch))
        if context not in self._plans:  # destroyed meanwhile
            self._link.forget(context)

    def execute_overridden(
        self, serial: int, device: int, stream: int, context: int, workspace: int, buffers: Any, count: int,
        overrides: int, uids: Any, lengths: Any, dims: Any, strides: Any,
    ) -> None:  # fmt: skip
        """Enqueues a plan with other dims."""
        found: dict[int, Override] = {}
        for index in range(overrides):
            rank = lengths[index]
            if rank > _MAX_RANK:
                raise BadParamError(f"override of tensor {uids[index]}: {rank} dims; at most {_MAX_RANK} are read")
            found[uids[index]] = Override(_integers(dims[index], rank), _integers(strides[index], rank))
        place = self._place(serial, device, stream) if self._is_gpu else _CPU
        plan = self._contexts.get(context).plan
        plan.launch_overridden(ffi.buffer(buffers, count * _PAIR)[:], workspace, place, found)

    def serialize(self, context: int, data: Any, size: Any) -> None:
        """Hands out a plan's bytes."""
        data[0], size[0] = self._buffers.keep(self._contexts.get(context).plan.serialize())

    def restore(self, serial: int, device: int, stream: int, data: int, size: int, out: Any) -> None:
        """A plan from bytes of `serialize`."""
        engine = self._engine(device)
        out[0] = self._add(engine, engine.restore(_bytes(data, size, 2**31)), serial, stream)

    def destroy_handle(self, serial: int) -> None:
        """Drops devices and code that only this handle's streams used; each open HIP device pins 128 MiB."""
        with self._lock:
            gone = self._places.pop(serial, set())
            gone -= {place for places in self._places.values() for place in places}
        for place in gone:
            for context in list(self._plans.values()):
                context.plan.forget(place)
            for engine in list(self._engines.values()):
                engine.forget(place)
            index, stream = place
            replace(self._device, index=index, stream=stream).close()

    def attach_ort(self, table: int) -> None:
        """Fills the table of the library's other half, which ONNX Runtime calls."""
        from fusilli_plugin.ort_ep.attach import attach

        attach(table)

    # ---- helpers

    def _say_declined(self, reason: str) -> None:
        """At the level that people see the first time, later times of the same kind below it."""
        kind = _PARTICULARS.sub("_", reason)
        is_new = kind not in self._declined and len(self._declined) < _MAX_KINDS
        if is_new:
            self._declined.add(kind)
        _LOG.log(logging.WARNING if is_new else logging.INFO, "a graph is declined: %s", reason)

    def _engine(self, device: int) -> FusilliEngine:
        """The engine of a HIP device; CPU and CUDA, for development, have the one that FUSILLI_DEVICE names."""
        index = self._index(device)
        engine = self._engines.get(index)
        if engine is None:
            with self._lock:
                engine = self._engines.get(index)
                if engine is None:
                    engine = FusilliEngine(replace(self._device, index=index), options=self._options)
                    self._engines[index] = engine
        return engine

    def _index(self, device: int) -> int:
        if self._device.kind != "hip":
            return self._device.index
        if device >= 0:
            return device
        from iree_bridge.devices import hip

        return hip.current_device()  # the host had no HIP runtime when it made the handle

    def _place(self, serial: int, device: int, stream: int) -> Place:
        """Device and stream of the executing handle, noted so that they can be dropped with it."""
        place = (self._index(device), stream)
        known = self._places.get(serial)
        if known is None or place not in known:
            with self._lock:
                self._places.setdefault(serial, set()).add(place)
        return place

    def _add(self, engine: FusilliEngine, plan: FusilliPlan, serial: int, stream: int) -> int:
        place = self._place(serial, engine.device.index, stream) if self._is_gpu else _CPU
        plan.prepare(place)
        context = self._contexts.add(_Context(engine, plan))
        plan.on_drop = partial(self._link.forget, context)
        return context


def _bytes(address: int, size: int, limit: int) -> bytes:
    """A copy of the host's bytes."""
    if size > limit:
        raise BadParamError(f"{size} bytes are more than {limit}")
    return ffi.buffer(ffi.cast("char *", address), size)[:]


def _integers(array: Any, count: int) -> tuple[int, ...]:
    return tuple(array[index] for index in range(count))


def _text(pointer: Any) -> str:
    data: Any = ffi.string(pointer)
    return data.decode(errors="replace")
