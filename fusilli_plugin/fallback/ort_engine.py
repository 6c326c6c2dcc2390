"""The last engine: ONNX Runtime's CPU provider, for the nodes of a model that nothing else takes.

It takes graphs of one custom operation that carries ONNX (`hipdnn_backend.onnx_op`) and declines all others. The nodes
run on the CPU; if operands are on a GPU, they are copied to the host and back, which waits for the device.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np

from fusilli_plugin.engine.plan import as_engine_error
from fusilli_plugin.engine.plan_frame import ONNX_GRAPH, seal, unseal
from fusilli_plugin.errors import BadParamError
from graph_api import ExecutionError, NotSupportedError
from hipdnn_backend.device.memory import CudaMemory, HipMemory, Memory
from hipdnn_backend.engine import EngineId, Override, Support, engine_id
from hipdnn_backend.errors import DeviceError, EngineError, WireError
from hipdnn_backend.host.arrays import DTYPES
from hipdnn_backend.onnx_op import RANDOM, carries_onnx
from hipdnn_backend.wire import (
    BehaviorNote,
    CustomOpAttributes,
    EngineConfig,
    EngineDetails,
    WireGraph,
    WireTensor,
    decode_graph,
    encode_graph,
)
from iree_bridge import Device, Options, Target

__all__ = ["NAME", "OnnxRuntimeEngine"]

_LOG: Final = logging.getLogger(__name__)
NAME: Final = "ONNXRUNTIME_ENGINE"
_OLDEST_OPSET: Final = 13

_ELEMENTS: Final[Mapping[str, tuple[int, int]]] = {
    "tensor(float)": (1, 4),
    "tensor(uint8)": (2, 1),
    "tensor(int8)": (3, 1),
    "tensor(uint16)": (4, 2),
    "tensor(int16)": (5, 2),
    "tensor(int32)": (6, 4),
    "tensor(int64)": (7, 8),
    "tensor(bool)": (9, 1),
    "tensor(float16)": (10, 2),
    "tensor(double)": (11, 8),
    "tensor(uint32)": (12, 4),
    "tensor(uint64)": (13, 8),
    "tensor(bfloat16)": (16, 2),
    "tensor(float8e4m3fn)": (17, 1),
    "tensor(float8e4m3fnuz)": (18, 1),
    "tensor(float8e5m2)": (19, 1),
    "tensor(float8e5m2fnuz)": (20, 1),
}
"""ONNX Runtime's name of a type → ONNX's number for it, bytes of an element."""


@dataclass(frozen=True)
class _Port:
    """An input or output of the model.

    Attributes:
        name: in the model.
        element: ONNX's number of the type.
        dims: extents.
        nbytes: of the packed tensor.
        uid: of the tensor that it is.
    """

    name: str
    element: int
    dims: tuple[int, ...]
    nbytes: int
    uid: int


@dataclass(frozen=True)
class _Loaded:
    """The nodes of a graph, ready to run.

    Attributes:
        graph: with the nodes in the opset that the session has.
        session: ONNX Runtime's.
        inputs: in the model's order.
        outputs: in the model's order.
    """

    graph: WireGraph
    session: Any
    inputs: tuple[_Port, ...]
    outputs: tuple[_Port, ...]


class OnnxRuntimeEngine:
    """Satisfies `hipdnn_backend.engine.FallbackEngine` and ``PortableEngine``. Methods may be called from any thread.

    Attributes:
        device: where operands are.
    """

    def __init__(self, device: str | Device | None = None, *, target: Target | None = None) -> None:
        """Loads nothing.

        Args:
            device: e.g. ``cpu``, ``hip:1``; default: ``FUSILLI_DEVICE``.
            target: what the other engines compile for; default: the device.

        Raises:
            NotSupportedError: onnxruntime is not installed.
            FusilliError: the device means nothing.
        """
        if importlib.util.find_spec("onnxruntime") is None:
            raise NotSupportedError(
                "", "installation", "onnxruntime is not installed; pip install 'fusilli-plugin[ort]'"
            )
        chosen = Options.from_env().device if device is None else device
        self.device = chosen if isinstance(chosen, Device) else Device.parse(chosen)
        self._target = target
        self._session = lru_cache(maxsize=8)(_open)  # between the question and the build

    @property
    def id(self) -> EngineId:
        """The hash of the name."""
        return engine_id(NAME)

    @property
    def name(self) -> str:
        """``ONNXRUNTIME_ENGINE``."""
        return NAME

    @property
    def is_fallback(self) -> bool:
        """True: see `hipdnn_backend.engine.FallbackEngine`."""
        return True

    @cached_property
    def target(self) -> Target:
        """What the other engines compile for.

        Raises:
            ExecutionError: the device is not there.
            NotSupportedError: the compiler does not know it.
        """
        return self._target or self.device.target

    def for_device(self, device: str) -> OnnxRuntimeEngine:
        """The engine for operands on another device.

        Raises:
            EngineError: the name means nothing.
        """
        with as_engine_error("for_device"):
            return OnnxRuntimeEngine(device)

    def for_target(self, target: str) -> OnnxRuntimeEngine:
        """The engine for a target that need not be in this machine; what it builds can be serialized.

        Raises:
            EngineError: the compiler does not know the target.
        """
        with as_engine_error("for_target"):
            chosen = Target.parse(target)
            return OnnxRuntimeEngine(chosen.device, target=chosen)

    # ---- hipdnn_backend.engine.Engine

    def support(self, graph: bytes) -> Support:
        """Whether the graph is ONNX nodes that ONNX Runtime knows."""
        try:
            self._load(decode_graph(graph))
        except WireError as error:
            return Support.no(str(error), rule="wire")
        except NotSupportedError as error:
            return Support.no(error.reason, node=error.node, rule=error.rule)
        return Support.yes()

    def details(self, graph: bytes) -> EngineDetails:
        """No knobs.

        Raises:
            EngineError: the engine does not run the graph.
        """
        self._require(graph)
        notes = (BehaviorNote.EXTERNAL_LIBRARY_DEPENDENCY, BehaviorNote.SUPPORTS_EXECUTION_PLAN_SERIALIZATION)
        return EngineDetails(engine_id=self.id, behavior_notes=tuple(map(int, notes)), name=NAME)

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        """None is needed: ONNX Runtime has memory of its own.

        Raises:
            EngineError: the engine does not run the graph.
        """
        self._require(graph)
        return 0

    def build(self, graph: bytes, config: EngineConfig) -> OnnxRuntimePlan:
        """Make a session.

        Raises:
            EngineError: the engine does not run the graph.
        """
        return OnnxRuntimePlan(self.device, self._require(graph))

    def restore(self, payload: bytes) -> OnnxRuntimePlan:
        """A plan from what `OnnxRuntimePlan.serialize` gave.

        Raises:
            EngineError: the bytes are damaged, or this version of ONNX Runtime does not know the nodes.
        """
        with as_engine_error("restore"):
            graph = unseal(payload, ONNX_GRAPH)
        return OnnxRuntimePlan(self.device, self._require(graph))

    def _require(self, graph: bytes) -> _Loaded:
        with as_engine_error(NAME):
            try:
                return self._load(decode_graph(graph))
            except WireError as error:
                raise NotSupportedError("", "wire", str(error)) from error

    def _load(self, graph: WireGraph) -> _Loaded:
        """The nodes of a graph.

        Raises:
            NotSupportedError: it has other nodes, or ONNX Runtime does not take them.
        """
        table = graph.nodes[0].attributes if carries_onnx(graph) else None
        if not isinstance(table, CustomOpAttributes):
            reason = "it runs nothing but the ONNX nodes of a model that no other engine takes"
            raise NotSupportedError("", "operation", reason)
        node = graph.nodes[0].name
        try:
            session, data = self._session(table.data)
        except NotSupportedError as error:
            raise NotSupportedError(node, error.rule, error.reason) from error.__cause__
        if data != table.data:
            table = table.replace(data=data)
            graph = graph.replace(nodes=(graph.nodes[0].replace(attributes=table),))
        tensors = {tensor.uid: tensor for tensor in graph.tensors}
        sides = (
            (table.input_tensor_uids, session.get_inputs()),
            (table.output_tensor_uids, session.get_outputs()),
        )
        inputs, outputs = (_ports(node, [tensors[uid] for uid in uids], given) for uids, given in sides)
        return _Loaded(graph, session, inputs, outputs)


def _open(data: bytes) -> tuple[Any, bytes]:
    """A session for the nodes in a serialized model, and the model that it has: in an older opset if need be.

    Models are brought to a common opset when they are imported, in which ONNX Runtime may lack what it has in an older.

    Raises:
        NotSupportedError: ONNX Runtime does not take the nodes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # its threads would otherwise burn the cores between two runs, which the compiled graphs need
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    first: Exception | None = None
    for model in _in_older_opsets(data):
        try:
            session = onnxruntime.InferenceSession(_seeded(model), options, providers=["CPUExecutionProvider"])
            return session, model
        except Exception as error:  # a class of its own for each kind of failure
            first = first or error
    said = " ".join(str(first).split())[:500]
    raise NotSupportedError("", "onnxruntime", f"onnxruntime {onnxruntime.__version__}: {said}") from first


