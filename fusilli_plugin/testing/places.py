"""Where a graph runs in a test: a device, an emulated chip, an engine of hipDNN's, with this or another compiler."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from fusilli_plugin.emulator import Emulator
from fusilli_plugin.engine import FusilliEngine
from fusilli_plugin.engine.importers import export_graph
from fusilli_plugin.testing.compilers import Compiler
from graph_api import FusilliError, Graph, NotSupportedError, TensorAttr
from hipdnn_backend import CudaMemory, HipMemory, Host, HostMemory, Registry
from hipdnn_backend.device.memory import Memory
from hipdnn_backend.errors import EngineError
from hipdnn_backend.plugins.search import LoadingMode
from hipdnn_backend.wire import encode_graph
from iree_bridge import Device, Executable, Options, Target, build, support

__all__ = ["Arrays", "DevicePlace", "EmulatedPlace", "EnginePlace", "Place", "place"]

Arrays = dict[TensorAttr, np.ndarray[Any, Any]]


class Place(ABC):
    """Somewhere that graphs run."""

    @abstractmethod
    def __str__(self) -> str: ...

    @abstractmethod
    def declines(self, graph: Graph) -> str:
        """Why a graph is not served here; "" if it is."""

    @abstractmethod
    def run(self, graph: Graph, inputs: Arrays) -> Arrays:
        """The values of the results of a graph.

        Raises:
            FusilliError: it is declined, does not compile, or does not run.
        """


def place(
    device: str | None = None,
    *,
    emulate: str | None = None,
    engine: str | os.PathLike[str] | None = None,
    compiler: str | os.PathLike[str] | None = None,
    options: Options | None = None,
) -> Place:
    """A place by the names that users give.

    Args:
        device: e.g. ``cpu``, ``hip:0``; default: ``FUSILLI_DEVICE``, by default ``hip``.
        emulate: an AMD chip to emulate instead.
        engine: name of an engine of hipDNN's, or path of an engine plugin; default: our own code, no wire format.
        compiler: path of an ``iree-compile`` that compiles instead of this environment's.
        options: default: ``Options.from_env()``.

    Raises:
        FusilliError: two of them exclude each other, or one is not there.
    """
    options = Options.or_env(options)
    given = {"device": device, "emulate": emulate, "engine": engine, "compiler": compiler}
    _exclude(given, "emulate", "device", "engine", "compiler")
    _exclude(given, "engine", "compiler")
    if emulate is not None:
        return EmulatedPlace(Emulator(Target.parse(emulate), options))
    where = Device.parse(device or options.device)
    if engine is not None:
        return EnginePlace(os.fspath(engine), where, options)
    return DevicePlace(where, options, None if compiler is None else Compiler(compiler))


def _exclude(given: dict[str, Any], name: str, *others: str) -> None:
    for other in others:
        if given[name] is not None and given[other] is not None:
            raise FusilliError(f"{name}={given[name]} and {other}={given[other]} exclude each other")


class DevicePlace(Place):
    """Our own code on a device."""

    def __init__(self, device: Device, options: Options, compiler: Compiler | None = None) -> None:
        self._device, self._options, self._compiler = device, options, compiler

    def __str__(self) -> str:
        return f"{self._device} by {self._compiler}" if self._compiler else str(self._device)

    def declines(self, graph: Graph) -> str:
        answer = support(graph, self._device.target)
        return "" if answer.ok else answer.reason

    def run(self, graph: Graph, inputs: Arrays) -> Arrays:
        results = {tensor: tensor.memory() for tensor in graph.arguments().outputs}
        self._executable(graph).run({**inputs, **results})
        return _values(results)

    def _executable(self, graph: Graph) -> Executable:
        if self._compiler is None:
            return build(graph, self._device, options=self._options)
        support(graph, self._device.target).require()
        code = self._compiler.compile(graph, self._device.target, self._options)
        return Executable(graph.arguments(), code, self._device)


class EmulatedPlace(Place):
    """An AMD chip without one."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def __str__(self) -> str:
        return str(self._emulator)

    def declines(self, graph: Graph) -> str:
        answer = support(graph, self._emulator.target)
        return "" if answer.ok else answer.reason

    def run(self, graph: Graph, inputs: Arrays) -> Arrays:
        return _values(self._emulator.run(graph, inputs)[0])


class EnginePlace(Place):
    """An engine through hipDNN's wire format, in this process."""

    def __init__(self, engine: str, device: Device, options: Options) -> None:
        ours = FusilliEngine(device, options=options)
        if "/" in engine or Path(engine).suffix == ".so":
            self._registry = Registry.find(paths=[engine], mode=LoadingMode.ABSOLUTE, entry_points=False, environ={})
            if len(self._registry.engines) != 1:
                problems = "; ".join(str(problem) for problem in self._registry.problems)
                found = ", ".join(self._registry.names.values()) or "none"
                raise FusilliError(f"{engine}: one engine is needed, it has {found}{problems and f' ({problems})'}")
            self._engine = self._registry.engines[0]
        else:
            self._registry = Registry.find([ours])
            self._engine = self._registry.engine(engine)
        self._device, self._host = device, Host(self._registry, memory=_memory(device))

    def __str__(self) -> str:
        return f"{self._engine.name} on {self._device}"

    def declines(self, graph: Graph) -> str:
        try:
            answer = self._engine.support(encode_graph(export_graph(graph)))
        except (NotSupportedError, EngineError) as error:
            return str(error)
        return "" if answer else answer.reason or f"{self._engine.name} gives no reason"

    def run(self, graph: Graph, inputs: Arrays) -> Arrays:
        memory, outputs = self._host.memory, graph.arguments().outputs
        with contextlib.ExitStack() as stack:
            buffers = {
                tensor: stack.enter_context(memory.allocate(tensor.nbytes))
                for tensor in (*outputs, *inputs)
                if not tensor.is_pass_by_value
            }
            for tensor, buffer in buffers.items():
                buffer.write(tensor.pack(inputs[tensor]) if tensor in inputs else bytes(tensor.nbytes))
            pack = {tensor.uid: buffers.get(tensor, inputs.get(tensor)) for tensor in (*outputs, *inputs)}
            plan = stack.enter_context(self._host.build(encode_graph(export_graph(graph)), engine=self._engine.id))
            plan.execute(pack)
            memory.synchronize()
            raw = {tensor: np.frombuffer(buffers[tensor].read(), np.uint8) for tensor in outputs}
            return {tensor: tensor.unpack(found) for tensor, found in raw.items()}


def _values(results: Arrays) -> Arrays:
    """Results as elements, where elements of less than a byte are still memory."""
    return {tensor: tensor.unpack(found) if tensor.data_type.is_packed else found for tensor, found in results.items()}


def _memory(device: Device) -> Memory:
    if device.kind == "cpu":
        return HostMemory()
    return (CudaMemory if device.kind == "cuda" else HipMemory)(device.index)
