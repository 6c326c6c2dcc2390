"""An engine whose plans run in the emulator: models are offloaded to it as to a chip, their buffers are the host's."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from fusilli_plugin.emulator import Emulator
from fusilli_plugin.engine.engine import FusilliEngine
from fusilli_plugin.engine.importers import import_graph
from graph_api import TensorAttr
from hipdnn_backend.engine import EngineId, Override, Support, engine_id
from hipdnn_backend.errors import EngineError
from hipdnn_backend.wire import EngineConfig, EngineDetails, decode_graph

__all__ = ["EmulatedEngine"]

Array = np.ndarray[Any, Any]


class EmulatedPlan:
    """A graph and the emulator that runs it."""

    workspace_size = 0

    def __init__(self, emulator: Emulator, graph: bytes) -> None:
        self._emulator = emulator
        self._graph = import_graph(decode_graph(graph))
        self._graph.validate()

    def execute(
        self, pack: Mapping[int, int], *, workspace: int = 0, stream: int = 0,
        overrides: Mapping[int, Override] | None = None,
    ) -> None:  # fmt: skip
        taken = {tensor: _taken(tensor, pack[tensor.uid]) for tensor in self._graph.arguments().inputs}
        results, _ = self._emulator.run(self._graph, taken)
        for tensor, value in results.items():
            _memory(tensor, pack[tensor.uid])[...] = value

    def serialize(self) -> bytes:
        raise EngineError("serialize", "an emulated plan is for one process")

    def close(self) -> None: ...


class EmulatedEngine:
    """Claims what Fusilli claims for a chip.

    Args:
        chip: of `fusilli_plugin.emulator.CHIPS`.
    """

    def __init__(self, chip: str) -> None:
        self.name = f"EMULATED_{chip.upper()}"
        self.id: EngineId = engine_id(self.name)
        self.built = 0
        self._asked = FusilliEngine("cpu").for_target(chip)
        self._emulator = Emulator(chip)

    def support(self, graph: bytes) -> Support:
        return self._asked.support(graph)

    def details(self, graph: bytes) -> EngineDetails:
        return EngineDetails(engine_id=self.id)

    def workspace_size(self, graph: bytes, config: EngineConfig) -> int:
        return 0

    def build(self, graph: bytes, config: EngineConfig) -> EmulatedPlan:
        self.built += 1
        return EmulatedPlan(self._emulator, graph)

    def restore(self, payload: bytes) -> EmulatedPlan:
        raise EngineError("restore", "an emulated plan is for one process")


def _memory(tensor: TensorAttr, address: int) -> Array:
    """The elements of a tensor that lies at an address."""
    dtype = tensor.empty().dtype
    count = 1 + sum((dim - 1) * stride for dim, stride in zip(tensor.dims, tensor.strides, strict=True))
    flat = np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype)
    return np.lib.stride_tricks.as_strided(flat, tensor.dims, [each * dtype.itemsize for each in tensor.strides])


def _taken(tensor: TensorAttr, address: int) -> Array:
    """A copy of what lies there."""
    array = tensor.empty()
    array[...] = _memory(tensor, address)
    return array