def _seeded(data: bytes) -> bytes:
    """A model whose random nodes have seeds: sessions that choose them themselves choose the same in one process.

    Without onnx, with which models are made but not restored, it stays as it is.
    """
    if not any(name.encode() in data for name in RANDOM) or importlib.util.find_spec("onnx") is None:
        return data
    import onnx

    model = onnx.load_from_string(data)
    for node in model.graph.node:
        if node.op_type in RANDOM and not any(each.name == "seed" for each in node.attribute):
            whole = node.op_type == "Dropout"
            seed = int.from_bytes(os.urandom(3), "little")  # a float32 holds it
            node.attribute.append(onnx.helper.make_attribute("seed", seed if whole else float(seed)))
    return model.SerializeToString()


def _in_older_opsets(data: bytes) -> Iterator[bytes]:
    """A model as it is, then in older and older opsets, as long as onnx is installed and can convert it."""
    yield data
    if importlib.util.find_spec("onnx") is None:
        return
    import onnx

    from hipdnn_backend.offload.onnx_process.client import convert_version

    try:
        model = onnx.load_model_from_string(data)
        newest = next((opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), 0)
        for version in range(newest - 1, _OLDEST_OPSET - 1, -1):
            yield convert_version(model, version).SerializeToString(deterministic=True)
    except Exception as error:  # of protobuf, or of C++
        _LOG.debug("no older opset: %s", error)


