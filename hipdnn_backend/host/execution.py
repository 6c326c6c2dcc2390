"""A host for engines: choose one, build a plan, run it. It needs no hipDNN.

Example:
    host = Host(Registry.find())
    plan = host.build(graph)                 # bytes in hipDNN's wire format, or a WireGraph
    plan.execute({1: x, 2: w, 3: y})         # tensor uid → array
    host.why_not(graph)                      # engine → Support, with the reason of those that decline
    host.rank(graph, {1: x, 2: w, 3: y})     # engines by time, wrong ones refused
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from hipdnn_backend.device.memory import Buffer, HostMemory, Memory
from hipdnn_backend.engine import Engine, Override, Plan, Support
from hipdnn_backend.errors import NoEngineError, PackError, WireError
from hipdnn_backend.host import arrays, selection
from hipdnn_backend.host.arrays import Operands, Pack
from hipdnn_backend.host.registry import Registry, parse_engine_id
from hipdnn_backend.host.selection import Policies, Selection
from hipdnn_backend.wire import (
    EngineConfig,
    KnobSetting,
    KnobValue,
    SerializedExecutionPlan,
    SerializedGraphAndPlan,
    WireGraph,
    decode_graph,
    decode_graph_and_plan,
    decode_plan,
    encode_graph,
    encode_graph_and_plan,
    encode_plan,
)

if TYPE_CHECKING:
    from hipdnn_backend.host.ranking import Ranking

__all__ = ["GraphLike", "Host", "HostPlan", "decoded"]

GraphLike: TypeAlias = bytes | WireGraph
_PLAN_VERSION: Final = 1


class Host:
    """Chooses among engines as hipDNN does. Methods may be called from any thread.

    Attributes:
        registry: the engines.
        memory: where the buffers of executions live.
        policies: what orders the engines, None for what the environment says at each choice.
    """

    def __init__(
        self, registry: Registry | None = None, *, memory: Memory | None = None, policies: Policies | None = None
    ) -> None:
        """Take over engines.

        Args:
            registry: default: `Registry.find`.
            memory: default: host memory, for engines that run on the CPU.
            policies: default: those of the environment.
        """
        self.registry = Registry.find() if registry is None else registry
        self.memory: Memory = memory or HostMemory()
        self.policies = policies

    def why_not(self, graph: GraphLike) -> dict[str, Support]:
        """Engine → whether it runs the graph, and if not, why; in the order of the registry."""
        data = self._encoded(graph)
        return {engine.name: engine.support(data) for engine in self.registry.engines}

    def candidates(self, graph: GraphLike) -> list[Engine]:
        """The engines that run the graph, in the order of the registry."""
        data = self._encoded(graph)
        return [engine for engine in self.registry.engines if engine.support(data)]

    def select(self, graph: GraphLike, *, preferred: int | str | None = None) -> Selection:
        """Order the engines that run a graph; the first would be used.

        Args:
            graph: what to run.
            preferred: id or name of the engine to put first if it runs the graph; default: the graph's own wish.

        Raises:
            WireError: the graph is damaged.
        """
        wish = None if preferred is None else parse_engine_id(preferred)
        names = self.registry.names
        engines = self.candidates(graph)
        return selection.select(decoded(graph), engines, preferred=wish, policies=self.policies, names=names)

    def build(
        self,
        graph: GraphLike,
        *,
        preferred: int | str | None = None,
        engine: int | str | None = None,
        knobs: Mapping[str, KnobValue] | None = None,
    ) -> HostPlan:
        """Compile a graph with the engine that hipDNN's rules choose.

        Args:
            graph: bytes in either wire layout, or a record.
            preferred: id or name of an engine to take if it runs the graph; otherwise the choice falls to the others.
            engine: id or name of the engine to take and no other.
            knobs: settings of the engine by knob id.

        Raises:
            WireError: the graph is damaged.
            NoEngineError: no engine runs it, or not the one that was asked for; with each one's reason.
            EngineError: the chosen engine failed. Others are not tried: hipDNN does not, either.
        """
        record = decoded(graph)
        if engine is None:
            order = self.select(graph, preferred=preferred)
            if not order.ids:
                raise NoEngineError(f"graph '{record.name}'", self._nobody(graph, order))
        else:
            only = self.registry.engine(engine)
            answer = only.support(self._encoded(graph))
            if not answer:
                raise NoEngineError(f"graph '{record.name}'", f"{only.name} does not run it: {answer.reason}")
            order = Selection((only.id,), "engine", f"{only.name} was asked for")
        chosen = self.registry.engine(order.ids[0])
        settings = tuple(KnobSetting(knob_id=name, value=value) for name, value in (knobs or {}).items())
        plan = chosen.build(self._encoded(graph), EngineConfig(engine_id=chosen.id, knobs=settings))
        return HostPlan(self, chosen, record, plan, order)

    def restore(self, payload: bytes) -> HostPlan:
        """A plan from what `HostPlan.serialize` gave.

        Raises:
            WireError: the bytes are damaged.
            NoEngineError: the plan's engine is not here.
            EngineError: the engine cannot restore the plan: another device, target or version.
        """
        both = decode_graph_and_plan(payload)
        if not both.plan_blob:
            raise WireError("plan_blob", "the file has a graph and no plan; build it from its graph")
        plan = decode_plan(both.plan_blob)
        engine = self.registry.engine(plan.engine_id)
        order = Selection((engine.id,), "restored", f"{engine.name} made the plan")
        return HostPlan(self, engine, decode_graph(both.graph_blob), self._restored(engine, both.plan_blob), order)

    def rank(self, graph: GraphLike, pack: Pack, **options: Any) -> Ranking:
        """Time every engine that runs the graph and refuse those with wrong results.

        Args:
            graph: what to run.
            pack: as for `HostPlan.execute`; outputs hold the best engine's results afterwards.
            options: see `hipdnn_backend.host.ranking.rank`.
        """
        from hipdnn_backend.host.ranking import rank  # numpy, which launching needs not

        return rank(self, graph, pack, **options)

    def close(self) -> None:
        """Close the plugins of the registry."""
        self.registry.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what a host of another kind does otherwise

    def _encoded(self, graph: GraphLike) -> bytes:
        """The graph as engines get it."""
        return graph if isinstance(graph, bytes) else encode_graph(graph)

    def plan_blob(self, plan: HostPlan) -> bytes:
        """A plan in hipDNN's container."""
        uids = [tensor.uid for tensor in (*plan.operands.inputs, *plan.operands.outputs, *plan.operands.scalars)]
        return encode_plan(
            SerializedExecutionPlan(
                version=_PLAN_VERSION,
                engine_id=plan.engine.id,
                workspace_size=plan.workspace_size,
                tensor_uids=tuple(uids),
                plugin_payload=plan.plan.serialize(),
                is_override_shape_enabled=plan.graph.is_override_shape_enabled,
            )
        )

    def _restored(self, engine: Engine, plan_blob: bytes) -> Plan:
        return engine.restore(decode_plan(plan_blob).plugin_payload)

    def _nobody(self, graph: GraphLike, order: Selection) -> str:
        answers = self.why_not(graph)
        reasons = [f"{name}: {answer.reason or 'runs it'}" for name, answer in answers.items()]
        reasons += order.notes
        reasons += [f"left out: {problem}" for problem in self.registry.problems]
        return "no engine runs it: " + ("; ".join(reasons) or "there are no engines")


