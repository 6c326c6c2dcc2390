"""The engine: hipDNN's operation graphs compiled by IREE.

`FusilliEngine` is what the plugin's C functions end in, and an engine of the embedded host as well. `support` imports
no compiler; it decodes, translates and asks ``iree_bridge.support``. `claims`, which hosts of the plugin ask, compiles.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Generic, NamedTuple, TypeVar

from fusilli_ground.locks import fork_safe_lock
from fusilli_plugin.engine import claim, quarantine
from fusilli_plugin.engine.built import Built, Place
from fusilli_plugin.engine.importers import Reading, import_graph, unread_results
from fusilli_plugin.engine.knobs import Settings, knobs_for, settings_of
from fusilli_plugin.engine.other_plugins import company
from fusilli_plugin.engine.plan import FusilliPlan, as_engine_error
from fusilli_plugin.engine.plan_frame import unseal
from fusilli_plugin.errors import BadParamError, QuarantinedError
from graph_api import CompileError, ExecutionError, FusilliError, Graph, NotSupportedError
from hipdnn_backend.engine import EngineId, FilterOrder, Support, engine_id
from hipdnn_backend.errors import EngineError, WireError
from hipdnn_backend.plugins.abi import Status
from hipdnn_backend.wire import (
    BatchnormInferenceAttributes,
    BehaviorNote,
    EngineConfig,
    EngineDetails,
    WireGraph,
    decode_graph,
)
from iree_bridge import Device, Executable, Options, Target, support
from iree_bridge.compile import starting, versions
from iree_bridge.compile.cache import UntrustedCacheError
from iree_bridge.compile.compiler import CompiledCode, cache_for, compile_code, known_refusal
from iree_bridge.compile.options import CompileMode, TuneMode
from iree_bridge.targets.cpu import missing_features

__all__ = ["FusilliEngine"]

_LOG: Final = logging.getLogger(__name__)
_MAX_GRAPHS: Final = 256
_MAX_BUILT: Final = 64
_MAX_PAYLOAD: Final = 1 << 30  # bytes
_MAX_CLAIMED: Final = 4
_FEW_PLACES: Final = 64
_FEW, _MANY = 8, 512

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


_told: Final[set[str]] = set()


def _tell_once(level: int, text: str, *values: object) -> None:
    """A line in the log that says what was decided for this process."""
    line = text % values
    if line not in _told:
        _told.add(line)
        _LOG.log(level, "%s", line)


class _Memo(Generic[K, V]):
    """The last values by key. Thread safe; two threads may make one value at the same time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = fork_safe_lock()
        self._kept: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = make()
        with self._lock:
            self._kept[key] = value
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return value

    def peek(self, key: K) -> V | None:
        """What is kept, without making it."""
        return self._kept.get(key)

    def drop(self, is_gone: Callable[[K], bool]) -> None:
        with self._lock:
            for key in [key for key in self._kept if is_gone(key)]:
                del self._kept[key]


class _Known(NamedTuple):
    """What is known of a graph's bytes: the graph and why it is declined, if it is for good.

    Attributes:
        optional: uids of results that an execution writes where it has a buffer for them.
    """

    graph: Graph | None
    support: Support
    optional: frozenset[int] = frozenset()