def _ports(node: str, tensors: Sequence[WireTensor], given: Sequence[Any]) -> tuple[_Port, ...]:
    """One side of a model, if the tensors are what it takes or gives there.

    Raises:
        NotSupportedError: they are not.
    """
    if len(tensors) != len(given):
        raise NotSupportedError(node, "operands", f"there are {len(tensors)} tensors, the nodes have {len(given)}")
    ports = []
    for tensor, each in zip(tensors, given, strict=True):
        element, size = _ELEMENTS.get(each.type, (0, 0))
        dtype = DTYPES.get(tensor.data_type)
        if dtype is None or size != dtype.itemsize:
            reason = f"tensor '{tensor.name}' is of type {dtype or tensor.data_type}, the nodes have {each.type} there"
            raise NotSupportedError(node, "dtype", reason)
        if not _fits(tensor.dims, each.shape):
            reason = f"tensor '{tensor.name}' has dims {tensor.dims}, the nodes have {each.shape} there"
            raise NotSupportedError(node, "dims", reason)
        if tensor.strides != _packed(tensor.dims):
            reason = f"tensor '{tensor.name}' of dims {tensor.dims} has strides {tensor.strides}, not packed ones"
            raise NotSupportedError(node, "strides", reason)
        ports.append(_Port(each.name, element, tensor.dims, size * math.prod(tensor.dims), tensor.uid))
    return tuple(ports)


def _fits(dims: Sequence[int], known: Sequence[Any]) -> bool:
    """Whether dims are those that ONNX Runtime knows; what it has a name for or nothing, a run finds out."""
    pairs = zip(dims, known, strict=True) if len(dims) == len(known) else [(0, 1)]
    return all(dim == other or not isinstance(other, int) for dim, other in pairs)


