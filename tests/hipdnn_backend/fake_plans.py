"""Engines, plans and a device that compute with numpy: what a program does is seen without a compiler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hipdnn_backend.device.memory import Buffer, Data, HostMemory
from hipdnn_backend.engine import EngineId, Override, Support, engine_id
from hipdnn_backend.errors import EngineError
from hipdnn_backend.offload.program.copying import host_array
from hipdnn_backend.offload.program.program import View
from hipdnn_backend.wire import (
    CustomOpAttributes,
    DataType,
    EngineConfig,
    EngineDetails,
    WireGraph,
    WireNode,
    WireTensor,
    decode_graph,
    encode_graph,
)

Array = np.ndarray[Any, Any]

KERNELS: dict[str, Callable[..., Array]] = {
    "add": lambda a, b: a + b,
    "relu": lambda a: np.maximum(a, 0),
    "double": lambda a: a * 2,
    "transpose": lambda a: a.T,
}
"""What the fake engine can compute, by the name of the graph's one custom op."""

DTYPES = {"float32": DataType.FLOAT, "float16": DataType.HALF, "int64": DataType.INT64}


def row_major(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(dims[index + 1 :])) for index in range(len(dims)))


def wire(
    kernel: str,
    inputs: Sequence[Sequence[int]],
    output: Sequence[int],
    *,
    dtype: str = "float32",
    strides: Mapping[int, Sequence[int]] | None = None,
) -> bytes:
    """A graph of one custom op: uids 1, 2, ... are the inputs, 100 is the output."""
    shapes = {number + 1: tuple(dims) for number, dims in enumerate(inputs)} | {100: tuple(output)}
    tensors = tuple(
        WireTensor(
            uid=uid, name=f"t{uid}", data_type=DTYPES[dtype], dims=dims,
            strides=tuple((strides or {}).get(uid, row_major(dims))),
        )
        for uid, dims in shapes.items()
    )  # fmt: skip
    attributes = CustomOpAttributes(
        custom_op_id=kernel, input_tensor_uids=tuple(uid for uid in shapes if uid != 100), output_tensor_uids=(100,)
    )
    graph = WireGraph(
        name=kernel, compute_data_type=DataType.FLOAT, intermediate_data_type=DataType.FLOAT,
        io_data_type=DataType.FLOAT, tensors=tensors, nodes=(WireNode(name=kernel, attributes=attributes),),
    )  # fmt: skip
    return encode_graph(graph)


@dataclass
class FakePlan:
    """Runs a kernel on host memory. Fills its workspace with rubbish, as a real one may."""

    graph: bytes
    workspace_size: int = 0
    runs: int = 0
    closed: bool = False
    packs: list[dict[int, int]] = field(default_factory=list)

    def execute(
        self,
        pack: Mapping[int, int],
        *,
        workspace: int = 0,
        stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:
        graph = decode_graph(self.graph)
        self.runs += 1
        self.packs.append(dict(pack))
        attributes = graph.nodes[0].attributes
        assert isinstance(attributes, CustomOpAttributes)
        if self.workspace_size:
            host_array(workspace, View(0, 0, (self.workspace_size,), (1,), "uint8"))[:] = 0xCC
        arrays = {tensor.uid: self._array(tensor, pack[tensor.uid]) for tensor in graph.tensors}
        result = KERNELS[attributes.custom_op_id](*(arrays[uid].copy() for uid in attributes.input_tensor_uids))
        arrays[attributes.output_tensor_uids[0]][...] = result

    @staticmethod
    def _array(tensor: WireTensor, address: int) -> Array:
        assert address % 64 == 0
        dtype = next(name for name, data_type in DTYPES.items() if data_type == tensor.data_type)
        return host_array(address, View(0, 0, tensor.dims, tensor.strides, dtype))

    def serialize(self) -> bytes:
        return json.dumps({"graph": self.graph.hex(), "workspace": self.workspace_size}).encode()

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeEngine:
    """An engine for one target."""

    name: str = "FAKE_ENGINE"
    target: str = "cpu"
    workspace: int = 0

    @property
    def id(self) -> EngineId:
        return engine_id(self.name)

    def support(self, graph: bytes) -> Support:
        return Support.yes()

    def details(self, graph: bytes) -> EngineDetails:
        return EngineDetails(engine_id=self.id)

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        return self.workspace

    def build(self, graph: bytes, config: EngineConfig) -> FakePlan:
        return FakePlan(graph, self.workspace)

    def restore(self, payload: bytes) -> FakePlan:
        try:
            document = json.loads(payload)
            return FakePlan(bytes.fromhex(document["graph"]), document["workspace"])
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise EngineError(self.name, f"the payload is damaged: {error}") from error


@dataclass(frozen=True)
class FakeGraph:
    """What the passes say of a compiled graph."""

    name: str
    wire: bytes
    plan: FakePlan
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...] = (100,)
    nodes: tuple[str, ...] = ("node",)
    arranged: frozenset[int] = frozenset()
    engine: FakeEngine = field(default_factory=FakeEngine)
    varies: bool = False


def compiled(name: str, data: bytes, *, workspace: int = 0, plan: FakePlan | None = None) -> FakeGraph:
    uids = tuple(tensor.uid for tensor in decode_graph(data).tensors if tensor.uid != 100)
    return FakeGraph(name, data, plan or FakePlan(data, workspace), uids)


class GuardedMemory(HostMemory):
    """Host memory that counts allocations, with a guard behind each that must stay as it is."""

    _GUARD = b"\xa5" * 64

    def __init__(self) -> None:
        super().__init__()
        self.allocated: dict[int, int] = {}
        self.writes = 0

    def allocate(self, size: int) -> Buffer:
        made = super().allocate(size + len(self._GUARD))
        super().write(made.address, b"\xcc" * size + self._GUARD)
        self.allocated[made.address] = size
        return made

    def write(self, address: int, data: Data) -> None:
        self.writes += 1
        super().write(address, data)

    def check(self) -> None:
        for address, size in self.allocated.items():
            assert self.read(address + size, len(self._GUARD)) == self._GUARD, "something wrote behind its memory"