class HostPlan:
    """A compiled graph. It is closed by `close`, at the end of a ``with`` block or when it is collected.

    Attributes:
        engine: what compiled it.
        graph: what it computes.
        plan: the engine's own object.
        order: why this engine.
    """

    def __init__(self, host: Host, engine: Engine, graph: WireGraph, plan: Plan, order: Selection) -> None:
        self._host = host
        self.engine = engine
        self.graph = graph
        self.plan = plan
        self.order = order
        self._lock = threading.Lock()
        self._workspaces: dict[int, Buffer] = {}

    @cached_property
    def operands(self) -> Operands:
        """The tensors of a variant pack.

        Raises:
            PackError: an operation of the graph is not known here. Its engine may know it, but this host cannot run it.
        """
        return arrays.operands_of(self.graph)

    @property
    def workspace_size(self) -> int:
        """Bytes of memory that an execution needs beside the pack."""
        return self.plan.workspace_size

    def execute(
        self,
        pack: Pack,
        *,
        workspace: Buffer | int | None = None,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        """Enqueue one execution. On a GPU it returns before the results are there; on the CPU afterwards.

        Args:
            pack: tensor uid → array, `Buffer` or address, for every input and output. Arrays must have the tensor's
                dims, data type and strides. The caller keeps them alive until the stream has passed the execution.
                A virtual result that no node reads may be in it, and is written then.
            workspace: buffer or address; default: one that the plan keeps for each stream. The size of what is at an
                address cannot be checked: it has to have `workspace_size` bytes, or memory of others is overwritten.
            stream: address of a HIP stream, 0 for the default one.
            overrides: tensor uid → its dims and strides this time, if the graph allows that.

        Raises:
            PackError: an entry is missing or does not fit; nothing was run.
            DeviceError: the workspace cannot be had.
            EngineError: the engine failed.
        """
        if overrides and not self.graph.is_override_shape_enabled:
            raise PackError(f"graph '{self.graph.name}' does not allow other dims (is_override_shape_enabled)")
        found = arrays.addresses(self.operands, pack, self._host.memory, overrides)
        if workspace is not None or not self.workspace_size:
            self.plan.execute(found, workspace=self._given(workspace), stream=stream, overrides=overrides)
            return
        # The plan's own workspace: executions on one stream are in order, but host memory knows no streams.
        with self._lock:
            own = self._own_workspace(stream)
            self.plan.execute(found, workspace=own.address, stream=stream, overrides=overrides)

    def serialize(self) -> bytes:
        """Graph and plan in hipDNN's file format (``HDGP``), for `Host.restore`.

        Raises:
            EngineError: the engine cannot.
        """
        both = SerializedGraphAndPlan(graph_blob=encode_graph(self.graph), plan_blob=self._host.plan_blob(self))
        return encode_graph_and_plan(both)

    def close(self) -> None:
        """Free the plan and its workspaces. A second call does nothing."""
        self.plan.close()
        with self._lock:
            while self._workspaces:
                self._workspaces.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _given(self, workspace: Buffer | int | None) -> int:
        if isinstance(workspace, Buffer):
            if workspace.size < self.workspace_size:
                raise PackError(f"the plan needs {self.workspace_size} bytes of workspace, not {workspace.size}")
            return workspace.address
        return workspace or 0

    def _own_workspace(self, stream: int) -> Buffer:
        if stream not in self._workspaces:
            self._workspaces[stream] = self._host.memory.allocate(self.workspace_size)
        return self._workspaces[stream]


def decoded(graph: GraphLike) -> WireGraph:
    """The record of a graph.

    Raises:
        WireError: the bytes are damaged.
    """
    return graph if isinstance(graph, WireGraph) else decode_graph(graph)