def _packed(dims: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for dim in reversed(dims):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


class OnnxRuntimePlan:
    """A session; satisfies `hipdnn_backend.engine.BindablePlan`. Threads may share it.

    Attributes:
        workspace_size: 0.
    """

    def __init__(self, device: Device, loaded: _Loaded) -> None:
        self._device = device
        self._loaded: _Loaded | None = loaded
        self.workspace_size = 0

    def execute(
        self,
        pack: Mapping[int, int],
        *,
        workspace: int = 0,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        """Run once; see `hipdnn_backend.engine.Plan.execute`. On a GPU this waits for all that was enqueued before.

        Raises:
            EngineError: the plan is closed, a uid is missing, dims are overridden, or ONNX Runtime or a copy failed.
        """
        if overrides:
            raise EngineError(NAME, "the nodes of a model have the dims that they were compiled for")
        self.bind(pack, workspace=workspace, stream=stream)()

    def bind(self, pack: Mapping[int, int], *, workspace: int = 0, stream: int = 0) -> Callable[[], None]:
        """What runs the nodes on these addresses; see `hipdnn_backend.engine.BindablePlan.bind`.

        Raises:
            EngineError: as for `execute`.
        """
        with as_engine_error(NAME):
            loaded = self._open()
            missing = [port.uid for port in (*loaded.inputs, *loaded.outputs) if not pack.get(port.uid)]
            if missing:
                raise BadParamError(f"the variant pack has no buffer for tensors {missing}; it has {sorted(pack)[:32]}")
            if not self._device.is_gpu:
                return _bound(loaded, [pack[port.uid] for port in (*loaded.inputs, *loaded.outputs)])
            return _staged(loaded, pack, _memory(self._device))

    def serialize(self) -> bytes:
        """The nodes as bytes.

        Raises:
            EngineError: the plan is closed.
        """
        with as_engine_error(NAME):
            return seal(encode_graph(self._open().graph), ONNX_GRAPH)

    def close(self) -> None:
        """Free the session once nothing runs it; a second call does nothing."""
        self._loaded = None

    def _open(self) -> _Loaded:
        if self._loaded is None:
            raise BadParamError("the plan is closed")
        return self._loaded


def _bound(loaded: _Loaded, addresses: Sequence[int]) -> Callable[[], None]:
    """What runs a session on addresses in host memory, its inputs' first."""
    binding = loaded.session.io_binding()
    ports = (*loaded.inputs, *loaded.outputs)
    for number, (port, address) in enumerate(zip(ports, addresses, strict=True)):
        bind = binding.bind_input if number < len(loaded.inputs) else binding.bind_output
        bind(port.name, "cpu", 0, port.element, port.dims, address)

    def run() -> None:
        try:
            loaded.session.run_with_iobinding(binding)
        except Exception as error:  # a class of its own for each kind of failure
            raise EngineError(NAME, f"onnxruntime: {' '.join(str(error).split())[:500]}") from error

    return run


def _staged(loaded: _Loaded, pack: Mapping[int, int], memory: Memory) -> Callable[[], None]:
    """What runs a session on addresses in a device's memory, by way of the host's."""
    buffers = {port: np.empty(port.nbytes, np.uint8) for port in (*loaded.inputs, *loaded.outputs)}
    run_on_host = _bound(loaded, [buffer.ctypes.data for buffer in buffers.values()])

    def run() -> None:
        try:
            for port in loaded.inputs:
                buffers[port][...] = np.frombuffer(memory.read(pack[port.uid], port.nbytes), np.uint8)
            run_on_host()
            for port in loaded.outputs:
                memory.write(pack[port.uid], buffers[port])
        except DeviceError as error:
            raise EngineError(NAME, str(error)) from error

    return run


def _memory(device: Device) -> Memory:
    """The memory of a GPU.

    Raises:
        ExecutionError: it is not there.
    """
    try:
        return HipMemory(device.index) if device.kind == "hip" else CudaMemory(device.index)
    except DeviceError as error:
        raise ExecutionError(str(error)) from error
