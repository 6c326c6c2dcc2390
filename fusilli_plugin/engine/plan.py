"""Plans: a compiled graph with its executables, one for each device and stream that has used it."""

from __future__ import annotations

import json
import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from fusilli_ground.locks import fork_safe_lock
from fusilli_plugin.engine.built import Built, Place
from fusilli_plugin.engine.statuses import status_of
from fusilli_plugin.errors import BadParamError
from graph_api import FusilliError, Graph, TensorAttr
from hipdnn_backend.engine import Override
from hipdnn_backend.errors import EngineError
from iree_bridge import Device, Executable
from iree_bridge.devices.buffers import ALIGNMENT

__all__ = ["FusilliPlan", "as_engine_error", "specialise"]

_LOG: Final = logging.getLogger(__name__)
_MAX_CALLS: Final = 64
_MAX_EXECUTABLES: Final = 8
_MAX_SPECIALISED: Final = 16
_PAIR: Final = struct.Struct("=qQ")


@contextmanager
def as_engine_error(where: str) -> Iterator[None]:
    """What this project raises on purpose, as the error that the `Engine` protocol promises."""
    try:
        yield
    except EngineError:
        raise
    except (FusilliError, MemoryError) as error:
        raise EngineError(where, str(error) or type(error).__name__, status_of(error)) from error


class _Engine(Protocol):
    """What a plan asks of the engine that made it."""

    @property
    def device(self) -> Device: ...

    def place(self, stream: int) -> Place: ...

    def device_at(self, place: Place) -> Device: ...

    def built_for(self, graph: Graph, base: Built) -> Built: ...