class FusilliEngine:
    """Satisfies `hipdnn_backend.engine.Engine` for one device. Methods may be called from any thread.

    Attributes:
        device: where plans run; the stream is that of each execution.
        options: how to compile, what to claim.
    """

    def __init__(
        self, device: str | Device | None = None, *, options: Options | None = None, target: Target | None = None
    ) -> None:
        """Opens nothing.

        Args:
            device: e.g. ``cpu``, ``hip:1``; default: ``options.device``.
            options: default: ``Options.from_env()``.
            target: what to compile for; default: the device, which has to be there then. Plans for another target
                can be serialized and not executed.

        Raises:
            FusilliError: the device or an option means nothing.
        """
        self.options = Options.or_env(options)
        chosen = self.options.device if device is None else device
        self.device = chosen if isinstance(chosen, Device) else Device.parse(chosen)
        self._target = target
        self._reading = Reading.of(self.options)
        self._claim = claim.parse(self.options.claim)
        self._id = engine_id(self.options.engine_name)
        self._graphs: _Memo[bytes, _Known] = _Memo(_MAX_GRAPHS)
        self._failed: _Memo[bytes, str] = _Memo(_MAX_GRAPHS)
        self._builds: _Memo[tuple[bytes, Settings], Built] = _Memo(_MAX_BUILT)
        self._claimed: _Memo[tuple[bytes, Place], Executable] = _Memo(_MAX_CLAIMED)

    @property
    def id(self) -> EngineId:
        """The hash of the name."""
        return self._id

    @property
    def name(self) -> str:
        """``FUSILLI_ENGINE`` unless options say otherwise."""
        return self.options.engine_name

    @cached_property
    def target(self) -> Target:
        """What is compiled for.

        Raises:
            ExecutionError: the device is not there.
            NotSupportedError: the compiler does not know it.
        """
        return self._target or self.device.target

    # ---- hipdnn_backend.engine.PortableEngine

    def for_device(self, device: str) -> FusilliEngine:
        """The engine on another device. It claims all that it can compile, unchecked: the caller has chosen it.

        Raises:
            EngineError: the name means nothing.
        """
        with as_engine_error("for_device"):
            return FusilliEngine(device, options=_as_chosen(self.options))

    def for_target(self, target: str) -> FusilliEngine:
        """The engine for a target that need not be in this machine. It claims all that it can compile.

        Raises:
            EngineError: the compiler does not know the target.
        """
        with as_engine_error("for_target"):
            chosen = Target.parse(target)
            return FusilliEngine(chosen.device, options=_as_chosen(self.options), target=chosen)

    # ---- hipdnn_backend.engine.LayoutEngine

    @property
    def prefers_channels_last(self) -> bool:
        """GPUs do; on CPUs convolutions of row-major images need no matrix of what windows meet."""
        return self.target.is_gpu

    def filter_order(self, filters: Sequence[int], result: Sequence[int]) -> FilterOrder | None:
        """On GPUs a kernel would rearrange constant filters [K, C, window...] that are not channels-last.

        On CPUs they are packed in each run, which takes as long as some tens of places of the result. As columns of a
        matrix they need no packing, but more of them than 512 displace each other from the cache
        (``docs/performance.md``).
        """
        if self.target.is_gpu:
            return FilterOrder.CHANNELS_LAST
        places = math.prod(result) // result[1]
        return FilterOrder.BY_TAPS if places <= _FEW_PLACES and _FEW <= filters[0] <= _MANY else None

    # ---- hipdnn_backend.engine.Engine

    def support(self, graph: bytes) -> Support:
        """Whether the engine runs the graph, as far as that is known without compiling it."""
        try:
            known = self._graphs.get(graph, lambda: self._examine(graph))
            if known.graph is None or not known.support:
                return known.support
            failed = self._failed.peek(graph)
            if failed is not None:
                return Support.no(f"it failed to compile in this process: {failed}", rule="compiler")
            return self._available(known.graph)
        except NotSupportedError as error:
            return Support.no(error.reason, node=error.node, rule=error.rule)
        except FusilliError as error:  # not remembered: a device may come, a cache may be filled
            return Support.no(str(error), rule="device" if isinstance(error, ExecutionError) else "options")

    def details(self, graph: bytes) -> EngineDetails:
        """Knobs and behaviour notes.

        Raises:
            EngineError: the engine does not run the graph.
        """
        with as_engine_error("details"):
            self._graph(graph)
            notes = [BehaviorNote.EXTERNAL_LIBRARY_DEPENDENCY, BehaviorNote.SUPPORTS_EXECUTION_PLAN_SERIALIZATION]
            if self.options.compile is not CompileMode.NEVER:
                notes.insert(0, BehaviorNote.RUNTIME_COMPILATION)
            knobs = knobs_for(self.target)
            return EngineDetails(engine_id=self._id, knobs=knobs, behavior_notes=tuple(map(int, notes)), name=self.name)

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        """Bytes that a plan needs; exact, because this compiles. `build` finds the code then.

        Raises:
            EngineError: the engine does not run the graph, or not so; or compiling failed.
        """
        with as_engine_error("workspace_size"):
            return self._built(graph, config).workspace_size

    def build(self, graph: bytes, config: EngineConfig) -> FusilliPlan:
        """Compile, or take what was compiled.

        Raises:
            EngineError: the engine does not run the graph, or not so; or compiling failed.
        """
        with as_engine_error("build"):
            return FusilliPlan(self, self._built(graph, config))

    def restore(self, payload: bytes) -> FusilliPlan:
        """A plan from what `FusilliPlan.serialize` gave; nothing is compiled.

        Raises:
            EngineError: the bytes are damaged, or for another target or version.
        """
        with as_engine_error("restore"):
            return FusilliPlan(self, self._restored(payload))

    # ---- for plans and the C edge

    def claims(self, graph: bytes, place: Place) -> Support:
        """`support` for a host that asks other engines where this one declines: the graph is compiled and loaded.

        So what fails then is a decline. With FUSILLI_COMPILE=late it is `support` alone.
        """
        answer = self.support(graph)
        if not answer or self.options.compile is CompileMode.LATE:
            return answer
        try:
            self._claimed.get((graph, place), lambda: self._loaded(graph, place))
        except (FusilliError, MemoryError) as error:
            return _declined(error)
        return answer

    def settle(self, graph: bytes, place: Place) -> None:
        """A plan has taken over what `claims` loaded."""
        self._claimed.drop(lambda key: key == (graph, place))

    def forget(self, place: Place) -> None:
        """Drop what `claims` loaded for a stream that may be destroyed now."""
        self._claimed.drop(lambda key: key[1] == place)

    def _loaded(self, graph: bytes, place: Place) -> Executable:
        built, device = self._built(graph, EngineConfig(engine_id=self._id)), self.device_at(place)
        _require_memory(built, device)
        return built.executable(device)

    def place(self, stream: int) -> Place:
        """Where an execution of this engine's device goes; the CPU knows no streams."""
        return (self.device.index, stream if self.device.is_gpu else None)

    def device_at(self, place: Place) -> Device:
        """The device of a place."""
        index, stream = place
        return replace(self.device, index=index, stream=stream)

    def built_for(self, graph: Graph, base: Built) -> Built:
        """The code for a graph like that of ``base``, with other dims or results.

        Raises:
            NotSupportedError: it is not served.
            CompileError: compiling failed.
        """
        support(graph, self.target).require()
        return replace(self._compile(graph, base.settings, base.optional), is_variant=True)

    def _examine(self, data: bytes) -> _Known:
        """What never changes about a graph: damaged, unknown, not served, or fine."""
        _tell_once(logging.INFO, "%s", self.policy)
        try:
            source = decode_graph(data)
            graph = import_graph(source, self._reading_of(source))
        except WireError as error:
            return _Known(None, Support.no(str(error), rule="wire"))
        except NotSupportedError as error:
            return _Known(None, Support.no(error.reason, node=error.node, rule=error.rule))
        except FusilliError as error:
            return _Known(None, Support.no(str(error), rule="graph"))
        except RecursionError:
            return _Known(None, Support.no("the graph is nested too deeply", rule="graph"))
        claimed = self._claim.decide(graph, self.target, self._has_passed, company)
        answer = support(graph, self.target) if claimed else claimed
        return _Known(graph, Support(answer.ok, answer.node, answer.rule, answer.reason), unread_results(source))

    def _reading_of(self, source: WireGraph) -> Reading:
        """How a graph is read. What decides it for batchnorm inference is told once: a wrong one shows in no error."""
        if not any(isinstance(node.attributes, BatchnormInferenceAttributes) for node in source.nodes):
            return self._reading
        others = company()
        reading = self._reading.beside_miopen() if others.has_miopen else self._reading
        means = "a variance, with an epsilon of 1e-5" if reading.batchnorm_variance else "1 / sqrt(variance + epsilon)"
        asked = self._reading.batchnorm_variance or self._reading.batchnorm_inverse
        why = (
            "FUSILLI_WIRE_READING says so" if asked else "MIOpen is loaded" if others.has_miopen else "its name says so"
        )
        _tell_once(
            logging.WARNING, "inv_variance of batchnorm inference is read as %s: %s; "
            "FUSILLI_WIRE_READING=batchnorm-variance or batchnorm-inverse sets it", means, why,
        )  # fmt: skip
        return reading

    @cached_property
    def policy(self) -> str:
        """What is claimed here, and whether code is checked, in a line for the log."""
        policy = self._claim.policy
        passed = self._target is None and self._has_passed()  # what is not here has been tested by nobody
        if policy == "off":
            claimed = "no graph is claimed"
        elif policy == "all" or (passed and not policy):
            claimed = "all graphs are claimed"
        elif others := company():
            claimed = f"graphs that other engine plugins may take are left to them: {others}"
        else:
            claimed = "no other engine plugin is loaded, so all graphs are claimed"
        checks = self._is_unproven or self.options.verify_first
        checked = "code is checked on the device before it serves" if checks else "code is not checked on the device"
        tested = f"self-test {'passed' if passed else 'not passed'}; " if self.device.is_gpu else ""
        ruled = ", but for the rules of FUSILLI_CLAIM" if self._claim.rules else ""
        return f"{self.name} on {self.device}: {tested}{claimed}{ruled}; {checked}"

    def _has_passed(self) -> bool:
        return not self.device.is_gpu or quarantine.has_passed_selftest(self.device, self.options)

    @cached_property
    def _is_unproven(self) -> bool:
        """Whether nothing serves here that was not checked on the device."""
        return self.options.verify_first is None and self._target is None and not self._has_passed()

    def _available(self, graph: Graph) -> Support:
        """Whether what it takes to build is here: an engine that claims and then fails takes the graph from others."""
        if versions.runtime_version() is None:
            return Support.no("iree-base-runtime is not installed", rule="installation")
        if self._target is None and self.device.kind == "hip" and not self.device.driver:
            from iree_bridge.runtime.recorded.driver import Hip  # HIP only

            Hip.get()  # raises for a runtime without the functions that launches take
        try:
            cache_for(self.options).check()
        except UntrustedCacheError as error:
            return Support.no(str(error), rule="cache")
        rule, problem = self._no_compiler()
        if problem:
            try:
                compile_code(graph, self.target, replace(self.options, compile=CompileMode.NEVER))
            except CompileError as error:
                is_asked = rule == "not-compiled"
                return Support.no(str(error) if is_asked else f"{problem}; the cache lacks the graph", rule=rule)
        else:
            refusal = known_refusal(graph, self.target, self.options)
            if refusal:
                return Support.no(refusal, rule="compiler")
        if self._is_unproven:
            quarantine.require_affordable(graph, self.device)
        here = self._target is None  # what runs elsewhere has not been tried here
        if here and quarantine.is_quarantined(graph, self.target, self.device, self.options):
            return Support.no("its code gave wrong results on this device and is quarantined", rule="quarantine")
        return Support.yes()

    def _no_compiler(self) -> tuple[str, str]:
        """Why nothing can be compiled here: rule and reason, or empty texts."""
        if self.options.compile is CompileMode.NEVER:
            return "not-compiled", "FUSILLI_COMPILE=never"
        if versions.compiler_version() is None:
            return "installation", "iree-base-compiler is not installed"
        return "worker", starting.problem(self.options)

    def _graph(self, data: bytes) -> tuple[Graph, frozenset[int]]:
        """The graph in bytes that the engine serves, and the uids of its optional results.

        Raises:
            EngineError: it does not serve them; the status is INVALID_VALUE.
        """
        answer = self.support(data)
        known = self._graphs.get(data, lambda: self._examine(data))
        if not answer or known.graph is None:
            node = f"node '{answer.node}': " if answer.node else ""
            reason = f"the graph is not served: {node}{answer.reason} [{answer.rule}]"
            raise EngineError(self.name, reason, Status.INVALID_VALUE)
        return known.graph, known.optional

    def _built(self, data: bytes, config: EngineConfig) -> Built:
        if config.engine_id != self._id:
            raise BadParamError(f"the config is for engine {config.engine_id}, this is {self._id} ({self.name})")
        graph, optional = self._graph(data)
        settings = settings_of(config, self.target)
        try:
            built = self._builds.get((data, settings), lambda: self._compile(graph, settings, optional))
        except CompileError as error:
            if error.kind not in ("start", "killed") and not settings.flags:  # those may go well another time
                first = str(error).splitlines()[0]
                self._failed.get(data, lambda: first)
            raise
        if built.workspace_size > settings.workspace_limit:
            reason = (
                f"the plan needs {built.workspace_size} bytes of workspace, the limit is {settings.workspace_limit}"
            )
            raise NotSupportedError("", "workspace", reason)
        return built

    def _compile(self, graph: Graph, settings: Settings, optional: frozenset[int]) -> Built:
        from iree_bridge.runtime.program import load_module, workspace_size

        options = replace(self.options, extra_flags=(*self.options.extra_flags, *settings.flags))
        if settings.tune is not None:
            options = replace(options, tune=settings.tune)
        if options.tune is TuneMode.MEASURE and self._target is None:
            from iree_bridge.tuning import ensure

            ensure(graph, self.device, options)
        code = compile_code(graph, self.target, options)
        try:
            size = workspace_size(load_module(code.vmfb))
        except ExecutionError:
            if not code.from_cache or options.compile is CompileMode.NEVER:
                raise
            code = compile_code(graph, self.target, options, refresh=True)
            size = workspace_size(load_module(code.vmfb))
        return Built(graph, self.target, code, settings, size, options, optional, is_unproven=self._is_unproven)

    def _restored(self, payload: bytes) -> Built:
        from iree_bridge.artifact.artifact import Artifact
        from iree_bridge.runtime.program import load_module, workspace_size

        if len(payload) > _MAX_PAYLOAD:
            raise NotSupportedError("", "plan", f"the serialized plan has {len(payload)} bytes")
        try:
            artifact = Artifact.from_bytes(unseal(payload), "serialized plan")
        except (FusilliError, ArithmeticError, LookupError, RecursionError) as error:
            reason = error.reason if isinstance(error, NotSupportedError) else str(error)
            raise NotSupportedError("", "plan", reason) from error
        code = artifact.codes.get(str(self.target))
        if code is None:
            made_for = ", ".join(artifact.codes)
            raise NotSupportedError("", "plan", f"the serialized plan is for {made_for}, this device is {self.target}")
        # Plans of earlier versions name no extensions, but their target does.
        missing = code.missing() or missing_features(code.target.extensions)
        if missing:
            lacking = ", ".join(missing)
            reason = (
                f"the serialized plan needs processor extensions that this machine lacks ({lacking}); build it again"
            )
            raise NotSupportedError("", "plan", reason)
        if code.iree != versions.iree_version():
            reason = (
                f"the serialized plan was made by IREE {code.iree}, this is {versions.iree_version()}; build it again"
            )
            raise NotSupportedError("", "plan", reason)
        try:
            size = workspace_size(load_module(code.vmfb))
        except ExecutionError as error:
            raise NotSupportedError("", "plan", f"the serialized plan does not load: {error}") from error
        settings = Settings(flags=_knob_flags(artifact.made_by.get("knobs", "")))
        compiled = CompiledCode(code.vmfb, code.target, code.flags, code.key, False, code.dispatches, code.seconds)
        options = replace(self.options, extra_flags=(*self.options.extra_flags, *settings.flags))
        results = {uid for node in artifact.graph.nodes for uid in (t.uid for t in node.outputs.values())}
        optional = results & set(_uids(artifact.made_by.get("optional", "")))
        return Built(
            artifact.graph, self.target, compiled, settings, size, options, frozenset(optional),
            is_unproven=self._is_unproven,
        )  # fmt: skip