class FusilliPlan:
    """A compiled graph; satisfies `hipdnn_backend.engine.Plan`. Threads may share it.

    Attributes:
        workspace_size: bytes of device memory that `execute` needs.
        graph: what it computes.
        on_drop: called after prepared launches, which `launch` has returned, were dropped.
        specialised: how often dims were overridden by new ones, each time with a compile or a look into the cache.
    """

    def __init__(self, engine: _Engine, built: Built) -> None:
        self._engine = engine
        self._built = built
        self.graph = built.graph
        self.workspace_size = built.workspace_size
        self.specialised = 0
        self.on_drop: Callable[[], object] = _nothing
        outputs, inputs = built.graph.arguments()
        self._tensors = (*outputs, *inputs)
        self._written = frozenset(tensor.uid for tensor in outputs) & built.optional
        self._on_host = sum(tensor.is_pass_by_value << index for index, tensor in enumerate(self._tensors))
        self._lock = fork_safe_lock()
        self._executables: OrderedDict[Place, Executable] = OrderedDict()
        self._calls: dict[tuple[bytes, int, Place], Callable[[], None]] = {}
        self._seen: set[tuple[bytes, int, Place]] = set()
        self._variants: OrderedDict[object, FusilliPlan] = OrderedDict()
        self._closed = False

    @property
    def dispatches(self) -> int | None:
        """Number of kernel launches of an execution, None if it is not known."""
        return self._built.code.dispatches

    @property
    def form(self) -> str:
        """Name of the form that the graph was compiled in; empty for a restored plan."""
        return self._built.code.form

    # ---- hipdnn_backend.engine.Plan

    def execute(
        self,
        pack: Mapping[int, int],
        *,
        workspace: int = 0,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        """Enqueue one execution; see `hipdnn_backend.engine.Plan.execute`.

        Raises:
            EngineError: the plan is closed; a uid, an address or the workspace is missing; the device failed.
        """
        with as_engine_error("execute"):
            plan = self.variant(overrides) if overrides else self
            place = self._engine.place(stream)
            plan._bind(pack, plan._usable(workspace, self), place)()

    def bind(self, pack: Mapping[int, int], *, workspace: int = 0, stream: int = 0) -> Callable[[], None]:
        """What enqueues one execution on these addresses; see `hipdnn_backend.engine.BindablePlan.bind`.

        Raises:
            EngineError: as for `execute`.
        """
        with as_engine_error("bind"):
            call = self._bind(pack, workspace, self._engine.place(stream), again=True, allocates=True)

        def launch() -> None:
            try:
                call()
            except FusilliError as error:
                raise EngineError("execute", str(error), status_of(error)) from error

        return launch

    def serialize(self) -> bytes:
        """The plan as bytes: code included, so that restoring compiles nothing.

        Raises:
            EngineError: the plan is closed.
        """
        with as_engine_error("serialize"):
            self._check_open()
            return self._built.to_bytes()

    def close(self) -> None:
        """Free the code; a second call does nothing."""
        self._closed = True
        with self._lock:
            self._executables.clear()
            self._variants.clear()
        self._drop_calls()

    # ---- for the C edge

    def launch(self, raw: bytes, workspace: int, place: Place) -> Callable[[], None] | None:
        """`execute` for a variant pack as hipDNN has it in memory: pairs of 64-bit uid and address.

        Returns:
            What does the same again, if it is kept: until `on_drop` is called.

        Raises:
            BadParamError, ExecutionError: as for `execute`.
        """
        key = (raw, workspace, place)
        call = self._calls.get(key)
        if call is None:
            call = self._remember(key)
        call()
        return self._calls.get(key)

    def launch_overridden(self, raw: bytes, workspace: int, place: Place, overrides: Mapping[int, Override]) -> None:
        """`launch` with other dims."""
        plan = self.variant(overrides)
        plan.launch(raw, plan._usable(workspace, self), place)

    def prepare(self, place: Place) -> None:
        """Load the code where it will run, so that the first execution does not have to.

        Raises:
            ExecutionError: the device is not there, or does not load the code.
        """
        self._executable(place)

    def forget(self, place: Place) -> None:
        """Drop what is kept for a stream that may be destroyed now."""
        with self._lock:
            self._executables.pop(place, None)
            variants = list(self._variants.values())
        self._drop_calls(place)
        for plan in variants:
            plan.forget(place)

    def variant(self, overrides: Mapping[int, Override]) -> FusilliPlan:
        """The plan for other dims: this one if they are its own, else one compiled for them; the last 16 are kept.

        Raises:
            BadParamError: an override names no tensor.
            GraphError, NotSupportedError, CompileError: the dims do not fit, or cannot be compiled for.
        """
        self._check_open()
        key = tuple(sorted((uid, tuple(each.dims), tuple(each.strides)) for uid, each in overrides.items()))
        with self._lock:
            plan = self._variants.get(key)
            if plan is not None:
                self._variants.move_to_end(key)
                return plan
        if all(self._is_own(uid, dims, strides) for uid, dims, strides in key):
            plan = self
        else:
            plan = self._made_for(specialise(self.graph, overrides), "other dims")
        return self._kept(key, plan)

    def _made_for(self, graph: Graph, why: str) -> FusilliPlan:
        plan = FusilliPlan(self._engine, self._engine.built_for(graph, self._built))
        self.specialised += 1
        _LOG.info("graph '%s' is specialised for %s, the %d. time", self.graph.name, why, self.specialised)
        return plan

    def _kept(self, key: object, plan: FusilliPlan) -> FusilliPlan:
        with self._lock:
            self._variants[key] = plan
            while len(self._variants) > _MAX_SPECIALISED:
                self._variants.popitem(last=False)
        return plan

    def _writing(self, pack: Mapping[int, int]) -> FusilliPlan:
        """The plan that writes those optional results for which the pack has a buffer: this one, or another.

        Raises:
            BadParamError: the pack has a buffer for no result.
            NotSupportedError, CompileError: the results cannot be compiled for.
        """
        wanted = frozenset(uid for uid in self._built.optional if pack.get(uid))
        if wanted == self._written:
            return self
        with self._lock:
            plan = self._variants.get(wanted)
        if plan is None:
            plan = self._made_for(
                _with_results(self.graph, self._built.optional, wanted), f"its results {sorted(wanted)}"
            )
        return self._kept(wanted, plan)

    def _is_own(self, uid: int, dims: tuple[int, ...], strides: tuple[int, ...]) -> bool:
        tensor = _tensor(self.graph, uid)
        return dims == tensor.dims and strides == tensor.strides

    def _usable(self, workspace: int, base: FusilliPlan) -> int:
        """The caller's workspace if it is large enough for this plan too; it was made for another one, perhaps."""
        return workspace if self is base or self.workspace_size <= base.workspace_size else 0

    def _remember(self, key: tuple[bytes, int, Place]) -> Callable[[], None]:
        """What launches the plan on a variant pack; kept, since hosts come back with the same addresses."""
        raw, workspace, place = key
        call = self._bind(dict(_PAIR.iter_unpack(raw)), workspace, place, again=key in self._seen)
        if len(self._calls) >= _MAX_CALLS:
            self._drop_calls()
        if self._engine.device.is_gpu or key in self._seen:
            self._calls[key] = call
        else:
            # The second time on the CPU the launch is prepared in full, which is not worth it for one.
            if len(self._seen) >= _MAX_CALLS:
                self._seen.clear()
            self._seen.add(key)
        return call

    def _bind(
        self, pack: Mapping[int, int], workspace: int, place: Place, *, again: bool = False, allocates: bool = False
    ) -> Callable[[], None]:
        """What launches the plan on these addresses; ``allocates``: its scratch memory may be its own alone.

        A host's execution allocates nothing that an earlier one has allocated: its stream may be captured.
        """
        self._check_open()
        if self._built.optional:
            plan = self._writing(pack)
            if plan is not self:
                return plan._bind(pack, plan._usable(workspace, self), place, again=again, allocates=allocates)
        pointers = [pack.get(tensor.uid) for tensor in self._tensors]
        for tensor, pointer in zip(self._tensors, pointers, strict=True):
            if pointer is None:
                raise BadParamError(
                    f"the variant pack has no buffer for tensor {tensor.uid} '{tensor.name}'; "
                    f"it has {sorted(pack)[:32]}"
                )
            if not pointer:
                raise BadParamError(f"the buffer of tensor {tensor.uid} '{tensor.name}' is NULL")
        if not workspace and self._built.needs_workspace:
            raise BadParamError(f"the plan needs {self.workspace_size} bytes of workspace, and the pointer is NULL")
        if self._built.keeps_scratch:
            workspace = 0  # the host may pass any pointer where nothing is asked for
        executable = self._executable(place)
        addresses = tuple(pointer for pointer in pointers if pointer)
        needs_memory = self._built.scratch_size and not workspace and not (self._built.keeps_scratch and allocates)
        if self._is_worth_binding(executable, addresses, bool(needs_memory), again=again):
            return executable.bind_pointers(addresses, workspace).func
        return partial(executable.run_pointers, addresses, workspace, self._on_host)

    def _is_worth_binding(
        self, executable: Executable, addresses: Sequence[int], needs_memory: bool, *, again: bool
    ) -> bool:
        """Whether to prepare the launch in full. On a GPU not if that takes device memory, which launches can share."""
        if not self._engine.device.is_gpu:
            return again
        needs_memory = needs_memory or executable.keeps_memory or bool(self._on_host)
        return not needs_memory and all(address % ALIGNMENT == 0 for address in addresses)

    def _executable(self, place: Place) -> Executable:
        with self._lock:
            executable = self._executables.get(place)
            if executable is not None:
                self._executables.move_to_end(place)
                return executable
        executable = self._built.executable(self._engine.device_at(place))
        with self._lock:
            self._executables[place] = executable
            excess = max(len(self._executables) - _MAX_EXECUTABLES, 0)
            gone = [self._executables.popitem(last=False)[0] for _ in range(excess)]
        for old in gone:
            self._drop_calls(old)
        return executable

    def _drop_calls(self, place: Place | None = None) -> None:
        """Forget the prepared launches, or those of one place."""
        for key in list(self._calls):
            if place in (None, key[2]):
                self._calls.pop(key, None)
        self.on_drop()

    def _check_open(self) -> None:
        if self._closed:
            raise BadParamError("the plan is closed")


def specialise(graph: Graph, overrides: Mapping[int, Override]) -> Graph:
    """The graph with other dims and strides for some tensors; those of the tensors in between follow.

    Raises:
        BadParamError: an override names no tensor, or has another number of dims or strides than it.
        GraphError: the dims do not fit the graph.
    """
    for uid, override in overrides.items():
        if len(override.dims) != len(override.strides):
            raise BadParamError(f"override of tensor {uid}: {len(override.strides)} strides, {len(override.dims)} dims")
        rank = len(_tensor(graph, uid).dims)
        if len(override.dims) != rank:
            raise BadParamError(f"override of tensor {uid}: {len(override.dims)} dims, the tensor has {rank}")
    tensors = {_tensor(graph, uid): override for uid, override in overrides.items()}
    return graph.with_dims(
        {tensor: override.dims for tensor, override in tensors.items()},
        {tensor: override.strides for tensor, override in tensors.items()},
    )


def _with_results(graph: Graph, optional: frozenset[int], wanted: frozenset[int]) -> Graph:
    """The graph that writes those of its optional results that are wanted.

    Raises:
        BadParamError: then it has no output.
    """
    document = json.loads(graph.to_json())
    for tensor in document["tensors"]:
        if tensor["uid"] in optional:
            tensor["virtual"] = tensor["uid"] not in wanted
    outputs = {tensor.uid for tensor in graph.arguments().outputs}
    if not (outputs - optional) | wanted:
        names = ", ".join(f"{uid} '{_tensor(graph, uid).name}'" for uid in sorted(optional))
        raise BadParamError(f"the variant pack has no buffer for any result of graph '{graph.name}': {names}")
    return Graph.from_json(json.dumps(document))


def _tensor(graph: Graph, uid: int) -> TensorAttr:
    for tensor in graph.tensors:
        if tensor.uid == uid:
            return tensor
    raise BadParamError(f"graph '{graph.name}' has no tensor {uid} to override")


def _nothing() -> None:
    pass