def _as_chosen(options: Options) -> Options:
    """For those who have chosen the engine: nothing is left to others, and code is checked if that is asked for."""
    return replace(options, claim="all", verify_first=bool(options.verify_first))


def _require_memory(built: Built, device: Device) -> None:
    """Decline what can never run: the device could not hold the tensors and the workspace were it empty."""
    outputs, inputs = built.graph.arguments()
    tensors, memory = sum(tensor.nbytes for tensor in (*outputs, *inputs)), device.memory
    if memory is not None and tensors + built.scratch_size > memory:
        needed = f"its tensors have {tensors} bytes and the workspace {built.scratch_size}"
        raise NotSupportedError("", "memory", f"{needed}, more than the {memory} of {device}")


def _declined(error: FusilliError | MemoryError) -> Support:
    """What failed, as the reason why a graph is left to others."""
    if isinstance(error, NotSupportedError):
        return Support.no(error.reason, node=error.node, rule=error.rule)
    rules = {CompileError: "compiler", QuarantinedError: "quarantine", ExecutionError: "device", MemoryError: "device"}
    rule = next((rule for kind, rule in rules.items() if isinstance(error, kind)), "options")
    return Support.no(str(error) or type(error).__name__, rule=rule)


def _uids(text: str) -> tuple[int, ...]:
    """Uids from bytes that anybody may have written."""
    return tuple(int(word) for word in text.split() if word.isdecimal() and len(word) < 20)


def _knob_flags(text: str) -> tuple[str, ...]:
    """Flags that knobs can make, from bytes that anybody may have written."""
    try:
        flags = shlex.split(text)
    except ValueError as error:
        raise NotSupportedError("", "plan", f"the serialized plan has unreadable knobs: {error}") from error
    allowed = ("--iree-opt-level=O", "--iree-dispatch-creation-enable-split-reduction=")
    unknown: list[Any] = [flag for flag in flags if not flag.startswith(allowed)]
    if unknown:
        raise NotSupportedError("", "plan", f"the serialized plan has a knob of unknown meaning: {unknown[0]!r}")
    return tuple(flags)
